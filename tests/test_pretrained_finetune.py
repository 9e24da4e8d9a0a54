"""Fine-tuning a published model, on tiny Gemma 3 models with a tokenizer that cuts words as Gemma's does."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors import safe_open

from tests.published import SPECIAL, collapse, tiny_gemma
from unseen_lib import __main__ as cli
from unseen_lib.errors import CheckpointError, ConfigError, PretrainedError
from unseen_lib.language import CONTROL_WORDS
from unseen_lib.pretrained import finetune as module
from unseen_lib.pretrained import gemma
from unseen_lib.pretrained.audit import audit
from unseen_lib.pretrained.finetune import (
    CHECKPOINT,
    PAPER_TASK,
    TRAIN,
    FinetuneConfig,
    Problems,
    Symbols,
    choose_precision,
    draw_problems,
    loss_of,
    measure,
    plan_memory,
    saved_bytes,
    spell,
    steps_to,
    trained_parts,
)
from unseen_lib.pretrained.gemma import KINDS, load, spelled, symbol_kinds
from unseen_lib.pretrained.repair import reinitialize
from unseen_lib.problems import IGNORE, Task, sample_batch
from unseen_lib.training import NonFiniteLoss
from unseen_lib.vocabulary import Vocabulary

CPU = torch.device("cpu")
EASY = Task(predicates=(4, 4))
EASIEST = Task("rule_priority", predicates=(2, 3), rules=(0, 0), body=(1, 1))  # no rules: learned in seconds
NAMES = range(200, 208)


def symbols(format="compact", names=NAMES):
    """Every second control word takes two tokens."""
    words = {word: (1000 + 2 * i, 1001 + 2 * i)[: 1 + i % 2] for i, word in enumerate(CONTROL_WORDS[format])}
    return Symbols(words | {"<pad>": (0,), "<bos>": (2,), "<eos>": (1,)}, tuple(names))


def config(steps=3, **changes):
    return FinetuneConfig(
        **{"task": EASY, "batch_size": 8, "problems": 8, "rate": 1e-3} | changes, steps=steps
    )


def finetune(model, *, given=None, measure_every=100, **options):
    """On one CPU thread, where bits are promised."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        options = {"device": "cpu", "progress": False, "measure_every": measure_every} | options
        return module.finetune(model, symbols(), given or config(), **options)
    finally:
        torch.set_num_threads(threads)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="session")
def half_trained():
    """A model that gets some of the problems right, and not all."""
    model = tiny_gemma()
    finetune(model, given=config(30, task=EASIEST, batch_size=32, rate=5e-3))
    return model


# ------------------------------------------------------------------------------------------------- problems
@pytest.mark.parametrize("task", [EASY, PAPER_TASK], ids=["compact", "full"])
def test_problems_are_spelled_as_a_loop_over_their_words_spells_them(task):
    chosen = symbols(task.format, range(200, 280))
    vocabulary = Vocabulary(task.format, 80, 0)
    batch = sample_batch(task, vocabulary, batch_size=16, seed=3, index=5)
    expected = []
    for row in range(16):
        prompt = vocabulary.decode(batch.tokens[row, : int(batch.prompt_length[row])])
        completion = vocabulary.decode(batch.targets[row][batch.targets[row] != IGNORE])
        tokens, targets, answers = [], [], []
        for word, counted in [(w, False) for w in prompt] + [(w, True) for w in completion]:
            is_name = word not in CONTROL_WORDS[task.format]
            ids = [200 + vocabulary.encode([word])[0] - len(CONTROL_WORDS[task.format])]
            ids = ids if is_name else chosen.words[word]
            tokens += ids
            targets += [token if counted else IGNORE for token in ids]
            answers += [counted and word in ("yes", "no") for _ in ids]
        expected.append((tokens, [*targets[1:], IGNORE], [*answers[1:], False]))
    found = spell(batch, vocabulary, chosen)
    got = []
    for row in range(16):
        there = found.mask[row]
        assert not there[int(there.sum()) :].any()  # padding is at the right
        assert (found.tokens[row][~there] == 0).all() and (found.targets[row][~there] == IGNORE).all()
        got.append(tuple(part[row][there].tolist() for part in (found.tokens, found.targets, found.answer)))
    assert sorted(got) == sorted(expected)
    lengths = found.mask.sum(1)
    assert (lengths.diff() >= 0).all() and lengths[-1] == found.mask.shape[1]


def test_parts_hold_every_problem_once_and_no_column_of_padding_alone():
    problems = draw_problems(PAPER_TASK, symbols("full", range(200, 280)), batch_size=10, seed=0, index=0)
    parts = list(problems.parts(4, CPU))
    assert [len(part.tokens) for part in parts] == [4, 4, 2]
    assert all(part.mask.any(0).all() for part in parts)
    assert sum(part.counted for part in parts) == problems.counted
    assert torch.cat([part.tokens[part.mask] for part in parts]).equal(problems.tokens[problems.mask])


def test_held_out_problems_and_those_of_other_batches_differ():
    drawn = [
        draw_problems(EASY, symbols(), batch_size=8, seed=0, index=index, stream=stream).tokens
        for index, stream in ((0, "train"), (1, "train"), (0, "test"))
    ]
    again = draw_problems(EASY, symbols(), batch_size=8, seed=0, index=1).tokens
    assert torch.equal(again, drawn[1])
    assert not any(torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


# ---------------------------------------------------------------------------------------- loss and measures
@pytest.mark.parametrize("at_once", [2**26, 7 * 2048], ids=["together", "chunks"])
@pytest.mark.parametrize(
    ("how", "cap"),
    [({}, None), ({"tied": False}, None), ({}, 0.5), ({"multimodal": True}, None)],
    ids=["tied", "untied", "capped", "multimodal"],
)
def test_the_loss_and_its_gradient_are_those_of_transformers(monkeypatch, how, cap, at_once):
    model = tiny_gemma(**how)
    model.config.get_text_config().final_logit_softcapping = cap
    problems = draw_problems(EASY, symbols(), batch_size=6, seed=0, index=0)
    labels = torch.full_like(problems.tokens, IGNORE)
    labels[:, 1:] = problems.targets[:, :-1]
    theirs = model(input_ids=problems.tokens, attention_mask=problems.mask, labels=labels).loss
    theirs.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    monkeypatch.setattr(module, "LOGITS", at_once)
    ours = loss_of(model, problems) / problems.counted
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for name, gradient in expected.items():
        found = dict(model.named_parameters())[name].grad
        assert torch.allclose(found, gradient, rtol=1e-3, atol=1e-6), name


def test_a_whole_completion_is_right_exactly_when_greedy_decoding_writes_it(half_trained):
    problems = draw_problems(EASIEST, symbols(), batch_size=48, seed=1, index=0, stream="test")
    written = answered = 0
    for row in range(48):
        length = int(problems.mask[row].sum())
        prompt = int((problems.targets[row] != IGNORE).int().argmax()) + 1
        tokens = problems.tokens[row : row + 1, :length]
        out = half_trained.generate(
            tokens[:, :prompt],
            max_new_tokens=length - prompt,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=1,
        )
        written += torch.equal(out, tokens)
        where = problems.answer[row].nonzero().flatten() + 1
        start = int(where[0])
        out = half_trained.generate(
            tokens[:, :start], max_new_tokens=len(where), do_sample=False, pad_token_id=0, eos_token_id=1
        )
        answered += torch.equal(out[0, start:], tokens[0, where])
    found = measure(half_trained, problems, 5, CPU)
    assert 5 <= written <= 43, "the fixture should be right in some cases and wrong in others"
    assert found["exact_match"] == written / 48 and found["answer_accuracy"] == answered / 48
    with torch.no_grad():
        assert found["loss"] == pytest.approx(loss_of(half_trained, problems).item() / problems.counted)


def test_a_model_with_logits_of_another_kind_is_refused():
    import transformers

    capped = tiny_gemma(multimodal=True)  # a cap that this class of transformers does not know
    capped.config.get_text_config().final_logit_softcapping = 0.1
    with pytest.raises(PretrainedError, match="logits in a way that is not known"):
        finetune(capped)

    scaled = transformers.CohereConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    scaled.logit_scale = 0.25
    with pytest.raises(PretrainedError, match="logits in a way that is not known"):
        finetune(transformers.CohereForCausalLM(scaled))


def test_steps_to_is_the_first_measured_step_at_the_level():
    curve = [{"step": s, "exact_match": e, "loss": 1.0} for s, e in ((0, 0.0), (50, 0.9), (100, 0.7))]
    assert steps_to(curve) == 50 and steps_to(curve, 0.95) is None and steps_to(curve, 1.0, "loss") == 0
    assert steps_to([]) is None


# --------------------------------------------------------------------------------------------------- training
@pytest.mark.parametrize("train", TRAIN)
def test_micro_batches_and_checkpointing_give_the_update_of_the_whole_batch(train):
    found = {}
    for name, changes in {
        "whole": {},
        "parts": {"micro_batch": 3},
        "checkpointed": {"checkpointing": True},
    }.items():
        model = tiny_gemma()
        finetune(model, given=config(2, train=train, epsilon=1e-4, **changes))
        found[name] = weights(model)
        assert not model.model.gradient_checkpointing
    assert same(found["whole"], found["checkpointed"])
    assert not same(found["whole"], weights(tiny_gemma()))
    for name, value in found["whole"].items():
        assert torch.allclose(value, found["parts"][name], atol=2e-6), name


def test_an_update_is_that_of_adamw_with_the_settings_of_the_paper():
    given = FinetuneConfig(EASY, 2, batch_size=8, problems=8)
    model, other = tiny_gemma(), tiny_gemma()
    finetune(model, given=given)
    optimizer = torch.optim.AdamW(
        other.parameters(), lr=5e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-4
    )
    for step in range(2):
        problems = draw_problems(EASY, symbols(), batch_size=8, seed=0, index=step)
        (loss_of(other.train(), problems) / problems.counted).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in other.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-7), name


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("train", TRAIN)
def test_each_variant_trains_what_it_says_and_leaves_the_model_as_any_other(train, tied):
    model = tiny_gemma(tied=tied)
    model.lm_head.weight.requires_grad_(tied)
    model.eval()
    before = weights(model)
    run = finetune(model, given=config(2, train=train))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    tables = {"model.embed_tokens.weight", "lm_head.weight"}
    maps = {name for name in before if name.endswith("_proj.weight")}
    assert changed == {"all": set(before), "embeddings": tables, "lora": maps}[train]
    assert model.state_dict().keys() == before.keys() and not model.training
    assert model.lm_head.weight.requires_grad == tied and model.model.norm.weight.requires_grad
    assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    tables = 2048 * 64 * (1 if tied else 2)
    counts = {"all": sum(p.numel() for p in model.parameters()), "embeddings": tables}
    assert run.parameters == counts.get(train, run.parameters)


def test_merging_low_rank_parts_does_not_change_what_the_model_computes():
    model, tokens = tiny_gemma().eval(), torch.tensor([[2, 200, 300, 7]])
    start = model(tokens).logits
    with trained_parts(model, config(train="lora", rank=4)) as trained:
        assert torch.equal(model(tokens).logits, start)  # they begin as nothing
        assert {len(part) for name, part in trained.items() if name.endswith("down")} == {4}
        with torch.no_grad():
            for part in trained.values():
                part += 0.1 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1))
        apart = model(tokens).logits
    assert not torch.allclose(apart, start, atol=1e-3)
    assert torch.allclose(model(tokens).logits, apart, atol=1e-5)


def test_a_multimodal_model_trains_its_text_part():
    model = tiny_gemma(multimodal=True)
    before = weights(model)
    run = finetune(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and not any("vision" in name or "projector" in name for name in changed)
    assert len(run.curve) == 2


def test_it_learns_and_stops_when_it_is_good_enough():
    model = tiny_gemma()
    given = config(100, task=EASIEST, batch_size=32, problems=64, rate=5e-3)
    run = finetune(model, given=given, measure_every=10, stop_at=0.1)
    assert run.curve[-1]["exact_match"] >= 0.1 and run.curve[-1]["loss"] < 0.5 * run.curve[0]["loss"]
    assert run.curve[-1]["step"] < 100 and run.curve[-1]["step"] == 10 * (len(run.curve) - 1)
    assert all(point["exact_match"] < 0.1 for point in run.curve[:-1])
    assert (run.device, run.dtype) == ("cpu", "float32") and run.seconds > 0 and run.peak_memory_mb > 0


# --------------------------------------------------------------------------------------------- going on again
class Killed(Exception):
    pass


@pytest.mark.parametrize("train", TRAIN)
def test_a_run_that_was_cut_off_ends_as_one_that_was_not(tmp_path, monkeypatch, train):
    whole = tiny_gemma()
    straight = finetune(whole, given=config(6, train=train), measure_every=2)

    drawn = []

    def draw(*arguments, **named):
        drawn.append(named)
        if named.get("stream") is None and named["index"] == 5:
            raise Killed
        return draw_problems(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, "draw_problems", draw)
        with pytest.raises(Killed):
            finetune(tiny_gemma(), given=config(6, train=train), measure_every=2, folder=tmp_path)
    again = tiny_gemma()
    resumed = finetune(again, given=config(6, train=train), measure_every=2, folder=tmp_path)
    assert same(weights(whole), weights(again))
    assert resumed.curve == straight.curve and [point["step"] for point in resumed.curve] == [0, 2, 4, 6]
    assert resumed.seconds > 0

    with safe_open(tmp_path / CHECKPOINT, framework="pt") as file:
        kept = [name for name in file.keys() if name.startswith("model.")]  # noqa: SIM118
    tables = ["model.model/embed_tokens/weight"]
    assert kept == tables if train == "embeddings" else len(kept) == {"all": 28, "lora": 28}[train]
    assert not list(tmp_path.glob(".*"))


def test_a_run_can_be_given_more_steps_and_other_memory(tmp_path):
    whole, longer = tiny_gemma(), tiny_gemma()
    finetune(whole, given=config(4), measure_every=2)
    finetune(tiny_gemma(), given=config(2), measure_every=2, folder=tmp_path)
    finetune(longer, given=config(4, checkpointing=True), measure_every=2, folder=tmp_path)
    assert same(weights(whole), weights(longer))
    with pytest.raises(CheckpointError, match=r"is at step 4 already, and steps=3: ask for more"):
        finetune(tiny_gemma(), given=config(3), folder=tmp_path)
    done = finetune(tiny_gemma(), given=config(4), measure_every=2, folder=tmp_path)
    assert done.curve[-1]["step"] == 4


def repaired():
    model = tiny_gemma()
    reinitialize(model, NAMES)
    return model


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (repaired, {}, "its model, rows or symbols are not those given"),
        (lambda: tiny_gemma(seed=1), {}, "its model, rows or symbols are not those given"),
        (tiny_gemma, {"rate": 2e-3}, "rate is 0.001 in the file and 0.002 here"),
        (tiny_gemma, {"train": "lora"}, "train is 'all' in the file and 'lora' here"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path, model, changes, message):
    finetune(tiny_gemma(), folder=tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(CheckpointError, match=message):
        finetune(model(), given=config(3, **changes), folder=tmp_path)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(NonFiniteLoss, match=r"not finite at step .*\bfinetune.safetensors"):
        finetune(tiny_gemma(), given=config(30, rate=1e30), measure_every=5, folder=tmp_path)
    with safe_open(tmp_path / CHECKPOINT, framework="pt") as file:
        assert all(file.get_tensor(name).isfinite().all() for name in file.keys())  # noqa: SIM118


def test_the_random_numbers_of_the_caller_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = tiny_gemma(seed=5)
    torch.manual_seed(5)
    finetune(model)
    assert torch.equal(torch.rand(3), expected)


# ------------------------------------------------------------------------------------- precision and memory
def test_a_step_of_the_paper_is_rounded_away_in_bfloat16():
    weight = torch.tensor(0.03)
    assert weight.bfloat16() - 5e-5 == weight.bfloat16() and weight - 5e-5 != weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_are_not_float32_are_refused(dtype):
    with pytest.raises(PretrainedError, match=f"is {str(dtype)[6:]}, in which small steps are rounded away"):
        finetune(tiny_gemma().to(dtype))


@pytest.mark.parametrize(("made_for_it", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_arithmetic_is_bfloat16_only_where_the_gpu_is_made_for_it(monkeypatch, made_for_it, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: made_for_it or including_emulation
    )
    place, found, reason = choose_precision()
    assert place.type == "cuda" and found == dtype and "bfloat16" in reason


def test_arithmetic_in_bfloat16_learns_with_float32_weights(monkeypatch):
    monkeypatch.setattr(module, "choose_precision", lambda _: (CPU, torch.bfloat16, "a test"))
    model, exact = tiny_gemma(), tiny_gemma()
    seen = []
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda m, x, y: seen.append(y.dtype))
    run = finetune(model, given=config(20), measure_every=20)
    monkeypatch.undo()
    exactly = finetune(exact, given=config(20), measure_every=20)
    assert run.dtype == "bfloat16" and torch.bfloat16 in seen
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert run.curve[-1]["loss"] < run.curve[0]["loss"]
    assert run.curve[-1]["loss"] == pytest.approx(exactly.curve[-1]["loss"], rel=0.02)


def planned(model, memory, **changes):
    given = config(batch_size=16, **changes)
    problems = draw_problems(PAPER_TASK, symbols("full", range(200, 280)), batch_size=16, seed=0, index=0)
    with trained_parts(model, given) as trained:
        return plan_memory(model, trained, problems, given, memory), problems


@pytest.mark.parametrize("train", TRAIN)
def test_the_memory_plan_counts_four_bytes_a_weight_and_twelve_more_a_trained_one(monkeypatch, train):
    monkeypatch.setattr(module, "LOGITS", 1)  # one position: 3 * 4 * 2048 bytes
    model = tiny_gemma()
    trained = {"all": 193_216, "embeddings": 2048 * 64, "lora": 29_696}[train]
    gradients = 0 if train == "lora" else 2 * 4 * 2048 * 64  # of the table's two uses
    plan, problems = planned(model, 10**12, train=train)
    weights = 193_216 + (trained if train == "lora" else 0)
    once = plan.fixed - (4 * weights + 12 * trained + gradients + 12 * 2048)
    assert plan.micro_batch == 16 and not plan.checkpointing
    with trained_parts(model, config(train=train)):
        parts = [saved_bytes(model, part) for part in problems.parts(1, CPU)]
    assert parts[-1] == max(parts) and 0 <= once < 0.1 * plan.problem
    assert once + plan.problem == pytest.approx(parts[-1], rel=0.05)


def test_in_bfloat16_the_plan_counts_the_rounded_weights_once():
    model = tiny_gemma()
    exact, _ = planned(model, 10**12)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        plan, problems = planned(model, 10**12)
        two = Problems(*(torch.stack([part[-1]] * 2) for part in vars(problems).values()))
        kept = saved_bytes(model, two)
    maps = 2 * sum(p.numel() for name, p in model.named_parameters() if name.endswith("_proj.weight"))
    maps += 2 * 2048 * 64  # and the unembedding
    assert plan.fixed - exact.fixed == pytest.approx(maps, rel=0.05)
    assert plan.problem < exact.problem
    assert kept == pytest.approx(2 * plan.problem + maps, rel=0.1)


def peak_bytes(model, problems):
    """The most that is allocated at one time in a training step, by torch's own profiler."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        loss_of(model, problems).backward()
    sizes = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(torch.tensor(sizes).cumsum(0).tolist())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_memory_plan_is_near_the_peak_that_a_profiler_sees(checkpointing):
    model = tiny_gemma().train()
    plan, problems = planned(model, 10**12, checkpointing=checkpointing)
    module._switch_checkpointing(model, on=checkpointing)
    part = list(problems.parts(8, CPU))[-1]
    peak = peak_bytes(model, part)
    foreseen = plan.fixed - 4 * (193_216 + 2 * 193_216) + 8 * plan.problem  # without weights and moments
    assert 0.8 * peak < foreseen < 2 * peak


def test_the_plan_takes_as_many_problems_as_fit_then_checkpoints_then_refuses():
    plan, _ = planned(tiny_gemma(), 10**12)
    few, _ = planned(tiny_gemma(), int(plan.fixed + 3.5 * plan.problem))
    assert few.micro_batch == 3 and not few.checkpointing and few.needed <= few.memory
    tight, _ = planned(tiny_gemma(), int(plan.fixed + 0.9 * plan.problem))
    assert tight.checkpointing and tight.needed <= tight.memory and tight.problem < plan.problem
    with pytest.raises(PretrainedError, match="does not fit: take train='embeddings' or 'lora'"):
        planned(tiny_gemma(), plan.fixed)
    with pytest.raises(PretrainedError) as refused:
        planned(tiny_gemma(), int(plan.fixed + plan.problem), micro_batch=4, checkpointing=False)
    assert "turn micro_batch=4 down, set checkpointing=True, take train=" in str(refused.value)
    both, _ = planned(tiny_gemma(), int(plan.fixed + 2.5 * plan.problem), micro_batch=4)
    assert both.checkpointing and both.micro_batch == 4  # which fits in this way alone


def test_running_out_of_memory_gets_the_same_sentence(monkeypatch, capsys):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "measure", full)
    model = tiny_gemma()
    with pytest.raises(
        PretrainedError, match=r"cpu ran out of memory .* turn micro_batch=8 down, set checkpoint"
    ):
        finetune(model)
    assert model.model.norm.weight.requires_grad
    with pytest.raises(PretrainedError, match="take a smaller model"):
        finetune(model, given=config(train="lora", micro_batch=1, checkpointing=True))
    assert not model.model.gradient_checkpointing and "up_proj.weight" in " ".join(model.state_dict())


def test_weights_that_do_not_fit_are_refused_before_they_are_moved(monkeypatch):
    monkeypatch.setattr(module, "memory_of", lambda *_: 2**20)
    model = tiny_gemma()
    monkeypatch.setattr(model, "to", lambda *_: pytest.fail("it was moved"))
    with pytest.raises(PretrainedError) as refused:
        finetune(model)
    said = str(refused.value)
    assert said.startswith("this run needs ") and " of 1 MB for weights, gradients and moments alone" in said
    assert said.endswith("which does not fit: take train='embeddings' or 'lora'")


def test_device_and_memory_are_said_before_the_start(capsys):
    finetune(tiny_gemma(), progress=True)
    out = capsys.readouterr().out
    assert out.startswith("device: cpu, float32: it was asked for\nmemory: about ")
    assert "micro_batch=8; 193,216 weights are trained" in out


# ----------------------------------------------------------------------------------------------- bad settings
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be a whole number from 1 up"),
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"seed": -1}, "seed=-1 must be a whole number from 0 up"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"decay": float("nan")}, "decay=nan"),
        ({"betas": (0.9, 1.0)}, "betas="),
        ({"train": "some"}, "train='some' is unknown; use one of 'all', 'embeddings', 'lora'"),
    ],
)
def test_a_setting_out_of_range(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(config(), **changes)


@pytest.mark.parametrize(
    ("words", "names", "message"),
    [
        ({}, (5, 6, 5), "the id 5 twice"),
        ({"then": (7, 8)}, (8, 9), "the id 8, which is part of a control word"),
        ({}, (), "at least one name"),
        ({"then": (-1,)}, (5,), "ids from 0 up"),
        ({"<pad>": ()}, (5,), "'<pad>' one id"),
    ],
)
def test_symbols_that_cannot_be_told_apart(words, names, message):
    with pytest.raises(ConfigError, match=message):
        Symbols({"<pad>": (0,), **words}, names)


def test_symbols_that_do_not_fit_task_or_model():
    run = module.finetune
    with pytest.raises(ConfigError, match="words lacks 'If', a control word of the full format"):
        run(tiny_gemma(), symbols(names=range(200, 280)), config(task=PAPER_TASK), measure_every=1)
    with pytest.raises(ConfigError, match="seen=2 names are too few"):
        run(tiny_gemma(), symbols(names=(200, 201)), config(), measure_every=1)
    with pytest.raises(ConfigError, match="up to the id 3000, but Gemma3ForCausalLM has rows 0 to 2047"):
        run(tiny_gemma(), symbols(names=(*NAMES, 3000)), config(), measure_every=1)
    with pytest.raises(ConfigError, match="measure_every=0"):
        run(tiny_gemma(), symbols(), config(), measure_every=0)


# ------------------------------------------------------------------------------------------------- tokenizers
def save_gemma_tokenizer(folder, *, whole_words=True, unused=99):
    """A tokenizer cut as Gemma's is: BPE with spaces as ▁ and bytes to fall back on, trained on the words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    reserved = [f"<unused{number}>" for number in range(unused)]
    special = [SPECIAL[row] for row in range(6)]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    some = ["If", "then", "Rules:", "Facts:", "Query:", "Reasoning:", "Answer:", "yes", "no", "End"]
    text = " " + " ".join([*gemma._ADJECTIVES.split(), *gemma._WRITTEN, *some])
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", "▁")
    if whole_words:
        learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    else:
        text = " If big then small EndIf" * 3 + text
    first = [*special, *reserved, SPECIAL[105], *bytes_]
    trainer = BpeTrainer(vocab_size=1700, special_tokens=first, show_progress=False)
    learner.train_from_iterator([text] * 20, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(learned["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in [*special, SPECIAL[105]]])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in reserved])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {f"{which}_token": f"<{which}>" for which in ("bos", "eos", "pad", "unk")}
    about["tokenizer_class"] = "GemmaTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A published model whose unused tokens have collapsed, with a tokenizer like Gemma's."""
    place = tmp_path_factory.mktemp("gemma") / "tiny" / "gemma"
    model = tiny_gemma()
    collapse(model.get_input_embeddings().weight, range(6, 105))
    model.to(torch.bfloat16).save_pretrained(place)
    save_gemma_tokenizer(place)
    return place


@pytest.fixture(scope="session")
def tokenizer(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_each_symbol_is_one_token_of_its_own(tokenizer, kind):
    found = symbol_kinds(tokenizer, kind)
    assert len(found) == len(set(found.values())) == 80
    for text, row in found.items():
        assert tokenizer.encode(text, add_special_tokens=False) == [row]
        assert tokenizer.convert_ids_to_tokens(row) == text.replace(" ", "▁")
    if kind == "unused":
        assert list(found.items())[:2] == [("<unused0>", 6), ("<unused1>", 7)]
    if kind == "letters":
        assert {" a", " Z", " aa"} <= found.keys()


@pytest.mark.parametrize("format", ["compact", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_words_put_together_are_the_tokens_of_the_whole_text(tokenizer, kind, format):
    task = dataclasses.replace(PAPER_TASK, format=format)
    names = symbol_kinds(tokenizer, kind)
    chosen = spelled(tokenizer, task, names)
    assert any(len(ids) > 1 for ids in chosen.words.values()) == (format == "full")
    problems = draw_problems(task, chosen, batch_size=64, seed=9, index=0)
    for tokens, mask in zip(problems.tokens, problems.mask, strict=True):
        ids = tokens[mask].tolist()
        text = tokenizer.decode(ids[1:-1])
        assert ids == [*tokenizer.encode(text), tokenizer.eos_token_id]  # encode puts <bos> first


def test_a_space_before_an_unused_token_would_be_a_token(tokenizer):
    assert tokenizer.tokenize(" If <unused3> then") == ["▁If", "▁", "<unused3>", "▁then"]
    assert tokenizer.tokenize(" If<unused3> then") == ["▁If", "<unused3>", "▁then"]


def test_what_cannot_be_a_symbol_is_named(tokenizer):
    with pytest.raises(PretrainedError, match="240 unused are wanted and 99 of 99 are single tokens"):
        symbol_kinds(tokenizer, "unused", 240)
    with pytest.raises(ConfigError, match="kind='verbs' is unknown"):
        symbol_kinds(tokenizer, "verbs")


def test_words_of_several_tokens_are_no_symbols(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(gemma, "_ADJECTIVES", "big quizzical small If small incomprehensible tall")
    assert list(symbol_kinds(tokenizer, "adjectives", 3)) == [" big", " small", " tall"]
    with pytest.raises(PretrainedError) as refused:
        symbol_kinds(tokenizer, "adjectives", 4)
    said = str(refused.value)
    assert "3 of 7 are single tokens" in said and "' quizzical' (" in said and "tokens)" in said
    assert "' If' (part of a control word)" in said


@pytest.mark.slow
def test_the_tokenizer_of_a_real_model_spells_problems_too(smollm2):
    """Of another family: bytes, not characters, and no token before a text."""
    import transformers

    real = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    names = symbol_kinds(real, "adjectives")
    chosen = spelled(real, PAPER_TASK, names)
    assert " big" in names and [real.decode([token]) for token in chosen.words["EndIf"]] == [" End", "If"]
    with pytest.raises(PretrainedError, match=r"79 of 104 are single tokens .*, not ' aa' \(2 tokens\)"):
        symbol_kinds(real, "letters")
    with pytest.raises(PretrainedError, match="0 of 0 are single tokens"):
        symbol_kinds(real, "unused")


def test_a_tokenizer_that_joins_words_is_refused(tmp_path):
    import transformers

    save_gemma_tokenizer(tmp_path, whole_words=False)
    joining = transformers.AutoTokenizer.from_pretrained(tmp_path)
    names = {f"<unused{number}>": 6 + number for number in range(80)}
    with pytest.raises(PretrainedError):
        spelled(joining, PAPER_TASK, names)


# ------------------------------------------------------------------------------------------ the command line
def asked(*arguments):
    small = ["--steps", "2", "--measure-every", "1", "--batch-size", "4", "--device", "cpu"]
    return cli.main(["finetune", *map(str, arguments), *small])


@pytest.fixture(autouse=True)
def few_problems(monkeypatch):
    """The command line measures 512 held-out problems; a few are enough here."""
    monkeypatch.setattr(
        module.FinetuneConfig, "__init__", _with_default(module.FinetuneConfig.__init__, problems=8)
    )


def _with_default(init, **defaults):
    def changed(self, *arguments, **named):
        init(self, *arguments, **defaults | named)

    return changed


@pytest.mark.parametrize(
    "arm", [["adjectives"], ["letters"], ["unused"], ["unused", "--repair"]], ids=lambda arm: " ".join(arm)
)
def test_the_four_arms_run_from_the_command_line(folder, tmp_path, capsys, arm):
    place = tmp_path / "arm.json"
    assert asked(folder, "--symbols", *arm, "--json", place, "--folder", tmp_path / "kept") == 0
    out = capsys.readouterr().out
    assert "whole proofs" in out and "90 % of whole proofs: not reached" in out
    found = json.loads(place.read_text(encoding="utf-8"))
    assert [point["step"] for point in found["curve"]] == [0, 1, 2]
    assert found["symbols"] == arm[0] and found["repair"] == (len(arm) == 2) and len(found["names"]) == 80
    assert found["config"]["rate"] == 5e-5 and found["config"]["task"]["family"] == "rule_priority"
    assert found["versions"].keys() == {"unseen_lib", "torch", "transformers"}
    assert (tmp_path / "kept" / CHECKPOINT).exists()


def test_the_repaired_arm_starts_from_rows_that_differ(folder, monkeypatch):
    seen = {}

    def look(model, chosen, given, **_):
        seen["collapsed"] = audit(model, chosen.names).collapsed
        return module.FinetuneRun(given)

    monkeypatch.setattr(gemma, "finetune", look)
    for repair in (False, True):
        gemma.run_arm(str(folder), "unused", config(task=PAPER_TASK), repair=repair, measure_every=1)
        assert seen["collapsed"] is not repair


def test_a_model_of_the_hub_is_downloaded_and_run(folder, served, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(folder, served.root / "tiny" / "gemma", dirs_exist_ok=True)
    model, tokenizer = load("tiny/gemma")
    local, _ = load(str(folder))
    assert same(weights(model), weights(local)) and len(tokenizer) > 1000
    assert {p.dtype for p in model.parameters()} == {torch.float32}  # the file is bfloat16


GATED = {"X-Error-Code": "GatedRepo"}


def complaint(capsys, *arguments):
    assert asked(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("unseen: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


def test_what_can_be_wrong_with_a_model_is_one_sentence_and_status_2(served, folder, tmp_path, capsys):
    served.files_refused["tiny/single"] = (401, GATED)
    assert "behind a license: accept it" in complaint(capsys, "tiny/single", "--symbols", "unused")
    assert "the hub has no model" in complaint(capsys, "tiny/nothing", "--symbols", "unused")
    assert "neither a folder" in complaint(capsys, "nowhere at all", "--symbols", "unused")
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    (pickles / "config.json").write_text("{}", encoding="utf-8")
    (pickles / "pytorch_model.bin").write_bytes(b"never unpickled")
    assert "safetensors" in complaint(capsys, pickles, "--symbols", "unused")
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "config.json").write_text("{}", encoding="utf-8")
    assert "transformers cannot load" in complaint(capsys, bare, "--symbols", "unused")


def test_a_download_that_stops_halfway_says_why(served, folder, tmp_path, capsys, monkeypatch):
    import errno

    import huggingface_hub

    shutil.copytree(folder, served.root / "tiny" / "gemma", dirs_exist_ok=True)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    assert "does not fit on this disk: free some space" in complaint(
        capsys, "tiny/gemma", "--symbols", "unused"
    )


def test_code_beside_a_model_is_not_run(folder, tmp_path, capsys):
    place, ran = tmp_path / "with-code", tmp_path / "ran"
    shutil.copytree(folder, place)
    settings = json.loads((place / "config.json").read_text(encoding="utf-8"))
    settings |= {"model_type": "strange", "auto_map": {"AutoModelForCausalLM": "code.Model"}}
    (place / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (place / "code.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Model: pass\n", encoding="utf-8")
    assert "transformers cannot load" in complaint(capsys, place, "--symbols", "unused")
    assert not ran.exists()


def test_symbols_in_use_are_not_repaired(folder, capsys):
    said = complaint(capsys, folder, "--symbols", "letters", "--repair")
    assert "would destroy the rows of letters" in said


def test_a_place_that_cannot_be_written_is_found_before_the_model_is_loaded(folder, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    assert asked(folder, "--symbols", "letters", "--json", blocked / "arm.json") == 1
    assert "could not be written" in capsys.readouterr().err
