"""The exercises of chapter 4: why it collapses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen_lib.exercises import Wrong, compiler_loaded, exercise, expect_close, explain, normal, same
from unseen_lib.optimizers import CoupledAdam
from unseen_lib.theory import logarithmic_mean


@exercise("4.1", "A mean of two probabilities")
def check_log_mean(log_mean: Callable[..., Any]) -> None:
    """``log_mean(log_a, log_b)``: the logarithmic mean of two probabilities (N,), from their logarithms."""
    for a, b, about in [
        (0.5, 0.125, "two ordinary probabilities"),
        (0.125, 0.5, "the same, the other way around"),
        (0.9, 1e-9, "one of them tiny"),
        (0.25, 0.25, "equal: the mean of a and a is a"),
        (1e-300, 1e-301, "both as tiny as a float64 can hold: no sum or product of them may vanish"),
    ]:
        log_a, log_b = (torch.tensor([math.log(x)], dtype=torch.float64) for x in (a, b))
        wanted = logarithmic_mean(log_a, log_b)
        call = f"log_mean of a = {a:g} and b = {b:g}, {about}"
        got = log_mean(log_a.clone(), log_b.clone())
        explain(
            got,
            wanted,
            call,
            {
                "their arithmetic mean: that is only its upper bound": torch.tensor([(a + b) / 2]),
                "their geometric mean: that is only its lower bound": ((log_a + log_b) / 2).exp(),
                "its negative: the two differences have the same sign": -wanted,
                "the mean of the logarithms, and it should be one of the probabilities": wanted.log(),
                "the inverse of the mean: it is (a - b) / (log a - log b)": 1 / wanted,
            },
        )
        # Relative to its own size, which for tiny probabilities is far below any absolute tolerance.
        expect_close(_as_tensor(got, call) / wanted, torch.ones(1), f"{call}\n  by the right value")
    log_a, log_b = normal(50, seed=41) - 2, normal(50, seed=42) - 2
    got = log_mean(log_a.clone(), log_b.clone())
    expect_close(got, logarithmic_mean(log_a, log_b), "log_mean(log_a, log_b), 50 random pairs")
    mixed = torch.where(torch.arange(50) % 2 == 0, log_a, log_b)
    call = "log_mean of 50 pairs, of which every second is of two equal ones"
    expect_close(log_mean(log_a.clone(), mixed.clone()), logarithmic_mean(log_a, mixed), call)
    close = log_a + 1e-13
    call = "log_mean of 50 pairs that agree in twelve digits: subtracting the two leaves rounding error"
    expect_close(log_mean(log_a.clone(), close.clone()), logarithmic_mean(log_a, close), call)


@exercise("4.2", "The map of one step")
def check_step_map(step_map: Callable[..., Any]) -> None:
    """``step_map(weights, features, i, j, rate, weight_decay)``: what a step does to w_i - w_j, (D, D)."""
    weights, features = normal(7, 5, seed=43), normal(40, 5, seed=44) + 0.7
    labels = torch.arange(40) % 4  # 4, 5 and 6 never occur
    for i, j, rate, decay in [(4, 5, 0.3, 0.0), (4, 6, 0.3, 0.5), (6, 5, 2.0, 0.1)]:
        call = (
            f"step_map(weights, features, i={i}, j={j}, rate={rate}, weight_decay={decay}), 7 labels, 40 "
            "features of width 5"
        )
        got = step_map(weights.clone(), features.clone(), i, j, rate, decay)
        log_p = torch.log_softmax(features @ weights.T, dim=1)
        mean_p = logarithmic_mean(log_p[:, i], log_p[:, j])

        def build(
            p: Tensor, x: Tensor, by: float = 1.0, shrink: float = 1 - rate * decay, rate: float = rate
        ) -> Tensor:
            curvature = (p[:, None] * x).T @ x / len(x)
            return shrink * torch.eye(5, dtype=torch.float64) - by * rate * curvature

        right = build(mean_p, features)
        both = log_p[:, [i, j]].exp()
        mistakes = {
            "a map that pushes apart: the second term is taken away": build(mean_p, features, by=-1),
            "a map with the sum over the samples: the loss is a mean": build(mean_p, features, by=40),
            "a map without weight decay": build(mean_p, features, shrink=1.0),
            "a map that shrinks by the decay alone, without the rate: it is rate times decay": build(
                mean_p, features, shrink=1 - decay
            ),
            "a map without the rate before H": build(mean_p, features, by=1 / rate),
            "a map with the arithmetic mean of the two probabilities, not the logarithmic one": build(
                both.mean(1), features
            ),
            "a map with the larger of the two probabilities, as in the bound: here it is to be exact": build(
                both.amax(1), features
            ),
            "a map with the product of two means, where the mean of the products is due": build(
                mean_p.mean()[None], features.mean(0, keepdim=True)
            ),
            "a map with a softmax over the samples and not over the labels": build(
                logarithmic_mean(*torch.log_softmax(features @ weights.T, dim=0)[:, [i, j]].T), features
            ),
        }
        explain(got, right, call, mistakes)
        expect_close(got, right, call)
        after = _step(weights, features, labels, rate, decay)
        moved = _as_tensor(got, call).double() @ (weights[i] - weights[j])
        expect_close(moved, after[i] - after[j], f"{call}\n  times w_i - w_j, against a step by autograd")


@exercise("4.3", "Break the printed bound")
def check_break_the_bound(break_the_bound: Callable[..., Any]) -> None:
    """``break_the_bound()``: weights (3, D), feature (D,), rate and decay that contradict the lemma."""
    answer = break_the_bound()
    if not (isinstance(answer, tuple | list) and len(answer) == 4):
        raise Wrong(
            f"break_the_bound()\n  returned {type(answer).__name__}\n  expected (weights, feature, rate, "
            "weight_decay)"
        )
    weights, feature = (_as_tensor(part, "break_the_bound()").double() for part in answer[:2])
    rate, decay = (float(part) for part in answer[2:])
    if weights.ndim != 2 or len(weights) != 3 or feature.shape != weights.shape[1:]:
        raise Wrong(
            f"weights has shape {tuple(weights.shape)} and feature {tuple(feature.shape)}; they should have "
            "(3, D) and (D,), with the same D"
        )
    values = torch.cat([weights.flatten(), feature, torch.tensor([rate, decay], dtype=torch.float64)])
    if not values.isfinite().all():
        raise Wrong("There is a value that is not finite: the lemma speaks of numbers.")
    if rate <= 0 or decay < 0:
        raise Wrong(f"rate={rate:g} should be above 0, and weight_decay={decay:g} at least 0.")
    before = (weights[1] - weights[2]).norm()
    if before == 0:
        raise Wrong("Rows 1 and 2 are equal: their difference is zero, and no step can make it grow.")
    if feature.norm() == 0:
        raise Wrong("The feature is zero: the text has that case. Find one where the feature is not zero.")
    if not (before.isfinite() and (feature @ weights.T).isfinite().all()):
        raise Wrong("The numbers are so large that their products are not finite: use smaller ones.")
    p = torch.softmax(feature @ weights.T, dim=0)[1:].max()
    pull = float(feature.square().sum() * p)
    if not pull < decay:
        raise Wrong(
            f"r² p = {pull:.3g} is not below weight_decay = {decay:.3g}: the lemma promises nothing here, so "
            "there is nothing to contradict. Use a shorter feature, or more decay."
        )
    after = _step(weights, feature[None], torch.tensor([0]), rate, decay)
    factor = float((after[1] - after[2]).norm() / before)
    if not 1 + 1e-9 < factor < math.inf:  # rounding alone is no growth
        raise Wrong(
            f"With rate={rate:g} and weight_decay={decay:g}, ηλ is {rate * decay:.3g}, and the difference is "
            f"multiplied by {factor:.3g}: it does not grow. In which direction does a step go too far?"
        )


@compiler_loaded
@exercise("4.4", "Coupled Adam")
def check_coupled_adam(coupled_adam: Callable[..., Any]) -> None:
    """``coupled_adam(gradient, first, second, step, rate, betas, eps)``: update and both moments."""
    _check_coupled_adam(coupled_adam, 6, 4, rate=0.01, betas=(0.9, 0.98), eps=1e-9)
    _check_coupled_adam(coupled_adam, 3, 5, rate=0.1, betas=(0.8, 0.95), eps=0.1)


def _check_coupled_adam(
    coupled_adam: Callable[..., Any],
    rows: int,
    width: int,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Three steps on gradients whose rows differ in size."""
    scale = torch.logspace(0, -3, rows, dtype=torch.float64)[:, None]
    matrix = torch.zeros(rows, width, dtype=torch.float64, requires_grad=True)
    optimizer = CoupledAdam([matrix], lr=rate, betas=betas, eps=eps, weight_decay=0.0)
    first, second = torch.zeros(rows, width).double(), torch.zeros(1, width).double()
    for step in range(1, 4):
        gradient = normal(rows, width, seed=44 + step) * scale
        call = (
            f"coupled_adam(gradient, first, second, step={step}, rate={rate:g}, betas={betas}, eps={eps:g}), "
            f"{rows} rows of width {width}"
        )
        answer = coupled_adam(gradient.clone(), first.clone(), second.clone(), step, rate, betas, eps)
        if not (isinstance(answer, tuple | list) and len(answer) == 3):
            raise Wrong(f"{call}\n  returned {type(answer).__name__}\n  expected (update, first, second)")
        update, new_first, new_second = answer
        matrix.grad, before = gradient, matrix.detach().clone()
        optimizer.step()
        wanted = matrix.detach() - before
        first, second = (optimizer.state[matrix][key].clone() for key in ("exp_avg", "exp_avg_sq"))
        if step == 1:
            _explain_coupled_adam(answer, gradient, rate, betas, eps, wanted, call)
        expect_close(new_first, first, f"first of {call}")
        expect_close(new_second, second, f"second of {call}", tolerance=1e-8)
        corrected = (second / (1 - betas[1] ** step)).sqrt() + eps
        for about, wrong in {
            "without the bias correction of both moments": -rate * first / (second.sqrt() + eps),
            "without the bias correction of the first moment": -rate * first / corrected,
            "with the wrong sign: it is added to the weights": -wanted,
            "without the learning rate": wanted / rate,
            "divided by the second moment and not by its root": wanted / corrected,
            "with eps under the root: add it to the root": wanted
            * corrected
            / (second / (1 - betas[1] ** step) + eps).sqrt(),
        }.items():
            if same(update, wrong) and not same(update, wanted):
                raise Wrong(f"update of {call}\n  is {about}")
        expect_close(update, wanted, f"update of {call}", tolerance=1e-7)


def _explain_coupled_adam(
    answer: Any,
    gradient: Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    wanted: Tensor,
    call: str,
) -> None:
    """Name the average that the first step took in place of the one over rows."""
    update, _, second = answer
    squares = gradient.square()
    averages = {
        "each entry by its own square: that is Adam, without an average over rows": squares,
        "the square of the mean over rows, where the mean of the squares is due": gradient.mean(
            0, keepdim=True
        ).square(),
        "an average over the columns of each row: average over the rows of each column": squares.mean(
            1, keepdim=True
        ),
        "one average over all entries: keep one for each column": squares.mean(),
        "a sum over the rows, where their mean is due": squares.sum(0, keepdim=True),
    }
    for about, square in averages.items():
        size = square.sqrt() + eps
        in_update = same(update, (-rate * gradient / size).expand_as(wanted))
        in_second = same(second, (1 - betas[1]) * square) and square.shape != (1, gradient.shape[1])
        if not same(update, wanted) and (in_update or in_second):
            raise Wrong(f"{call}\n  divides by {about}.")


def _as_tensor(value: object, call: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise Wrong(f"{call}\n  returned {type(value).__name__}\n  expected a tensor")
    return value.detach()


def _step(weights: Tensor, features: Tensor, labels: Tensor, rate: float, decay: float) -> Tensor:
    """The weights after one gradient step by autograd."""
    moved = weights.clone().requires_grad_()
    loss = F.cross_entropy(features @ moved.T, labels) + decay / 2 * moved.square().sum()
    (slope,) = torch.autograd.grad(loss, moved)
    return weights - rate * slope
