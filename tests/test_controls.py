"""Controls: on a model small enough to compute by hand, and on one whose unseen rows are spoiled by hand."""

import math
from dataclasses import replace

import pytest
import torch

from unseen_lib import controls
from unseen_lib.collapse import measure_rows
from unseen_lib.controls import (
    CONTROLS,
    center,
    evaluate_controls,
    raise_unseen,
    recenter,
    redraw,
    restrict_to_prompt,
    scatter,
    suppression,
    with_rows,
)
from unseen_lib.errors import ConfigError
from unseen_lib.evaluation import evaluate, generate
from unseen_lib.experiments import measurement, preset
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.problems import IGNORE, Task, sample_batch
from unseen_lib.training import train
from unseen_lib.vocabulary import Vocabulary

SMOKE = preset("smoke")
VOCABULARY = SMOKE.vocabulary
SEEN, UNSEEN = list(VOCABULARY.seen_ids), list(VOCABULARY.unseen_ids)


def a_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smoke_model(tied: bool = True) -> GPT:
    """Not trained; its unseen rows drifted, as training would have them."""
    model = GPT(replace(SMOKE.model, tied=tied), a_generator())
    with torch.no_grad():
        model.embedding[UNSEEN] += 0.3
        model.unembedding[UNSEEN] *= torch.linspace(0.5, 1.5, len(UNSEEN))[:, None]
    return model


def bits(model: GPT) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model: GPT, before: dict[str, torch.Tensor]) -> bool:
    after = model.state_dict()
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


ROW_CONTROLS = {
    "redraw": lambda model, side: redraw(model, VOCABULARY, a_generator(), side=side),
    "matched": lambda model, side: redraw(model, VOCABULARY, a_generator(), side=side, matched=True),
    "scatter": lambda model, side: scatter(model, VOCABULARY, a_generator(), side=side),
    "center": lambda model, side: center(model, VOCABULARY, side=side),
    "recenter": lambda model, side: recenter(model, VOCABULARY, side=side),
}


# ------------------------------------------------------------------------------------------------- one change
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("side", controls.SIDES)
@pytest.mark.parametrize("name", ROW_CONTROLS)
def test_a_row_control_changes_the_unseen_rows_of_its_side_and_nothing_else(name, side, tied):
    model = smoke_model(tied)
    before = bits(model)
    changed = ROW_CONTROLS[name](model, side)
    assert same(model, before) and model.config.tied is tied
    assert changed.config.tied is (tied and side == "both")
    assert not {id(p) for p in model.parameters()} & {id(p) for p in changed.parameters()}
    for part in ("input", "output"):
        old, new = (m.embedding if part == "input" else m.unembedding for m in (model, changed))
        others = [i for i in range(VOCABULARY.size) if i not in UNSEEN]
        assert torch.equal(old[others], new[others])
        moved = (old[UNSEEN] != new[UNSEEN]).any(1)
        assert moved.all() if side in ("both", part) else not moved.any()
    rest = before.keys() - {"embedding", "untied"}
    assert rest and all(torch.equal(changed.state_dict()[key], before[key]) for key in rest)
    with torch.no_grad():  # what comes back shares no memory with what was given
        for parameter in changed.parameters():
            parameter.zero_()
    assert same(model, before)


@pytest.mark.parametrize("side", controls.SIDES)
def test_with_rows_separates_reading_from_scoring(side):
    """Blocks that write nothing leave token -> LayerNorm(row) . rows, which a hand can compute."""
    model = GPT(GPTConfig(3, width=2, layers=1, heads=1, mlp_width=1, context=4), a_generator())
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
        model.embedding.copy_(torch.tensor([[3.0, 1.0], [0.0, 5.0], [2.0, 4.0]]))
    # Of two numbers LayerNorm leaves the order: (a, b) becomes (1, -1) if a > b, and (-1, 1) if a < b.
    old, new = torch.tensor([2.0, 4.0]), torch.tensor([7.0, 1.0])
    changed = with_rows(model, [2], new[None], side=side)
    read = torch.tensor([1.0, -1.0] if side in ("both", "input") else [-1.0, 1.0])
    scored = torch.stack(
        [torch.tensor([3.0, 1.0]), torch.tensor([0.0, 5.0]), old if side == "input" else new]
    )
    assert changed(torch.tensor([[2]]))[0, 0].tolist() == pytest.approx((scored @ read).tolist(), abs=1e-4)
    of_another = scored @ torch.tensor([1.0, -1.0])  # token 0 is read as ever
    assert changed(torch.tensor([[0]]))[0, 0].tolist() == pytest.approx(of_another.tolist(), abs=1e-4)
    assert model(torch.tensor([[2]]))[0, 0].tolist() == pytest.approx([-2.0, 5.0, 2.0], abs=1e-4)


def test_initial_rows_are_restored_to_the_bit():
    model = smoke_model()
    initial = GPT(SMOKE.model, a_generator()).embedding.detach()
    assert not torch.equal(model.embedding, initial)
    assert torch.equal(with_rows(model, UNSEEN, initial[UNSEEN]).embedding, initial)


def test_a_redraw_is_the_seeds_and_is_like_fresh_rows():
    model, big = smoke_model(), Vocabulary("compact", 400, 400)
    once, again, other = (redraw(model, VOCABULARY, a_generator(s)).embedding[UNSEEN] for s in (1, 1, 2))
    assert torch.equal(once, again) and not torch.isclose(once, other).any(1).all()
    config = replace(SMOKE.model, vocab_size=big.size)
    drawn = redraw(GPT(config, a_generator()), big, a_generator(1)).embedding[list(big.unseen_ids)]
    assert drawn.mean().item() == pytest.approx(0, abs=0.01)
    assert drawn.square().sum(1).mean().item() == pytest.approx(1, abs=0.05)


def test_an_untied_model_gets_rows_of_its_own_on_each_side():
    changed = redraw(smoke_model(tied=False), VOCABULARY, a_generator())
    cosine = torch.cosine_similarity(changed.embedding[UNSEEN], changed.unembedding[UNSEEN])
    assert cosine.abs().mean() < 0.4


def test_a_matched_redraw_has_the_seen_rows_mean_and_deviation():
    many = Vocabulary("compact", 50, 3000)
    model = GPT(replace(SMOKE.model, vocab_size=many.size), a_generator())
    seen, unseen = list(many.seen_ids), list(many.unseen_ids)
    with torch.no_grad():
        model.embedding[seen] = 2 + torch.randn(50, 32, generator=a_generator()) * torch.linspace(0, 3, 32)
    drawn = redraw(model, many, a_generator(), matched=True).embedding
    assert drawn[unseen].mean(0).tolist() == pytest.approx(drawn[seen].mean(0).tolist(), abs=0.25)
    assert drawn[unseen].std(0).tolist() == pytest.approx(drawn[seen].std(0).tolist(), rel=0.08)


def test_centered_rows_lose_their_drift_and_keep_their_norms():
    model = smoke_model()
    old, new = model.embedding[UNSEEN], center(model, VOCABULARY).embedding[UNSEEN]
    assert new.norm(dim=1).tolist() == pytest.approx(old.norm(dim=1).tolist(), rel=1e-5)
    assert measure_rows(old).cosine > 0.6 and abs(measure_rows(new).cosine) < 0.1
    # Each row's direction is that from the old mean; with equal norms all around, the mean is zero.
    apart = old - old.mean(0)
    assert torch.cosine_similarity(new, apart).tolist() == pytest.approx([1] * len(UNSEEN), abs=1e-5)
    even = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    few = Vocabulary("compact", 2, 4)
    square = GPT(GPTConfig(few.size, width=2, layers=1, heads=1), a_generator())
    with torch.no_grad():
        square.embedding[list(few.unseen_ids)] = even * 0.1
    assert center(square, few).embedding[list(few.unseen_ids)].mean(0).tolist() == pytest.approx([0, 0])


def test_scattered_rows_keep_their_mean_and_recentered_ones_their_differences():
    model = smoke_model()
    old = model.embedding
    scattered, shifted = (
        f.embedding for f in (scatter(model, VOCABULARY, a_generator()), recenter(model, VOCABULARY))
    )
    assert scattered[UNSEEN].mean(0).tolist() == pytest.approx(old[UNSEEN].mean(0).tolist(), abs=1e-6)
    assert shifted[UNSEEN].mean(0).tolist() == pytest.approx(old[SEEN].mean(0).tolist(), abs=1e-6)
    step = shifted[UNSEEN] - old[UNSEEN]
    assert torch.allclose(step, step[:1].expand_as(step), atol=1e-6)


# ----------------------------------------------------------------------------------------------------- logits
def decode(model: GPT, adjust, scenario: str = "seen", count: int = 12, room: int = 8, **options):
    batch = sample_batch(
        SMOKE.task, VOCABULARY, batch_size=count, seed=0, index=0, stream="test", scenario=scenario
    )
    written = generate(
        model,
        batch.tokens,
        batch.prompt_length,
        vocabulary=VOCABULARY,
        max_new_tokens=room,
        adjust=adjust,
        **options,
    )
    prompts = [row[:n].tolist() for row, n in zip(batch.tokens, batch.prompt_length, strict=True)]
    return prompts, written


def test_raised_far_enough_only_unseen_names_are_chosen_and_lowered_none():
    model = smoke_model()
    ended = [VOCABULARY.eos, VOCABULARY.pad]
    for by, only in ((1e9, set(UNSEEN)), (-1e9, set(range(VOCABULARY.size)) - set(UNSEEN))):
        _, written = decode(model, raise_unseen(VOCABULARY, by), "all_unseen")
        assert set(written.flatten().tolist()) <= only | (set() if by > 0 else set(ended))
    assert torch.equal(decode(model, raise_unseen(VOCABULARY, 0.0))[1], decode(model, None)[1])


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_restricted_choice_stays_with_the_prompt_and_the_control_words(use_cache):
    model = smoke_model()
    prompts, free = decode(model, None, "query_unseen", 40, use_cache=use_cache)
    _, bound = decode(model, restrict_to_prompt(VOCABULARY), "query_unseen", 40, use_cache=use_cache)

    def strays(written):
        return sum(
            word not in prompt and word not in VOCABULARY.control_ids
            for prompt, row in zip(prompts, written.tolist(), strict=True)
            for word in row
        )

    assert strays(free) > 0 and strays(bound) == 0


def test_an_adjustment_is_given_the_prompts_and_nothing_after_them():
    task = replace(SMOKE.task, predicates=(4, 8))
    batch = sample_batch(task, VOCABULARY, batch_size=8, seed=0, index=0)
    given = []

    def adjust(logits, prompts):
        given.append(prompts.clone())
        return logits

    generate(
        smoke_model(),
        batch.tokens,
        batch.prompt_length,
        vocabulary=VOCABULARY,
        max_new_tokens=3,
        adjust=adjust,
    )
    assert len(set(batch.prompt_length.tolist())) > 1
    for prompts in given:
        for row, tokens, length in zip(prompts, batch.tokens, batch.prompt_length, strict=True):
            assert row[-length:].tolist() == tokens[:length].tolist()
            assert set(row[:-length].tolist()) <= {VOCABULARY.pad}


def test_logits_that_are_not_finite_stay_an_error_under_any_adjustment():
    model = smoke_model()
    with torch.no_grad():
        model.norm.weight[0] = math.nan
    with pytest.raises(FloatingPointError):
        decode(model, restrict_to_prompt(VOCABULARY))


def test_suppression_is_a_mean_over_rows_and_words():
    model = smoke_model()
    batch = sample_batch(SMOKE.task, VOCABULARY, batch_size=5, seed=3, index=0, stream="test")
    logits = model(batch.tokens)
    differences = [
        (logits[b, t, UNSEEN].mean() - logits[b, t, SEEN].mean()).item()
        for b in range(5)
        for t in range(batch.tokens.shape[1])
        if batch.targets[b, t] != IGNORE
    ]
    found = suppression(model, SMOKE.task, VOCABULARY, problems=5, seed=3)
    assert found == pytest.approx(sum(differences) / len(differences), rel=1e-4)


# ------------------------------------------------------------------------------------------------ all of them
def test_all_controls_leave_the_model_alone_and_come_out_again():
    model = smoke_model()
    model.train()
    before = bits(model)
    first, second = (evaluate_controls(model, SMOKE.task, VOCABULARY, problems=24, seed=5) for _ in range(2))
    assert same(model, before) and model.training and model.config.tied
    assert first == second and list(first) == list(CONTROLS)
    plain = evaluate(model, SMOKE.task, VOCABULARY, scenario="all_unseen", problems=24, seed=5)
    assert all(first["as_trained"][key] == getattr(plain, key) for key in first["as_trained"])


def test_a_measurement_has_them_at_the_last_step_only():
    config = preset("smoke", steps=3)
    model, measure = smoke_model(), measurement(config, problems=16)
    assert "controls" not in measure(model, 2)
    last = measure(model, 3)
    assert last["controls"]["all_unseen"].keys() == CONTROLS.keys()
    for field, value in last["controls"]["all_unseen"]["as_trained"].items():
        assert value == last["all_unseen"][field]


def test_a_collapse_made_by_hand_is_undone_by_a_redraw_and_by_nothing_less():
    config = preset("smoke", names=400, policy="frozen", copy=True, steps=150)
    wider = replace(config.model, width=64, mlp_width=64, head_dim=64)
    task = Task("chain", "compact", predicates=(4, 4))  # small problems: a short training is enough for some
    run = train(replace(config, task=task, model=wider, batch_size=32), progress=False)
    vocabulary = config.vocabulary
    unseen = list(vocabulary.unseen_ids)

    def valid(model: GPT) -> float:
        return evaluate(model, task, vocabulary, scenario="all_unseen").proof_validity

    one = run.model.embedding[unseen[:1]].detach()
    collapsed = with_rows(run.model, unseen, one.expand(len(unseen), -1))
    able, redrawn = valid(run.model), valid(redraw(collapsed, vocabulary, a_generator()))
    spoiled = [
        valid(model) for model in (collapsed, center(collapsed, vocabulary), recenter(collapsed, vocabulary))
    ]
    assert min(able, redrawn) > 0.1
    assert redrawn == pytest.approx(able, abs=0.1)
    assert max(spoiled) < 0.03


# ----------------------------------------------------------------------------------------------------- errors
NONE, ONE = Vocabulary("compact", 8, 0), Vocabulary("compact", 1, 1)


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (lambda m: with_rows(m, [1, 1], torch.zeros(2, 32)), r"ids is \[1, 1\], but should be different"),
        (lambda m: with_rows(m, [999], torch.zeros(1, 32)), r"ids is \[999\], but should be .* below 58"),
        (lambda m: with_rows(m, [1], torch.zeros(32)), r"rows has shape \(32,\), but .* need \(1, 32\)"),
        (
            lambda m: with_rows(m, [1], torch.zeros(1, 32), side="left"),
            "side is 'left', but it must be one of",
        ),
        (lambda m: center(m, VOCABULARY, side="left"), "side is 'left'"),
        (lambda m: redraw(m, NONE, a_generator()), "unseen is 0"),
        (lambda m: scatter(m, NONE, a_generator()), "unseen is 0"),
        (lambda m: recenter(m, NONE), "unseen is 0"),
        (lambda m: center(m, ONE), "unseen is 1, but centering needs at least 2"),
        (lambda m: redraw(m, ONE, a_generator(), matched=True), "seen is 1, but a matched draw"),
        (
            lambda m: redraw(m, Vocabulary("compact", 32, 17), a_generator()),
            "vocab_size is 58, .* has 59 words",
        ),
        (lambda m: raise_unseen(NONE, 1.0), "unseen is 0"),
        (lambda m: raise_unseen(VOCABULARY, math.inf), "by is inf"),
        (lambda m: suppression(m, SMOKE.task, NONE), "unseen is 0"),
        (lambda m: evaluate_controls(m, SMOKE.task, NONE), "unseen is 0"),
    ],
)
def test_a_control_without_meaning_fails_at_once(control, message):
    with pytest.raises(ConfigError, match=message) as caught:
        control(smoke_model())
    assert str(caught.value).count(". ") == 0


def test_one_set_of_rows_is_refused_where_a_model_has_two_matrices():
    model = smoke_model(tied=False)
    with pytest.raises(ConfigError, match="side is 'both', but an untied model"):
        with_rows(model, [1], torch.zeros(1, 32))
    both = with_rows(
        with_rows(model, [1], torch.zeros(1, 32), side="input"), [1], torch.ones(1, 32), side="output"
    )
    assert both.embedding[1].tolist() == [0] * 32 and both.unembedding[1].tolist() == [1] * 32
