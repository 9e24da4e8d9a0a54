"""The store of recorded runs: small JSON files that travel inside the wheel.

One file is one run: its whole config, its curve, and where, when and with what it ran. The book draws its
grids from these files; ``unseen record`` makes them again.
"""

from __future__ import annotations

import datetime
import json
import math
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from scipy import stats

from unseen_lib import __version__
from unseen_lib.checkpoint import replace_file
from unseen_lib.errors import CheckpointError
from unseen_lib.training import Run, TrainConfig, from_json, to_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Formatted(Protocol):
    """What can be kept as a file."""

    @property
    def format(self) -> str:
        """Name and version of the way it is written."""
        ...


#: A kind of record.
Kind = TypeVar("Kind", bound=Formatted)

FORMAT = "unseen-run-1"
DIGITS = 5  # significant digits of a measured number in a file


@dataclass(frozen=True)
class Record:
    """One finished run, without its weights.

    Attributes
    ----------
    config : dict
        The run's :class:`~unseen_lib.training.TrainConfig` as JSON data; :meth:`train_config` builds it.
    curve : list of dict
        One entry a measurement, the last at the end of training.
    commit : str
        The library's commit, with ``+`` behind it if there were changes on top; "" outside a checkout.
    """

    config: dict[str, Any]
    curve: list[dict[str, Any]]
    device: str
    dtype: str
    threads: int
    seconds: float
    tokens_per_second: float
    peak_memory_mb: float | None
    torch: str
    library: str
    commit: str
    date: str
    format: str = FORMAT

    @property
    def final(self) -> dict[str, Any]:
        """The measurement at the end of training."""
        return self.curve[-1]

    @property
    def names(self) -> int:
        """How many symbols training used."""
        return int(self.config["vocabulary"]["seen"])

    @property
    def seed(self) -> int:
        """What decided all that is random in the run."""
        return int(self.config["seed"])

    def train_config(self) -> TrainConfig:
        """The settings, to train with them again."""
        return from_json(self.config)

    def series(self, *path: str) -> tuple[list[int], list[float]]:
        """Steps and values of one measured quantity, as ``series("rows", "unseen", "cosine")``."""
        return [entry["step"] for entry in self.curve], [value_at(entry, path) for entry in self.curve]


def value_at(entry: dict[str, Any], path: Sequence[str]) -> float:
    """Follow ``path`` through a nested measurement. Raises KeyError naming what is there instead."""
    value: Any = entry
    for key in path:
        if not isinstance(value, dict) or key not in value:
            there = ", ".join(value) if isinstance(value, dict) else repr(value)
            raise KeyError(f"{'/'.join(path)}: no {key!r} among {there}")
        value = value[key]
    return float(value)


def record_of(run: Run) -> Record:
    """What is worth keeping of ``run``."""
    return Record(
        config=to_json(run.config),
        curve=rounded(run.curve, DIGITS),
        device=device_name(run.device),
        dtype=run.dtype,
        threads=run.threads,
        seconds=round(run.seconds, 2),
        tokens_per_second=round(run.tokens_per_second),
        peak_memory_mb=round(run.peak_memory_mb) if run.peak_memory_mb else None,
        torch=torch.__version__,
        library=__version__,
        commit=commit(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    )


def device_name(device: str) -> str:
    """``"cpu"``, or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def commit() -> str:
    """Short commit of the checkout this library is imported from, "" where there is none.

    A ``+`` behind it says that the library's code differs from that commit; recorded runs do not count.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not a venv inside somebody else's checkout
        changed = git("status", "--porcelain", "--", ".", ":(exclude)recorded")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def rounded(value: Any, digits: int) -> Any:
    """JSON data with its finite floats cut to so many significant digits."""
    if isinstance(value, dict):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) and math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------ files
def recorded_folder() -> Path:
    """Where the recorded runs of the course lie."""
    return Path(str(resources.files("unseen_lib"))) / "recorded"


def is_recorded(config: TrainConfig, path: Path) -> bool:
    """Whether ``path`` holds a run of ``config``: False if there is no file yet.

    Raises
    ------
    CheckpointError
        If it holds anything else, which would be lost if the run were recorded there.
    """
    return holds(path, lambda: load_record(path).train_config() == config)


def holds(path: Path, same: Callable[[], bool]) -> bool:
    """Whether ``path`` exists, and if so, it has to be the ``same`` run. Raises as :func:`is_recorded`."""
    if not path.exists():
        return False
    if not same():
        raise CheckpointError(
            f"{path} is a run with other settings; it is left as it is: choose another place, or move it away"
        )
    return True


def save_record(record: DataclassInstance, path: Path) -> None:
    """Write ``record``, of any kind, to ``path``, whole or not at all.

    Raises
    ------
    CheckpointError
        If it cannot be written, or a measurement is not a finite number.
    """
    try:
        text = json.dumps(asdict(record), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise CheckpointError(f"a measurement for {path} is not a finite number ({error})") from error
    replace_file(path, lambda unfinished: unfinished.write_text(text + "\n"), what="record")


def load_record(path: Path) -> Record:
    """Read one recorded run.

    Raises
    ------
    CheckpointError
        If the file is truncated or is something else. It is left as it is.
    """
    return read_record(path, Record, FORMAT, _check_record)


def _check_record(record: Record) -> None:
    record.train_config()
    if not record.curve or not all("step" in entry for entry in record.curve):
        raise ValueError("no measurements with their step")


def read_record(
    path: Path, kind: type[Kind], format: str, check: Callable[[Kind], None] = lambda record: None
) -> Kind:
    """Read a record of any ``kind``, of this format. Raises as :func:`load_record`.

    Parameters
    ----------
    check : callable, optional
        Raises ValueError or TypeError for a record that is not whole.
    """
    try:
        record = kind(**json.loads(path.read_text()))
        if record.format != format:
            raise ValueError(f"format={record.format!r}, where {format!r} was expected")
        check(record)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a whole recorded run ({error}); it is left as it is") from error
    return record


def load_grid(name: str, folder: Path | None = None) -> list[Record]:
    """All recorded runs of the grid ``name``, by names and seed.

    Raises
    ------
    CheckpointError
        If there are none, or one of them cannot be read.
    """
    records = [load_record(path) for path in _paths(name, folder)]
    return sorted(records, key=lambda record: (record.names, record.seed))


def load_arms(name: str, folder: Path | None = None) -> dict[str, list[Record]]:
    """All recorded runs of the grid ``name``, by arm: runs that differ in their seed alone.

    An arm is what the name of a run's file says before ``-seed``, such as ``"frozen-copy-512"``.

    Raises
    ------
    CheckpointError
        If there are none, or one of them cannot be read.
    """
    arms: dict[str, list[Record]] = {}
    for path in _paths(name, folder):
        arms.setdefault(path.stem.rpartition("-seed")[0], []).append(load_record(path))
    return {arm: sorted(records, key=lambda record: record.seed) for arm, records in arms.items()}


def _paths(name: str, folder: Path | None) -> list[Path]:
    folder = folder or recorded_folder()
    paths = sorted((folder / name).glob("*.json"))
    if not paths:
        there = ", ".join(sorted(path.name for path in folder.glob("*") if path.is_dir())) or "none"
        raise CheckpointError(f"no runs are recorded under {name!r}; recorded grids: {there}")
    return paths


# ------------------------------------------------------------------------------------------------- over seeds
class Interval(NamedTuple):
    """Mean over runs with the two ends of its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:z.2f} [{self.low:z.2f}, {self.high:z.2f}]"  # z: no minus before a zero


def interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """Student's t interval for the mean of a few runs.

    It rests on the spread between seeds alone, and for shares it may reach past 0 or 1. Where all seeds agree
    exactly (a share of 0 or 1), it has no width: then the number of seeds and of problems says more.

    Raises
    ------
    ValueError
        With fewer than two values, of which one says nothing about the spread, or one that is not finite.
    """
    sample = list(values)
    if len(sample) < 2:
        raise ValueError(f"an interval needs at least two runs, and there are {len(sample)}")
    if not all(map(math.isfinite, sample)):
        raise ValueError(f"an interval needs finite values, and they are {sample}")
    mean = math.fsum(sample) / len(sample)
    variance = math.fsum((value - mean) ** 2 for value in sample) / (len(sample) - 1)
    half = float(stats.t.ppf((1 + level) / 2, len(sample) - 1)) * math.sqrt(variance / len(sample))
    return Interval(mean, mean - half, mean + half)


def final_interval(records: Iterable[Record], *path: str) -> Interval:
    """:func:`interval` of one quantity at the end of training."""
    return interval(value_at(record.final, path) for record in records)


def difference(
    one: Iterable[Record], other: Iterable[Record], value: Callable[[Record], float], *, common: bool = False
) -> Interval:
    """:func:`interval` of what one arm has more than another, seed by seed.

    Runs of one seed share their problems and the draw of their first weights as far as their settings allow,
    so the difference within a seed is less noisy than that of the means.

    Parameters
    ----------
    value : callable
        What to compare, a number a run.
    common : bool
        Compare the seeds that both arms have, where one of them was recorded with more.

    Raises
    ------
    ValueError
        If the arms have different seeds and ``common`` is not set, or fewer than two seeds to compare.
    """
    first, second = ({run.seed: value(run) for run in runs} for runs in (one, other))
    if first.keys() != second.keys() and not common:
        raise ValueError(
            f"the arms have different seeds, {sorted(first)} and {sorted(second)}; compare those that both "
            "have with common=True"
        )
    return interval(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))


def best_of_others(records: Sequence[Record], *path: str) -> list[float]:
    """A quantity of each run at the step at which the *other* runs are best on average.

    The highest point of a run's own curve would flatter it: part of any maximum is luck.
    """
    curves = [record.series(*path)[1] for record in records]
    if len(curves) < 2:
        raise ValueError(f"there are no other runs: {len(curves)} run was given, and two are needed")
    found = []
    for i, curve in enumerate(curves):
        others = [math.fsum(values) for values in zip(*(curves[:i] + curves[i + 1 :]), strict=True)]
        found.append(curve[others.index(max(others))])
    return found


def spread_kept(record: Record, group: str = "unseen", *, at: int = -1) -> float:
    """Functional spread of a group of rows as a share of that of fresh rows, at the measurement ``at``."""
    rows = record.curve[at]["rows"]
    return float(rows[group]["functional_spread"] / rows["fresh"]["functional_spread"])
