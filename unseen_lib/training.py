"""Train a model: one loop, exact resume, and a plain record of what happened.

The loop does not know how a model is judged. Whoever calls :func:`train` may pass ``measure``, which is
called at chosen steps and whose answers become the run's curve.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

from unseen_lib.checkpoint import load_checkpoint, read_state, save_checkpoint
from unseen_lib.embeddings import ActivePolicy, EmbeddingPolicy, check_policy
from unseen_lib.errors import CheckpointError, ConfigError, OutOfMemory
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.optimizers import OptimizerConfig, build_optimizers, update
from unseen_lib.problems import IGNORE, Batch, Task, check_vocabulary, longest_sequence, sample_batch
from unseen_lib.vocabulary import Vocabulary

CHECKPOINT = "checkpoint.safetensors"

#: From the model and the step to what the curve keeps of it, by name.
Measure = Callable[[GPT, int], dict[str, Any]]


# ---------------------------------------------------------------------------------------------- configuration
@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run's final weights, apart from the machine.

    Parameters
    ----------
    mask_unseen : bool
        Leave the unseen names out of the softmax of the loss. Their rows then get no gradient at all, neither
        to lower their logits nor to draw them together.

    Raises
    ------
    ConfigError
        If the parts do not fit each other, before anything is trained.
    """

    task: Task
    vocabulary: Vocabulary
    model: GPTConfig
    policy: EmbeddingPolicy = field(default_factory=EmbeddingPolicy)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    steps: int = 50_000
    batch_size: int = 256
    seed: int = 0
    mask_unseen: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (("steps", 1, 10**9), ("batch_size", 1, 10**6), ("seed", 0, 10**9)):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{name}={value!r} must be a whole number from {least} to {most}")
        check_vocabulary(self.task, self.vocabulary)
        if self.model.vocab_size != self.vocabulary.size:
            raise ConfigError(
                f"vocab_size={self.model.vocab_size} does not fit the vocabulary, which has "
                f"{self.vocabulary.size} words; use vocab_size={self.vocabulary.size}"
            )
        if self.model.context < longest_sequence(self.task):
            raise ConfigError(
                f"context={self.model.context} is too short for the task; its longest problem with its proof "
                f"takes {longest_sequence(self.task)} tokens"
            )
        check_policy(self.policy, self.vocabulary, width=self.model.width, steps=self.steps)
        if self.mask_unseen and self.vocabulary.unseen == 0:
            raise ConfigError(
                "mask_unseen=True has nothing to mask in a vocabulary with unseen=0; use unseen=1 or more"
            )


@dataclass
class Run:
    """A trained model and what was seen on the way.

    Attributes
    ----------
    curve : list of dict
        One entry a measurement: ``step``, ``loss`` (exponential average of the training loss, nats) and
        whatever ``measure`` returned.
    seconds : float
        Wall time of the training steps, measurements not counted; over all parts of a resumed run.
    tokens : int
        Tokens fed to the model, padding included.
    device, dtype, reason : str
        Where it ran and why there.
    threads : int
        CPU threads used.
    peak_memory_mb : float or None
        Largest resident memory of the whole process (CPU) or of the device's allocator (GPU), in MB.
    """

    config: TrainConfig
    model: GPT
    curve: list[dict[str, Any]]
    seconds: float
    tokens: int
    device: str
    dtype: str
    reason: str
    threads: int
    peak_memory_mb: float | None

    @property
    def tokens_per_second(self) -> float:
        """Speed of the training steps, padding included."""
        return self.tokens / self.seconds if self.seconds else 0.0


class NonFiniteLoss(RuntimeError):
    """The loss, a gradient or a weight became infinite or not a number. ``step`` says when."""

    def __init__(self, step: int, saved: Path | None) -> None:
        where = f" The last finite weights are in {saved}." if saved else ""
        super().__init__(
            f"the loss, its gradient or a weight is not finite at step {step}, so the run stopped there."
            f"{where} Try a lower learning rate or a longer warm-up."
        )
        self.step = step


# ----------------------------------------------------------------------------------------------------- pieces
def choose_device(device: str | None = None) -> tuple[torch.device, torch.dtype, str]:
    """Pick device and dtype once, with the reason in words.

    The models of the course are small, so float32 costs little: bfloat16 is emulated on a T4, and float16
    would need its loss scaled.

    Raises
    ------
    ConfigError
        If torch does not know the device, or it is not there.
    """
    if device is None:
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
            return torch.device("cuda"), torch.float32, f"a GPU is here ({name}); float32 suits all"
        return torch.device("cpu"), torch.float32, "no CUDA GPU here, and CPUs are fast at float32"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r} is unknown to torch; use 'cpu' or 'cuda'") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise ConfigError(f"device={device!r} was asked for, but torch sees {seen} CUDA GPUs; use 'cpu'")
    return place, torch.float32, "it was asked for"


def loss_of(model: GPT, batch: Batch, words: int | None = None) -> torch.Tensor:
    """Mean cross-entropy in nats over the reasoning and the answer; the question is masked out.

    Only positions with a target are unembedded: most of a sequence is question, and the product with W_E is
    the largest of a small model.

    Parameters
    ----------
    words : int, optional
        Let only the first so many words of the vocabulary take part in the softmax.
    """
    counted = batch.targets != IGNORE
    logits = model.unembed(model.features(batch.tokens)[counted])  # (targets, V)
    return F.cross_entropy(logits[:, :words], batch.targets[counted])


def weights_are_finite(model: GPT) -> bool:
    """Whether no weight is infinite or not a number."""
    return all(bool(weight.isfinite().all()) for weight in model.parameters())


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run torch on ``count`` CPU threads, and give the caller its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def memory_named(config: TrainConfig, place: torch.device) -> Iterator[None]:
    """Turn an error of the allocator into one that names the two settings to turn down.

    Raises
    ------
    OutOfMemory
        In its place.
    """
    try:
        yield
        return
    except (torch.OutOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        if "not enough memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
    # Outside the handlers, so that the allocator's error does not hold on to what it had no room for.
    raise OutOfMemory(
        f"out of memory on {place}: turn down batch_size={config.batch_size}, as in replace(config, "
        f"batch_size={max(1, config.batch_size // 2)}), or, if that is not enough, the model's "
        f"width={config.model.width}; checkpoints, if there are any, are intact"
    )


def kept_folder(config: TrainConfig, measure: Measure | None, measure_every: int | None) -> Path | None:
    """Where a run keeps its progress inside the folder that ``UNSEEN_FOLDER`` names; None if it names none.

    The same config, measured in another way, has another folder: a curve holds what was measured.
    """
    chosen = os.environ.get("UNSEEN_FOLDER")
    if not chosen:
        return None
    code = getattr(inspect.unwrap(measure), "__code__", None) if measure else None
    what = [to_json(config), measure_every, _code_of(code)]
    return Path(chosen) / hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def _code_of(code: CodeType | None) -> list[Any]:
    """What a function does, as JSON data; where it stands and what it calls is left out."""
    if code is None:
        return []
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, frozenset):  # in no order of its own
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(_code_of(constant) if isinstance(constant, CodeType) else repr(constant))
    return [code.co_code.hex(), list(code.co_names), constants]


# --------------------------------------------------------------------------------------------------- the loop
def train(
    config: TrainConfig,
    *,
    measure: Measure | None = None,
    measure_every: int | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int = 250,
    device: str | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Train ``config`` to its end, from its last checkpoint if ``folder`` holds one.

    Parameters
    ----------
    measure : callable, optional
        ``measure(model, step) -> dict``, called at step 0, every ``measure_every`` steps and at the end;
        where a reset falls on the same step, just before it.
    measure_every : int, optional
        Defaults to a tenth of the run.
    folder : path, optional
        Where checkpoints go. Left out, they go into a folder of this run's own inside the one that the
        environment variable ``UNSEEN_FOLDER`` names; without that, nothing is written.
    checkpoint_every : int
        Steps between checkpoints.
    device : str, optional
        For example ``"cpu"`` or ``"cuda"``; chosen by :func:`choose_device` if left out.
    threads : int, optional
        CPU threads. Defaults to one below width 256, where a second one gains nothing and costs the
        bit-for-bit repeatability that one thread has.
    progress : bool, optional
        False prints nothing. Otherwise where it runs is said, and a bar is shown, or a line a minute where
        there is neither terminal nor notebook; by default not if ``UNSEEN_PROGRESS=off``.

    Returns
    -------
    Run

    Raises
    ------
    ConfigError
        If an interval or the number of threads is below 1, or the device is not here.
    NonFiniteLoss
        If the loss, a gradient or a weight is not finite. The last finite state is kept in ``folder``.
    CheckpointError
        If the folder holds a checkpoint of another run or an unreadable one, or cannot be written.
    OutOfMemory
        If the device has too little memory. What the folder holds is intact.
    """
    counts = {"measure_every": measure_every, "checkpoint_every": checkpoint_every, "threads": threads}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count} must be at least 1")
    place, dtype, reason = choose_device(device)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    if threads is None:
        threads = 1 if place.type == "cpu" and config.model.width < 256 else torch.get_num_threads()
    with cpu_threads(threads), memory_named(config, place):
        model = GPT(config.model, torch.Generator().manual_seed(config.seed)).to(place, dtype)
        policy = ActivePolicy(config.policy, model, config.vocabulary, config.seed)
        optimizers = build_optimizers(model, config.optimizer)
        run = Run(
            config, model, [], 0.0, 0, str(place), str(dtype).removeprefix("torch."), reason, threads, None
        )
        folder = kept_folder(config, measure, measure_every) if folder is None else folder
        path = Path(folder) / CHECKPOINT if folder is not None else None
        start, loss = _resume(path, run, optimizers)
        if progress is not False:
            _announce(run, start, path)

        def save(step: int) -> None:
            if path is not None:
                state: dict[str, Any] = {"config": to_json(config), "step": step, "loss": loss}
                state |= {"curve": run.curve, "seconds": run.seconds, "tokens": run.tokens}
                save_checkpoint(path, model, optimizers, state)

        words = config.vocabulary.unseen_ids.start if config.mask_unseen else None
        measure_every = measure_every or max(1, config.steps // 10)
        bar = progress_bar(range(start, config.steps), "training", progress)
        for step in itertools.chain(bar, [config.steps]):  # the last only measures and saves
            due = step % measure_every == 0 or step == config.steps
            if due and not (run.curve and run.curve[-1]["step"] == step):
                try:
                    measured = measure(model, step) if measure else {}
                except FloatingPointError as error:
                    raise NonFiniteLoss(step, path) from error
                run.curve.append({"step": step, "loss": loss} | measured)
            # The one at step 0 finds out whether the folder can be written before anything is trained.
            if (step > start or step == 0) and (step % checkpoint_every == 0 or step == config.steps):
                if not weights_are_finite(model):
                    raise NonFiniteLoss(step, path)
                save(step)
            if step == config.steps:
                break
            began = time.perf_counter()
            policy.before_step(step, optimizers)
            batch = sample_batch(
                config.task,
                config.vocabulary,
                batch_size=config.batch_size,
                seed=config.seed,
                index=step,
                device=place,
            )
            value = loss_of(model, batch, words)
            value.backward()
            policy.after_backward(step)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
            if not math.isfinite(value.item()) or not math.isfinite(norm.item()):
                if weights_are_finite(model):  # this step has not changed them, but the one before may have
                    save(step)
                raise NonFiniteLoss(step, path)
            update(optimizers, step, config.steps, config.optimizer)
            policy.after_step(step)
            loss = value.item() if loss is None else 0.95 * loss + 0.05 * value.item()
            run.tokens += batch.tokens.numel()
            run.seconds += time.perf_counter() - began
        run.peak_memory_mb = peak_memory_mb(place)
    return run


def _resume(path: Path | None, run: Run, optimizers: list[torch.optim.Optimizer]) -> tuple[int, float | None]:
    """Load the checkpoint at ``path``, if there is one, and return the step to go on from and the loss."""
    if path is None or not path.exists():
        return 0, None
    saved = read_state(path)["config"]
    # Compared as configs: a field that is younger than the file has its default there.
    if from_json(saved) != run.config:
        raise CheckpointError(
            f"{path} belongs to another run: {_first_difference(saved, to_json(run.config))}. It is left as "
            "it is: choose another folder, or the config it was made with"
        )
    for leftover in path.parent.glob(f".{path.name}.*.unfinished"):  # of a run that was killed while it saved
        leftover.unlink()
    state = load_checkpoint(path, run.model, optimizers)
    run.curve, run.seconds, run.tokens = state["curve"], state["seconds"], state["tokens"]
    return state["step"], state["loss"]


def to_json(config: TrainConfig) -> dict[str, Any]:
    """``config`` as plain JSON data (tuples become lists)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value

    data: dict[str, Any] = plain(dataclasses.asdict(config))
    return data


def from_json(data: dict[str, Any]) -> TrainConfig:
    """The config that :func:`to_json` wrote. Raises ConfigError if a part is missing, unknown or misfit."""

    def lists_to_tuples(part: dict[str, Any]) -> dict[str, Any]:
        return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}

    parts = {
        "task": Task,
        "vocabulary": Vocabulary,
        "model": GPTConfig,
        "policy": EmbeddingPolicy,
        "optimizer": OptimizerConfig,
    }
    try:
        built = {name: kind(**lists_to_tuples(data[name])) for name, kind in parts.items()}
        return TrainConfig(**{**data, **built})
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"this is not a training config of this library: {error}") from error


def _first_difference(saved: Any, config: Any, name: str = "config") -> str:
    if isinstance(saved, dict) and isinstance(config, dict):
        for key in config:
            if saved.get(key) != config[key]:
                return _first_difference(saved.get(key), config[key], key)
    return f"{name} is {saved!r} in the file and {config!r} here"


# ------------------------------------------------------------------------------------------- telling the user
def progress_bar(items: Any, what: str, wanted: bool | None = None, total: int | None = None) -> Any:
    """``items`` with a bar in a terminal or notebook, with a line a minute elsewhere, or bare if unwanted."""
    if wanted is None:
        wanted = os.environ.get("UNSEEN_PROGRESS") != "off"
    live = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(
        items,
        desc=what,
        total=total,
        disable=not wanted,
        mininterval=0.5 if live else 60,
        ascii=not live,
        dynamic_ncols=live,
    )


def _announce(run: Run, start: int, path: Path | None) -> None:
    threads = f"{run.threads} thread{'s' if run.threads > 1 else ''}"
    print(f"device: {run.device}, {threads}, {run.dtype}: {run.reason}", flush=True)
    if start:
        print(f"going on from step {start} of {run.config.steps}, kept in {path}", flush=True)


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak memory in MB, or None where the system does not tell (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3  # bytes on macOS, kilobytes on Linux
