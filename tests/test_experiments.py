"""Presets, grids over seeds, the store of recorded runs, and the command line."""

import dataclasses
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from unseen_lib import __main__ as cli
from unseen_lib import experiments
from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.experiments import (
    SCALES,
    current_scale,
    diversities,
    measurement,
    preset,
    product,
    recorded_grids,
    run_grid,
    run_name,
    without,
)
from unseen_lib.model import GPT, count_parameters
from unseen_lib.problems import SCENARIOS, longest_sequence
from unseen_lib.records import (
    best_of_others,
    difference,
    final_interval,
    interval,
    load_grid,
    load_record,
    record_of,
    recorded_folder,
    save_record,
    spread_kept,
)
from unseen_lib.training import train

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def record():
    config = preset("smoke", steps=20)
    return record_of(
        train(config, measure=measurement(config, problems=32), measure_every=10, progress=False)
    )


# ---------------------------------------------------------------------------------------------------- presets
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("copy", [False, True])
def test_every_preset_is_a_config_whose_parts_fit(scale, copy):
    for names in diversities(scale):
        for policy in experiments.POLICIES:
            config = preset(scale, names=names, policy=policy, copy=copy, seed=2)
            assert config.vocabulary.seen == names and config.seed == 2
            assert config.model.copy is copy
            assert config.model.context >= longest_sequence(config.task)


def test_the_paper_scale_is_the_paper_and_has_none_of_the_small_scales_deviations():
    config = preset("paper")
    model = config.model
    assert (model.layers, model.width, model.heads, model.mlp_width) == (10, 1024, 8, 1024)
    assert (model.output_scale, model.final_gain, model.local_window, model.tied) == (1.0, 1.0, None, True)
    optimizer = config.optimizer
    assert (optimizer.hidden, optimizer.weight_decay, optimizer.clip, optimizer.warmup_steps) == (
        "adamw",
        1e-3,
        1.0,
        2000,
    )
    assert (config.batch_size, config.steps) == (256, 50_000)
    assert (config.task.family, config.task.format) == ("rule_priority", "full")
    assert config.vocabulary.unseen == 100
    with torch.device("meta"):
        smallest, largest = (
            count_parameters(GPT(preset("paper", names=names, copy=copy).model))
            for names, copy in ((150, False), (9600, True))
        )
    assert 63e6 <= smallest <= largest <= 75e6


def test_the_scale_comes_from_the_environment_and_an_unknown_one_is_refused(monkeypatch):
    monkeypatch.setenv("UNSEEN_SCALE", "smoke")
    assert current_scale() == "smoke" and preset() == preset("smoke")
    monkeypatch.delenv("UNSEEN_SCALE")
    assert current_scale() == "cpu"
    monkeypatch.setenv("UNSEEN_SCALE", "huge")
    with pytest.raises(
        ConfigError, match="UNSEEN_SCALE='huge' is unknown; use one of smoke, cpu, gpu, paper"
    ):
        preset()
    with pytest.raises(ConfigError, match="policy='melt' is unknown"):
        preset("smoke", policy="melt")


def test_a_measurement_refuses_a_vocabulary_with_too_few_held_out_names_before_training():
    config = preset("smoke")
    few = dataclasses.replace(config.vocabulary, unseen=3)
    small = dataclasses.replace(
        config, vocabulary=few, model=dataclasses.replace(config.model, vocab_size=few.size)
    )
    with pytest.raises(ConfigError, match="unseen=3"):
        measurement(small)


def test_measurements_compare_unseen_with_fresh_rows_and_do_not_touch_the_model():
    config = preset("smoke")
    model = GPT(config.model, torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure = measurement(config, problems=64)
    first, second = measure(model, 0), measure(model, 0)
    assert first == second
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    # Before training, unseen rows are fresh rows: the measures agree up to the sample of 16 rows.
    rows = first["rows"]
    for name in ("distance", "norm", "functional_spread"):
        assert rows["unseen"][name] == pytest.approx(rows["fresh"][name], rel=0.35)
    assert first["suppression"] == pytest.approx(rows["unseen"]["logit"] - rows["seen"]["logit"])
    for scenario in SCENARIOS:
        assert first[scenario]["problems"] == 64


# ------------------------------------------------------------------------------------------------------ store
def test_a_record_survives_its_file(tmp_path, record):
    save_record(record, tmp_path / "run.json")
    assert load_record(tmp_path / "run.json") == record
    assert record.train_config() == preset("smoke", steps=20)
    assert record.names == 32 and record.seed == 0
    assert [entry["step"] for entry in record.curve] == [0, 10, 20]
    assert (tmp_path / "run.json").stat().st_size < 20_000
    for field in ("device", "torch", "library", "date", "seconds", "tokens_per_second", "peak_memory_mb"):
        assert getattr(record, field)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "unseen-run-1"}', '{"a": 1}', "\x00"])
def test_a_truncated_or_foreign_record_is_refused_by_name_and_left_alone(tmp_path, text):
    path = tmp_path / "grid" / "run.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        load_grid("grid", tmp_path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "change", [{"curve": None}, {"curve": []}, {"curve": [{}]}, {"config": {"task": "x"}}, {"config": None}]
)
def test_a_record_with_a_part_missing_is_refused_by_name(tmp_path, record, change):
    (tmp_path / "run.json").write_text(json.dumps(dataclasses.asdict(record) | change))
    with pytest.raises(CheckpointError, match=r"run\.json is not a whole recorded run"):
        load_record(tmp_path / "run.json")


def test_a_measurement_that_is_not_a_number_is_not_recorded(tmp_path, record):
    wrong = dataclasses.replace(record, curve=[{"step": 0, "loss": math.nan}])
    with pytest.raises(CheckpointError, match=r"run\.json is not a finite number"):
        save_record(wrong, tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()


def test_a_record_of_another_format_is_refused(tmp_path, record):
    save_record(dataclasses.replace(record, format="other"), tmp_path / "run.json")
    with pytest.raises(CheckpointError, match="format='other'"):
        load_record(tmp_path / "run.json")


def test_an_unknown_grid_names_those_that_are_there():
    with pytest.raises(CheckpointError, match=r"'nothing'; recorded grids: .*main"):
        load_grid("nothing")


def test_series_and_intervals_follow_a_path_and_say_what_is_there_instead(record):
    steps, values = record.series("rows", "unseen", "cosine")
    assert steps == [0, 10, 20] and values[0] == record.curve[0]["rows"]["unseen"]["cosine"]
    with pytest.raises(KeyError, match=r"no 'cosin' among cosine, distance"):
        record.series("rows", "unseen", "cosin")
    assert (
        final_interval([record, record], "seen", "proof_validity").mean
        == record.final["seen"]["proof_validity"]
    )


def test_the_interval_is_students():
    values = [0.91, 0.95, 0.99, 0.97, 0.93]
    low_high = statistics.fmean(values) - 2.7764451 * statistics.stdev(values) / math.sqrt(
        5
    )  # t(0.975, 4) from a table
    assert interval(values) == pytest.approx(
        (statistics.fmean(values), low_high, 2 * statistics.fmean(values) - low_high)
    )
    assert interval([0.5, 0.5]) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="at least two runs, and there are 1"):
        interval([0.3])
    with pytest.raises(ValueError, match="finite"):
        interval([0.3, math.nan])


def test_the_interval_covers_the_mean_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    covered = sum(low <= 0 <= high for _, low, high in map(interval, samples.tolist())) / len(samples)
    assert covered == pytest.approx(0.95, abs=0.02)


def made_up(record, seed, values):
    """A run whose seen validity takes the given values."""
    config = {**record.config, "seed": seed}
    curve = [{"step": step, "seen": {"proof_validity": value}} for step, value in enumerate(values)]
    return dataclasses.replace(record, config=config, curve=curve)


def test_differences_pair_runs_by_seed_and_refuse_arms_that_do_not_pair(record):
    def last(run):
        return run.final["seen"]["proof_validity"]

    one = [made_up(record, seed, [value]) for seed, value in ((0, 0.5), (1, 0.9), (2, 0.7))]
    other = [made_up(record, seed, [value]) for seed, value in ((2, 0.6), (0, 0.3), (1, 0.8))]
    assert difference(one, other, last) == pytest.approx(interval([0.2, 0.1, 0.1]))
    with pytest.raises(ValueError, match=r"different seeds, \[0, 1\] and \[0, 1, 2\]"):
        difference(one[:2], other, last)
    assert difference(one[:2], other, last, common=True) == pytest.approx(interval([0.2, 0.1]))


def test_a_run_is_read_where_the_others_are_best(record):
    curves = [[0.0, 0.9, 0.1], [0.0, 0.2, 0.3], [0.0, 0.1, 0.8]]
    runs = [made_up(record, seed, curve) for seed, curve in enumerate(curves)]
    assert best_of_others(runs, "seen", "proof_validity") == [0.1, 0.2, 0.1]
    with pytest.raises(ValueError, match="two are needed"):
        best_of_others(runs[:1], "seen", "proof_validity")


def test_spread_kept_is_measured_against_fresh_rows(record):
    rows = record.final["rows"]
    assert spread_kept(record, "fresh") == 1
    assert spread_kept(record) * rows["fresh"]["functional_spread"] == pytest.approx(
        rows["unseen"]["functional_spread"]
    )


# ------------------------------------------------------------------------------------------------------ grids
def test_a_product_has_every_combination_once_and_names_each_run():
    configs = product(
        "smoke", policies=("trainable", "frozen", "temporary"), copies=(False, True), seeds=range(2)
    )
    assert len(configs) == 3 * 2 * 2 * 2
    assert all(run_name(config) == name for name, config in configs.items())
    assert run_name(preset("smoke", policy="temporary", copy=True, seed=3)) == "temporary-copy-32-seed3"


def test_a_grid_keeps_what_is_finished_names_what_failed_and_goes_on(tmp_path, capsys):
    good, other = preset("smoke", names=8, steps=6), preset("smoke", names=32, steps=6)
    diverging = dataclasses.replace(
        preset("smoke", names=16, steps=6),
        optimizer=dataclasses.replace(good.optimizer, hidden="adamw", hidden_rate=1e25, warmup_steps=0),
    )
    grid = {run_name(config): config for config in (good, diverging, other)}
    failed = run_grid(grid, tmp_path / "grid", processes=1, measure_points=1)
    assert list(failed) == ["trainable-plain-16-seed0"] and "not finite" in failed["trainable-plain-16-seed0"]
    assert "trainable-plain-16-seed0" in capsys.readouterr().err
    records = load_grid("grid", tmp_path)
    assert [found.names for found in records] == [8, 32]

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "grid").iterdir()}
    del grid["trainable-plain-16-seed0"]
    assert run_grid(grid, tmp_path / "grid", processes=1) == {}
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "grid").iterdir()}


def test_a_killed_run_is_named_does_not_stop_the_others_and_goes_on_later(tmp_path):
    grid = product("smoke", names=(8,), seeds=range(3), steps=600)
    failed = {}
    work = threading.Thread(
        target=lambda: failed.update(run_grid(grid, tmp_path, processes=1, measure_points=1))
    )
    work.start()
    started = tmp_path / ".unfinished" / "trainable-plain-8-seed0" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (child,) = multiprocessing.active_children()
    child.kill()
    work.join()
    assert failed == {"trainable-plain-8-seed0": "its process ended with status -9 before the run was done"}
    assert {found.seed for found in load_grid(tmp_path.name, tmp_path.parent)} == {1, 2}
    assert run_grid(grid, tmp_path, processes=1, measure_points=1) == {}
    assert len(load_grid(tmp_path.name, tmp_path.parent)) == 3
    assert not list((tmp_path / ".unfinished").iterdir())


def test_a_grid_in_an_unwritable_folder_fails_before_it_trains(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        run_grid(product("smoke"), tmp_path / "file" / "grid")


def test_a_grid_refuses_a_folder_with_a_run_of_other_settings(tmp_path, record):
    save_record(record, tmp_path / "run.json")
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"run\.json is a run with other settings"):
        run_grid({"run": preset("smoke", steps=21)}, tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_deviation_is_undone_to_what_the_paper_scale_has():
    config, paper = preset("cpu"), preset("paper")
    for deviation in experiments.DEVIATIONS:
        undone = without(deviation, config)
        part = "optimizer" if deviation == "hidden" else "model"
        assert getattr(getattr(undone, part), deviation) == getattr(getattr(paper, part), deviation)
        assert undone != config
    with pytest.raises(ConfigError, match="deviation='depth' is unknown"):
        without("depth", config)


KILLED_GRID = """
    from pathlib import Path
    from unseen_lib.experiments import product, run_grid

    if __name__ == "__main__":
        configs = product("smoke", names=(8,), seeds=range(3), steps=200)
        run_grid(configs, Path({folder!r}), processes=1, measure_points=1)
"""


def test_a_grid_killed_with_sigkill_keeps_its_finished_runs(tmp_path):
    script = tmp_path / "grid.py"
    script.write_text(textwrap.dedent(KILLED_GRID.format(folder=str(tmp_path / "grid"))))
    # A session of its own, so that the kill takes the worker too, as a machine that goes down would.
    grid = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "grid").glob("*.json")) and time.monotonic() < deadline:
        assert grid.poll() is None, "the grid ended before it was killed"
        time.sleep(0.05)
    os.killpg(grid.pid, signal.SIGKILL)
    grid.wait()
    finished = len(load_grid("grid", tmp_path))
    assert 1 <= finished < 3
    assert not run_grid(
        product("smoke", names=(8,), seeds=range(3), steps=200), tmp_path / "grid", measure_points=1
    )
    assert len(load_grid("grid", tmp_path)) == 3


# ---------------------------------------------------------------------------------------------- recorded runs
def test_the_recorded_smoke_run_comes_out_again():
    (recorded,) = load_grid("smoke")
    config = recorded.train_config()
    again = record_of(
        train(config, measure=measurement(config), measure_every=config.steps // 20, progress=False)
    )
    assert [entry["step"] for entry in again.curve] == [entry["step"] for entry in recorded.curve]
    # Other processors round otherwise, so numbers are compared, not bits.
    for quantity in (
        ("rows", "unseen", "cosine"),
        ("rows", "seen", "norm"),
        ("suppression",),
        ("rows", "unseen", "logit"),
    ):
        assert again.series(*quantity)[1] == pytest.approx(recorded.series(*quantity)[1], rel=0.02, abs=0.02)
    assert again.final["loss"] == pytest.approx(recorded.final["loss"], rel=0.01)


def test_every_recorded_run_is_of_the_settings_its_command_would_use_now():
    """A preset that changed after its runs were recorded would leave the book with runs of nowhere."""
    for name, configs in recorded_grids().items():
        recorded = {path.stem: load_record(path) for path in (recorded_folder() / name).glob("*.json")}
        assert recorded.keys() <= configs.keys(), name
        for run, found in recorded.items():
            assert found.train_config() == configs[run], run
            assert found.curve[-1]["step"] == configs[run].steps
            assert found.commit and not found.commit.endswith("+"), "recorded from a tree with changes on top"


def test_grids_that_a_chapter_shows_are_whole():
    pages = [*(ROOT / "chapters").glob("*.md"), ROOT / "intro.md"]
    loads = r'load_(?:grid|arms)\("(\w+)"\)'
    shown = {name for page in pages for name in re.findall(loads, page.read_text())}
    assert shown >= {"main", "longer", "deviations"}
    for name in shown:
        assert len(load_grid(name)) == len(recorded_grids()[name]), name


# ----------------------------------------------------------------------------------------------- command line
def test_doctor_tells_what_is_here(capsys):
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for word in ("python", "torch", "device", "memory", "scale", torch.__version__):
        assert word in printed


def test_train_prints_and_records(tmp_path, capsys):
    out = tmp_path / "run.json"
    assert (
        cli.main(
            [
                "train",
                "--scale",
                "smoke",
                "--steps",
                "6",
                "--copy",
                "--folder",
                str(tmp_path),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "all_unseen" in printed and "by chance" in printed
    assert load_record(out).final["step"] == 6


def test_train_never_overwrites_what_is_not_its_own_record(tmp_path, capsys):
    out = tmp_path / "mine.json"
    out.write_text('{"precious": true}')
    command = ["train", "--scale", "smoke", "--steps", "6", "--out"]
    assert cli.main([*command, str(out)]) == 1
    assert out.read_text() == '{"precious": true}' and "mine.json" in capsys.readouterr().err
    assert cli.main([*command, str(out / "below.json")]) == 1
    assert "mine.json" in capsys.readouterr().err


def test_grid_and_record_commands(tmp_path, capsys):
    folder = tmp_path / "mine"
    command = [
        "grid",
        str(folder),
        "--scale",
        "smoke",
        "--names",
        "8",
        "--seeds",
        "1",
        "--steps",
        "4",
        "--processes",
        "1",
    ]
    assert cli.main(command) == 0
    assert f"1 run in {folder}" in capsys.readouterr().out
    assert cli.main(["record"]) == 0
    assert "main" in capsys.readouterr().out
    assert cli.main(["record", "nothing"]) == 2
    assert "recorded grids: smoke, main" in capsys.readouterr().err


def test_bad_input_ends_with_one_sentence_and_status_2(capsys):
    assert cli.main(["train", "--scale", "smoke", "--names", "-3"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "-3" in error
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", "--scale", "enormous"])
    assert caught.value.code == 2


def test_the_command_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "unseen_lib", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("unseen ")


def test_records_are_plain_json(tmp_path, record):
    save_record(record, tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["config"]["task"]["family"] == "chain"
