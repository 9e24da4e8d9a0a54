"""Make the models of the playground: three of the course's runs, with checkpoints on the way, as scripts.

`make book` calls this where the book has the page ``playground.md``. A page that is opened from disk can load
scripts and nothing else, so each checkpoint becomes one: ``unseen.deliver("plain-50", "…")``, the text being
that of `unseen_lib.export` in base64. ``manifest.js`` says what there is, how it was made and how good it is.
All of it is kept in ``_build/playground`` until something changes that the weights depend on.

Run it as ``python -m tools.build_playground [BOOK]``.
"""

from __future__ import annotations

import base64
import json
import math
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tools.build_book import environment_key, library_closure
from unseen_lib import __version__
from unseen_lib.evaluation import generate
from unseen_lib.experiments import TEST_SEED, available_cores, current_scale, measurement, preset, run_apart
from unseen_lib.export import export_model, import_model
from unseen_lib.model import GPT, count_parameters
from unseen_lib.problems import SCENARIOS, Batch, longest_sequence, sample_batch
from unseen_lib.records import DIGITS, rounded
from unseen_lib.training import TrainConfig, to_json, train
from unseen_lib.transcripts import ERRORS

SEED = 0  # the one that chapters 2 and 5 train live
PROBLEMS = 256  # test problems a scenario at each checkpoint
PARTS = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)  # of a run, where it is kept
LARGEST_FILE, LARGEST_ALL = 1_000_000, 16_000_000  # bytes
SECONDS = 150  # that training took on a laptop's two cores, to say so beforehand


def scale() -> str:
    """The scale of the models: larger ones than those of ``cpu`` would not fit into a page."""
    return "smoke" if current_scale() == "smoke" else "cpu"


@dataclass(frozen=True)
class Choice:
    """One of the three models."""

    name: str
    title: str
    policy: str
    copy: bool

    def config(self) -> TrainConfig:
        """The settings of chapters 2 and 5; at the scale smoke a model that trains for seconds."""
        names = 512 if scale() == "cpu" else None
        return preset(scale(), names=names, policy=self.policy, copy=self.copy, seed=SEED)


CHOICES = (
    Choice("plain", "Plain", "trainable", False),
    Choice("copy", "Copy attention", "trainable", True),
    Choice("frozen-copy", "Frozen embeddings + copy attention", "frozen", True),
)


def checkpoint_steps(steps: int) -> list[int]:
    """Where a run of that many steps is kept, from before its first step to after its last."""
    return sorted({round(part * steps) for part in PARTS})


def train_one(choice: Choice, folder: Path) -> None:
    """Train a model; write its checkpoints and ``NAME.json``, its part of the manifest, into ``folder``."""
    config = choice.config()
    steps = checkpoint_steps(config.steps)
    measure_all = measurement(config, problems=PROBLEMS)
    sizes: dict[int, int] = {}

    def measure(model: GPT, step: int) -> dict[str, Any]:
        if step not in steps:
            return {}
        about = {"name": choice.name, "step": step, "seed": SEED, "policy": choice.policy}
        data = export_model(model, config.vocabulary, about)
        script = f'unseen.deliver("{choice.name}-{step}", "{base64.b64encode(data).decode()}");\n'
        (folder / f"{choice.name}-{step}.js").write_text(script, encoding="utf-8")
        sizes[step] = len(script)
        shipped = import_model(data).model  # the rounded weights are what is measured
        return {**measure_all(shipped, step), "same_text": same_text(model, shipped, config)}

    run = train(
        config,
        measure=measure,
        measure_every=math.gcd(*steps),
        folder=folder.with_name(choice.name),  # never one that UNSEEN_FOLDER names
        device="cpu",
        threads=1,
        progress=False,
    )
    of_the_page = {*SCENARIOS, "rows", "suppression", "same_text"}
    checkpoints = [
        {
            "step": point["step"],
            "id": f"{choice.name}-{point['step']}",
            "file": f"{choice.name}-{point['step']}.js",
            "bytes": sizes[point["step"]],
            "loss": point["loss"],
            "measures": {name: value for name, value in point.items() if name in of_the_page},
        }
        for point in run.curve
        if point["step"] in steps
    ]
    entry = {
        "name": choice.name,
        "title": choice.title,
        "policy": choice.policy,
        "copy": choice.copy,
        "parameters": count_parameters(run.model),
        "seconds": round(run.seconds, 1),  # of training alone
        "config": to_json(config),
        "checkpoints": rounded(checkpoints, DIGITS),
    }
    (folder / f"{choice.name}.json").write_text(json.dumps(entry, allow_nan=False), encoding="utf-8")


def same_text(model: GPT, shipped: GPT, config: TrainConfig) -> float:
    """The share of test problems, of all scenarios, under which both models write the same."""
    same: list[bool] = []
    for scenario in SCENARIOS:
        batch = sample_batch(
            config.task,
            config.vocabulary,
            batch_size=PROBLEMS,
            seed=TEST_SEED,
            index=0,
            scenario=scenario,
            stream="test",
        )
        one, other = (written_by(each, batch, config) for each in (model, shipped))
        same += (one == other).all(1).tolist()
    return sum(same) / len(same)


def written_by(model: GPT, batch: Batch, config: TrainConfig) -> torch.Tensor:
    """What a model writes under each problem, with room for the longest proof of the task: (B, room)."""
    room = longest_sequence(config.task) + 1 - int(batch.prompt_length.max())
    written = generate(
        model, batch.tokens, batch.prompt_length, vocabulary=config.vocabulary, max_new_tokens=room
    )
    return F.pad(written, (0, room - written.shape[1]), value=config.vocabulary.pad)


def manifest_of(folder: Path, key: str, seconds: float) -> dict[str, Any]:
    """All that the page has to know before it loads a model."""
    models = [json.loads((folder / f"{choice.name}.json").read_text(encoding="utf-8")) for choice in CHOICES]
    config = CHOICES[0].config()
    return {
        "key": key,
        "scale": scale(),
        "seed": SEED,
        "seconds": round(seconds, 1),
        "test": {"seed": TEST_SEED, "problems": PROBLEMS},
        "errors": ERRORS,
        "versions": {
            "unseen_lib": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "task": {
            "family": config.task.family,
            "predicates": config.task.predicates,
            "chain": config.task.chain,
            "context": config.model.context,
        },
        "vocabulary": {
            "words": config.vocabulary.words,
            "seen": config.vocabulary.seen,
            "unseen": config.vocabulary.unseen,
        },
        "models": models,
    }


def check_sizes(manifest: dict[str, Any]) -> None:
    """Raise ValueError where a reader would have to load more than was promised."""
    sizes = {point["file"]: point["bytes"] for model in manifest["models"] for point in model["checkpoints"]}
    largest = max(sizes, key=lambda file: sizes[file])
    if sizes[largest] > LARGEST_FILE:
        raise ValueError(f"{largest} has {sizes[largest]:,} bytes, but may have {LARGEST_FILE:,}")
    if sum(sizes.values()) > LARGEST_ALL:
        raise ValueError(
            f"the models of the playground have {sum(sizes.values()):,} bytes together, but may have "
            f"{LARGEST_ALL:,}: keep fewer checkpoints"
        )


def read_manifest(file: Path) -> dict[str, Any]:
    """The data of a ``manifest.js``; nothing if there is none."""
    try:
        text = file.read_text(encoding="utf-8")
        manifest: dict[str, Any] = json.loads(text[text.index("= {") + 2 : text.rindex(";")])
    except (FileNotFoundError, ValueError):
        return {}
    return manifest


def models_key(book: Path) -> str:
    """Hash of all that the weights depend on."""
    names = {"unseen_lib.experiments", "unseen_lib.export", "unseen_lib.training"}
    return environment_key([*library_closure(names, book), Path(__file__)], book)


def build(book: Path) -> int:
    """Make ``_build/playground`` anew if it is not up to date; the return value is an exit status."""
    target = book / "_build" / "playground"
    key = models_key(book)
    kept = read_manifest(target / "manifest.js")
    if kept.get("key") == key:
        print(f"models of the playground: {kept['seconds']} s (kept)")
        return 0
    time_needed = f": about {SECONDS} s on two cores" if scale() == "cpu" else ""
    print(f"training the {len(CHOICES)} models of the playground{time_needed}", flush=True)
    began = time.perf_counter()
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".playground.", dir=target.parent) as unfinished:
        folder = Path(unfinished) / "models"
        folder.mkdir()
        jobs = {choice.name: partial(train_one, choice, folder) for choice in CHOICES}
        failed = run_apart(jobs, "playground", processes=available_cores())
        if failed:  # run_apart has said why
            return 1
        manifest = manifest_of(folder, key, time.perf_counter() - began)
        check_sizes(manifest)
        for choice in CHOICES:
            (folder / f"{choice.name}.json").unlink()
        text = json.dumps(manifest, allow_nan=False, separators=(",", ":"))
        script = f"globalThis.unseen = globalThis.unseen || {{}};\nunseen.manifest = {text};\n"
        (folder / "manifest.js").write_text(script, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    print(f"models of the playground: {manifest['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
