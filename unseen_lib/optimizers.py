"""What updates the weights: learning rates, their schedules, and the optimizers.

W_E may have an optimizer of its own, because Adam has a part in the collapse: the rows of names that never
occur get nearly the same tiny gradient, and Adam, which divides each entry by its own second moment, turns
it into a full-size step that all these rows share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from unseen_lib.embeddings import embedding_matrices
from unseen_lib.errors import ConfigError
from unseen_lib.model import GPT

HIDDEN_OPTIMIZERS = ("adamw", "muon")
EMBEDDING_OPTIMIZERS = ("adamw", "coupled_adam", "sgd")
SCHEDULES = ("cosine", "stable_decay", "constant")


@dataclass(frozen=True)
class OptimizerConfig:
    """Learning rates and what goes with them. The defaults are the paper's (arXiv:2604.21632).

    Parameters
    ----------
    hidden : {"adamw", "muon"}
        What updates the matrices inside the blocks. Gains are always updated by AdamW.
    embedding : {"adamw", "coupled_adam", "sgd"}
        What updates W_E (and the unembedding of an untied model). :class:`CoupledAdam` takes AdamW's rates.
        SGD has momentum 0.9 and needs a rate of its own, some hundred times Adam's; its decay is an L2
        penalty in the gradient, as in the paper's lemma, so momentum makes rate and decay act tenfold.
    hidden_rate, gain_rate, embedding_rate : float
        Peak learning rates of the hidden matrices, the LayerNorm gains and W_E.
    schedule, embedding_schedule : {"cosine", "stable_decay", "constant"}
        What the rate does after the warm-up; W_E may have one of its own. ``stable_decay`` stays at the peak
        and falls in a line over the last ``decay_share`` of the run. Both end at ``final_factor``.
    warmup_steps : int
        Steps over which the rate rises in a line from ``initial_factor`` of the peak.
    betas, eps : Adam's.
    weight_decay : float
        Decoupled decay of every matrix; gains are never decayed.
    embedding_decay : float, optional
        That of W_E, if it is another one; 0 drops it.
    clip : float
        Largest norm of the whole gradient.
    """

    hidden: str = "adamw"
    embedding: str = "adamw"
    hidden_rate: float = 1e-4
    gain_rate: float = 1e-4
    embedding_rate: float = 1e-4
    schedule: str = "cosine"
    embedding_schedule: str = "cosine"
    warmup_steps: int = 2000
    initial_factor: float = 0.1
    final_factor: float = 0.1
    decay_share: float = 0.3
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 1e-3
    embedding_decay: float | None = None
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (
            ("hidden", HIDDEN_OPTIMIZERS),
            ("embedding", EMBEDDING_OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("embedding_schedule", SCHEDULES),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        for name in ("hidden_rate", "gain_rate", "embedding_rate", "clip", "eps", "decay_share"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 and finite")
        for name in ("weight_decay", "embedding_decay", "warmup_steps"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name}={value} must be 0 or more and finite")
        for name in ("initial_factor", "final_factor", "decay_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas} must be two numbers from 0 to below 1")


def schedule_factor(schedule: str, step: int, steps: int, config: OptimizerConfig) -> float:
    """What the peak learning rate is multiplied by at ``step`` (counted from 0) of ``steps``."""
    if step < config.warmup_steps:
        return config.initial_factor + (1 - config.initial_factor) * (step + 1) / config.warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
        return config.final_factor + (1 - config.final_factor) * 0.5 * (1 + math.cos(math.pi * done))
    return min(1.0, max(config.final_factor, (1 - step / steps) / config.decay_share))


class CoupledAdam(torch.optim.Optimizer):
    """AdamW for an embedding matrix, with one second moment for all rows (Stollenwerk & Stollenwerk 2025).

    The second moment of each column is averaged over the vocabulary, so that a row with tiny gradients makes
    tiny steps. Everything else is AdamW: the momentum of each row, bias correction, decoupled decay.

    Parameters
    ----------
    params : iterable
        Matrices (V, D), or groups of them.
    lr, betas, eps, weight_decay
        As for ``torch.optim.AdamW``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever given
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(matrix)  # (V, D)
                    state["exp_avg_sq"] = torch.zeros_like(matrix[:1])  # (1, D)
                state["step"] += 1
                step = state["step"].item()
                # The average of running averages is the running average of the averages.
                square = matrix.grad.square().mean(dim=0, keepdim=True)
                state["exp_avg"].lerp_(matrix.grad, 1 - beta1)
                state["exp_avg_sq"].lerp_(square, 1 - beta2)
                size = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.addcdiv_(state["exp_avg"], size, value=-group["lr"] / (1 - beta1**step))


def build_optimizers(model: GPT, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of a run: every weight that asks for gradients is in one of them, once.

    Every group carries its peak rate and its schedule.
    """
    embeddings = {id(matrix) for matrix in embedding_matrices(model)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = [parameter for parameter in trained if id(parameter) in embeddings]
    gains = [parameter for parameter in trained if parameter.ndim == 1]
    hidden = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in embeddings]
    return optimizers_of(rows, gains, hidden, config)


def optimizers_of(
    rows: list[torch.nn.Parameter],
    gains: list[torch.nn.Parameter],
    hidden: list[torch.nn.Parameter],
    config: OptimizerConfig,
) -> list[torch.optim.Optimizer]:
    """What :func:`build_optimizers` makes of embedding matrices, gains and hidden matrices, of any model."""

    def group(
        parameters: list[torch.nn.Parameter], rate: float, decay: float, schedule: str
    ) -> dict[str, Any]:
        return {
            "params": parameters,
            "lr": rate,
            "peak": rate,
            "weight_decay": decay,
            "schedule": schedule,
        }

    decay = config.weight_decay if config.embedding_decay is None else config.embedding_decay
    rows_group = group(rows, config.embedding_rate, decay, config.embedding_schedule)
    adamw = [group(gains, config.gain_rate, 0.0, config.schedule)]
    if rows and config.embedding == "adamw":
        adamw.append(rows_group)
    hidden_group = group(hidden, config.hidden_rate, config.weight_decay, config.schedule)
    if config.hidden == "adamw":
        adamw.append(hidden_group)
    # The fused kernel updates a whole group in one call, which at small widths is most of the cost.
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(adamw, betas=config.betas, eps=config.eps, fused=True)
    ]
    if config.hidden == "muon":
        # adjust_lr_fn="original" is Jordan's scale, max(1, rows / columns) ** 0.5.
        optimizers.append(
            torch.optim.Muon([hidden_group], momentum=0.95, nesterov=True, adjust_lr_fn="original")
        )
    if rows and config.embedding == "coupled_adam":
        optimizers.append(CoupledAdam([rows_group], betas=config.betas, eps=config.eps))
    if rows and config.embedding == "sgd":
        optimizers.append(torch.optim.SGD([rows_group], momentum=0.9))
    return optimizers


def update(optimizers: list[torch.optim.Optimizer], step: int, steps: int, config: OptimizerConfig) -> None:
    """Take one step of a run, each group at the rate of its schedule, and drop the gradients."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * schedule_factor(group["schedule"], step, steps, config)
        optimizer.step()
        optimizer.zero_grad()
