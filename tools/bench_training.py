"""How fast training is: beside other libraries at the same widths, and what making the batches adds to it.

Run it as ``python -m tools.bench_training``. It needs the extra ``bench`` (transformers, x-transformers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen_lib.experiments import preset
from unseen_lib.model import GPT, GPTConfig, count_parameters
from unseen_lib.optimizers import build_optimizers
from unseen_lib.problems import IGNORE, Batch, sample_batch
from unseen_lib.training import TrainConfig, loss_of

ROUNDS = 20
PAPER_ROWS = 4  # of the paper's 256, so that a step fits in the memory and the patience of a laptop


@dataclass
class Contender:
    """A model, its loss on the batch, and the seconds that its steps took."""

    name: str
    model: nn.Module
    loss: Callable[[], Tensor]
    backward: list[float] = field(default_factory=list)  # forward and backward
    whole: list[float] = field(default_factory=list)  # the optimizer too

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self) -> None:
        began = time.perf_counter()
        torch.autograd.backward(self.loss())
        self.backward.append(time.perf_counter() - began)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.whole.append(time.perf_counter() - began)


# ------------------------------------------------------------------------------------------- beside the peers
def contenders(config: GPTConfig, batch: Batch) -> list[Contender]:
    """Ours and two peers of the same widths; each peer also with our saving, logits where the loss looks."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from x_transformers import Decoder, TransformerWrapper

    counted, targets = batch.targets != IGNORE, batch.targets
    ours = GPT(config)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            # Its MLP has three matrices, not two: two thirds of our width make it the same size.
            intermediate_size=2 * config.mlp_width // 3,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            head_dim=config.head_size,
            hidden_act="gelu",
            tie_word_embeddings=True,
            use_cache=False,
        )
    )  # its attention is scaled_dot_product_attention by default
    xt = TransformerWrapper(
        num_tokens=config.vocab_size,
        max_seq_len=config.context,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=Decoder(
            dim=config.width,
            depth=config.layers,
            heads=config.heads,
            attn_dim_head=config.head_size,
            ff_mult=config.mlp_width / config.width,
            ff_no_bias=True,
            rotary_pos_emb=True,
            attn_flash=True,  # scaled_dot_product_attention
        ),
    )

    def everywhere(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)

    def where_the_loss_looks(unembed: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        return F.cross_entropy(unembed(features[counted]), targets[counted])

    return [
        Contender("ours", ours, lambda: loss_of(ours, batch)),
        Contender("Llama (transformers)", llama, lambda: everywhere(llama(input_ids=batch.tokens).logits)),
        Contender("x-transformers", xt, lambda: everywhere(xt(batch.tokens))),
        Contender(
            "Llama, our saving",
            llama,
            lambda: where_the_loss_looks(llama.lm_head, llama.model(input_ids=batch.tokens)[0]),
        ),
        Contender(
            "x-transformers, our saving",
            xt,
            lambda: where_the_loss_looks(xt.to_logits, xt(batch.tokens, return_embeddings=True)),
        ),
    ]


def compare(config: TrainConfig, threads: int) -> float:
    """Print tokens a second of each contender; return ours over the faster peer as it comes, fwd + bwd."""
    torch.set_num_threads(threads)
    batch = draw(config, 0)
    # The same attention for all: our local window in layer 0 has no counterpart in the peers.
    entrants = contenders(replace(config.model, local_window=None), batch)
    for entrant in entrants * 3:
        entrant.step()  # warm-up
    for entrant in entrants:
        entrant.backward.clear()
        entrant.whole.clear()
    for _ in range(ROUNDS):  # in turn, so that a busy moment of the machine hits all alike
        for entrant in entrants:
            entrant.step()

    tokens = batch.tokens.numel()
    ours = entrants[0]
    print(
        f"\n{threads} thread{'s' * (threads > 1)}, {batch.tokens.shape[0]} x {batch.tokens.shape[1]} tokens"
    )
    print(
        f"{'tokens a second':<28}{'weights':>9}{'fwd + bwd':>12}{'ours is':>10}{'+ AdamW':>12}{'ours is':>10}"
    )
    for entrant in entrants:
        row = f"{entrant.name:<28}{count_parameters(entrant.model):>9,}"
        for mine, theirs in ((ours.backward, entrant.backward), (ours.whole, entrant.whole)):
            row += f"{tokens / median(theirs):>12,.0f}{median(theirs) / median(mine):>9.2f}x"
        print(row)
    return min(median(peer.backward) for peer in entrants[1:3]) / median(ours.backward)


# ----------------------------------------------------------------------------------------- the batches' share
def draw(config: TrainConfig, index: int) -> Batch:
    return sample_batch(
        config.task, config.vocabulary, batch_size=config.batch_size, seed=config.seed, index=index
    )


def seconds_of(config: TrainConfig, rounds: int, rows: int) -> tuple[float, float, float, float]:
    """Median seconds of drawing a batch, of forward and backward on its first rows, and of the update.

    The fourth number is the mean tokens of a whole batch.
    """
    model = GPT(config.model)
    optimizers = build_optimizers(model, config.optimizer)
    times, tokens = [], 0
    for index in range(rounds + 1):
        began = time.perf_counter()
        batch = draw(config, index)
        drawn = time.perf_counter()
        part = replace(batch, tokens=batch.tokens[:rows], targets=batch.targets[:rows])
        torch.autograd.backward(loss_of(model, part))
        learned = time.perf_counter()
        nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        updated = time.perf_counter()
        if index:  # the first one is warm-up
            times.append((drawn - began, learned - drawn, updated - learned))
            tokens += batch.tokens.numel()
    drawing, learning, updating = (median(each) for each in zip(*times, strict=True))
    return drawing, learning, updating, tokens / rounds


def share_at_cpu_scale(threads: int) -> None:
    torch.set_num_threads(threads)
    config = preset("cpu")
    drawing, learning, updating, _ = seconds_of(config, ROUNDS, config.batch_size)
    step = drawing + learning + updating
    print(
        f"cpu scale, {threads} thread(s): {1e3 * step:.1f} ms a step, of which {1e3 * drawing:.2f} ms draw "
        f"the batch ({drawing / step:.1%}) and {1e3 * updating:.1f} ms are the optimizers'"
    )


def share_at_paper_size(threads: int) -> None:
    """The paper's step is not run: one of a few rows is, its forward and backward scaled in proportion."""
    torch.set_num_threads(threads)
    config = preset("paper")
    drawing, learning, updating, tokens = seconds_of(config, 1, PAPER_ROWS)
    step = drawing + learning * config.batch_size / PAPER_ROWS + updating
    print(
        f"paper size, {threads} thread(s): about {step:,.0f} s a step of {tokens:,.0f} tokens on this CPU, "
        f"of which {1e3 * drawing:.0f} ms draw the batch ({drawing / step:.2%}); forward and backward are "
        f"extrapolated from {learning:.1f} s for {PAPER_ROWS} of {config.batch_size} rows"
    )
    # Forward and backward take about six operations a weight and token, attention not counted.
    rate = 6 * count_parameters(GPT(config.model)) * tokens / (drawing / 0.05)
    print(f"  (drawing would be 5 % of it on a device that trains at {rate / 1e12:,.0f} TFLOP/s)")


def main() -> None:
    """Print tokens a second beside the peers, then what making the batches adds to a step."""
    ratios = [compare(preset("cpu"), threads) for threads in (1, 2)]
    print(f"\nours over the faster peer: {' and '.join(f'{ratio:.2f}' for ratio in ratios)} times\n")
    for threads in (1, 2):
        share_at_cpu_scale(threads)
    share_at_paper_size(2)


if __name__ == "__main__":
    main()
