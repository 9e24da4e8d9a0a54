"""The theory lab: exact statements against autograd, bounds on random problems, claims over seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unseen_lib.collapse import logit_spread
from unseen_lib.errors import ConfigError
from unseen_lib.theory import (
    LabConfig,
    Moment,
    Problem,
    ProblemConfig,
    bounds,
    difference_map,
    gradient,
    logarithmic_mean,
    make_problem,
    normalized,
    trace,
)

SEEDS = range(5)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem_of(seed: int, config: ProblemConfig | None = None) -> Problem:
    return make_problem(config or ProblemConfig(), seeded(seed))


@cache
def traced(seed: int, config: LabConfig) -> list[Moment]:
    return trace(problem_of(seed), config, record_every=20)


def autograd_step(weights: Tensor, features: Tensor, labels: Tensor, rate: float, decay: float) -> Tensor:
    """The independent truth: the loss as written in the paper, differentiated by torch."""
    weights = weights.clone().requires_grad_()
    log_p = torch.log_softmax(features @ weights.T, dim=1)
    loss = -log_p[torch.arange(len(labels)), labels].mean() + decay / 2 * weights.square().sum()
    (slope,) = torch.autograd.grad(loss, weights)
    return (weights - rate * slope).detach()


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Well and badly fitted ones, few samples and many, short features and long."""
    config = ProblemConfig(
        samples=draw(st.integers(3, 20)),
        width=draw(st.integers(2, 12)),
        used=draw(st.integers(1, 3)),
        unused=draw(st.integers(2, 4)),
        noise=draw(st.floats(0, 3)),
        shared=draw(st.floats(0, 3)),
    )
    problem = make_problem(config, seeded(draw(st.integers(0, 2**32))))
    if draw(st.booleans()):
        problem = replace(problem, features=normalized(problem.features))
    return replace(
        problem,
        features=problem.features * draw(st.sampled_from([0.0, 0.1, 1.0, 3.0])),
        weights=problem.weights * draw(st.sampled_from([1e-3, 1.0, 5.0])),
    )


def facts(problem: Problem) -> tuple[float, float]:
    """r, and p of the first two unused rows."""
    p = torch.softmax(problem.features @ problem.weights.T, dim=1)[:, problem.used : problem.used + 2]
    return problem.features.norm(dim=1).max().item(), p.max().item()


def difference(weights: Tensor, used: int) -> Tensor:
    return weights[used] - weights[used + 1]


# ---------------------------------------------------------------------------------------------- the exact map
@settings(deadline=None, max_examples=300)
@given(problems(), st.floats(0.001, 3), st.floats(0, 2))
def test_the_map_is_the_gradient_step(problem: Problem, rate: float, decay: float) -> None:
    features, labels, weights, used = problem.features, problem.labels, problem.weights, problem.used
    after = difference(autograd_step(weights, features, labels, rate, decay), used)
    by_map = difference_map(weights, features, used, used + 1, rate=rate, weight_decay=decay)
    delta = difference(weights, used)
    size = max(1.0, weights.abs().max().item(), rate * features.abs().max().item())
    assert (by_map @ delta - after).abs().max() <= 1e-12 * size


@settings(deadline=None)
@given(problems(), st.floats(0.001, 3), st.floats(0, 2))
def test_the_gradient_is_autograds_and_its_rows_sum_to_zero(
    problem: Problem, rate: float, decay: float
) -> None:
    slope = gradient(problem.weights, problem.features, problem.labels)
    after = (1 - rate * decay) * problem.weights - rate * slope
    truth = autograd_step(problem.weights, problem.features, problem.labels, rate, decay)
    torch.testing.assert_close(after, truth, rtol=1e-12, atol=1e-12)
    assert slope.sum(0).abs().max() <= 1e-12


@given(st.floats(-700, 0), st.floats(-700, 0))
def test_logarithmic_mean_lies_between_geometric_and_arithmetic_mean(log_a: float, log_b: float) -> None:
    a, b = math.exp(log_a), math.exp(log_b)
    pair = torch.tensor([log_a, log_b], dtype=torch.float64)
    found = logarithmic_mean(pair[0], pair[1]).item()
    assert math.exp((log_a + log_b) / 2) * (1 - 1e-9) <= found <= (a + b) / 2 * (1 + 1e-9)
    if abs(log_a - log_b) > 1e-3:
        assert found == pytest.approx((a - b) / (log_a - log_b), rel=1e-9)
    assert logarithmic_mean(pair[0], pair[0]).item() == pytest.approx(a)


# ------------------------------------------------------------------------------------------------- the bounds
@settings(deadline=None, max_examples=1000)
@given(problems(), st.floats(0.01, 1), st.floats(0, 2))
def test_the_corrected_bound_holds_under_its_condition(problem: Problem, share: float, decay: float) -> None:
    radius, p = facts(problem)
    rate = share / max(decay + radius**2 * min(p, 0.5) / 2, 1e-3)  # up to the very edge of the condition
    said = bounds(rate=rate * (1 - 1e-12), weight_decay=decay, radius=radius, probability=p)
    assert said.corrected_holds
    weights, used = problem.weights, problem.used
    after = difference(autograd_step(weights, problem.features, problem.labels, rate, decay), used)
    before = difference(weights, used).norm().item()
    assert after.norm().item() <= said.corrected * before + 1e-11 * max(1.0, before)
    eigenvalues = torch.linalg.eigvalsh(
        difference_map(weights, problem.features, used, used + 1, rate=rate, weight_decay=decay)
    )
    assert eigenvalues.abs().max() <= said.corrected + 1e-9
    if said.no_overshoot:
        assert eigenvalues.min() >= -1e-9


@settings(deadline=None, max_examples=500)
@given(problems(), st.floats(0.001, 3), st.floats(0, 2))
def test_the_printed_bound_holds_where_rate_times_decay_is_at_most_one(
    problem: Problem, rate: float, decay: float
) -> None:
    radius, p = facts(problem)
    rate = min(rate, 1 / decay) if decay else rate
    said = bounds(rate=rate, weight_decay=decay, radius=radius, probability=p)
    after = autograd_step(problem.weights, problem.features, problem.labels, rate, decay)
    before = difference(problem.weights, problem.used).norm().item()
    assert difference(after, problem.used).norm().item() <= said.printed * before + 1e-11 * max(1.0, before)


@settings(deadline=None, max_examples=25)
@given(problems(), st.floats(0.1, 1), st.floats(0, 2), st.integers(0, 99))
def test_no_step_of_a_run_parts_unused_rows_whatever_the_fit(
    problem: Problem, share: float, decay: float, seed: int
) -> None:
    radius = problem.features.norm(dim=1).max().item()
    rate = share / max(decay + radius**2 / 4, 0.1)  # knows no probability
    config = LabConfig(rate=rate, weight_decay=decay, layer_norm=False, steps=20, batch_size=2)
    for moment in trace(problem, config, generator=seeded(seed)):
        assert moment.conditions_hold
        if moment.distance > 1e-6:  # below, rounding error is what moves the rows
            assert max(moment.factor, moment.worst_factor) <= moment.corrected + 1e-6


def test_the_counterexample_to_the_printed_bound() -> None:
    weights = torch.eye(3, dtype=torch.float64)
    after = autograd_step(weights, torch.zeros(1, 3, dtype=torch.float64), torch.tensor([0]), 3.0, 1.0)
    said = bounds(rate=3.0, weight_decay=1.0, radius=0.0, probability=1 / 3)
    assert said.printed == -2 and not said.printed_holds and not said.corrected_holds
    assert difference(after, 1).norm() / difference(weights, 1).norm() == pytest.approx(2)


@pytest.mark.parametrize(("rate", "printed", "factor"), [(1.4, 0.07, 0.87), (2.0, -0.33, 1.67)])
def test_a_counterexample_with_a_feature_and_with_the_papers_condition(
    rate: float, printed: float, factor: float
) -> None:
    features = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[0.0, 0.0], [0.01, 0.0], [-0.01, 0.0]], dtype=torch.float64)
    p = torch.softmax(features @ weights.T, dim=1)[0, 1:].max().item()
    said = bounds(rate=rate, weight_decay=1.0, radius=1.0, probability=p)
    assert said.printed_contracts and not said.printed_holds
    assert said.printed == pytest.approx(printed, abs=0.01)
    after = autograd_step(weights, features, torch.tensor([0]), rate, 1.0)
    assert difference(after, 1).norm() / difference(weights, 1).norm() == pytest.approx(factor, abs=0.01)


@pytest.mark.parametrize(("share", "parts"), [(0.99, False), (1.01, True)])
def test_the_condition_of_the_corrected_bound_cannot_be_weakened(share: float, parts: bool) -> None:
    # One feature, along the difference of two rows that are nearly equal: here p̃ is p and H is r² p.
    features = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[0.0, 0.0], [1e-5, 0.0], [-1e-5, 0.0]], dtype=torch.float64)
    rate = share * 2 / (9 / 3)
    assert bounds(rate=rate, weight_decay=0.0, radius=3.0, probability=1 / 3).corrected_holds is not parts
    after = autograd_step(weights, features, torch.tensor([0]), rate, 0.0)
    assert (difference(after, 1).norm() > difference(weights, 1).norm()).item() is parts


def test_rows_contract_where_the_printed_bound_promises_nothing() -> None:
    for seed in SEEDS:
        for decay in (0.0, 1e-3):
            moments = traced(seed, LabConfig(rate=0.05, weight_decay=decay, steps=400))
            assert all(moment.conditions_hold and not moment.printed_contracts for moment in moments)
            assert all(moment.printed > 1 > moment.factor for moment in moments)
            assert all(moment.worst_factor <= moment.corrected for moment in moments)


# ------------------------------------------------------------------------------------------- drift and decay
def test_gradient_descent_shrinks_differences_only_where_the_features_point() -> None:
    problem = problem_of(0, ProblemConfig(samples=8, width=32, used=4))
    config = LabConfig(rate=0.05, steps=300)
    moments = trace(problem, config)
    assert moments[-1].logit_spread < 0.8 * moments[0].logit_spread
    _, values, directions = torch.linalg.svd(normalized(problem.features), full_matrices=True)
    blind = directions[(values > 1e-9).sum() :]  # orthogonal to every feature
    assert len(blind) == 24
    rows = problem.weights[problem.used :]
    total = 2 * (rows - rows.mean(0)).square().sum().item() / (len(rows) - 1)
    seen = total - 2 * ((rows - rows.mean(0)) @ blind.T).square().sum().item() / (len(rows) - 1)
    assert moments[0].distance ** 2 == pytest.approx(total)
    assert total - seen < moments[-1].distance ** 2 < total  # what the features do not see is left as it was


def test_weight_decay_alone_shrinks_every_row_and_turns_none() -> None:
    problem = problem_of(0)
    problem = replace(problem, features=torch.zeros_like(problem.features))
    first, *_, last = trace(problem, LabConfig(rate=0.1, weight_decay=0.5, layer_norm=False, steps=41))
    assert last.factor == pytest.approx(0.95)
    assert last.distance == pytest.approx(0.95**40 * first.distance)
    assert last.norm == pytest.approx(0.95**40 * first.norm)
    assert last.cosine == pytest.approx(first.cosine)


def test_adams_first_step_moves_all_unused_rows_alike_however_small_their_gradient() -> None:
    problem = problem_of(0, ProblemConfig(samples=1, used=1, unused=16, noise=0.0, shared=3.0))
    weights = torch.cat([2 * problem.features, problem.weights[1:]])  # fits its one sample
    problem = replace(problem, weights=weights)
    adam, descent = (
        trace(problem, LabConfig(optimizer=name, rate=0.01, layer_norm=False, steps=2, eps=0.0))
        for name in ("adam", "sgd")
    )
    assert 0 < adam[0].probability < 1e-4
    assert adam[1].drift == pytest.approx(0.01 * math.sqrt(32))  # η in every entry
    assert adam[0].worst_factor == pytest.approx(1)
    assert descent[1].drift < 1e-5


@pytest.mark.parametrize("layer_norm", [True, False])
def test_adam_collapses_the_cosine_without_decay_and_without_closing_the_distance(layer_norm: bool) -> None:
    for seed in SEEDS:
        moments = traced(seed, LabConfig(optimizer="adam", rate=0.003, layer_norm=layer_norm, steps=400))
        first, last = moments[0], moments[-1]
        assert abs(first.cosine) < 0.05 and last.cosine > 0.5
        assert last.distance > 0.8 * first.distance
        assert last.centered_cosine < 0.25  # what is left once the drift is taken away: as spread as ever
        assert not last.conditions_hold  # the lemma does not speak of Adam


def test_decoupled_decay_at_the_papers_size_changes_nothing_and_the_coupled_one_everything() -> None:
    for seed in SEEDS:
        plain, decoupled, coupled = (
            traced(seed, LabConfig(optimizer=name, rate=0.003, weight_decay=decay, steps=400))[-1]
            for name, decay in (("adam", 0.0), ("adamw", 1e-3), ("adam", 1e-3))
        )
        assert decoupled.cosine == pytest.approx(plain.cosine, abs=0.005)
        assert decoupled.distance == pytest.approx(plain.distance, rel=0.005)
        # Adam rescales the penalty's gradient too, so a tiny penalty is a full-size pull to 0.
        assert coupled.distance < 0.3 * plain.distance


@pytest.mark.parametrize(("layer_norm", "descent_rate", "steps"), [(True, 0.1, 400), (False, 2.0, 640)])
def test_coupled_adam_leaves_the_drift_of_gradient_descent_and_removes_adams(
    layer_norm: bool, descent_rate: float, steps: int
) -> None:
    for seed in SEEDS:
        descent, adam, coupled = (
            next(
                moment
                for moment in traced(
                    seed, LabConfig(optimizer=name, rate=rate, layer_norm=layer_norm, steps=steps)
                )
                if moment.loss < 0.1
            )
            for name, rate in (("sgd", descent_rate), ("adam", 0.003), ("coupled_adam", 0.003))
        )
        assert abs(coupled.cosine - descent.cosine) < 0.08
        assert adam.cosine > coupled.cosine + 0.2
        assert adam.drift > 2 * coupled.drift


def test_only_adam_moves_the_mean_of_all_rows() -> None:
    # The rows of a gradient sum to 0. A size per column keeps that, a size per entry does not.
    for seed in SEEDS:
        for name, rate in (("sgd", 0.1), ("coupled_adam", 0.003), ("adam", 0.003)):
            drift = traced(seed, LabConfig(optimizer=name, rate=rate, steps=400))[-1].vocabulary_drift
            assert drift > 0.3 if name == "adam" else drift < 1e-12


# ------------------------------------------------------------------------- the paper's Fig. 2, in this lab
@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize(("name", "rate"), [("sgd", 0.1), ("adamw", 0.003)])
def test_collapse_is_there_without_decay_and_grows_with_it(name: str, rate: float, layer_norm: bool) -> None:
    for seed in SEEDS:
        runs = [
            traced(
                seed,
                LabConfig(optimizer=name, rate=rate, weight_decay=decay, layer_norm=layer_norm, steps=400),
            )
            for decay in (0.0, 1e-3, 1e-2, 1e-1)
        ]
        assert runs[0][-1].cosine > runs[0][0].cosine + 0.05
        assert runs[0][-1].logit_spread < runs[0][0].logit_spread
        lasts = [run[-1] for run in runs]
        for less, more in pairwise(lasts):
            assert more.cosine > less.cosine
            assert more.distance < less.distance
            assert more.functional_spread < less.functional_spread


@pytest.mark.parametrize(("name", "rate"), [("sgd", 0.1), ("adamw", 0.003)])
def test_layer_norm_collapses_what_the_features_see_and_not_the_cosine(name: str, rate: float) -> None:
    """At equal steps and λ = 0. The paper finds it strongest with LayerNorm; here the measure decides."""
    config = LabConfig(optimizer=name, rate=rate, steps=400)
    for seed in SEEDS:
        with_norm, without = traced(seed, config), traced(seed, replace(config, layer_norm=False))
        kept, kept_without = (
            run[-1].functional_spread / run[0].functional_spread for run in (with_norm, without)
        )
        assert kept < kept_without < 1
        assert 0 < with_norm[-1].cosine < without[-1].cosine


def test_layer_norm_acts_through_the_length_of_the_features() -> None:
    for seed in SEEDS:
        config = LabConfig(rate=0.1, steps=400)
        problem = problem_of(seed)
        longer = problem.features * (math.sqrt(32) / problem.features.norm(dim=1).mean())
        run = trace(replace(problem, features=longer), replace(config, layer_norm=False), record_every=20)
        assert run[-1].cosine == pytest.approx(traced(seed, config)[-1].cosine, abs=0.03)
        assert run[-1].logit_spread / run[0].logit_spread == pytest.approx(
            traced(seed, config)[-1].logit_spread / traced(seed, config)[0].logit_spread, rel=0.05
        )


# ------------------------------------------------------------------------------------------------- the lab
def test_a_problem_is_what_its_config_says_and_follows_from_the_generator() -> None:
    config = ProblemConfig(samples=50, width=200, used=5, unused=3, noise=0.0, shared=0.0)
    problem = problem_of(3, config)
    assert problem.features.shape == (50, 200) and problem.weights.shape == (8, 200) and problem.used == 5
    assert problem.labels.bincount(minlength=8).tolist() == [10] * 5 + [0] * 3
    assert torch.equal(problem.features[0], problem.features[5])  # without noise a label is a point
    assert problem.features.norm(dim=1) == pytest.approx(torch.ones(50), abs=0.2)
    assert torch.equal(problem.features, problem_of(3, config).features)
    assert not torch.equal(problem.features, problem_of(4, config).features)


def test_layer_norm_gives_every_feature_norm_root_d() -> None:
    features = normalized(problem_of(0).features)
    torch.testing.assert_close(features.norm(dim=1), torch.full((256,), math.sqrt(32), dtype=torch.float64))
    assert features.mean(1).abs().max() < 1e-12


def test_a_trace_leaves_its_problem_alone_and_follows_from_the_generator() -> None:
    problem = problem_of(0)
    before = problem.weights.clone()
    config = LabConfig(optimizer="adamw", rate=0.01, steps=12, batch_size=16)
    one, same, other = (trace(problem, config, generator=seeded(seed), record_every=5) for seed in (0, 0, 1))
    assert torch.equal(problem.weights, before) and problem.weights.grad is None
    assert [moment.step for moment in one] == [0, 5, 10, 11]
    assert one == same != other
    assert one[0].to_dict()["cosine"] == one[0].cosine
    spread = logit_spread(problem.weights[problem.used :], normalized(problem.features))
    assert one[0].logit_spread == pytest.approx(spread)


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        (ProblemConfig, "unused", 1, "unused=1 must be at least 2"),
        (ProblemConfig, "used", 0, "used=0 must be at least 1"),
        (ProblemConfig, "width", 1, "width=1 must be at least 2"),
        (ProblemConfig, "samples", 3, "samples=3 must be at least used=16"),
        (ProblemConfig, "noise", -1.0, r"noise=-1.0 must be 0 or more"),
        (ProblemConfig, "shared", math.nan, "shared=nan must be 0 or more"),
        (LabConfig, "optimizer", "lion", "optimizer='lion' is unknown; use one of sgd, adam"),
        (LabConfig, "rate", 0.0, "rate=0.0 must be above 0"),
        (LabConfig, "weight_decay", math.inf, "weight_decay=inf must be 0 or more, and finite"),
        (LabConfig, "steps", 0, "steps=0 must be at least 1"),
        (LabConfig, "batch_size", 0, "batch_size=0 must be at least 1"),
        (LabConfig, "betas", (0.9, 1.0), r"betas=\(0.9, 1.0\) must be two numbers"),
    ],
)
def test_a_bad_setting_is_named(kind: type, field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**{field: value})


def test_a_bad_trace_is_refused() -> None:
    problem = problem_of(0)
    with pytest.raises(ConfigError, match="batch_size=257 must be at most the number of samples, 256"):
        trace(problem, LabConfig(batch_size=257), generator=seeded(0))
    with pytest.raises(ConfigError, match="batch_size=8 needs a generator"):
        trace(problem, LabConfig(batch_size=8))
    with pytest.raises(ConfigError, match="record_every=0 must be at least 1"):
        trace(problem, LabConfig(), record_every=0)
