"""Named settings at four scales, what is measured of a run, and grids over seeds.

The settings of the ``cpu`` scale were chosen by trial on 512 names and seed 0, looking at all-unseen problems
with frozen embeddings; sizes there are tuned, all other names and seeds ran afterwards at the same settings.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from unseen_lib.checkpoint import check_writable
from unseen_lib.collapse import functional_spread, logit_spread, mean_logit, measure_rows
from unseen_lib.controls import evaluate_controls
from unseen_lib.embeddings import EmbeddingPolicy
from unseen_lib.errors import ConfigError
from unseen_lib.evaluation import evaluate
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.optimizers import OptimizerConfig
from unseen_lib.problems import IGNORE, SCENARIOS, Task, check_vocabulary, longest_sequence, sample_batch
from unseen_lib.records import is_recorded, record_of, recorded_folder, save_record
from unseen_lib.training import Measure, TrainConfig, progress_bar, train
from unseen_lib.vocabulary import Vocabulary

#: From seconds to what the paper did.
SCALES = ("smoke", "cpu", "gpu", "paper")
#: What happens to the embeddings in the main grid.
POLICIES = ("trainable", "frozen", "forgetting", "temporary")
UNSEEN = 100  # held-out names at every scale but smoke, as in the paper
TEST_SEED = 2026  # all runs are judged on the same problems


# ---------------------------------------------------------------------------------------------------- presets
def current_scale() -> str:
    """The scale that ``UNSEEN_SCALE`` names, ``cpu`` if it is not set. Raises ConfigError if unknown."""
    return _known_scale(os.environ.get("UNSEEN_SCALE", "cpu"), "UNSEEN_SCALE")


def scale_note() -> str:
    """What a page has to say of its live numbers at this scale; "" where they mean what the text says."""
    if current_scale() != "smoke":
        return ""
    return (
        "UNSEEN_SCALE=smoke: models here train for seconds, so live numbers, and what the text says of them, "
        "mean nothing."
    )


def _known_scale(scale: str, field: str = "scale") -> str:
    if scale not in SCALES:
        raise ConfigError(f"{field}={scale!r} is unknown; use one of {', '.join(SCALES)}")
    return scale


def diversities(scale: str | None = None) -> tuple[int, ...]:
    """Numbers of training names compared at a scale. The paper's are 150, 600, 2400, 9600."""
    scale = _known_scale(scale) if scale is not None else current_scale()
    return {
        "smoke": (8, 32),
        "cpu": (32, 128, 512, 2048),
        "gpu": (150, 600, 2400),
        "paper": (150, 600, 2400, 9600),
    }[scale]


def preset(
    scale: str | None = None,
    *,
    names: int | None = None,
    policy: str | EmbeddingPolicy = "trainable",
    copy: bool = False,
    seed: int = 0,
    steps: int | None = None,
) -> TrainConfig:
    """The settings of one run.

    Parameters
    ----------
    scale : {"smoke", "cpu", "gpu", "paper"}, optional
        By default what ``UNSEEN_SCALE`` says.
    names : int, optional
        Symbols that training uses; by default 512 (32 at ``smoke``, 2400 at ``gpu`` and ``paper``).
    policy : str or EmbeddingPolicy
        A name from ``POLICIES``, at the scale's own intervals, or a policy of your own.
    copy : bool
        Whether the model has copy attention.
    seed : int
        Of the initial weights, the problems and the resets.
    steps : int, optional
        Other than the scale's own; the schedule stretches with it.

    Raises
    ------
    ConfigError
        If the scale or policy is unknown or the parts do not fit.
    """
    scale = _known_scale(scale) if scale is not None else current_scale()
    base = _BASES[scale](names, copy)
    steps = steps if steps is not None else base.steps
    chosen = policy if isinstance(policy, EmbeddingPolicy) else _policy(policy, scale, steps)
    return replace(base, policy=chosen, seed=seed, steps=steps)


def _policy(name: str, scale: str, steps: int) -> EmbeddingPolicy:
    if name not in POLICIES:
        raise ConfigError(f"policy={name!r} is unknown; use one of {', '.join(POLICIES)}")
    if name in ("trainable", "frozen"):
        return EmbeddingPolicy(name)
    every = {"smoke": 10, "cpu": 50, "gpu": 100, "paper": 100}[scale]
    rows = "symbols" if scale in ("smoke", "cpu") else "all"
    until = None if name == "forgetting" else {"smoke": steps // 2, "cpu": steps // 2}.get(scale, steps // 5)
    return EmbeddingPolicy("forgetting", every=every, until=until, rows=rows)


# What the cpu scale changes against the paper, so that a small model learns within a minute: small output
# projections, a final gain that lets logits grow as large as at width 1024, a first layer that sees three
# tokens, and Muon for the hidden matrices. The recorded grid "deviations" undoes them one at a time.
DEVIATIONS = ("output_scale", "final_gain", "local_window", "hidden")
_SMALL: dict[str, Any] = {
    "output_scale": 0.25,
    "final_gain": 4.0,
    "local_window": 3,
    "copy_combine": "sum",
}
QUICK = OptimizerConfig(
    hidden="muon",
    hidden_rate=0.01,
    gain_rate=1e-3,
    embedding_rate=5e-4,
    schedule="stable_decay",
    embedding_schedule="constant",
    warmup_steps=50,
    initial_factor=0.0,
    final_factor=0.05,
)


def _smoke(names: int | None, copy: bool) -> TrainConfig:
    vocabulary = Vocabulary("compact", 32 if names is None else names, 16)
    model = GPTConfig(
        vocabulary.size, width=32, layers=2, heads=2, mlp_width=32, context=64, copy=copy, **_SMALL
    )
    optimizer = replace(QUICK, warmup_steps=5)
    task = Task(family="chain", format="compact")
    return TrainConfig(task, vocabulary, model, optimizer=optimizer, steps=40, batch_size=16)


def _cpu(names: int | None, copy: bool) -> TrainConfig:
    vocabulary = Vocabulary("compact", 512 if names is None else names, UNSEEN)
    model = GPTConfig(
        vocabulary.size,
        width=64,
        layers=3,
        heads=2,
        head_dim=64,
        mlp_width=128,
        context=64,
        copy=copy,
        **_SMALL,
    )
    task = Task(family="chain", format="compact")
    return TrainConfig(task, vocabulary, model, optimizer=QUICK, steps=1000, batch_size=64)


def _gpu(names: int | None, copy: bool) -> TrainConfig:
    """Between the two: the paper's task, format and optimizer, in a model that fits a quarter of an hour."""
    vocabulary = Vocabulary("full", 2400 if names is None else names, UNSEEN)
    task = Task(family="rule_priority", format="full", predicates=(4, 6), rules=(0, 10))
    model = GPTConfig(
        vocabulary.size,
        width=384,
        layers=6,
        heads=6,
        mlp_width=384,
        context=longest_sequence(task),
        copy=copy,
    )
    optimizer = OptimizerConfig(hidden_rate=1e-3, gain_rate=1e-3, embedding_rate=1e-3, warmup_steps=500)
    return TrainConfig(task, vocabulary, model, optimizer=optimizer, steps=8000, batch_size=128)


def _paper(names: int | None, copy: bool) -> TrainConfig:
    vocabulary = Vocabulary("full", 2400 if names is None else names, UNSEEN)
    task = Task(family="rule_priority", format="full")
    model = GPTConfig(vocabulary.size, context=longest_sequence(task), copy=copy)
    return TrainConfig(task, vocabulary, model, steps=50_000, batch_size=256)


_BASES = {"smoke": _smoke, "cpu": _cpu, "gpu": _gpu, "paper": _paper}


# ------------------------------------------------------------------------------------------- what is measured
def measurement(config: TrainConfig, *, problems: int = 256) -> Measure:
    """The ``measure`` that the course trains with.

    Its answers hold, for each scenario of ``SCENARIOS``, the fields of an evaluation; under ``rows`` the
    measures of the ``seen`` rows, the ``unseen`` rows and of ``fresh`` rows, drawn as at the start; and under
    ``suppression`` how far the mean logit of the unseen rows lies above that of the seen ones (nats). The
    rows are compared by the features of the model on seen problems, where the loss looks. At the last step
    there are ``controls`` too: what `.controls.evaluate_controls` finds for ``all_unseen``.

    Raises
    ------
    ConfigError
        If the vocabulary has too few names for one of the scenarios.
    """
    for scenario in SCENARIOS:
        check_vocabulary(config.task, config.vocabulary, scenario)
    probe = sample_batch(
        config.task,
        config.vocabulary,
        batch_size=problems,
        seed=TEST_SEED,
        index=0,
        stream="test",
        scenario="seen",
    )
    fresh = torch.randn(
        config.vocabulary.unseen, config.model.width, generator=torch.Generator().manual_seed(TEST_SEED)
    )
    fresh = fresh / config.model.width**0.5

    @torch.inference_mode()
    def measure(model: GPT, step: int) -> dict[str, Any]:
        device = model.embedding.device
        answers: dict[str, Any] = {}
        for scenario in SCENARIOS:
            answers[scenario] = evaluate(
                model,
                config.task,
                config.vocabulary,
                scenario=scenario,
                problems=problems,
                seed=TEST_SEED,
            ).to_dict()
        features = model.features(probe.tokens.to(device))[probe.targets.to(device) != IGNORE].float().cpu()
        rows = model.unembedding.detach().float().cpu()
        groups = {
            "seen": rows[list(config.vocabulary.seen_ids)],
            "unseen": rows[list(config.vocabulary.unseen_ids)],
            "fresh": fresh,
        }
        answers["rows"] = {name: row_measures(group, features) for name, group in groups.items()}
        answers["suppression"] = answers["rows"]["unseen"]["logit"] - answers["rows"]["seen"]["logit"]
        if step == config.steps:
            answers["controls"] = {
                "all_unseen": evaluate_controls(
                    model, config.task, config.vocabulary, problems=problems, seed=TEST_SEED
                )
            }
        return answers

    return measure


def row_measures(rows: torch.Tensor, features: torch.Tensor) -> dict[str, float]:
    """Every measure of the course of ``rows`` (N, D), read by ``features`` (M, D)."""
    return {
        **measure_rows(rows).to_dict(),
        "functional_spread": functional_spread(rows, features),
        "logit_spread": logit_spread(rows, features),
        "logit": mean_logit(rows, features),
    }


# ------------------------------------------------------------------------------------------------------ grids
def run_name(config: TrainConfig) -> str:
    """A file name that tells the runs of one grid apart."""
    policy = config.policy.kind if config.policy.until is None else "temporary"
    return f"{policy}-{'copy' if config.model.copy else 'plain'}-{config.vocabulary.seen}-seed{config.seed}"


def product(
    scale: str,
    *,
    policies: Iterable[str] = ("trainable",),
    copies: Iterable[bool] = (False,),
    names: Iterable[int] | None = None,
    seeds: Iterable[int] = range(5),
    steps: int | None = None,
) -> dict[str, TrainConfig]:
    """All combinations by name, seed by seed: a grid cut short has every cell at the seeds it got to."""
    names, policies, copies = list(names or diversities(scale)), list(policies), list(copies)
    configs = [
        preset(scale, names=number, policy=policy, copy=copy, seed=seed, steps=steps)
        for seed in seeds
        for policy in policies
        for copy in copies
        for number in names
    ]
    return {run_name(config): config for config in configs}


def without(deviation: str, config: TrainConfig) -> TrainConfig:
    """A ``cpu`` config with one of its deviations from the paper (``DEVIATIONS``) undone.

    Raises
    ------
    ConfigError
        If there is no such deviation.
    """
    if deviation not in DEVIATIONS:
        raise ConfigError(f"deviation={deviation!r} is unknown; use one of {', '.join(DEVIATIONS)}")
    if deviation == "hidden":  # at the rate that AdamW has for the gains: Muon's is far too high for it
        optimizer = replace(config.optimizer, hidden="adamw", hidden_rate=config.optimizer.gain_rate)
        return replace(config, optimizer=optimizer)
    plain = getattr(GPTConfig(config.vocabulary.size), deviation)
    return replace(config, model=replace(config.model, **{deviation: plain}))


def interventions(config: TrainConfig) -> dict[str, TrainConfig]:
    """A run with trainable embeddings, changed in one way each that might prevent the collapse, by name.

    The rate of SGD, 0.3, was found by trial with decay, on one seed, as one that learns the seen task.
    """
    sgd = replace(config.optimizer, embedding="sgd", embedding_rate=0.3)
    return {
        "coupled_adam": replace(config, optimizer=replace(config.optimizer, embedding="coupled_adam")),
        "sgd": replace(config, optimizer=sgd),
        "sgd_no_decay": replace(config, optimizer=replace(sgd, embedding_decay=0.0)),
        "no_decay": replace(config, optimizer=replace(config.optimizer, embedding_decay=0.0)),
        "mask_unseen": replace(config, mask_unseen=True),
        "untied": replace(config, model=replace(config.model, tied=False)),
    }


# Policies beside those of the main grid, where "frozen" is frozen in all rows and "forgetting" re-draws the
# symbols. The one early reset comes after a tenth of the run.
OTHER_POLICIES = {
    "frozen_symbols": EmbeddingPolicy("frozen", rows="symbols"),
    "frozen_unseen": EmbeddingPolicy("frozen", rows="unseen"),
    "forgetting_all": EmbeddingPolicy("forgetting", every=50),
    "forgetting_unseen": EmbeddingPolicy("forgetting", every=50, rows="unseen"),
    "forgetting_keep": EmbeddingPolicy("forgetting", every=50, rows="symbols", optimizer_state="keep"),
    "reset_then_freeze": EmbeddingPolicy("reset_then_freeze", at=100, rows="symbols"),
}

# What the paper leaves open about copy attention, one change each to the cpu scale's; and its predecessor.
COPY_VARIANTS: dict[str, dict[str, Any]] = {
    "mean": {"copy_combine": "mean"},
    "slices": {"copy_combine": "slices"},
    "no_rope": {"copy_rope": False},
    "no_norm": {"copy_norm": False},
    "every_layer": {"copy_where": "every"},
    "identity": {"copy": False, "identity": True},
}


def horn(*, policy: str, copy: bool, seed: int, format: str = "compact") -> TrainConfig:
    """A ``cpu`` run at 2048 names on rules with one or two premises, drawn at random, in place of chains.

    Every problem needs a derivation of one or two rounds: most problems of the recipe need none, and a model
    can do well on those by their looks. One layer more than for chains, and twice the steps, by trial with
    frozen embeddings and copy attention on seed 0. In the full format the same model had not learned to
    choose a rule, nor to see whether the query is known, when the steps were up.
    """
    base = preset("cpu", names=2048, policy=policy, copy=copy, seed=seed, steps=2000)
    task = Task("rule_priority", format, predicates=(4, 5), rules=(2, 5), body=(1, 2), depth=(1, 2))
    context = max(base.model.context, longest_sequence(task))
    vocabulary = replace(base.vocabulary, format=format)
    model = replace(base.model, vocab_size=vocabulary.size, layers=4, context=context)
    return replace(base, task=task, vocabulary=vocabulary, model=model)


def recorded_grids() -> dict[str, dict[str, TrainConfig]]:
    """The grids that the book shows, by the name of their folder; their runs by the name of their file.

    The file of a run is named ``<arm>-seed<seed>``: `.records.load_arms` groups by it.
    """
    cpu = partial(preset, "cpu", names=512)
    return {
        "smoke": product("smoke", names=(32,), seeds=(0,)),
        "main": product("cpu", policies=POLICIES, copies=(False, True)),
        "longer": product("cpu", names=(512,), seeds=range(3), steps=6000),
        "deviations": _by_seed(
            3, lambda seed: {f"without-{name}": without(name, cpu(seed=seed)) for name in DEVIATIONS}
        ),
        "temporary": product(  # five more seeds for what the main grid's five leave open
            "cpu", policies=("temporary",), copies=(False, True), names=(512, 2048), seeds=range(5, 10)
        ),
        "interventions": _by_seed(
            5,
            lambda seed: (
                {f"{name}-plain": config for name, config in interventions(cpu(seed=seed)).items()}
                | {
                    f"{name}-copy": interventions(cpu(seed=seed, copy=True))[name]
                    for name in ("coupled_adam", "mask_unseen")
                }
            ),
        ),
        "policies": _by_seed(
            5,
            lambda seed: (
                {f"{name}-plain": cpu(seed=seed, policy=policy) for name, policy in OTHER_POLICIES.items()}
                | {
                    "reset_then_freeze-copy": cpu(
                        seed=seed, policy=OTHER_POLICIES["reset_then_freeze"], copy=True
                    )
                }
            ),
        ),
        "copies": _by_seed(
            3,
            lambda seed: {
                name: _with_model(cpu(seed=seed, policy="frozen", copy=True), **changes)
                for name, changes in COPY_VARIANTS.items()
            },
        ),
        "horn": _by_seed(
            3,
            lambda seed: {
                f"{policy}-{'copy' if copy else 'plain'}": horn(policy=policy, copy=copy, seed=seed)
                for policy, copy in (
                    ("frozen", True),
                    ("trainable", False),
                    ("trainable", True),
                    ("forgetting", True),
                )
            },
        ),
        "gpu": product(  # the most telling cells first, should time run out
            "gpu",
            policies=("frozen", "trainable", "forgetting", "temporary"),
            copies=(True, False),
            names=(2400, 600, 150),
            seeds=range(3),
        ),
    }


def _by_seed(seeds: int, arms: Callable[[int], Mapping[str, TrainConfig]]) -> dict[str, TrainConfig]:
    """Arms at each seed, seed by seed."""
    return {f"{arm}-seed{seed}": config for seed in range(seeds) for arm, config in arms(seed).items()}


def _with_model(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, model=replace(config.model, **changes))


def run_grid(
    configs: Mapping[str, TrainConfig],
    folder: Path,
    *,
    processes: int | None = None,
    measure_points: int = 20,
) -> Mapping[str, str]:
    """Train every config whose record is not in ``folder`` yet, each in a process of its own.

    A finished run is recorded at once, and one under way keeps checkpoints under ``.unfinished``, so a grid
    that is stopped goes on where it was. A run that fails or is killed does not stop the others.

    Parameters
    ----------
    configs : dict
        The runs by name.
    folder : Path
        Gets one ``<name>.json`` a run.
    processes : int, optional
        By default one a CPU core, or a single one with a GPU.

    Returns
    -------
    dict
        The runs that failed, by name, and why.

    Raises
    ------
    CheckpointError
        If the folder cannot be written, or holds under the name of a run anything but that run.
    """
    missing = {
        name: config for name, config in configs.items() if not is_recorded(config, folder / f"{name}.json")
    }
    check_writable(folder)
    jobs = {
        name: partial(_train_and_record, config, folder, name, measure_points)
        for name, config in missing.items()
    }
    return run_apart(jobs, f"{folder.name} grid", processes=processes)


def run_apart(
    jobs: Mapping[str, Callable[[], None]], what: str, *, processes: int | None = None
) -> Mapping[str, str]:
    """Call every job in a process of its own. One that fails or is killed does not stop the others.

    Parameters
    ----------
    jobs : dict
        By name; calls that can be sent to another process, such as a ``partial`` of a module's function.
    what : str
        Names all of them for whoever waits.
    processes : int, optional
        As in :func:`run_grid`.

    Returns
    -------
    dict
        The jobs that failed, by name, and why.
    """
    if processes is None:
        processes = 1 if torch.cuda.is_available() else available_cores()
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, processes)) as pool:  # each thread waits for the process of one job
        calls = {pool.submit(_in_own_process, job): name for name, job in jobs.items()}
        for done in progress_bar(as_completed(calls), what, total=len(calls)):
            reason = done.result()
            if reason:
                failed[calls[done]] = reason
                print(f"{calls[done]} failed: {reason}", file=sys.stderr, flush=True)
    return failed


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_own_process(job: Callable[[], None]) -> str:
    """Call ``job`` in a process of its own. Returns why it failed, in words, or ""."""
    # Spawned, not forked: a forked child inherits torch's thread pools in an unusable state.
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(job, sender), daemon=True)
    process.start()
    sender.close()
    try:
        reason: str = receiver.recv()
    except EOFError:  # it was killed, say for want of memory
        process.join()
        return f"its process ended with status {process.exitcode} before the run was done"
    process.join()
    return reason


def _answer(job: Callable[[], None], answer: Connection) -> None:
    """Call ``job`` and answer with why it failed; in words, since not every exception can be sent."""
    reason = ""
    try:
        job()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    answer.send(reason)


def _train_and_record(config: TrainConfig, folder: Path, name: str, measure_points: int) -> None:
    every = max(1, config.steps // measure_points)
    unfinished = folder / ".unfinished" / name
    run = train(config, measure=measurement(config), measure_every=every, folder=unfinished, progress=False)
    save_record(record_of(run), folder / f"{name}.json")
    shutil.rmtree(unfinished)


def record(name: str, *, processes: int | None = None, folder: Path | None = None) -> Mapping[str, str]:
    """Run the recorded grid ``name`` where it is missing. Returns the runs that failed, and why.

    Raises
    ------
    ConfigError
        If no grid has that name.
    """
    grids = recorded_grids()
    if name not in grids:
        raise ConfigError(f"grid {name!r} is unknown; recorded grids: {', '.join(grids)}")
    return run_grid(grids[name], (folder or recorded_folder()) / name, processes=processes)
