"""Several seeds of one configuration: trained together as one stacked model, or one after another.

Together, a step is ``torch.func.vmap`` over the stacked weights of S models and their S batches, one AdamW
for all of them and Muon on stacks of matrices. Both ways do the same updates, which is checked. Run it as
``python -m tools.bench_seeds``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unseen_lib.experiments import preset
from unseen_lib.model import GPT
from unseen_lib.optimizers import OptimizerConfig, build_optimizers
from unseen_lib.problems import IGNORE, Batch, sample_batch
from unseen_lib.training import TrainConfig, loss_of

ROUNDS = 12
SEEDS = 5


class LossAt(nn.Module):
    """A model's loss at given positions: as many in every batch, since a stack can have no ragged side."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over ``targets`` (B, C), which stand at ``positions`` (B, C) of the tokens."""
        features = self.model.features(tokens)  # (B, T, D)
        chosen = features.gather(1, positions[..., None].expand(-1, -1, features.shape[-1]))
        return F.cross_entropy(
            self.model.unembed(chosen).flatten(0, 1), targets.flatten(), ignore_index=IGNORE
        )


def positions_with_a_target(batch: Batch, count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` positions (B, C) from the first target of each row on, and their targets (B, C)."""
    first = (batch.targets != IGNORE).int().argmax(1)
    positions = (first[:, None] + torch.arange(count)).clamp(max=batch.targets.shape[1] - 1)
    beyond = first[:, None] + torch.arange(count) >= batch.targets.shape[1]
    return positions, batch.targets.gather(1, positions).masked_fill(beyond, IGNORE)


class StackedMuon:
    """Muon as ``torch.optim.Muon`` does it, at a constant rate, on stacks of matrices (S, rows, columns)."""

    def __init__(self, weights: list[Tensor], rate: float, decay: float) -> None:
        self.weights, self.rate, self.decay = weights, rate, decay
        self.momenta = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        for weight, momentum in zip(self.weights, self.momenta, strict=True):
            assert weight.grad is not None
            momentum.lerp_(weight.grad, 0.05)
            x = weight.grad.lerp(momentum, 0.95).bfloat16()
            tall = weight.shape[1] > weight.shape[2]
            x = x.mT if tall else x
            x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
            for _ in range(5):  # Newton and Schulz, with Jordan's coefficients
                gram = x @ x.mT
                x = torch.baddbmm(
                    x, torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445
                )
            weight.mul_(1 - self.rate * self.decay)
            scale = max(1.0, weight.shape[1] / weight.shape[2]) ** 0.5
            weight.add_(x.mT if tall else x, alpha=-self.rate * scale)


def stacked_step(config: OptimizerConfig, models: list[GPT], batches: list[Batch]) -> Callable[[], Tensor]:
    """One training step of all models together; returns their losses (S,)."""
    length = max(batch.tokens.shape[1] for batch in batches)
    count = max(int((batch.targets != IGNORE).sum(1).max()) for batch in batches)
    tokens = torch.stack([F.pad(b.tokens, (0, length - b.tokens.shape[1])) for b in batches])  # (S, B, T)
    positions, targets = (
        torch.stack(parts)
        for parts in zip(*(positions_with_a_target(b, count) for b in batches), strict=True)
    )  # (S, B, C) each
    losses = [LossAt(model) for model in models]
    weights, buffers = stack_module_state(losses)
    one = LossAt(models[0])
    together = vmap(lambda w, *data: functional_call(one, (w, buffers), data))

    gains = [weight for weight in weights.values() if weight.ndim == 2]
    rows = [weight for name, weight in weights.items() if name.endswith("embedding")]
    hidden = [
        weight for name, weight in weights.items() if weight.ndim == 3 and not name.endswith("embedding")
    ]
    adamw = torch.optim.AdamW(
        [
            {"params": gains, "lr": config.gain_rate, "weight_decay": 0.0},
            {"params": rows, "lr": config.embedding_rate, "weight_decay": config.weight_decay},
        ],
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
    muon = StackedMuon(hidden, config.hidden_rate, config.weight_decay)

    def step() -> Tensor:
        for weight in weights.values():
            weight.grad = None
        each: Tensor = together(weights, tokens, positions, targets)
        each.sum().backward()
        adamw.step()
        muon.step()
        return each.detach()

    return step


def one_after_another(
    config: OptimizerConfig, models: list[GPT], batches: list[Batch]
) -> Callable[[], Tensor]:
    """The same as training does it, a model at a time."""
    optimizers = [build_optimizers(model, config) for model in models]

    def step() -> Tensor:
        each = []
        for model, batch, its_optimizers in zip(models, batches, optimizers, strict=True):
            value = loss_of(model, batch)
            value.backward()
            for optimizer in its_optimizers:
                optimizer.step()
                optimizer.zero_grad()
            each.append(value.detach())
        return torch.stack(each)

    return step


def compare(config: TrainConfig, device: str) -> None:
    """Print the time of a step of each way, and how much faster than one by one it is."""
    models = [GPT(config.model, torch.Generator().manual_seed(seed)).to(device) for seed in range(SEEDS)]
    batches = [
        sample_batch(
            config.task, config.vocabulary, batch_size=config.batch_size, seed=seed, index=0, device=device
        )
        for seed in range(SEEDS)
    ]
    stacked, with_plain_kernel = (stacked_step(config.optimizer, models, batches) for _ in range(2))

    def stacked_math() -> Tensor:
        # The fast attention kernel of the CPU has no batching rule, so vmap runs it seed by seed.
        with sdpa_kernel(SDPBackend.MATH):
            return with_plain_kernel()

    ways = {
        "together": stacked,
        "together, plain attention kernel": stacked_math,
        "one by one": one_after_another(config.optimizer, models, batches),  # changes the models: last
    }
    for _ in range(3):  # the same losses before an update and after each
        *others, wanted = (step() for step in ways.values())
        for losses in others:
            torch.testing.assert_close(losses, wanted, rtol=0.01, atol=0.01)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):  # in turn, so that a busy moment of the machine hits all alike
        for way, step in ways.items():
            began = time.perf_counter()
            step().cpu()
            times[way].append(time.perf_counter() - began)
    print(f"{device}, {torch.get_num_threads()} thread(s), {SEEDS} seeds")
    for way, seconds in times.items():
        ratio = median(times["one by one"]) / median(seconds)
        print(f"  {way:<34}{1e3 * median(seconds):>7.0f} ms{ratio:>7.2f}x")


def main() -> None:
    """Compare at the cpu scale on one and two threads, and on a GPU where there is one."""
    warnings.filterwarnings("ignore", "There is a performance drop")  # that is what is measured
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for copy in (False, True):
            print("with copy attention" if copy else "plain", end=", ")
            compare(preset("cpu", copy=copy), "cpu")
    if torch.cuda.is_available():
        compare(preset("cpu"), "cuda")


if __name__ == "__main__":
    main()
