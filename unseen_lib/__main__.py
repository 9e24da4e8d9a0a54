"""The command line: ``unseen`` or ``python -m unseen_lib``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from unseen_lib import __version__
from unseen_lib.checkpoint import check_writable, replace_file
from unseen_lib.errors import CheckpointError, ConfigError, PretrainedError
from unseen_lib.experiments import (
    POLICIES,
    SCALES,
    current_scale,
    measurement,
    preset,
    product,
    record,
    recorded_grids,
    run_grid,
    run_name,
)
from unseen_lib.pretrained import small
from unseen_lib.problems import SCENARIOS
from unseen_lib.records import is_recorded, load_record, record_of, recorded_folder, save_record
from unseen_lib.training import NonFiniteLoss, choose_device, train

PROCESSES = "how many runs at a time; default: a core each, or one on a GPU"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit status: 1 if a run failed, 2 if it could not start.

    For ``audit``, 1 says that rows have collapsed and 2 that the model could not be audited.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except (ConfigError, PretrainedError) as error:
        print(f"unseen: {error}", file=sys.stderr)
        return 2
    except (CheckpointError, NonFiniteLoss) as error:
        print(f"unseen: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unseen", description="Transformers that reason with names they never saw."
    )
    parser.add_argument("--version", action="version", version=f"unseen {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    one = commands.add_parser("train", help="train one model and print how it reasons")
    one.add_argument("--scale", choices=SCALES, default=None, help="default: UNSEEN_SCALE, or cpu")
    one.add_argument("--names", type=int, help="number of names that training uses")
    one.add_argument("--policy", choices=POLICIES, default="trainable", help="what happens to the embeddings")
    one.add_argument("--copy", action="store_true", help="add copy attention")
    one.add_argument("--seed", type=int, default=0, help="decides all that is random in the run")
    one.add_argument("--steps", type=int, help="other than the scale's own")
    one.add_argument("--folder", type=Path, help="keep checkpoints here and go on from the last one")
    one.add_argument("--device", help="cpu, cuda, cuda:1 …; chosen if left out")
    one.add_argument("--out", type=Path, help="write the run's record (JSON) to this file")
    one.set_defaults(run=_train)

    many = commands.add_parser("grid", help="train a grid over seeds, in processes side by side")
    many.add_argument("folder", type=Path, help="one JSON file a run; finished runs are not repeated")
    many.add_argument("--scale", choices=SCALES, default=None, help="default: UNSEEN_SCALE, or cpu")
    many.add_argument("--names", type=int, nargs="+", help="default: the scale's diversities")
    many.add_argument(
        "--policy",
        choices=POLICIES,
        nargs="+",
        default=["trainable"],
        metavar="POLICY",
        help="what happens to the embeddings",
    )
    many.add_argument("--copy", choices=("no", "yes", "both"), default="no", help="copy attention")
    many.add_argument("--seeds", type=_at_least_one, default=5, help="how many, counted from 0")
    many.add_argument("--steps", type=int, help="other than the scale's own")
    many.add_argument("--processes", type=_at_least_one, help=PROCESSES)
    many.set_defaults(run=_grid)

    again = commands.add_parser("record", help="record a grid that the book shows, where runs are missing")
    again.add_argument(
        "name",
        nargs="?",
        help=f"one of {', '.join(recorded_grids())} or {small.NAME}; without it, a list",
    )
    again.add_argument("--processes", type=_at_least_one, help=PROCESSES)
    again.set_defaults(run=_record)

    look = commands.add_parser(
        "audit",
        help="say whether the rows of a published model's unused tokens have collapsed",
        description="Reads rows of the embedding, not the model. Exit status: 0 healthy, 1 collapsed rows "
        "found, 2 could not be audited.",
    )
    look.add_argument("model", help="a folder of safetensors, a GGUF file, or owner/name on the hub")
    look.add_argument(
        "--tokens",
        nargs="+",
        metavar="TOKEN",
        help="the ones you mean to use: ids, ranges of ids (6-104) or texts; default: found by their names",
    )
    look.add_argument("--sample", type=_at_least_two, default=256, help="rows of a group that are measured")
    look.add_argument("--seed", type=int, default=0, help="draws those rows")
    look.add_argument(
        "--scan",
        action=argparse.BooleanOptionalAction,
        help="read every row of the embedding; default: if the model is on this disk",
    )
    look.add_argument("--json", action="store_true", help="print JSON")
    look.add_argument("--plot", type=Path, metavar="FILE", help="draw where the rows lie (.png, .svg, .pdf)")
    look.set_defaults(run=_audit)

    tune = commands.add_parser(
        "finetune",
        help="fine-tune a published model on the logic task, with symbols of one kind",
        description="The paper's fine-tuning of Gemma 3 1B, one arm a call; needs a GPU and, for Gemma, a "
        "token of the hub. Asked again with the same folder, it goes on where it was.",
    )
    tune.add_argument("model", help="a folder of safetensors, or owner/name on the hub")
    tune.add_argument(
        "--symbols",
        choices=("unused", "adjectives", "letters"),
        required=True,
        help="the kind of tokens that stand for names",
    )
    tune.add_argument("--repair", action="store_true", help="draw the rows of the unused tokens anew first")
    tune.add_argument(
        "--train",
        choices=("all", "embeddings", "lora"),
        default="all",
        help="what is trained; the paper trains all, the others take less memory",
    )
    tune.add_argument("--steps", type=_at_least_one, default=5000, help="how many at most")
    tune.add_argument(
        "--measure-every",
        type=_at_least_one,
        default=50,
        metavar="STEPS",
        help="how often held-out problems are asked",
    )
    tune.add_argument("--stop-at", type=float, metavar="SHARE", help="end at this share of exact matches")
    tune.add_argument("--batch-size", type=_at_least_one, default=128, help="problems of a step")
    tune.add_argument("--micro-batch", type=_at_least_one, help="problems in memory at once; default: as fit")
    tune.add_argument("--checkpointing", action="store_true", default=None, help="slower, with less memory")
    tune.add_argument("--seed", type=int, default=0, help="draws the problems and what is initialized")
    tune.add_argument("--folder", type=Path, help="keep checkpoints here and go on from the last one")
    tune.add_argument("--device", help="cpu, cuda, cuda:1 …; chosen if left out")
    tune.add_argument("--json", type=Path, metavar="FILE", help="write settings and curve to this file")
    tune.set_defaults(run=_finetune)

    doctor = commands.add_parser("doctor", help="say what this machine can run")
    doctor.set_defaults(run=lambda options: _doctor())
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value} must be at least 2")
    return value


def _train(options: argparse.Namespace) -> int:
    config = preset(
        options.scale,
        names=options.names,
        policy=options.policy,
        copy=options.copy,
        seed=options.seed,
        steps=options.steps,
    )
    if options.out and is_recorded(config, options.out):
        print(f"{options.out} holds this run already")
        return 0
    if options.out:
        check_writable(options.out.parent)
    run = train(config, measure=measurement(config), folder=options.folder, device=options.device)
    print(f"{run_name(config)}: {run.seconds:.0f} s, {run.tokens_per_second:,.0f} tokens/s")
    print(f"{'problems':<14}{'whole proofs':>14}{'answers':>10}   (answers by chance: 0.50)")
    for scenario in SCENARIOS:
        result = run.curve[-1][scenario]
        print(f"{scenario:<14}{result['proof_validity']:>14.2f}{result['answer_accuracy']:>10.2f}")
    rows = run.curve[-1]["rows"]
    print(
        f"mean pairwise cosine: seen rows {rows['seen']['cosine']:.3f}, "
        f"unseen rows {rows['unseen']['cosine']:.3f}"
    )
    if options.out:
        save_record(record_of(run), options.out)
    return 0


def _grid(options: argparse.Namespace) -> int:
    configs = product(
        options.scale or current_scale(),
        policies=options.policy,
        copies={"no": [False], "yes": [True], "both": [False, True]}[options.copy],
        names=options.names,
        seeds=range(options.seeds),
        steps=options.steps,
    )
    return _report(run_grid(configs, options.folder, processes=options.processes), options.folder)


def _record(options: argparse.Namespace) -> int:
    if options.name is None:
        grids: dict[str, Mapping[str, object]] = {**recorded_grids(), small.NAME: small.grid()}
        for name, runs in grids.items():
            there = len(list((recorded_folder() / name).glob("*.json")))
            print(f"{name:<13}{there:>4} of {len(runs)} runs recorded")
        return 0
    if options.name == small.NAME:
        return _record_small_gemma(options)
    return _report(record(options.name, processes=options.processes), recorded_folder() / options.name)


def _record_small_gemma(options: argparse.Namespace) -> int:
    failed = small.record_small_gemma(processes=options.processes)
    if failed:
        print(f"failed, and not recorded: {', '.join(failed)}", file=sys.stderr)
    head = f"steps to {small.LEVEL:.0%} (> where not reached)"
    print(f"{head:<36}" + "".join(f"{arm:>12}" for arm in small.ARMS))
    for strength, records in small.load_small_gemma().items():
        for found in records:
            steps = [f"{'>' * found.censored(arm)}{found.steps(arm)}" for arm in small.ARMS]
            print(f"{f'{strength}, seed {found.seed}':<36}" + "".join(f"{text:>12}" for text in steps))
    return 1 if failed else 0


def _report(failed: Mapping[str, str], folder: Path) -> int:
    if failed:
        print(f"failed, and not recorded: {', '.join(failed)}", file=sys.stderr)
    records = {path.stem: load_record(path) for path in sorted(folder.glob("*.json"))}
    print(f"{len(records)} run{'s' * (len(records) != 1)} in {folder}")
    if records:
        print(f"{'whole proofs at the end':<36}{'seen':>8}{'query unseen':>14}{'all unseen':>12}")
    for name, found in records.items():
        seen, query, unseen = (found.final[scenario]["proof_validity"] for scenario in SCENARIOS)
        print(f"{name:<36}{seen:>8.2f}{query:>14.2f}{unseen:>12.2f}")
    return 1 if failed else 0


def _audit(options: argparse.Namespace) -> int:
    from unseen_lib.pretrained.audit import audit
    from unseen_lib.pretrained.report import advice, report_text

    if options.plot:
        _check_plot(options.plot)
    tokens = None if options.tokens is None else _ids_and_texts(options.tokens)
    found = audit(options.model, tokens, sample=options.sample, seed=options.seed, scan=options.scan)
    if options.json:
        print(json.dumps({**found.to_dict(), "advice": advice(found)}, ensure_ascii=False, indent=2))
    else:
        print(report_text(found))
    if options.plot:
        from unseen_lib.plots import audited_rows, use_book_style

        use_book_style()
        points = {label: places.numpy() for label, places in found.points.items()}
        figure = audited_rows(points, title=found.model)
        kind = options.plot.suffix[1:]
        _as_audit_error(
            lambda: replace_file(options.plot, lambda path: figure.savefig(path, format=kind), what="figure")
        )
    return 1 if found.collapsed else 0


def _finetune(options: argparse.Namespace) -> int:
    from unseen_lib.pretrained.finetune import PAPER_TASK, FinetuneConfig
    from unseen_lib.pretrained.gemma import run_arm

    config = FinetuneConfig(
        PAPER_TASK,
        options.steps,
        batch_size=options.batch_size,
        seed=options.seed,
        train=options.train,
        micro_batch=options.micro_batch,
        checkpointing=options.checkpointing,
    )
    for folder in filter(None, (options.folder, options.json and options.json.parent)):
        check_writable(folder)
    found = run_arm(
        options.model,
        options.symbols,
        config,
        repair=options.repair,
        measure_every=options.measure_every,
        stop_at=options.stop_at,
        folder=options.folder,
        device=options.device,
    )
    print(f"{'step':>8}{'loss':>10}{'whole proofs':>14}{'answers given proofs':>22}   (by chance: 0.50)")
    for point in found["curve"]:
        print(
            f"{point['step']:>8}{point['loss']:>10.4f}{point['exact_match']:>14.3f}"
            f"{point['answer_accuracy']:>22.3f}"
        )
    reached = found["steps_to_90"]
    print("90 % of whole proofs: " + ("not reached" if reached is None else f"from step {reached} on"))
    if options.json:
        text = json.dumps(found, ensure_ascii=False, indent=2) + "\n"
        replace_file(options.json, lambda path: path.write_text(text, encoding="utf-8"), what="result")
    return 0


def _check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise PretrainedError(
            f"--plot {path} does not say which kind of figure: end it in .png, .svg or .pdf"
        )
    _as_audit_error(lambda: check_writable(path.parent))


def _as_audit_error(write: Callable[[], None]) -> None:
    """A figure that cannot be written is status 2: 1 would say that rows have collapsed."""
    try:
        write()
    except CheckpointError as error:
        raise PretrainedError(str(error)) from error


def _ids_and_texts(words: Sequence[str]) -> Iterator[int | str]:
    """The tokens that a user names: ``7`` is an id, ``6-104`` many, and all else a text."""
    for word in words:
        if span := re.fullmatch(r"(\d+)-(\d+)", word):
            yield from range(int(span[1]), int(span[2]) + 1)
        else:
            yield int(word) if re.fullmatch(r"-?\d+", word) else word


def _doctor() -> int:
    """Print what is here, and what will not work here and why."""
    device, dtype, reason = choose_device()
    free = shutil.disk_usage(".").free / 1e9
    print(f"python   {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"torch    {torch.__version__}, {torch.get_num_threads()} CPU threads")
    print(f"device   {device}, {str(dtype).removeprefix('torch.')}: {reason}")
    print(f"memory   {_memory()}; disk {free:.0f} GB free")
    print(f"scale    {current_scale()} (set UNSEEN_SCALE to change it)")
    problems = _what_will_not_work(free)
    for problem in problems:
        print(f"note     {problem}")
    if not problems:
        print("Nothing speaks against the smoke, cpu and gpu scales; paper was made for a data-center GPU.")
    return 0


def _memory() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_properties(0).total_memory / 1e9:.0f} GB on the GPU"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB"
    return "unknown on this system"


def _what_will_not_work(free_gb: float) -> list[str]:
    notes = []
    if not torch.cuda.is_available():
        notes.append(
            "UNSEEN_SCALE=gpu and paper will not finish here in reasonable time: torch sees no CUDA GPU"
        )
        if torch.version.cuda:
            notes.append(
                "torch was built for CUDA, so a driver is missing; the CPU build is smaller and does as well"
            )
    if not hasattr(torch.optim, "Muon"):
        notes.append(
            f"the cpu scale needs torch.optim.Muon, which came with torch 2.9; here is {torch.__version__}"
        )
    if free_gb < 3:
        notes.append(f"make book needs about 3 GB for its environment, and {free_gb:.1f} GB are free")
    return notes


if __name__ == "__main__":
    sys.exit(main())
