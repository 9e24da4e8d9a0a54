"""Training: repeatable, resumable after SIGKILL, and never losing what it had."""

import dataclasses
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from unseen_lib import checkpoint
from unseen_lib.embeddings import EmbeddingPolicy
from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.experiments import measurement, preset
from unseen_lib.model import GPT
from unseen_lib.problems import IGNORE, sample_batch
from unseen_lib.training import (
    CHECKPOINT,
    NonFiniteLoss,
    choose_device,
    from_json,
    loss_of,
    to_json,
)
from unseen_lib.training import train as train_anywhere

train = partial(train_anywhere, device="cpu")  # bits are promised on one CPU thread, and a GPU may be here


def smoke(**changes):
    return dataclasses.replace(preset("smoke", steps=24), **changes)


def without_unseen():
    vocabulary = dataclasses.replace(smoke().vocabulary, unseen=0)
    return {
        "vocabulary": vocabulary,
        "model": dataclasses.replace(smoke().model, vocab_size=vocabulary.size),
    }


def weights(run_or_model):
    model = getattr(run_or_model, "model", run_or_model)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_same_seed_gives_bit_identical_weights_and_another_seed_does_not():
    first, again, other = (weights(train(smoke(seed=seed), progress=False)) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)


def test_training_leaves_the_callers_thread_count_alone():
    before = torch.get_num_threads()
    assert train(smoke(), progress=False).threads == 1
    assert torch.get_num_threads() == before


def test_training_learns():
    run = train(preset("smoke", steps=150), progress=False)
    assert run.curve[-1]["loss"] < 0.75 * math.log(run.config.vocabulary.size)


KILLED = """
    import json, os, signal
    from unseen_lib.training import from_json, train

    def kill(model, step):
        if step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        return {{}}

    config = from_json(json.loads({config!r}))
    kept = {{"folder": {folder!r}, "checkpoint_every": 5}}
    train(config, measure=kill, measure_every=1, device="cpu", progress=False, **kept)
"""

RESUMED = {
    "trainable": (3, preset("smoke", steps=24)),
    "forgetting": (11, preset("smoke", policy="forgetting", copy=True, steps=24)),
    "temporary": (24, preset("smoke", policy="temporary", steps=24)),
    "memory kept, no decay": (
        12,
        smoke(
            policy=EmbeddingPolicy("forgetting", every=6, rows="unseen", optimizer_state="keep"),
            optimizer=dataclasses.replace(smoke().optimizer, embedding_decay=0.0),
        ),
    ),
    "frozen orthogonal": (
        13,
        smoke(
            policy=EmbeddingPolicy("frozen", drawn="orthogonal"),
            model=dataclasses.replace(smoke().model, width=64),
        ),
    ),
    "frozen rows, masked, coupled": (
        13,
        smoke(
            policy=EmbeddingPolicy("frozen", rows="unseen"),
            optimizer=dataclasses.replace(smoke().optimizer, embedding="coupled_adam"),
            mask_unseen=True,
        ),
    ),
    "frozen before the kill": (13, smoke(policy=EmbeddingPolicy("reset_then_freeze", at=7))),
    "frozen after the kill, coupled": (
        13,
        smoke(
            policy=EmbeddingPolicy("reset_then_freeze", at=15, rows="symbols"),
            optimizer=dataclasses.replace(smoke().optimizer, embedding="coupled_adam"),
        ),
    ),
    "some rows frozen, sgd": (
        13,
        smoke(
            policy=EmbeddingPolicy("reset_then_freeze", at=10, rows="symbols"),
            optimizer=dataclasses.replace(smoke().optimizer, embedding="sgd", embedding_rate=0.1),
        ),
    ),
}


@pytest.mark.parametrize(("step", "config"), RESUMED.values(), ids=RESUMED)
def test_a_run_killed_with_sigkill_resumes_to_the_weights_of_an_uninterrupted_one(tmp_path, step, config):
    text = json.dumps(to_json(config))
    code = textwrap.dedent(KILLED.format(step=step, config=text, folder=str(tmp_path)))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    measured: list[int] = []

    def remember(model, step):
        measured.append(step)
        return {}

    resumed = train(config, measure=remember, measure_every=1, folder=tmp_path, progress=False)
    # It went on from the last checkpoint before the kill, which already held that step's measurement.
    kept = (step - 1) // 5 * 5
    assert measured == list(range(kept + 1, config.steps + 1))
    whole = train(config, measure=lambda model, step: {}, measure_every=1, progress=False)
    assert same(weights(resumed), weights(whole))
    assert resumed.curve == whole.curve
    assert resumed.tokens == whole.tokens


def test_resuming_a_finished_run_trains_no_further(tmp_path):
    config = smoke()
    finished = weights(train(config, folder=tmp_path, progress=False))
    again = train(config, folder=tmp_path, progress=False)
    assert same(weights(again), finished)
    assert [entry["step"] for entry in again.curve] == sorted({entry["step"] for entry in again.curve})


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("rate", [1e25, 1e39])  # the weights after a step: huge, or infinite
def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_finite_state(tmp_path, rate, measured):
    wild = dataclasses.replace(smoke().optimizer, hidden="adamw", hidden_rate=rate, warmup_steps=0)
    config = smoke(optimizer=wild)
    how = {"measure": measurement(config, problems=16), "measure_every": 1} if measured else {}
    with pytest.raises(NonFiniteLoss, match=r"step \d+") as caught:
        train(config, folder=tmp_path, checkpoint_every=1, progress=False, **how)
    state = checkpoint.read_state(tmp_path / CHECKPOINT)
    # Measuring looks at the logits, and stops a step before the loss would have.
    assert caught.value.step >= state["step"] >= (1 if rate == 1e25 and not measured else 0)
    tensors = load_file(tmp_path / CHECKPOINT)
    assert all(torch.isfinite(tensor).all() for name, tensor in tensors.items() if name.startswith("model."))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "text", "empty"])
def test_a_damaged_or_foreign_checkpoint_is_refused_by_name_and_left_alone(tmp_path, damage):
    path = tmp_path / CHECKPOINT
    train(smoke(), folder=tmp_path, progress=False)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "foreign":
        save_file({"weight": torch.ones(2)}, path)
    else:
        path.write_text("not a checkpoint" if damage == "text" else "")
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=CHECKPOINT):
        train(smoke(), folder=tmp_path, progress=False)
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_config_is_refused_naming_the_difference(tmp_path):
    train(smoke(), folder=tmp_path, progress=False)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(CheckpointError, match=r"seed is 0 in the file and 1 here"):
        train(smoke(seed=1), folder=tmp_path, progress=False)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


FULL_DISK = """
    import resource, signal
    from unseen_lib.experiments import preset
    from unseen_lib.training import train

    def fill(model, step):
        if step == 10:  # from here on no file can grow past 1000 bytes, as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return {{}}

    config = preset("smoke", steps=24)
    kept = {{"folder": {folder!r}, "checkpoint_every": 5}}
    train(config, measure=fill, measure_every=5, device="cpu", progress=False, **kept)
"""


def test_a_full_disk_ends_the_run_with_its_last_good_checkpoint_intact(tmp_path):
    code = textwrap.dedent(FULL_DISK.format(folder=str(tmp_path)))
    full = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert full.returncode == 1
    assert "CheckpointError" in full.stderr and "intact" in full.stderr
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert checkpoint.read_state(tmp_path / CHECKPOINT)["step"] == 5


def test_an_unwritable_folder_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        train(smoke(), folder=tmp_path / "file" / "below", progress=False)


def test_nothing_is_ever_pickled_or_unpickled(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a pickle was written or read")

    for module, name in [
        (torch, "load"),
        (torch, "save"),
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "dumps"),
    ]:
        monkeypatch.setattr(module, name, refuse)
    train(smoke(steps=5), folder=tmp_path, progress=False)
    train(smoke(steps=5), folder=tmp_path, progress=False)


def test_what_a_kill_during_saving_leaves_behind_is_swept_up(tmp_path):
    train(smoke(steps=5), folder=tmp_path, progress=False)
    leftover = tmp_path / f".{CHECKPOINT}.123.unfinished"
    leftover.write_text("half a checkpoint")
    train(smoke(steps=5), folder=tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_checkpoint_from_before_a_config_had_a_field_is_still_good(tmp_path):
    config = smoke(steps=5)
    whole = train(config, folder=tmp_path, progress=False)
    with safe_open(tmp_path / CHECKPOINT, framework="pt") as file:
        metadata = file.metadata()
    state = json.loads(metadata["state"])
    del state["config"]["mask_unseen"], state["config"]["policy"]["drawn"]
    save_file(
        load_file(tmp_path / CHECKPOINT), tmp_path / CHECKPOINT, metadata | {"state": json.dumps(state)}
    )
    assert same(weights(train(config, folder=tmp_path, progress=False)), weights(whole))


def test_masked_names_are_left_out_of_the_softmax_and_get_no_gradient():
    config = smoke(mask_unseen=True)
    model = GPT(config.model, torch.Generator().manual_seed(0))
    batch = sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=0)
    logits, targets = model(batch.tokens).flatten(0, 1), batch.targets.flatten()
    logits[:, list(config.vocabulary.unseen_ids)] = -math.inf
    words = config.vocabulary.unseen_ids.start
    torch.testing.assert_close(
        loss_of(model, batch, words), F.cross_entropy(logits, targets, ignore_index=IGNORE)
    )
    loss_of(model, batch, words).backward()
    assert (model.embedding.grad[words:] == 0).all() and (model.embedding.grad[:words] != 0).any()


@pytest.mark.parametrize("masked", [True, False])
def test_masked_names_move_by_weight_decay_alone(masked):
    still = dataclasses.replace(smoke().optimizer, embedding_decay=0.0)
    config = smoke(mask_unseen=masked, optimizer=still)
    before = GPT(config.model, torch.Generator().manual_seed(config.seed)).embedding
    after = train(config, progress=False).model.embedding
    unseen = config.vocabulary.unseen_ids.start
    assert torch.equal(after[unseen:], before[unseen:]) is masked
    assert not torch.equal(after[:unseen], before[:unseen])


def test_the_loss_covers_reasoning_and_answer_only():
    config = smoke()
    model = GPT(config.model, torch.Generator().manual_seed(0))
    batch = sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=0)
    full = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(loss_of(model, batch), full)
    assert (batch.targets[:, : int(batch.prompt_length.min()) - 1] == IGNORE).all()


def test_a_config_survives_json():
    for scale in ("smoke", "cpu", "gpu", "paper"):
        config = preset(scale, policy="temporary", copy=True)
        assert from_json(json.loads(json.dumps(to_json(config)))) == config
    with pytest.raises(ConfigError, match="not a training config"):
        from_json({"task": {}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: smoke(steps=0), r"steps=0 must be a whole number from 1"),
        (lambda: smoke(batch_size=-1), r"batch_size=-1"),
        (lambda: smoke(seed=-1), r"seed=-1"),
        (lambda: smoke(model=dataclasses.replace(smoke().model, vocab_size=7)), r"vocab_size=7 does not fit"),
        (lambda: smoke(model=dataclasses.replace(smoke().model, context=9)), r"context=9 is too short"),
        (lambda: smoke(**without_unseen(), mask_unseen=True), r"mask_unseen=True .* unseen=0"),
        (lambda: preset("cpu", names=3), r"3"),
        (lambda: preset("cpu", names=-5), r"-5"),
        (lambda: choose_device("cuda:7"), r"cuda:7"),
    ],
)
def test_parts_that_do_not_fit_fail_before_training_with_one_sentence(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_run_says_where_it_runs_and_how_far_it_is_unless_switched_off(tmp_path, capsys, monkeypatch):
    train(smoke(steps=2), progress=False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("UNSEEN_PROGRESS", "off")
    train(smoke(steps=2))
    printed = capsys.readouterr()
    assert "device: cpu, 1 thread, float32: it was asked for" in printed.out and printed.err == ""
    monkeypatch.delenv("UNSEEN_PROGRESS")
    train(smoke(steps=2), folder=tmp_path)
    assert "training" in capsys.readouterr().err
    train(smoke(steps=2), folder=tmp_path)
    assert "going on from step 2 of 2" in capsys.readouterr().out


def test_a_child_process_is_not_needed_to_save(tmp_path):
    """Two runs may share a parent folder: unfinished files carry the process number."""
    checkpoint.replace_file(tmp_path / "a" / "x", lambda path: path.write_text(path.name), what="note")
    assert str(os.getpid()) in (tmp_path / "a" / "x").read_text()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]
