"""Fine-tune a published language model on the logic task, with symbols that are chosen tokens of it.

The paper fine-tuned Gemma 3 1B IT with 80 single tokens as symbols: adjectives, letters, or tokens that no
text uses. Problems are those of the course (`unseen_lib.problems`), spelled in the tokens of the model by a
table. What the paper states is the default of :class:`FinetuneConfig`. It states neither a warm-up nor a
clipping of gradients, so there is none.

Memory decides where this runs. AdamW keeps a gradient and two moments beside each trained weight: 16 bytes a
weight in float32, or 16 GB for all of Gemma 3 1B. Two variants train less and depart from the paper:

- ``"embeddings"`` trains the embedding table, all of its rows, and the unembedding where it is a table of its
  own. Whatever reads the rows stays as it was published: the rows have to come to it.
- ``"lora"`` trains low-rank additions to the linear maps of attention and MLP (Hu et al. 2022). The table
  stays as it was published: rows that have collapsed stay collapsed, and the maps have to tell them apart.

Weights are float32 throughout, and only arithmetic is bfloat16, on a GPU made for it. A bfloat16 weight has 8
significant bits: a step of 5e-5 added to a weight of 0.03 is rounded away, and nothing would be learned.
float16 is never used: Gemma overflows in it.

Shapes: B problems, T tokens, N positions with a target, V tokens of the vocabulary, D width.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unseen_lib.checkpoint import load_checkpoint, read_state, save_checkpoint
from unseen_lib.errors import CheckpointError, ConfigError, PretrainedError
from unseen_lib.language import CONTROL_WORDS, PAD
from unseen_lib.problems import IGNORE, Batch, Task, sample_batch
from unseen_lib.training import NonFiniteLoss, choose_device, peak_memory_mb, progress_bar
from unseen_lib.vocabulary import Vocabulary

#: Which weights are trained.
TRAIN = ("all", "embeddings", "lora")
CHECKPOINT = "finetune.safetensors"
#: The task of the paper's fine-tuning.
PAPER_TASK = Task(family="rule_priority", format="full")
LOGITS = 2**26  # at most so many at once: 256 positions of Gemma's 262,144 tokens, 268 MB


# ------------------------------------------------------------------------------------------------- settings
@dataclass(frozen=True)
class Symbols:
    """How problems are spelled in the tokens of a model.

    Parameters
    ----------
    words : dict of str to tuple of int
        The ids of each control word of the task's format; one word may take several tokens.
    names : tuple of int
        One id for each symbol.

    Raises
    ------
    ConfigError
        If a word or name is missing, or an id is there twice or is no id.
    """

    words: Mapping[str, tuple[int, ...]]
    names: tuple[int, ...]

    def __post_init__(self) -> None:
        pieces = {token for spelled in self.words.values() for token in spelled}
        if not self.names or min(*self.names, *pieces, 0) < 0:
            raise ConfigError("names and words must be ids from 0 up, and at least one name")
        if len(self.words.get(PAD, ())) != 1:
            raise ConfigError(f"words must give {PAD!r} one id")
        if len(set(self.names)) < len(self.names):
            twice = next(token for token in self.names if self.names.count(token) > 1)
            raise ConfigError(f"names has the id {twice} twice; give each symbol a token of its own")
        if shared := pieces.intersection(self.names):
            raise ConfigError(
                f"names has the id {min(shared)}, which is part of a control word; leave that symbol out"
            )


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything that decides a run, apart from model, symbols and machine. Defaults are the paper's.

    Parameters
    ----------
    task : Task
        The paper's is ``PAPER_TASK``.
    steps : int
        Updates. The rate is constant, so a run can be gone on with to more steps.
    batch_size, rate, betas, epsilon, decay : optional
        Of AdamW.
    problems : int
        Held-out problems that are measured.
    train : {"all", "embeddings", "lora"}
        What is trained; the last two depart from the paper (see the top of this module).
    rank : int
        Of the additions of ``"lora"``.
    micro_batch : int, optional
        Problems that are in memory at once. The update is that of the whole batch, up to rounding. If left
        out, as many as the memory estimate allows.
    checkpointing : bool, optional
        Compute activations again in the backward pass: a third more time, far less memory. If left out, only
        where not even one problem fits without.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    task: Task
    steps: int
    batch_size: int = 128
    rate: float = 5e-5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 1e-4
    seed: int = 0
    problems: int = 512
    train: str = "all"
    rank: int = 16
    micro_batch: int | None = None
    checkpointing: bool | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "problems", "rank", "micro_batch", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            left_out = name == "micro_batch" and value is None
            if not left_out and not (isinstance(value, int) and value >= least):
                raise ConfigError(f"{name}={value!r} must be a whole number from {least} up")
        for name in ("rate", "epsilon", "decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0) or (value == 0 and name == "rate"):
                raise ConfigError(f"{name}={value!r} must be a positive number")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas!r} must be two numbers from 0 to below 1")
        if self.train not in TRAIN:
            raise ConfigError(f"train={self.train!r} is unknown; use one of {', '.join(map(repr, TRAIN))}")


@dataclass
class FinetuneRun:
    """What was seen on the way. The model itself was trained in place.

    Attributes
    ----------
    curve : list of dict
        One entry a measurement, on held-out problems: ``step``, ``loss`` (nats a token of the completion),
        ``exact_match`` and ``answer_accuracy``, see :func:`measure`.
    seconds : float
        Wall time of the training steps, over all parts of a resumed run.
    device, dtype, reason : str
        Where it ran, the type of its arithmetic, and why.
    parameters : int
        How many weights were trained.
    peak_memory_mb : float or None
        As in `unseen_lib.training.Run`.
    """

    config: FinetuneConfig
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    device: str = ""
    dtype: str = ""
    reason: str = ""
    parameters: int = 0
    peak_memory_mb: float | None = None


def steps_to(curve: list[dict[str, Any]], level: float = 0.9, key: str = "exact_match") -> int | None:
    """The first measured step at which ``key`` is at or above ``level``, or None if there is none."""
    return next((point["step"] for point in curve if point[key] >= level), None)


# ------------------------------------------------------------------------------------------------- problems
@dataclass(frozen=True)
class Problems:
    """Problems in a model's tokens, padded at the right, the shortest first.

    Attributes
    ----------
    tokens : Tensor, (B, T)
    mask : Tensor of bool, (B, T)
        False on padding.
    targets : Tensor, (B, T)
        What follows each token; ``IGNORE`` outside the completion.
    answer : Tensor of bool, (B, T)
        Which of the targets are the answer, yes or no.
    """

    tokens: Tensor
    mask: Tensor
    targets: Tensor
    answer: Tensor

    @property
    def counted(self) -> int:
        """Tokens that the loss looks at."""
        return int((self.targets != IGNORE).sum())

    def parts(self, size: int, device: torch.device) -> Iterator[Problems]:
        """At most ``size`` problems at a time, each part no wider than its longest problem, on ``device``."""
        for start in range(0, len(self.tokens), size):
            width = int(self.mask[start : start + size].sum(1).max())
            yield Problems(*(part[start : start + size, :width].to(device) for part in vars(self).values()))


def draw_problems(
    task: Task, symbols: Symbols, *, batch_size: int, seed: int, index: int, stream: str = "train"
) -> Problems:
    """Batch ``index`` of a seed, as `.problems.sample_batch` draws it, in the tokens of a model."""
    vocabulary = Vocabulary(task.format, len(symbols.names), 0)
    batch = sample_batch(task, vocabulary, batch_size=batch_size, seed=seed, index=index, stream=stream)
    return spell(batch, vocabulary, symbols)


def spell(batch: Batch, vocabulary: Vocabulary, symbols: Symbols) -> Problems:
    """Each word of a batch by its tokens.

    Raises
    ------
    ConfigError
        If a control word of the format has no tokens.
    """
    if missing := [word for word in CONTROL_WORDS[vocabulary.format] if word not in symbols.words]:
        raise ConfigError(f"words lacks {missing[0]!r}, a control word of the {vocabulary.format} format")
    spelled = [symbols.words[word] for word in CONTROL_WORDS[vocabulary.format]]
    spelled += [(name,) for name in symbols.names]
    most = max(map(len, spelled))
    table = torch.tensor([[*ids, *[-1] * (most - len(ids))] for ids in spelled])  # (words, most)

    # The words with their last, which a batch has as a target only; row by row: (B, words).
    completion = F.pad(batch.targets != IGNORE, (1, 0))
    words = F.pad(batch.tokens, (0, 1))
    words[completion] = batch.targets[batch.targets != IGNORE]
    length = batch.prompt_length + completion.sum(1)
    pieces = table[words]  # (B, words, most)
    present = (pieces >= 0) & (torch.arange(words.shape[1]) < length[:, None])[..., None]

    count = present.sum((1, 2))
    order = count.argsort(stable=True)  # neighbors of like length waste little on padding
    mask = torch.arange(int(count.max())) < count[:, None]

    def closed(values: Tensor, fill: int | bool) -> Tensor:
        """(B, words, most) -> (B, T): what is present, without the gaps."""
        row = values.new_full(mask.shape, fill)
        row[mask] = values[present]
        return row

    answer = completion & ((words == vocabulary.yes) | (words == vocabulary.no))
    tokens = closed(pieces, symbols.words[PAD][0])
    completed, answered = (
        F.pad(closed(flags[..., None].expand_as(pieces), False), (0, 1))[:, 1:]
        for flags in (completion, answer)
    )  # one place to the left: whether the next token is
    targets = F.pad(tokens, (0, 1))[:, 1:].masked_fill(~completed, IGNORE)
    return Problems(tokens[order], mask[order], targets[order], answered[order])


# --------------------------------------------------------------------------------------------- loss, measures
def features_of(model: Any, problems: Problems) -> tuple[Tensor, Tensor]:
    """The features before the unembedding where there is a target, (N, D), and those targets, (N,)."""
    found = model.get_decoder()(input_ids=problems.tokens, attention_mask=problems.mask, use_cache=False)
    counted = problems.targets != IGNORE
    return found.last_hidden_state[counted], problems.targets[counted]


def logits_of(model: Any, features: Tensor) -> Tensor:
    """(N, D) -> (N, V) in float32, with the soft cap that some configurations ask for."""
    logits: Tensor = model.get_output_embeddings()(features).float()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def loss_of(model: Any, problems: Problems) -> Tensor:
    """Sum of the cross-entropies (nats) over the completions.

    The logits of a batch, (B, T, V), would be tens of gigabytes for Gemma. They are computed where there is a
    target only, a few positions at a time, and again in the backward pass.
    """

    def part_loss(features: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits_of(model, features), targets, reduction="sum")

    features, targets = features_of(model, problems)
    size = _positions(model)
    if len(targets) <= size:
        return part_loss(features, targets)
    total = features.new_zeros((), dtype=torch.float32)
    for part in zip(features.split(size), targets.split(size), strict=True):
        total = total + checkpoint(part_loss, *part, use_reentrant=False, preserve_rng_state=False)
    return total


def _positions(model: Any) -> int:
    return max(1, LOGITS // int(model.get_output_embeddings().weight.shape[0]))


@torch.no_grad()
def measure(model: Any, problems: Problems, micro_batch: int, device: torch.device) -> dict[str, float]:
    """Loss and accuracies, from one forward pass in which the model reads the right completions.

    Returns
    -------
    dict
        - ``loss``: nats a token of the completion.
        - ``exact_match``: share of problems whose whole completion is right, each token the most likely one
          after the right ones before it. That holds exactly when greedy decoding writes this completion, so
          nothing need be generated.
        - ``answer_accuracy``: share of problems whose answer is right *after the right reasoning*. Chance is
          0.5. It is no measure of reasoning: the facts are all restated just before the answer, which is yes
          exactly if the query is among them.
    """
    loss = exact = answered = 0.0
    for part in problems.parts(micro_batch, device):
        features, targets = features_of(model, part)
        right = []
        for some, target in zip(
            features.split(_positions(model)), targets.split(_positions(model)), strict=True
        ):
            logits = logits_of(model, some)
            loss += float(F.cross_entropy(logits, target, reduction="sum"))
            right.append(logits.argmax(1) == target)
        wrong = torch.zeros_like(part.mask)
        wrong[part.targets != IGNORE] = ~torch.cat(right)
        exact += int((~wrong.any(1)).sum())
        answered += int((~(wrong & part.answer).any(1)).sum())
    count = len(problems.tokens)
    return {
        "loss": loss / problems.counted,
        "exact_match": exact / count,
        "answer_accuracy": answered / count,
    }


# ------------------------------------------------------------------------------------------- what is trained
class LowRank(nn.Module):
    """A linear map that stays as it is, plus a trained product of two thin matrices (Hu et al. 2022).

    ``y = W x + 2 up down x``, with ``down`` (rank, in) random and ``up`` (out, rank) zero at the start, so
    that the sum begins as W. The 2 is a usual ratio of their alpha to the rank.
    """

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        down = torch.randn(rank, linear.in_features, generator=generator) / linear.in_features**0.5
        self.linear = linear
        self.down = nn.Parameter(down.to(linear.weight.device))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        """The sum of both maps."""
        y: Tensor = self.linear(x) + 2 * F.linear(F.linear(x, self.down), self.up)
        return y

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The map of the sum, as one matrix."""
        self.linear.weight += 2 * self.up @ self.down
        return self.linear


@contextmanager
def trained_parts(model: Any, config: FinetuneConfig) -> Iterator[dict[str, nn.Parameter]]:
    """The parameters to train, by name; all others are frozen until the end.

    At the end low-rank additions are merged into their maps, and the model is as any other.

    Raises
    ------
    PretrainedError
        If low-rank additions find no linear map.
    """
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    training = model.training
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    wrapped: list[tuple[nn.Module, str, LowRank]] = []
    model.requires_grad_(False)
    try:
        if config.train == "all":
            chosen = [*decoder.parameters(), *head.parameters()]
        elif config.train == "embeddings":
            chosen = [model.get_input_embeddings().weight, *head.parameters()]
        else:
            generator = torch.Generator().manual_seed(config.seed)
            places = [
                (parent, name, child)
                for parent in decoder.modules()
                for name, child in parent.named_children()
                if isinstance(child, nn.Linear)
            ]
            for parent, name, child in places:
                wrapped.append((parent, name, LowRank(child, config.rank, generator)))
                setattr(parent, name, wrapped[-1][2])
            chosen = [part for _, _, added in wrapped for part in (added.down, added.up)]
            if not chosen:
                raise PretrainedError(
                    f"train='lora' finds no linear maps in this {type(model).__name__}: use 'embeddings'"
                )
        wanted = {id(parameter) for parameter in chosen}
        yield {
            name: parameter.requires_grad_()
            for name, parameter in model.named_parameters()
            if id(parameter) in wanted
        }
    finally:
        for parent, name, added in wrapped:
            setattr(parent, name, added.merged())
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
        model.train(training)


# --------------------------------------------------------------------------------------------------- memory
@dataclass(frozen=True)
class Plan:
    """How a run fits its device; sizes in bytes."""

    fixed: int  # weights, gradients and moments, and the logits of some positions
    problem: float  # what the longest problem seen keeps for the backward pass
    memory: int
    micro_batch: int = 1
    checkpointing: bool = False

    @property
    def fitting(self) -> int:
        """Problems that fit into the memory at once."""
        return max(0, int((self.memory - self.fixed) // self.problem))

    @property
    def needed(self) -> float:
        """What the run takes at once."""
        return self.fixed + self.micro_batch * self.problem

    def __str__(self) -> str:
        again = ", checkpointing=True" if self.checkpointing else ""
        return (
            f"about {_size(self.needed)} of {_size(self.memory)}, of which {_size(self.fixed)} for weights, "
            f"gradients, moments and logits; micro_batch={self.micro_batch}{again}"
        )


def plan_memory(
    model: Any, trained: Mapping[str, Tensor], problems: Problems, config: FinetuneConfig, memory: int
) -> Plan:
    """Estimate what a run takes, and choose what the configuration leaves open.

    What the backward pass needs is measured: the longest of ``problems`` goes through the model where it is.

    Raises
    ------
    PretrainedError
        If it does not fit.
    """

    def kept(*rows: int) -> int:
        some = Problems(*(part[list(rows)] for part in vars(problems).values()))
        return saved_bytes(model, next(some.parts(len(rows), model.device)))

    # What is kept once, however many problems: the weights as bfloat16, where arithmetic is.
    once = max(0, 2 * kept(0) - kept(0, 0))
    longest = kept(-1) - once
    text = model.config.get_text_config()
    layers = int(text.num_hidden_layers)
    inputs = int(problems.mask[-1].sum()) * int(text.hidden_size) * 4  # of a layer
    fixed = fixed_bytes(model, trained, problems)
    plans = {
        False: Plan(fixed + once, longest, memory),
        True: Plan(fixed + once // layers, longest / layers + layers * inputs, memory, checkpointing=True),
    }
    for plan in plans.values() if config.checkpointing is None else [plans[config.checkpointing]]:
        if plan.fitting >= (config.micro_batch or 1):
            break
    plan = replace(plan, micro_batch=min(config.batch_size, config.micro_batch or max(1, plan.fitting)))
    if plan.needed > memory:
        raise PretrainedError(_too_large(f"this run needs {plan}", config, plan))
    return plan


def fixed_bytes(model: Any, trained: Mapping[str, Tensor], problems: Problems) -> int:
    """What a run takes however small its micro-batches: weights, gradients, moments and some logits."""

    def size(tensors: Iterable[Tensor]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    table: Tensor = model.get_input_embeddings().weight
    head: Tensor = model.get_output_embeddings().weight
    logits = 3 * 4 * min(_positions(model), problems.counted) * len(head)  # with their gradient and a softmax
    parts = size([table]) + size([head]) if table.requires_grad else 0  # of a gradient, until they are added
    return size(model.parameters()) + 3 * size(trained.values()) + parts + logits


def saved_bytes(model: Any, problems: Problems) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the model's own."""
    own = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of(model, problems)  # alive until the end: no place in memory is used twice
    del loss
    return sum(kept.values())


def memory_of(device: torch.device, model: Any) -> int:
    """Bytes that a run may fill on a device, with what the model fills there already."""
    if device.type == "cuda":
        there = sum(p.numel() * p.element_size() for p in model.parameters() if p.device.type == "cuda")
        return int(0.95 * (torch.cuda.mem_get_info(device)[0] + there))  # some is lost between the blocks
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 2**62  # this system does not say


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _too_large(what: str, config: FinetuneConfig, plan: Plan | None = None) -> str:
    ways = []
    if plan and plan.micro_batch > 1:
        ways.append(f"turn micro_batch={plan.micro_batch} down")
    if plan and not plan.checkpointing:
        ways.append("set checkpointing=True")
    less = {"all": "train='embeddings' or 'lora'", "embeddings": "train='lora'", "lora": "a smaller model"}
    return f"{what}, which does not fit: {', '.join([*ways, 'take ' + less[config.train]])}"


# ------------------------------------------------------------------------------------------------- the loop
def choose_precision(device: str | None = None) -> tuple[torch.device, torch.dtype, str]:
    """The device, the type of its arithmetic, and why. Weights are float32 in any case."""
    place, _, reason = choose_device(device)
    if place.type == "cuda":
        with torch.cuda.device(place):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return place, torch.bfloat16, "this GPU is made for bfloat16; weights stay float32"
        return place, torch.float32, "this GPU has no bfloat16 of its own, and float16 overflows"
    return place, torch.float32, reason


def finetune(
    model: Any,
    symbols: Symbols,
    config: FinetuneConfig,
    *,
    measure_every: int,
    stop_at: float | None = None,
    folder: str | Path | None = None,
    device: str | None = None,
    progress: bool | None = None,
) -> FinetuneRun:
    """Train ``model`` in place, from the last checkpoint if ``folder`` holds one.

    Parameters
    ----------
    model : a causal language model of transformers, with float32 weights
    symbols : Symbols
    config : FinetuneConfig
    measure_every : int
        Steps between measurements on held-out problems, and between checkpoints.
    stop_at : float, optional
        End once this share of the held-out problems is matched exactly.
    folder : path, optional
        Where checkpoints go: what is trained, and the optimizer's moments. To go on after a disconnect, load
        the model anew (and repair it anew) and call this again.
    device : str, optional
        Chosen by :func:`choose_precision` if left out.
    progress : bool, optional
        As in `unseen_lib.training.train`.

    Returns
    -------
    FinetuneRun

    Raises
    ------
    ConfigError
        If the settings, the symbols and the model do not fit each other.
    PretrainedError
        If the model does not fit the device or cannot be trained.
    CheckpointError
        If the folder holds another run or cannot be written.
    NonFiniteLoss
        If the loss or a weight is not finite. The checkpoint before is kept.
    """
    if measure_every < 1:
        raise ConfigError(f"measure_every={measure_every} must be at least 1")
    held_out, first = (
        draw_problems(config.task, symbols, batch_size=size, seed=config.seed, index=0, stream=stream)
        for size, stream in ((config.problems, "test"), (config.batch_size, "train"))
    )
    _check_model(model, symbols, first)
    place, dtype, reason = choose_precision(device)
    run = FinetuneRun(config, device=str(place), dtype=str(dtype).removeprefix("torch."), reason=reason)
    path = None if folder is None else Path(folder) / CHECKPOINT
    origin = {"model": fingerprint(model, symbols), **_decisive(config)}
    arithmetic = partial(torch.autocast, place.type, dtype, dtype != torch.float32, cache_enabled=False)
    with trained_parts(model, config) as trained, torch.random.fork_rng(range(torch.cuda.device_count())):
        run.parameters = sum(parameter.numel() for parameter in trained.values())
        memory, plan = memory_of(place, model), None
        if (least := fixed_bytes(model, trained, held_out)) > memory:
            what = (
                f"this run needs {_size(least)} of {_size(memory)} for weights, gradients and moments alone"
            )
            raise PretrainedError(_too_large(what, config))
        try:
            model.to(place)
            with arithmetic():
                plan = plan_memory(model, trained, held_out, config, memory)
            if progress is not False:
                print(f"device: {run.device}, {run.dtype}: {reason}", flush=True)
                print(f"memory: {plan}; {run.parameters:,} weights are trained", flush=True)
            if plan.checkpointing:
                _switch_checkpointing(model, on=True)
            optimizer = _adamw(trained.values(), config, fused=place.type == "cuda")
            kept = nn.ParameterDict({name.replace(".", "/"): part for name, part in trained.items()})
            start = _resume(path, kept, optimizer, run, origin)

            bar = progress_bar(range(start, config.steps), "fine-tuning", progress)
            for step in itertools.chain(bar, [config.steps]):  # the last only measures and saves
                measured = bool(run.curve) and run.curve[-1]["step"] == step
                if not measured and (step % measure_every == 0 or step == config.steps):
                    model.eval()
                    with arithmetic():
                        point = measure(model, held_out, plan.micro_batch, place)
                    _check_finite(point["loss"], step, path)
                    run.curve.append({"step": step} | point)
                    bar.set_postfix_str(f"exact match {point['exact_match']:.2f}")
                    if path is not None:  # at step 0 too: better to learn now whether it can be written
                        state = {"origin": origin, "step": step, "curve": run.curve, "seconds": run.seconds}
                        save_checkpoint(path, kept, [optimizer], state)
                    measured = True
                enough = measured and stop_at is not None and run.curve[-1]["exact_match"] >= stop_at
                if step == config.steps or enough:
                    break
                began = time.perf_counter()
                torch.manual_seed(config.seed * 1_000_003 + step)  # dropout, where a model has it
                batch = draw_problems(
                    config.task, symbols, batch_size=config.batch_size, seed=config.seed, index=step
                )
                model.train()
                for part in batch.parts(plan.micro_batch, place):
                    with arithmetic():
                        loss = loss_of(model, part) / batch.counted
                    _check_finite(loss.item(), step, path)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.seconds += time.perf_counter() - began
            bar.close()
        except torch.OutOfMemoryError as error:
            raise PretrainedError(
                _too_large(f"{run.device} ran out of memory ({plan or 'at the start'})", config, plan)
            ) from error
        finally:
            if plan and plan.checkpointing:
                _switch_checkpointing(model, on=False)
    run.peak_memory_mb = peak_memory_mb(place)
    return run


def _adamw(parameters: Iterable[nn.Parameter], config: FinetuneConfig, *, fused: bool) -> torch.optim.AdamW:
    """On a GPU fused: the other ways take, for a moment, as much memory again as the weights."""
    return torch.optim.AdamW(
        parameters,
        lr=config.rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.decay,
        fused=fused,
    )


def _check_finite(loss: float, step: int, path: Path | None) -> None:
    if not math.isfinite(loss):
        raise NonFiniteLoss(step, path if path and path.exists() else None)


def _switch_checkpointing(model: Any, *, on: bool) -> None:
    what = "enable" if on else "disable"  # by the name that transformers 5 has for it, or the older one
    switch = getattr(model, f"activation_checkpointing_{what}", None)
    switch = switch or getattr(model, f"gradient_checkpointing_{what}")
    switch(*([{"use_reentrant": False}] if on else []))


def fingerprint(model: Any, symbols: Symbols) -> str:
    """A hash of the symbols, of their rows, and of a part of every other weight."""
    digest = hashlib.sha256(repr((sorted(symbols.words.items()), symbols.names)).encode())
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().flatten()[:64].cpu().numpy().tobytes())
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        digest.update(module.weight.detach()[list(symbols.names)].cpu().numpy().tobytes())
    return digest.hexdigest()


def _decisive(config: FinetuneConfig) -> dict[str, Any]:
    """The settings, as JSON gives them back, less those that may differ in a later part of a run."""
    settings: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return {k: v for k, v in settings.items() if k not in ("steps", "micro_batch", "checkpointing")}


def _resume(
    path: Path | None,
    kept: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: FinetuneRun,
    origin: dict[str, Any],
) -> int:
    """Load the checkpoint at ``path``, if there is one, and return the step to go on from."""
    if path is None or not path.exists():
        return 0
    saved = read_state(path).get("origin") or {}
    if odd := [name for name in origin if saved.get(name) != origin[name]]:
        what = f"{odd[-1]} is {saved.get(odd[-1])!r} in the file and {origin[odd[-1]]!r} here"
        if odd == ["model"]:
            what = "its model, rows or symbols are not those given"
        raise CheckpointError(
            f"{path} belongs to another run: {what}. It is left as it is: choose another folder, or load the "
            "model anew, repair it if it was repaired, and give the settings it was made with"
        )
    state = load_checkpoint(path, kept, [optimizer])
    run.curve, run.seconds = state["curve"], state["seconds"]
    if state["step"] > run.config.steps:
        raise CheckpointError(
            f"{path} is at step {state['step']} already, and steps={run.config.steps}: ask for more steps"
        )
    start: int = state["step"]
    return start


def _check_model(model: Any, symbols: Symbols, problems: Problems) -> None:
    """Raise unless the model has the symbols' rows, float32 weights, and the logits of :func:`logits_of`."""
    kind = type(model).__name__
    if not hasattr(model, "get_decoder") or model.get_output_embeddings() is None:
        raise PretrainedError(f"{kind} has no decoder and unembedding: load a causal language model")
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(int(problems.tokens.max()), *symbols.names)
    if highest >= rows:
        raise ConfigError(f"names and words go up to the id {highest}, but {kind} has rows 0 to {rows - 1}")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise PretrainedError(
                f"{name} of {kind} is {str(parameter.dtype).removeprefix('torch.')}, in which small steps "
                "are rounded away: load the model with dtype=torch.float32"
            )
    training, some = model.training, problems.tokens[:1, :8].to(model.get_input_embeddings().weight.device)
    model.eval()
    with torch.no_grad():
        theirs = model(input_ids=some).logits[0].float()
        ours = logits_of(model, model.get_decoder()(input_ids=some, use_cache=False).last_hidden_state[0])
    model.train(training)
    if not torch.allclose(theirs, ours, rtol=1e-3, atol=1e-3):
        raise PretrainedError(
            f"{kind} computes its logits in a way that is not known here: use another model"
        )
