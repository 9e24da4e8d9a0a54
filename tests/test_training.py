"""Training: repeatable, resumable after SIGKILL, and never losing what it had."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from unseen_lib import checkpoint
from unseen_lib.embeddings import EmbeddingPolicy, apply_policy, embedding_matrices
from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.experiments import preset
from unseen_lib.model import GPT
from unseen_lib.problems import IGNORE, sample_batch
from unseen_lib.training import (
    CHECKPOINT,
    NonFiniteLoss,
    OptimizerConfig,
    build_optimizers,
    choose_device,
    from_json,
    loss_of,
    schedule_factor,
    to_json,
)
from unseen_lib.training import train as train_anywhere

train = partial(train_anywhere, device="cpu")  # bits are promised on one CPU thread, and a GPU may be here


def smoke(**changes):
    return dataclasses.replace(preset("smoke", steps=24), **changes)


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
    import os, signal, sys
    from unseen_lib.experiments import preset
    from unseen_lib.training import train

    def kill(model, step):
        if step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        return {{}}

    config = preset("smoke", policy={policy!r}, copy={copy}, steps=24)
    kept = {{"folder": {folder!r}, "checkpoint_every": 5}}
    train(config, measure=kill, measure_every=1, device="cpu", progress=False, **kept)
"""


@pytest.mark.parametrize(
    ("step", "policy", "copy"), [(3, "trainable", False), (11, "forgetting", True), (24, "temporary", False)]
)
def test_a_run_killed_with_sigkill_resumes_to_the_weights_of_an_uninterrupted_one(
    tmp_path, step, policy, copy
):
    code = textwrap.dedent(KILLED.format(step=step, policy=policy, copy=copy, folder=str(tmp_path)))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    config = preset("smoke", policy=policy, copy=copy, steps=24)
    resumed = train(config, measure=lambda model, step: {}, measure_every=1, folder=tmp_path, progress=False)
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


def test_a_non_finite_loss_stops_the_run_and_keeps_the_last_finite_state(tmp_path):
    wild = dataclasses.replace(smoke().optimizer, hidden="adamw", hidden_rate=1e25, warmup_steps=0)
    with pytest.raises(NonFiniteLoss, match=r"step \d+") as caught:
        train(smoke(optimizer=wild), folder=tmp_path, progress=False)
    state = checkpoint.read_state(tmp_path / CHECKPOINT)
    assert state["step"] == caught.value.step > 0
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


def test_nothing_is_ever_unpickled(tmp_path):
    train(smoke(), folder=tmp_path, progress=False)
    length = int.from_bytes((tmp_path / CHECKPOINT).read_bytes()[:8], "little")
    json.loads((tmp_path / CHECKPOINT).read_bytes()[8 : 8 + length])  # a safetensors header is JSON
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".pt", ".pkl", ".bin")]


def test_the_loss_covers_reasoning_and_answer_only():
    config = smoke()
    model = GPT(config.model, torch.Generator().manual_seed(0))
    batch = sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=0)
    full = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(loss_of(model, batch), full)
    changed = batch.tokens.clone()
    assert (batch.targets[:, : int(batch.prompt_length.min()) - 1] == IGNORE).all()
    assert torch.equal(changed, batch.tokens)


def test_schedules_hit_their_written_out_values():
    paper = OptimizerConfig()
    rate = [
        paper.hidden_rate * schedule_factor("cosine", step, 50_000, paper)
        for step in (0, 1999, 2000, 26_000, 50_000)
    ]
    assert rate == pytest.approx([1e-5, 1e-4, 1e-4, 5.5e-5, 1e-5], rel=1e-2)
    quick = preset("cpu").optimizer
    factors = [schedule_factor("stable_decay", step, 1000, quick) for step in (0, 24, 49, 500, 700, 850, 999)]
    assert factors == pytest.approx([0.02, 0.5, 1.0, 1.0, 1.0, 0.5, 0.05], abs=1e-9)
    assert schedule_factor("constant", 999, 1000, quick) == 1.0


def test_every_weight_belongs_to_exactly_one_optimizer_and_gains_are_not_decayed():
    for config in (preset("cpu", copy=True), dataclasses.replace(preset("cpu"), optimizer=OptimizerConfig())):
        model = GPT(config.model, torch.Generator().manual_seed(0))
        groups = [
            group
            for optimizer in build_optimizers(model, config.optimizer)
            for group in optimizer.param_groups
        ]
        ids = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())
        for group in groups:
            gains = all(parameter.ndim == 1 for parameter in group["params"])
            assert group["weight_decay"] == (0 if gains else config.optimizer.weight_decay)


def test_frozen_embeddings_do_not_move_and_trainable_ones_do():
    for policy, moves in (("frozen", False), ("trainable", True)):
        config = preset("smoke", policy=policy, steps=5)
        before = GPT(config.model, torch.Generator().manual_seed(config.seed)).embedding
        assert torch.equal(train(config, progress=False).model.embedding, before) is not moves


@pytest.mark.parametrize("rows", ["all", "symbols"])
def test_a_reset_redraws_its_rows_and_zeroes_their_moments_only(rows):
    config = smoke(policy=EmbeddingPolicy("forgetting", every=6, rows=rows))
    model = train(config, progress=False).model
    optimizers = build_optimizers(model, config.optimizer)
    loss_of(model, sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=0)).backward()
    optimizers[0].step()
    before = model.embedding.detach().clone()
    moments = {name: value.clone() for name, value in optimizers[0].state[model.embedding].items()}

    def apply(step):
        apply_policy(
            config.policy, step, model=model, vocabulary=config.vocabulary, optimizer=optimizers[0], seed=0
        )

    apply(7)
    assert torch.equal(model.embedding, before)
    apply(12)
    first = 0 if rows == "all" else config.vocabulary.seen_ids.start
    assert torch.equal(model.embedding[:first], before[:first])
    assert (model.embedding[first:] != before[first:]).any(dim=1).all()
    assert model.embedding[first:].norm(dim=1).mean().item() == pytest.approx(1, abs=0.15)
    for name in ("exp_avg", "exp_avg_sq"):
        now = optimizers[0].state[model.embedding][name]
        assert (now[first:] == 0).all() and torch.equal(now[:first], moments[name][:first])


def test_temporary_forgetting_ends():
    policy = EmbeddingPolicy("forgetting", every=10, until=25)
    assert [step for step in range(60) if policy.resets_at(step)] == [10, 20]
    endless = EmbeddingPolicy("forgetting", every=25)
    assert [step for step in range(60) if endless.resets_at(step)] == [25, 50]


def test_untied_models_have_both_matrices_under_the_policy():
    config = smoke()
    untied = GPT(dataclasses.replace(config.model, tied=False), torch.Generator().manual_seed(0))
    assert len(embedding_matrices(untied)) == 2 and len(embedding_matrices(GPT(config.model))) == 1


def test_a_config_survives_json():
    for scale in ("smoke", "cpu", "gpu", "paper"):
        config = preset(scale, policy="temporary", copy=True)
        assert from_json(json.loads(json.dumps(to_json(config)))) == config
    with pytest.raises(ConfigError, match="not a training config"):
        from_json({"task": {}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: smoke(steps=0), r"steps=0 must be at least 1"),
        (lambda: smoke(batch_size=-1), r"batch_size=-1"),
        (lambda: smoke(seed=-1), r"seed=-1"),
        (lambda: OptimizerConfig(hidden="sgdm"), r"hidden='sgdm' is unknown; use one of adamw, muon"),
        (lambda: OptimizerConfig(schedule="step"), r"schedule='step' is unknown"),
        (lambda: OptimizerConfig(hidden_rate=0), r"hidden_rate=0 must be above 0"),
        (lambda: OptimizerConfig(weight_decay=-1), r"weight_decay=-1"),
        (lambda: OptimizerConfig(warmup_steps=-1), r"warmup_steps=-1"),
        (lambda: OptimizerConfig(final_factor=2), r"final_factor=2 must lie between 0 and 1"),
        (lambda: EmbeddingPolicy("melted"), r"kind='melted' is unknown"),
        (lambda: EmbeddingPolicy("forgetting"), r"every=None must be at least 1"),
        (lambda: EmbeddingPolicy("forgetting", every=0), r"every=0 must be at least 1"),
        (lambda: EmbeddingPolicy("forgetting", every=10, until=5), r"until=5 ends before the first reset"),
        (lambda: EmbeddingPolicy("frozen", every=10), r"every=10"),
        (lambda: EmbeddingPolicy(rows="some"), r"rows='some' is unknown"),
        (lambda: smoke(model=dataclasses.replace(smoke().model, vocab_size=7)), r"vocab_size=7 does not fit"),
        (lambda: smoke(model=dataclasses.replace(smoke().model, context=9)), r"context=9 is too short"),
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
