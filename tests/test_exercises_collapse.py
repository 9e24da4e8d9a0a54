"""The checks of chapter 3: plausible wrong answers are called wrong, with a message that helps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import told
from torch import Generator, Tensor

from unseen_lib.exercises import collapse

Answer = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ 3.1
def with_the_diagonal(rows: Tensor) -> Tensor:
    unit = F.normalize(rows)
    return (unit @ unit.T).mean()


def over_n_squared(rows: Tensor) -> Tensor:
    unit = F.normalize(rows)
    return ((unit @ unit.T).sum() - len(rows)) / len(rows) ** 2


def not_normalized(rows: Tensor) -> Tensor:
    n = len(rows)
    return (rows.sum(0).square().sum() - rows.square().sum()) / (n * (n - 1))


def with_a_big_matrix(rows: Tensor) -> Tensor:
    unit, n = F.normalize(rows), len(rows)
    return ((unit @ unit.T).sum() - n) / (n * (n - 1))


def in_a_loop(rows: Tensor) -> float:
    unit, n = F.normalize(rows), len(rows)
    return sum(float(unit[i] @ unit[i + 1 :].sum(0)) for i in range(n - 1)) * 2 / (n * (n - 1))


def normalized_over_rows(rows: Tensor) -> Tensor:
    unit, n = F.normalize(rows, dim=0), len(rows)
    return (unit.sum(0).square().sum() - n) / (n * (n - 1))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_the_diagonal, "each row with itself included"),
        (over_n_squared, "N (N - 1)"),
        (not_normalized, "rows of length 1"),
        (with_a_big_matrix, "one for every pair"),
        (in_a_loop, "a loop over rows or pairs"),
        (normalized_over_rows, "returned"),
        (lambda rows: None, "end with a return"),
        (lambda rows: F.normalize(rows) @ F.normalize(rows).T, "shape"),
    ],
)
def test_mean_cosine(answer: Answer, says: str) -> None:
    told(collapse.check_mean_cosine(answer), says)


# ------------------------------------------------------------------------------------------------ 3.2
def spread(
    rows: Tensor,
    features: Tensor,
    k: int,
    *,
    smallest: bool = False,
    center_features: bool = False,
    center_rows: bool = True,
    correction: int = 1,
    directions_of: str = "features",
) -> Tensor:
    """The right answer, with a switch for each way to get it wrong."""
    looked = features if directions_of == "features" else rows - rows.mean(0)
    looked = looked - looked.mean(0) if center_features else looked
    vectors = torch.linalg.eigh(looked.T @ looked).eigenvectors
    directions = vectors[:, :k] if smallest else vectors[:, -k:]
    inside = (rows - rows.mean(0) if center_rows else rows) @ directions
    return inside.square().sum() / (len(rows) - correction)


def test_spread_where_it_looks_has_a_right_answer() -> None:
    assert collapse.check_spread_where_it_looks(spread).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: spread(*given, smallest=True), "eigh sorts upwards"),
        (lambda *given: spread(*given, center_features=True), "directions of the centered features"),
        (lambda *given: spread(*given, center_rows=False), "subtract the mean row first"),
        (lambda *given: spread(*given, correction=0), "N - 1"),
        (lambda *given: spread(*given, directions_of="rows"), "the rows' own leading directions"),
        (lambda rows, features, k: spread(rows, features, k) / k, "returned 1"),
        (lambda *given: spread(*given) ** 0.5, "without the root"),
        (lambda rows, features, k: spread(features, rows, k), "returned"),
    ],
)
def test_spread_where_it_looks(answer: Answer, says: str) -> None:
    told(collapse.check_spread_where_it_looks(answer), says)


# ------------------------------------------------------------------------------------------------ 3.3
def fresh(generator: Generator) -> Tensor:
    return torch.randn(100, 64, generator=generator) / 8


def emptied(rows: Tensor, features: Tensor) -> Tensor:
    look = torch.linalg.eigh(features.T @ features).eigenvectors[:, -8:]
    return rows - rows @ look @ look.T


def drifted(generator: Generator) -> Tensor:
    return fresh(generator) + 1.0  # a drift of norm 8


def test_fool_has_a_right_answer() -> None:
    result = collapse.check_fool(lambda features, g: (drifted(g), emptied(fresh(g), features)))
    assert result.status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda features, g: fresh(g), "expected two matrices"),
        (lambda features, g: (fresh(g), fresh(g)), "drifted one way"),
        (lambda features, g: (0.1 * fresh(g) + 1, fresh(g)), "shrinking or stretching"),
        (lambda features, g: (drifted(g), 0.01 * fresh(g)), "keep their distance above 1"),
        (lambda features, g: (drifted(g), fresh(g)), "take out of every row"),
        (lambda features, g: (drifted(g), emptied(drifted(g), features)), "begin with fresh rows"),
        (lambda features, g: (drifted(g).T, fresh(g)), "shape (100, 64)"),
        (lambda features, g: (emptied(fresh(g), features), drifted(g)), "looks_collapsed"),
    ],
)
def test_fool(answer: Answer, says: str) -> None:
    told(collapse.check_fool(answer), says)


# ------------------------------------------------------------------------------------------------ 3.4
def push(features: Tensor, unembedding: Tensor, row: int) -> Tensor:
    p = (features @ unembedding.T).softmax(1)[:, row]
    return (p[:, None] * features).mean(0)


def test_push_has_a_right_answer() -> None:
    assert collapse.check_push(push).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: -push(*given), "the negative of the gradient"),
        (lambda f, w, row: push(f, w, row) * len(f), "the loss is a mean"),
        (lambda f, w, row: (f @ w.T).softmax(1)[:, row].mean() * f.mean(0), "multiply at each position"),
        (lambda f, w, row: ((f @ w[row])[:, None] * f).mean(0), "with the logit"),
        (lambda f, w, row: ((f @ w.T).softmax(0)[:, row, None] * f).mean(0), "over the features"),
        (lambda f, w, row: (f @ w.T).softmax(1)[:, row] @ f, "the loss is a mean"),
        (lambda f, w, row: torch.zeros_like(w[row]), "against autograd"),
        (lambda f, w, row: (f @ w.T).softmax(1)[:, row] * f, "Your code raised"),
    ],
)
def test_push(answer: Answer, says: str) -> None:
    told(collapse.check_push(answer), says)
