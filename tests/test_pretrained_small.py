"""The small Gemma 3: its layout, its collapse, and the recorded experiment, at a size that takes seconds."""

import copy
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import unseen_lib.__main__ as cli
from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.pretrained import small
from unseen_lib.pretrained.audit import audit
from unseen_lib.pretrained.finetune import FinetuneConfig, draw_problems, finetune
from unseen_lib.pretrained.repair import reinitialize
from unseen_lib.pretrained.small import (
    ARMS,
    FIRST_RESERVED,
    LONGER,
    STRENGTHS,
    ExperimentConfig,
    Layout,
    PretrainConfig,
    experiment,
    pretrain,
)
from unseen_lib.pretrained.tokens import tokenizer_tokens, unused_groups
from unseen_lib.problems import Task, problem_of, sample_batch
from unseen_lib.records import recorded_folder, save_record
from unseen_lib.training import NonFiniteLoss
from unseen_lib.vocabulary import Vocabulary

SMOKE = experiment("strong", 3, scale="smoke")


@pytest.fixture(scope="module")
def pretrained():
    return pretrain(SMOKE.pretrain, progress=False)


@pytest.fixture(scope="module")
def record():
    return small.run(SMOKE, progress=False)


# ----------------------------------------------------------------------------------------------------- layout
def test_the_vocabulary_is_laid_out_as_gemmas():
    layout = Layout()
    assert len(layout.texts) == len(set(layout.texts)) == layout.size
    assert layout.texts[:7] == ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused0>")
    assert [layout.texts.index(f"<unused{number}>") for number in (0, 98)] == [6, 104]
    assert layout.texts[105:107] == ("<start_of_turn>", "<end_of_turn>")
    assert layout.texts[-64:] == tuple(f"<unused{number}>" for number in range(99, 163))
    assert len(layout.ordinary) == 1024


def test_the_tokenizer_says_the_same_and_the_audit_finds_both_blocks():
    layout = Layout()
    tokenizer = layout.tokenizer()
    assert tokenizer.convert_ids_to_tokens(list(range(layout.size))) == list(layout.texts)
    assert [len(group.ids) for group in unused_groups(tokenizer_tokens(tokenizer), layout.size)] == [99, 64]
    words = ["<bos>", "Rules:", layout.texts[layout.ordinary[0]], "<unused3>", "then", "yes", "<eos>"]
    assert tokenizer(" ".join(words))["input_ids"] == [layout.texts.index(word) for word in words]


def test_problems_in_its_tokens_are_those_of_the_course():
    layout = Layout()
    problems = draw_problems(
        Task(), layout.symbols(layout.ordinary), batch_size=8, seed=1, index=2, stream="train"
    )
    vocabulary = Vocabulary("compact", 1024, 0)
    batch = sample_batch(Task(), vocabulary, batch_size=8, seed=1, index=2)
    ours = {" ".join(layout.texts[token] for token in row) for row in problems.tokens.tolist()}
    for row in range(8):
        prompt = vocabulary.decode(batch.tokens[row, : int(batch.prompt_length[row])].tolist())
        assert any(text.startswith(" ".join(prompt)) for text in ours)
        assert problem_of(batch, row, vocabulary).rules


def test_pretraining_never_reads_or_asks_for_a_reserved_token(monkeypatch):
    """Counted in what the model is given, in the recorded layout."""
    config = replace(experiment("strong", 0, scale="cpu").pretrain, steps=3, layers=1, width=16, mlp_width=16)
    times = torch.zeros(config.layout.size, dtype=torch.long)

    def counted(task, symbols, **options):
        problems = draw_problems(task, symbols, **options)
        for part in (problems.tokens, problems.targets[problems.targets >= 0]):
            times.index_add_(0, part.flatten(), torch.ones(part.numel(), dtype=torch.long))
        return problems

    monkeypatch.setattr(small, "draw_problems", counted)
    pretrain(config, progress=False)
    used = set(times.nonzero().flatten().tolist())
    assert not used & {*config.layout.reserved, 3, 4, 5, 105, 106}
    assert len(used & set(config.layout.ordinary)) > 700  # of the 1024, in so few problems


# --------------------------------------------------------------------------------------------------- training
def test_it_is_the_real_class_and_starts_as_it_says():
    import transformers

    config = SMOKE.pretrain
    model = small.fresh_model(config)
    assert type(model) is transformers.Gemma3ForCausalLM
    table = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is table
    assert table[1:].std().item() == pytest.approx(config.width**-0.5, rel=0.05)
    again, other = small.fresh_model(config), small.fresh_model(replace(config, seed=4))
    assert torch.equal(again.get_input_embeddings().weight, table)
    assert not torch.equal(other.get_input_embeddings().weight, table)
    # The gain of the last norm, seen from outside: features have a root mean square of just that.
    features = model.get_decoder()(torch.tensor([[2, 107]])).last_hidden_state
    assert features.square().mean().sqrt().item() == pytest.approx(config.final_gain, rel=0.01)


def test_every_weight_is_trained_once():
    model = small.fresh_model(SMOKE.pretrain)
    optimizers = small._optimizers(model, SMOKE.pretrain.optimizer)
    held = [part for each in optimizers for group in each.param_groups for part in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_the_first_layer_sees_three_tokens_and_the_others_all():
    config = replace(SMOKE.pretrain, layers=1)
    for layers, reach in ((1, 3), (2, 6)):
        model = small.fresh_model(replace(config, layers=layers)).eval()
        tokens = torch.arange(107, 113)[None]
        with torch.no_grad():
            last = model(tokens).logits[0, -1]
            for back in range(1, 7):
                changed = tokens.clone()
                changed[0, -back] += 10
                reached = not torch.equal(model(changed).logits[0, -1], last)
                assert reached == (back <= reach), (layers, back)


def test_pretraining_is_the_same_again_and_leaves_torch_alone(pretrained):
    threads = torch.get_num_threads()
    state = torch.random.get_rng_state()
    again = pretrain(SMOKE.pretrain, progress=False)
    assert again.curve == pretrained.curve
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state)
    assert [entry["step"] for entry in again.curve] == [1, 2, 3, 4]


def test_the_audit_of_the_saved_model_is_that_of_the_loaded_one(pretrained, tmp_path):
    pretrained.save(tmp_path)
    on_disk, loaded = audit(tmp_path), audit(pretrained.model, tokenizer=pretrained.tokenizer)
    assert [vars(group) for group in on_disk.groups] == [vars(group) for group in loaded.groups]


def test_reserved_rows_collapse_and_ordinary_ones_do_not():
    """In a second, with a rate for the table that is three times as high as the strongest recorded one."""
    optimizer = replace(SMOKE.pretrain.optimizer, embedding_rate=1e-2, warmup_steps=5)
    done = pretrain(replace(SMOKE.pretrain, optimizer=optimizer, steps=40, batch_size=16), progress=False)
    assert done.curve[0]["reserved"] < 0.1 and done.curve[-1]["reserved"] > 0.3
    assert done.curve[-1]["ordinary"] < 0.2
    assert audit(done.model, tokenizer=done.tokenizer).collapsed


# ------------------------------------------------------------------------------------------------- experiment
def test_a_run_has_every_arm_from_the_same_model(record):
    assert set(record.arms) == set(ARMS)
    assert [point["step"] for point in record.arms["as_is"]["curve"]] == [0, 2]
    assert {rows["label"] for rows in record.audit} == {
        "ordinary tokens",
        *("<unused0> … <unused106>",),  # with so few names both blocks are one
    }
    assert all(record.censored(arm) and record.steps(arm) == 2 for arm in ARMS)
    assert set(record.arms["as_is"]["curve"][0]) == {"step", "loss", "exact_match"}
    start = {arm: record.arms[arm]["curve"][0]["loss"] for arm in ARMS}
    assert len(set(start.values())) == len(ARMS)
    json.dumps(record.config)


def test_a_file_keeps_the_start_of_a_curve_part_of_the_rest_and_the_end():
    curve = [
        {"step": step, "loss": 1.0, "exact_match": 0.5, "answer_accuracy": 0.5} for step in range(0, 180, 10)
    ]
    assert [point["step"] for point in small._thinned(curve)] == [*range(0, 101, 10), 120, 140, 160, 170]


def test_symbols_are_ordinary_names_by_the_seed_or_the_first_reserved_tokens():
    config = experiment("weak", 0, scale="cpu")
    ordinary = small.names_of(config, "ordinary")
    assert len(set(ordinary)) == 80 and set(ordinary) <= set(config.pretrain.layout.ordinary)
    assert ordinary != small.names_of(experiment("weak", 1, scale="cpu"), "ordinary")
    for arm in ARMS[1:]:
        assert small.names_of(config, arm) == list(range(6, 86))


def test_a_repair_survives_fine_tuning_beside_it_and_the_disk(pretrained, tmp_path):
    import transformers

    names = list(FIRST_RESERVED[:20])
    model = copy.deepcopy(pretrained.model)
    reinitialize(model, names, tokenizer=pretrained.tokenizer, seed=1)
    drawn = model.get_input_embeddings().weight.detach()[names].clone()
    finetune(
        model,
        SMOKE.pretrain.layout.symbols(names),
        FinetuneConfig(LONGER, steps=2, batch_size=4, rate=1e-6, problems=8),
        measure_every=2,
        device="cpu",
        progress=False,
    )
    model.save_pretrained(tmp_path)
    again = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path)
    rows = again.get_input_embeddings().weight.detach()[names]
    assert not torch.equal(rows, drawn) and torch.allclose(rows, drawn, atol=1e-4)
    assert torch.equal(
        pretrained.model.get_input_embeddings().weight,
        pretrain(SMOKE.pretrain, progress=False).model.get_input_embeddings().weight,
    )  # the model it was copied from


# ---------------------------------------------------------------------------------------------------- records
def test_finished_runs_are_kept_and_missing_ones_made(tmp_path, record):
    save_record(record, tmp_path / "kept.json")
    before = (tmp_path / "kept.json").read_bytes()
    runs = {"kept": SMOKE, "new": replace(SMOKE, arms=("as_is",))}
    assert small.record_runs(runs, tmp_path, processes=1) == {}
    assert (tmp_path / "kept.json").read_bytes() == before
    made = small.load(tmp_path / "new.json")
    assert (
        made.pretraining == record.pretraining
        and made.arms["as_is"]["curve"] == record.arms["as_is"]["curve"]
    )
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_fails_leaves_no_file(tmp_path):
    broken = replace(SMOKE, finetune=replace(SMOKE.finetune, rate=1e30), arms=("as_is",))
    with pytest.raises(NonFiniteLoss):
        small._record_one(broken, tmp_path / "broken.json")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_the_run_is_left_as_it_is(tmp_path, record):
    path = tmp_path / "run.json"
    save_record(record, path)
    other = replace(SMOKE, measure_every=1)
    with pytest.raises(CheckpointError, match="other settings"):
        small.record_runs({"run": other}, tmp_path, processes=1)
    path.write_text(path.read_text()[:100])
    for read in (lambda: small.load(path), lambda: small.record_runs({"run": SMOKE}, tmp_path, processes=1)):
        with pytest.raises(CheckpointError, match=r"run\.json is not a whole recorded run"):
            read()
    assert len(path.read_text()) == 100


def test_runs_are_read_by_strength_and_seed(tmp_path, record):
    with pytest.raises(CheckpointError, match="unseen record small_gemma"):
        small.load_small_gemma(tmp_path)
    for strength, seed in (("strong", 1), ("weak", 0), ("strong", 0)):
        config = small._json_data(experiment(strength, seed, scale="smoke"))
        save_record(replace(record, config=config), tmp_path / f"{strength}-seed{seed}.json")
    found = small.load_small_gemma(tmp_path)
    assert [(name, [run.seed for run in runs]) for name, runs in found.items()] == [
        ("weak", [0]),
        ("strong", [0, 1]),
    ]


def test_a_censored_run_counts_as_the_limit_and_is_counted(record):
    def taking(as_is, ordinary):
        arms = {"as_is": {"steps": as_is}, "ordinary": {"steps": ordinary}}
        config = {**record.config, "finetune": {**record.config["finetune"], "steps": 600}}
        return replace(record, arms=arms, config=config)

    runs = [taking(200, 10), taking(None, 20), taking(400, 30)]
    assert small.steps_interval(runs, "as_is").mean == pytest.approx(400)  # of 200, 600, 400
    assert small.extra_steps(runs, "as_is").mean == pytest.approx(380)
    assert small.censored_runs(runs, "as_is") == 1 and small.censored_runs(runs, "ordinary") == 0


def test_every_recorded_run_is_of_the_settings_its_command_would_use_now():
    configs = small.grid()
    assert len(configs) == small.SEEDS * len(STRENGTHS)
    files = sorted((recorded_folder() / small.NAME).glob("*.json"))
    assert sum(path.stat().st_size for path in files) < 150e3
    for path in files:
        found = small.load(path)
        assert found.config == small._json_data(configs[path.stem])
        assert found.commit and not found.commit.endswith("+"), "recorded from a tree with changes on top"
        assert set(found.arms) == set(ARMS)


def test_the_command_lists_and_reports(monkeypatch, tmp_path, capsys, record):
    assert cli.main(["record"]) == 0
    assert "small_gemma" in capsys.readouterr().out
    monkeypatch.setattr(small, "recorded_folder", lambda: tmp_path)
    monkeypatch.setattr(small, "grid", lambda: {"strong-seed3": SMOKE})
    save_record(record, tmp_path / small.NAME / "strong-seed3.json")
    assert cli.main(["record", "small_gemma", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "strong, seed 3" in printed and ">2" in printed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experiment("enormous"), "'enormous' is unknown; use one of weak"),
        (lambda: experiment(seed=-1), "seed=-1"),
        (lambda: PretrainConfig(steps=0), "steps=0"),
        (lambda: PretrainConfig(context=8), "context=8 is too short"),
        (lambda: PretrainConfig(task=Task(format="full")), "use format='compact'"),
        (lambda: ExperimentConfig("x", PretrainConfig(), SMOKE.finetune, symbols=100), "symbols=100"),
        (lambda: ExperimentConfig("x", PretrainConfig(), SMOKE.finetune, arms=("all",)), "arms has 'all'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_without_transformers_the_command_starts_and_pretraining_says_what_is_missing():
    code = """
import sys
sys.modules.update(transformers=None, tokenizers=None, huggingface_hub=None, gguf=None)
import unseen_lib.__main__
from unseen_lib.pretrained.small import experiment, pretrain
pretrain(experiment(scale="smoke").pretrain)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "PretrainedError" in done.stderr.splitlines()[-1]
    assert "pip install 'unseen_lib[pretrained]'" in done.stderr.splitlines()[-1]
