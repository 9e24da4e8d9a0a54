"""A small Gemma 3 whose reserved tokens collapse in front of you, and what repairing them is worth.

The class is the real one of transformers. It is pre-trained on the course's logic, in a vocabulary laid out
as Gemma's, with reserved tokens that no problem uses. Then it is fine-tuned on longer problems. Their symbols
are ordinary names, or reserved tokens as pre-training left them, or reserved tokens with rows drawn anew: the
arm that the paper did not run.

What was chosen by looking at what is said above `STRENGTHS`.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import random
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from unseen_lib import __version__
from unseen_lib.checkpoint import check_writable
from unseen_lib.collapse import measure_rows
from unseen_lib.errors import CheckpointError, ConfigError, PretrainedError
from unseen_lib.experiments import QUICK, current_scale, run_apart
from unseen_lib.language import BOS, CONTROL_WORDS, EOS, PAD
from unseen_lib.optimizers import OptimizerConfig, optimizers_of, update
from unseen_lib.pretrained.audit import Audit, audit
from unseen_lib.pretrained.files import INSTALL
from unseen_lib.pretrained.finetune import (
    FinetuneConfig,
    Symbols,
    draw_problems,
    finetune,
    logits_of,
    measure,
    steps_to,
)
from unseen_lib.pretrained.repair import HOW, reinitialize
from unseen_lib.problems import IGNORE, Task, longest_sequence
from unseen_lib.records import (
    Interval,
    commit,
    holds,
    interval,
    read_record,
    recorded_folder,
    rounded,
    save_record,
)
from unseen_lib.training import NonFiniteLoss, cpu_threads, progress_bar
from unseen_lib.vocabulary import Vocabulary

NAME = "small_gemma"  # of the folder of its recorded runs, and for `unseen record`
FORMAT = "unseen-small-gemma-1"
SEEDS = 5
ARMS = ("ordinary", "as_is", *HOW)
LEVEL = 0.9  # of whole completions: what an arm has to reach
DIGITS = 4  # significant digits of a measured number in a file

# Gemma 3's own tokens with its own ids, as far as its vocabulary is not text.
GEMMA_SPECIAL = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    4: "<mask>",
    5: "[multimodal]",
    105: "<start_of_turn>",
    106: "<end_of_turn>",
}
FIRST_RESERVED = range(6, 105)  # <unused0> to <unused98>


# --------------------------------------------------------------------------------------------------- settings
@dataclass(frozen=True)
class Layout:
    """Which id means what: Gemma's layout, with fewer words and fewer reserved tokens at the end.

    Parameters
    ----------
    names : int
        Ordinary symbols, all of which pre-training uses. From 1000 up, the reserved tokens at the end are as
        far from the first ones as the audit needs to take them for a group of their own.
    last : int
        Reserved tokens at the end of the vocabulary, 6,143 in Gemma.
    """

    names: int = 1024
    last: int = 64

    @property
    def _words(self) -> tuple[str, ...]:
        """Control words of the logic that Gemma has no token for."""
        return tuple(word for word in CONTROL_WORDS["compact"] if word not in (PAD, BOS, EOS))

    @property
    def ordinary(self) -> range:
        """Ids of the names."""
        start = max(GEMMA_SPECIAL) + 1 + len(self._words)
        return range(start, start + self.names)

    @property
    def last_reserved(self) -> range:
        """Ids of the reserved tokens at the end."""
        return range(self.ordinary.stop, self.ordinary.stop + self.last)

    @property
    def reserved(self) -> tuple[int, ...]:
        """Ids of all reserved tokens."""
        return (*FIRST_RESERVED, *self.last_reserved)

    @property
    def size(self) -> int:
        """All ids."""
        return self.last_reserved.stop

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The text of each id."""
        texts = dict(GEMMA_SPECIAL)
        texts |= {row: f"<unused{number}>" for number, row in enumerate(self.reserved)}
        texts |= dict(enumerate(self._words, max(GEMMA_SPECIAL) + 1))
        names = Vocabulary("compact", self.names, 0)
        texts |= dict(zip(self.ordinary, names.words[names.seen_ids.start :], strict=True))
        return tuple(texts[row] for row in range(self.size))

    def symbols(self, names: Sequence[int]) -> Symbols:
        """How problems are spelled with these ids for names."""
        ids = {text: row for row, text in enumerate(self.texts)}
        return Symbols({word: (ids[word],) for word in CONTROL_WORDS["compact"]}, tuple(names))

    def tokenizer(self) -> Any:
        """A tokenizer of transformers, one token a word, that says which tokens are special or reserved."""
        transformers = _transformers()
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

        tokenizer = Tokenizer(
            models.WordLevel({text: row for row, text in enumerate(self.texts)}, unk_token="<unk>")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in GEMMA_SPECIAL.values()])
        tokenizer.add_tokens([AddedToken(self.texts[row], special=False) for row in self.reserved])
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token="<unk>"
        )


@dataclass(frozen=True)
class PretrainConfig:
    """Everything that decides a small Gemma's weights, apart from the machine.

    Departures from the defaults of transformers, without which so small a model does not learn within a
    minute; most are those of the course's ``cpu`` scale:

    - all matrices start from N(0, 1/D), where the default is N(0, 0.02²);
    - ``final_gain``: the gain of the last norm starts above 1, so that logits can be large;
    - ``window``: the first layer alone is local, and sees three tokens. Gemma 3 has five local layers to a
      global one, and windows of 512 or 1024 tokens;
    - each head has keys and values of its own, and attention is scaled by the width of a head (the default is
      256, its width in most sizes);
    - the base of the rotary embedding is 10⁴ in all layers (10⁶ in Gemma's global layers);
    - Muon updates the matrices inside the blocks.

    Parameters
    ----------
    final_gain : float
    optimizer : OptimizerConfig
        Its ``embedding_rate`` and ``final_gain`` set how far reserved rows collapse.
    """

    layout: Layout = field(default_factory=Layout)
    task: Task = field(default_factory=Task)
    width: int = 64
    layers: int = 3
    heads: int = 2
    head_dim: int = 64
    mlp_width: int = 128
    window: int = 3
    context: int = 128
    final_gain: float = 4.0
    optimizer: OptimizerConfig = QUICK
    steps: int = 900
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "head_dim", "mlp_width", "window", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must be 0 or more")
        if self.task.format != "compact":
            raise ConfigError(f"task format={self.task.format!r} has no tokens here; use format='compact'")
        if self.optimizer.hidden != "muon" or self.optimizer.embedding != "adamw":
            raise ConfigError("a small Gemma is trained with hidden='muon' and embedding='adamw' only")
        if self.context < longest_sequence(self.task):
            raise ConfigError(
                f"context={self.context} is too short for the task, which needs {longest_sequence(self.task)}"
            )


@dataclass(frozen=True)
class ExperimentConfig:
    """One strength of collapse at one seed: a model, and its fine-tuning with each kind of symbols.

    Parameters
    ----------
    strength : str
        A name for the settings of pre-training.
    pretrain : PretrainConfig
    finetune : FinetuneConfig
        Of every arm. The paper's, but for the task, a batch of 64 and a rate for so small a model.
    symbols : int
        How many a fine-tuning uses; 80 in the paper. Reserved ones are the first so many of them.
    arms : tuple of str
        Of ``ARMS``.
    measure_every : int
    """

    strength: str
    pretrain: PretrainConfig
    finetune: FinetuneConfig
    symbols: int = 80
    arms: tuple[str, ...] = ARMS
    measure_every: int = 10

    def __post_init__(self) -> None:
        if unknown := set(self.arms) - set(ARMS):
            raise ConfigError(f"arms has {min(unknown)!r}; use some of {', '.join(ARMS)}")
        most = min(len(FIRST_RESERVED), self.pretrain.layout.names)
        if not self.finetune.task.sizes[1] <= self.symbols <= most:
            raise ConfigError(
                f"symbols={self.symbols} must be from {self.finetune.task.sizes[1]}, for the largest "
                f"problem, to {most}"
            )
        if self.finetune.task.format != "compact":
            raise ConfigError("the task of fine-tuning needs format='compact', as pre-training has")
        if self.pretrain.context < longest_sequence(self.finetune.task):
            raise ConfigError(
                f"context={self.pretrain.context} is too short for fine-tuning, which needs "
                f"{longest_sequence(self.finetune.task)}"
            )


# The two settings of each strength were taken over from trials of the course's own model, where they gave
# unseen rows cosines of 0.2, 0.5 and 0.9. All else was fixed on small Gemmas of the seed 100, before any
# run of the recorded seeds: the steps of pre-training as what a minute allows, and the task of fine-tuning,
# its rate and its batch by looking at how long ordinary names and reserved tokens as they are take in the
# strong model. With the problems of pre-training there is nothing left for ordinary names to learn, and
# with 8 predicates they take 20 steps, too few to compare with. Repaired arms were seen on the way; nothing
# was chosen by which repair is best.
#: How strongly the reserved rows collapse, and the settings that make them.
STRENGTHS: dict[str, dict[str, float]] = {
    "weak": {"embedding_rate": 5e-4, "final_gain": 4.0},
    "medium": {"embedding_rate": 1e-3, "final_gain": 3.0},
    "strong": {"embedding_rate": 3e-3, "final_gain": 2.0},
}
LONGER = Task(predicates=(10, 10), chain=(2, 8))


def experiment(strength: str = "strong", seed: int = 0, scale: str | None = None) -> ExperimentConfig:
    """The settings of a recorded run, or at ``scale="smoke"`` of one that takes seconds and learns nothing.

    Parameters
    ----------
    strength : {"weak", "medium", "strong"}
        How far the reserved rows collapse.
    seed : int
        Of weights, problems, symbols and repairs.
    scale : str, optional
        By default what ``UNSEEN_SCALE`` says; all scales but ``smoke`` are the same here.

    Raises
    ------
    ConfigError
        If the strength is unknown or the seed negative.
    """
    if strength not in STRENGTHS:
        raise ConfigError(f"strength={strength!r} is unknown; use one of {', '.join(STRENGTHS)}")
    settings = STRENGTHS[strength]
    pretraining = PretrainConfig(final_gain=settings["final_gain"], seed=seed)
    optimizer = replace(pretraining.optimizer, embedding_rate=settings["embedding_rate"])
    pretraining = replace(pretraining, optimizer=optimizer)
    tuning = FinetuneConfig(LONGER, steps=1000, batch_size=64, rate=3e-4, seed=seed)
    if (scale or current_scale()) == "smoke":
        small = replace(pretraining, layout=Layout(32, 8), layers=2, steps=4, batch_size=4)
        return ExperimentConfig(
            strength, small, replace(tuning, steps=2, batch_size=4, problems=8), symbols=20
        )
    return ExperimentConfig(strength, pretraining, tuning)


def grid() -> dict[str, ExperimentConfig]:
    """The recorded runs by the name of their file, seed by seed."""
    return {
        f"{strength}-seed{seed}": experiment(strength, seed, scale="cpu")
        for seed in range(SEEDS)
        for strength in STRENGTHS
    }


# ----------------------------------------------------------------------------------------------- pre-training
@dataclass
class Pretrained:
    """A small Gemma 3 after pre-training.

    Attributes
    ----------
    model, tokenizer
        Of transformers.
    curve : list of dict
        One entry a measurement: ``step``, ``loss`` (exponential average of the training loss, nats a token of
        the completion), ``exact_match`` on held-out problems, and the mean cosine over pairs of
        ``reserved`` and of ``ordinary`` rows.
    seconds : float
        Wall time of the training steps.
    """

    config: PretrainConfig
    model: Any
    tokenizer: Any
    curve: list[dict[str, float]]
    seconds: float

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer as transformers does: ``unseen audit FOLDER`` reads them."""
        logging = _transformers().utils.logging
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # a bar for a megabyte
        try:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        finally:
            if shown:
                logging.enable_progress_bar()


def pretrain(
    config: PretrainConfig, *, measure_every: int | None = None, progress: bool | None = None
) -> Pretrained:
    """Pre-train on the CPU, with one thread: another one gains nothing at this size.

    Parameters
    ----------
    measure_every : int, optional
        Steps between measurements; a tenth of the run by default.
    progress : bool, optional
        As in `unseen_lib.training.train`.

    Raises
    ------
    PretrainedError
        If transformers is not installed.
    NonFiniteLoss
        If the loss is not finite.
    """
    every = measure_every or max(1, config.steps // 10)
    layout, symbols = config.layout, config.layout.symbols(config.layout.ordinary)
    held_out = draw_problems(config.task, symbols, batch_size=256, seed=config.seed, index=0, stream="test")
    with cpu_threads(1):
        model = fresh_model(config)
        optimizers = _optimizers(model, config.optimizer)
        done = Pretrained(config, model, layout.tokenizer(), [], 0.0)
        average = math.nan
        bar = progress_bar(range(config.steps), "pre-training", progress)
        for step in bar:
            began = time.perf_counter()
            problems = draw_problems(
                config.task, symbols, batch_size=config.batch_size, seed=config.seed, index=step
            )
            model.train()
            # Padding is at the right, where attention does not look; a mask that says so costs a fifth more.
            found = model.get_decoder()(input_ids=problems.tokens, use_cache=False)
            counted = problems.targets != IGNORE
            logits = logits_of(model, found.last_hidden_state[counted])
            loss = F.cross_entropy(logits, problems.targets[counted])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
            if not math.isfinite(loss.item()):
                raise NonFiniteLoss(step, None)
            update(optimizers, step, config.steps, config.optimizer)
            average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
            done.seconds += time.perf_counter() - began
            if (step + 1) % every == 0 or step + 1 == config.steps:
                model.eval()
                table = model.get_input_embeddings().weight
                done.curve.append(
                    {
                        "step": step + 1,
                        "loss": average,
                        "exact_match": measure(model, held_out, 256, torch.device("cpu"))["exact_match"],
                        "reserved": measure_rows(table[list(layout.reserved)]).cosine,
                        "ordinary": measure_rows(table[list(layout.ordinary)]).cosine,
                    }
                )
                bar.set_postfix_str(f"cosine of reserved rows {done.curve[-1]['reserved']:.2f}")
    return done


def fresh_model(config: PretrainConfig) -> Any:
    """A Gemma 3 as pre-training starts from it, drawn by the seed."""
    transformers = _transformers()
    attention = ["sliding_attention", *["full_attention"] * (config.layers - 1)]
    settings = transformers.Gemma3TextConfig(
        vocab_size=config.layout.size,
        hidden_size=config.width,
        intermediate_size=config.mlp_width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.head_dim,
        query_pre_attn_scalar=config.head_dim,
        max_position_embeddings=config.context,
        initializer_range=config.width**-0.5,
        layer_types=attention,
        sliding_window=config.window,
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": 10_000.0}
            for kind in ("sliding_attention", "full_attention")
        },
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed)
        model = transformers.Gemma3ForCausalLM(settings)
    with torch.no_grad():
        model.get_decoder().norm.weight.fill_(config.final_gain - 1)  # Gemma's norms multiply by 1 + weight
    return model


def _optimizers(model: Any, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """As `build_optimizers`, for a model of transformers."""
    table = model.get_input_embeddings().weight
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    hidden = [parameter for parameter in model.parameters() if parameter.ndim == 2 and parameter is not table]
    return optimizers_of([table], gains, hidden, config)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise PretrainedError(f"for a small Gemma 3 transformers is missing: {INSTALL}") from error
    return transformers


# ------------------------------------------------------------------------------------------------- experiment
@dataclass(frozen=True)
class SmallRecord:
    """One recorded run: a small Gemma, its audit, and its fine-tuning with each kind of symbols.

    Attributes
    ----------
    config : dict
        The run's :class:`ExperimentConfig` as JSON data.
    pretraining : list of dict
        The curve of :class:`Pretrained`.
    pretraining_seconds : float
    audit : list of dict
        What the audit of the saved model found, a group of rows each: ``label``, ``kind``, ``count``,
        ``cosine`` of the rows as they are, ``centered`` (with the mean ordinary row subtracted),
        ``distance_ratio`` and ``norm_ratio`` to ordinary rows, and ``verdict``.
    arms : dict
        By the name of an arm: ``rows``, the same numbers of its symbols' rows before fine-tuning; ``curve``,
        with ``step``, ``loss`` and ``exact_match`` on held-out problems, up to where ``LEVEL`` is reached;
        ``steps``, the first measured step at which it is, or None if it is not within the steps of the
        fine-tuning; and ``seconds`` of training.
    """

    config: dict[str, Any]
    pretraining: list[dict[str, Any]]
    pretraining_seconds: float
    audit: list[dict[str, Any]]
    arms: dict[str, dict[str, Any]]
    device: str
    threads: int
    seconds: float
    torch: str
    transformers: str
    library: str
    commit: str
    date: str
    format: str = FORMAT

    @property
    def strength(self) -> str:
        """How strongly its reserved rows collapse, one of `STRENGTHS`."""
        return str(self.config["strength"])

    @property
    def seed(self) -> int:
        """Of pre-training and all that follows."""
        return int(self.config["pretrain"]["seed"])

    @property
    def limit(self) -> int:
        """Steps after which a fine-tuning ends, whether or not it got there."""
        return int(self.config["finetune"]["steps"])

    def censored(self, arm: str) -> bool:
        """Whether ``arm`` did not reach ``LEVEL`` within the limit."""
        return self.arms[arm]["steps"] is None

    def steps(self, arm: str) -> int:
        """Steps that ``arm`` took, or the limit where it is censored: then it would have taken more."""
        return self.limit if self.censored(arm) else int(self.arms[arm]["steps"])


def run(config: ExperimentConfig, *, progress: bool | None = None) -> SmallRecord:
    """Pre-train, audit what was saved, and fine-tune a copy of the model with each kind of symbols."""
    began = time.perf_counter()
    pretrained = pretrain(config.pretrain, progress=progress)
    with tempfile.TemporaryDirectory() as folder:
        pretrained.save(folder)
        found = audit(folder)
    arms = {arm: run_arm(config, pretrained, arm, progress=progress) for arm in config.arms}
    return SmallRecord(
        config=_json_data(config),
        pretraining=rounded(pretrained.curve, DIGITS),
        pretraining_seconds=round(pretrained.seconds, 1),
        audit=[rows for rows in _audited(found) if rows["kind"] != "special"],
        arms=arms,
        device="cpu",
        threads=1,
        seconds=round(time.perf_counter() - began, 1),
        torch=torch.__version__,
        transformers=_transformers().__version__,
        library=__version__,
        commit=commit(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    )


def run_arm(
    config: ExperimentConfig, pretrained: Pretrained, arm: str, *, progress: bool | None = None
) -> dict[str, Any]:
    """Fine-tune a copy of a small Gemma with the symbols of one arm: what `SmallRecord` holds of it."""
    names = names_of(config, arm)
    model = copy.deepcopy(pretrained.model)
    if arm in HOW:
        reinitialize(model, names, arm, tokenizer=pretrained.tokenizer, seed=config.pretrain.seed)
    (rows,) = (
        rows
        for rows in _audited(audit(model, names, tokenizer=pretrained.tokenizer, scan=False))
        if rows["kind"] == "given"
    )
    with cpu_threads(1):
        done = finetune(
            model,
            config.pretrain.layout.symbols(names),
            config.finetune,
            measure_every=config.measure_every,
            stop_at=LEVEL,
            device="cpu",
            progress=progress,
        )
    return {
        "rows": rows,
        "curve": rounded(_thinned(done.curve), DIGITS),
        "steps": steps_to(done.curve, LEVEL),
        "seconds": round(done.seconds, 1),
    }


def names_of(config: ExperimentConfig, arm: str) -> list[int]:
    """Ids of the symbols of an arm: reserved tokens, or names of pre-training drawn by the seed."""
    if arm == "ordinary":
        drawn = random.Random(config.pretrain.seed).sample(config.pretrain.layout.ordinary, config.symbols)
        return sorted(drawn)
    return list(FIRST_RESERVED[: config.symbols])


def _thinned(curve: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a file keeps of a curve: past 100 steps every twentieth and the last, and no accuracy of answers.

    That is no measure of reasoning, see `finetune.measure`. ``steps`` is read off the whole curve.
    """
    kept = [point for point in curve[:-1] if point["step"] <= 100 or point["step"] % 20 == 0]
    return [{key: point[key] for key in ("step", "loss", "exact_match")} for point in (*kept, curve[-1])]


def _audited(found: Audit) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {
            "label": group.label,
            "kind": group.kind,
            "count": group.count,
            "cosine": group.raw.cosine,
            "centered": group.centered.cosine,
            "distance_ratio": group.distance_ratio,
            "norm_ratio": group.norm_ratio,
            "verdict": group.verdict,
        }
        for group in found.groups
    ]
    return [rounded(group, DIGITS) for group in groups]


# ---------------------------------------------------------------------------------------------------- records
def record_small_gemma(*, processes: int | None = None, folder: Path | None = None) -> Mapping[str, str]:
    """Run what is not recorded yet, each run in a process of its own. Returns those that failed, and why.

    Raises
    ------
    CheckpointError
        If a file is there that is not the run of its name, or the folder cannot be written.
    """
    return record_runs(grid(), folder or recorded_folder() / NAME, processes=processes)


def record_runs(
    configs: Mapping[str, ExperimentConfig], folder: Path, *, processes: int | None = None
) -> Mapping[str, str]:
    """As :func:`record_small_gemma`, with runs and a folder of your own."""
    missing = {
        name: config for name, config in configs.items() if not _is_recorded(config, folder / f"{name}.json")
    }
    check_writable(folder)
    jobs = {name: partial(_record_one, config, folder / f"{name}.json") for name, config in missing.items()}
    return run_apart(jobs, f"{folder.name} grid", processes=processes)


def _record_one(config: ExperimentConfig, path: Path) -> None:
    save_record(run(config, progress=False), path)


def _is_recorded(config: ExperimentConfig, path: Path) -> bool:
    return holds(path, lambda: load(path).config == _json_data(config))


def load(path: Path) -> SmallRecord:
    """Read one recorded run.

    Raises
    ------
    CheckpointError
        If the file is truncated or is something else. It is left as it is.
    """
    return read_record(path, SmallRecord, FORMAT)


def load_small_gemma(folder: Path | None = None) -> dict[str, list[SmallRecord]]:
    """All recorded runs by strength, from weak to strong, each in the order of the seeds.

    Raises
    ------
    CheckpointError
        If there are none, or one of them cannot be read.
    """
    folder = folder or recorded_folder() / NAME
    records = [load(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise CheckpointError(
            f"no runs of a small Gemma are recorded in {folder}: run `unseen record {NAME}`"
        )
    found: dict[str, list[SmallRecord]] = {
        strength: [] for strength in STRENGTHS if any(record.strength == strength for record in records)
    }
    for record in sorted(records, key=lambda record: record.seed):
        found[record.strength].append(record)
    return found


def steps_interval(records: Iterable[SmallRecord], arm: str) -> Interval:
    """:func:`.records.interval` of the steps that an arm takes to ``LEVEL``.

    A censored run counts as the limit of its fine-tuning. So where there are any (`censored_runs`), this is
    the mean of the steps up to the limit, and the mean of all steps is larger.
    """
    return interval(record.steps(arm) for record in records)


def extra_steps(records: Iterable[SmallRecord], arm: str, than: str = "ordinary") -> Interval:
    """Interval of the steps that ``arm`` takes more ``than`` another, seed by seed: from the same model.

    Censored runs count as the limit: where only ``arm`` has them, the mean of all steps differs by more.
    """
    return interval(record.steps(arm) - record.steps(than) for record in records)


def censored_runs(records: Iterable[SmallRecord], arm: str) -> int:
    """How many runs did not reach ``LEVEL``."""
    return sum(record.censored(arm) for record in records)


def _json_data(config: ExperimentConfig) -> dict[str, Any]:
    """``config`` as JSON gives it back."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return data
