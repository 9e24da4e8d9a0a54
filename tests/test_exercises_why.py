"""The checks of chapter 4: plausible wrong answers are called wrong, with a message that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import told
from torch import Tensor

from unseen_lib.exercises import why
from unseen_lib.theory import logarithmic_mean

Answer = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ 4.1
def literal(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() - log_b.exp()) / (log_a - log_b)


def guarded(log_a: Tensor, log_b: Tensor) -> Tensor:
    return torch.where(log_a == log_b, log_a.exp(), literal(log_a, log_b))


def arithmetic(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() + log_b.exp()) / 2


def geometric(log_a: Tensor, log_b: Tensor) -> Tensor:
    return ((log_a + log_b) / 2).exp()


def of_the_first(log_a: Tensor, log_b: Tensor) -> Tensor:
    """The right formula without taking the larger one out."""
    gap = (log_a - log_b).abs()
    return torch.where(gap > 0, -torch.expm1(-gap) / gap, 1.0) * log_a.exp()


def equal_or_not(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Asks of the whole batch what is to be asked of each pair."""
    return log_a.exp() if (log_a == log_b).all() else literal(log_a, log_b)


def test_log_mean_has_a_right_answer() -> None:
    assert why.check_log_mean(logarithmic_mean).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (literal, "equal: the mean of a and a is a"),
        (guarded, "agree in twelve digits"),
        (equal_or_not, "every second is of two equal ones"),
        (arithmetic, "only its upper bound"),
        (geometric, "only its lower bound"),
        (lambda a, b: -logarithmic_mean(a, b), "its negative"),
        (lambda a, b: 1 / logarithmic_mean(a, b), "the inverse of the mean"),
        (lambda a, b: logarithmic_mean(a, b).log(), "the mean of the logarithms"),
        (of_the_first, "the other way around"),
        (lambda a, b: None, "expected a tensor"),
        (lambda a, b: logarithmic_mean(a, b) + 1e-12, "both as tiny"),
    ],
)
def test_log_mean(answer: Answer, says: str) -> None:
    told(why.check_log_mean(answer), says)


# ------------------------------------------------------------------------------------------------ 4.2
def step_map(
    weights: Tensor,
    features: Tensor,
    i: int,
    j: int,
    rate: float,
    weight_decay: float,
    *,
    sign: int = -1,
    dim: int = 1,
    summed: bool = False,
    mean: str = "logarithmic",
) -> Tensor:
    """The right answer, with a switch for ways to get it wrong."""
    log_p = torch.log_softmax(features @ weights.T, dim=dim)
    a, b = log_p[:, i], log_p[:, j]
    means = {
        "logarithmic": logarithmic_mean(a, b),
        "arithmetic": (a.exp() + b.exp()) / 2,
        "largest": torch.maximum(a, b).exp(),
    }
    curvature = (means[mean][:, None] * features).T @ features / (1 if summed else len(features))
    eye = torch.eye(features.shape[1], dtype=features.dtype)
    return (1 - rate * weight_decay) * eye + sign * rate * curvature


def of_two_means(weights: Tensor, features: Tensor, i: int, j: int, rate: float, decay: float) -> Tensor:
    log_p = torch.log_softmax(features @ weights.T, dim=1)
    p, phi = logarithmic_mean(log_p[:, i], log_p[:, j]).mean(), features.mean(0)
    return (1 - rate * decay) * torch.eye(len(phi)).double() - rate * p * torch.outer(phi, phi)


def with_decay_alone(weights: Tensor, features: Tensor, i: int, j: int, rate: float, decay: float) -> Tensor:
    return step_map(weights, features, i, j, rate, 0.0) - decay * torch.eye(features.shape[1]).double()


@pytest.mark.parametrize("answer", [step_map, lambda *given: step_map(*given).float()])
def test_step_map_has_right_answers(answer: Answer) -> None:
    assert why.check_step_map(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: step_map(*given, sign=1), "the second term is taken away"),
        (lambda *given: step_map(*given, summed=True), "the loss is a mean"),
        (lambda *given: step_map(*given[:5], 0.0), "without weight decay"),
        (with_decay_alone, "without the rate"),
        (lambda *given: step_map(*given, mean="arithmetic"), "the arithmetic mean"),
        (lambda *given: step_map(*given, mean="largest"), "the larger of the two"),
        (of_two_means, "the product of two means"),
        (lambda *given: step_map(*given, dim=0), "a softmax over the samples"),
        (lambda *given: step_map(*given)[0], "shape"),
        (lambda *given: step_map(*given) * 1.01, "expected"),
    ],
)
def test_step_map(answer: Answer, says: str) -> None:
    told(why.check_step_map(answer), says)


# ------------------------------------------------------------------------------------------------ 4.3
def step(
    rows: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.01, 0.0), (-0.01, 0.0)),
    feature: tuple[float, ...] = (1.0, 0.0),
    rate: float = 2.0,
    decay: float = 1.0,
) -> tuple[Tensor, Tensor, float, float]:
    return torch.tensor(rows), torch.tensor(feature), rate, decay


def huge(size: float) -> tuple[Tensor, Tensor, float, float]:
    weights, feature, rate, decay = step()
    return weights.double() * size, feature.double(), rate, decay


@pytest.mark.parametrize("rate", [1.6, 2.0, 5.0])
def test_break_the_bound_has_right_answers(rate: float) -> None:
    assert why.check_break_the_bound(lambda: step(rate=rate)).status == "passed"


def test_break_the_bound_takes_a_difference_across_the_feature() -> None:
    across = ((0.0, 0.0), (0.0, 0.01), (0.0, -0.01))
    assert why.check_break_the_bound(lambda: step(across, rate=2.1)).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: step(rate=0.5), "it does not grow"),
        (lambda: step(rate=10.0, decay=0.1), "there is nothing to contradict"),
        (lambda: step(((0.0, 0.0), (1.0, 0.0), (1.0, 0.0))), "Rows 1 and 2 are equal"),
        (lambda: step(feature=(0.0, 0.0), rate=3.0), "not zero"),
        (lambda: step(((0.0, 0.0), (0.0, 0.01), (0.0, -0.01)), rate=1.9), "it does not grow"),
        (lambda: step(((0.0, 0.0), (0.0, 0.01), (0.0, -0.01)), rate=2.0), "it does not grow"),
        (lambda: huge(1e200), "use smaller ones"),
        (lambda: step(feature=(1.0, 0.0, 0.0)), "with the same D"),
        (lambda: step()[:3], "expected (weights, feature, rate, weight_decay)"),
        (lambda: step(rate=float("inf")), "not finite"),
        (lambda: step(rate=-3.0), "above 0"),
    ],
)
def test_break_the_bound(answer: Answer, says: str) -> None:
    told(why.check_break_the_bound(answer), says)


# ------------------------------------------------------------------------------------------------ 4.4
def coupled(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    *,
    average: str = "rows",
    corrected: bool = True,
    sign: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """The right answer, with a switch for ways to get it wrong."""
    squares = gradient.square()
    square = {
        "rows": squares.mean(0, keepdim=True),
        "none": squares,
        "columns": squares.mean(1, keepdim=True),
        "all": squares.mean().expand(1, gradient.shape[1]),
        "square of mean": gradient.mean(0, keepdim=True).square(),
        "sum": squares.sum(0, keepdim=True),
    }[average]
    first = betas[0] * first + (1 - betas[0]) * gradient
    second = betas[1] * second + (1 - betas[1]) * square
    bias = [1 - beta**step if corrected else 1.0 for beta in betas]
    return sign * rate * (first / bias[0]) / ((second / bias[1]).sqrt() + eps), first, second


def late(gradient: Tensor, first: Tensor, second: Tensor, step: int, *rest: Any) -> tuple[Tensor, ...]:
    """Counts the steps from one too many."""
    return coupled(gradient, first, second, step + 1, *rest)


def eps_under_the_root(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    _, first, second = coupled(gradient, first, second, step, rate, betas, eps)
    size = (second / (1 - betas[1] ** step) + eps).sqrt()
    return -rate * first / (1 - betas[0] ** step) / size, first, second


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_coupled_adam_has_right_answers(dtype: torch.dtype) -> None:
    def answer(*given: Any) -> list[Tensor]:
        return [part.to(dtype) for part in coupled(*given)]

    assert why.check_coupled_adam(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: coupled(*given, average="none"), "that is Adam"),
        (lambda *given: coupled(*given, average="columns"), "over the columns of each row"),
        (lambda *given: coupled(*given, average="all"), "one average over all entries"),
        (lambda *given: coupled(*given, average="square of mean"), "the mean of the squares is due"),
        (lambda *given: coupled(*given, average="sum"), "where their mean is due"),
        (lambda *given: coupled(*given, corrected=False), "without the bias correction"),
        (lambda *given: coupled(*given, sign=1), "wrong sign"),
        (lambda g, m, v, s, rate, *rest: coupled(g, m, v, s, 1.0, *rest), "without the learning rate"),
        (lambda g, m, v, s, rate, betas, eps: coupled(g, m, v, s, rate, (0.9, 0.98), eps), "first of"),
        (lambda g, m, v, s, rate, betas, eps: coupled(g, m, v, s, rate, betas, 1e-9), "update of"),
        (eps_under_the_root, "eps under the root"),
        (late, "update of coupled_adam"),
        (lambda *given: coupled(*given)[0], "expected (update, first, second)"),
    ],
)
def test_coupled_adam(answer: Answer, says: str) -> None:
    told(why.check_coupled_adam(answer), says)
