"""The exercises of chapter 3: the collapse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unseen_lib import collapse
from unseen_lib.exercises import Wrong, compiler_loaded, exercise, expect_close, near, normal, number


@compiler_loaded
@exercise("3.1", "The mean cosine without listing pairs")
def check_mean_cosine(mean_cosine: Callable[..., Any]) -> None:
    """``mean_cosine(rows)`` is the mean cosine over pairs of rows (N, D), without an N x N matrix."""
    for example, wanted, about in [
        ([[1.0, 0.0], [0.0, 1.0]], 0.0, "two orthogonal rows"),
        ([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]], 1.0, "three equal rows"),
        ([[1.0, 0.0], [5.0, 0.0], [-2.0, 0.0]], -1 / 3, "on a line: one pair agrees, two oppose"),
    ]:
        matrix = torch.tensor(example, dtype=torch.float64)
        got = mean_cosine(matrix.clone())
        _explain_mean_cosine(got, matrix, f"mean_cosine({example})")
        expect_close(got, wanted, f"mean_cosine({example}): {about}")
    rows = normal(400, 8, seed=31) + 0.3
    with _Work() as work:
        got = mean_cosine(rows.clone())
    expect_close(got, collapse.measure_rows(rows).cosine, "mean_cosine(rows), 400 random rows of width 8")
    if work.largest >= 400 * 400:
        raise Wrong(
            f"mean_cosine(rows) of 400 rows of width 8 is right, but on the way it makes a tensor of "
            f"{work.largest:,} numbers: one for every pair. The square of the sum of the unit rows holds all "
            "pairs at once."
        )
    if work.operations > 400:
        raise Wrong(
            f"mean_cosine(rows) of 400 rows is right, but it takes {work.operations:,} tensor operations: a "
            "loop over rows or pairs. Sum the unit rows first."
        )


def _explain_mean_cosine(got: object, rows: Tensor, call: str) -> None:
    value = number(got)
    if value is None:
        return
    unit, n = F.normalize(rows), len(rows)
    mistakes = {
        "the mean over all N² products, each row with itself included: N of them are always 1": (
            unit @ unit.T
        ).mean(),
        "the sum over pairs divided by N² and not by N (N - 1)": ((unit @ unit.T).sum() - n) / n**2,
        "the mean product of the rows as they are: a cosine needs rows of length 1": (
            (rows.sum(0).square().sum() - rows.square().sum()) / (n * (n - 1))
        ),
    }
    right = collapse.measure_rows(rows).cosine
    for about, wrong in mistakes.items():
        if near(value, float(wrong)) and not near(value, right):
            raise Wrong(f"{call}\n  returned {value:.4g}, which is {about}.\n  expected {right:.4g}")


@exercise("3.2", "Spread where the model looks")
def check_spread_where_it_looks(spread_where_it_looks: Callable[..., Any]) -> None:
    """``spread_where_it_looks(rows, features, k)``: the rows' variance along k directions of the features."""
    features = torch.diag(torch.tensor([9.0, 3.0, 1.0])).repeat(4, 1).double()
    rows = torch.tensor([[1.0, 0.0, 5.0], [-1.0, 0.0, -5.0]], dtype=torch.float64)
    drawing = "features along axis 0 mostly, then axis 1, hardly axis 2; rows (1, 0, 5) and (-1, 0, -5)"
    for k, wanted in [(1, 2.0), (2, 2.0), (3, 52.0)]:
        call = f"{drawing}\nspread_where_it_looks(rows, features, k={k})"
        got = spread_where_it_looks(rows.clone(), features.clone(), k)
        if k == 1 and near(number(got), 50.0):
            raise Wrong(
                f"{call}\n  returned 50, from axis 2, where the features are smallest: eigh sorts upwards."
            )
        _explain_spread(got, rows, features, k, call)
        expect_close(got, wanted, call)
    features = normal(300, 12, seed=32) * torch.linspace(3, 0.3, 12) + torch.linspace(2, -2, 12)
    rows = normal(40, 12, seed=33) / 12**0.5 + 0.5
    for k in (1, 4, 12):
        call = f"spread_where_it_looks(rows, features, k={k}), 40 random rows and 300 features of width 12"
        got = spread_where_it_looks(rows.clone(), features.clone(), k)
        _explain_spread(got, rows, features, k, call)
        expect_close(got, collapse.functional_spread(rows, features, k), call, tolerance=1e-4)


def _explain_spread(got: object, rows: Tensor, features: Tensor, k: int, call: str) -> None:
    value, right = number(got), collapse.functional_spread(rows, features, k)
    if value is None or near(value, right):
        return
    n = len(rows)
    inside = rows @ _leading(features.T @ features, k)
    own, about_mean = rows - rows.mean(0), features - features.mean(0)

    def along(directions: Tensor) -> Tensor:
        return (own @ directions).square().sum() / (n - 1)

    mistakes = {
        "the rows' mean square, not their variance: subtract the mean row first": inside.square().sum()
        / (n - 1),
        "the sum of squares divided by N and not by N - 1": right * (n - 1) / n,
        "the variance averaged over the k directions, not summed": right / k,
        "a standard deviation: the spread is the variance, without the root": right**0.5,
        "taken along the directions of the centered features: a logit is a product with the whole feature, "
        "its mean included": along(_leading(about_mean.T @ about_mean, k)),
        "taken along the rows' own leading directions: look along those of the features": along(
            _leading(own.T @ own, k)
        ),
    }
    for about, wrong in mistakes.items():
        if near(value, float(wrong)):
            raise Wrong(f"{call}\n  returned {value:.4g}, which is {about}.\n  expected {right:.4g}")


@exercise("3.3", "Fool a measure")
def check_fool(fool: Callable[..., Any]) -> None:
    """``fool(features, generator)``: two matrices (100, D), one that only looks collapsed and one that is."""
    turn = torch.linalg.qr(normal(64, 64, seed=34)).Q
    features = (normal(500, 64, seed=35) * torch.logspace(0.5, -1.5, 64)) @ turn
    answer = fool(features.float(), torch.Generator().manual_seed(36))
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Wrong(f"fool(features, generator)\n  returned {type(answer).__name__}\n  expected two matrices")
    fresh = 8 / 64  # k / D
    for name, rows in zip(("looks_collapsed", "is_collapsed"), answer, strict=True):
        if not isinstance(rows, Tensor) or rows.shape != (100, 64):
            shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise Wrong(f"{name} is {shape}; for features of width 64 it should have shape (100, 64)")
        cosine = collapse.measure_rows(rows).cosine
        spread = collapse.functional_spread(rows, features)
        seen = f"{name} has mean cosine {cosine:.2f} and functional spread {spread:.4f} (fresh: {fresh:.4f})"
        if name == "looks_collapsed":
            if cosine < 0.9:
                raise Wrong(
                    f"{seen}. Its cosine should be 0.9 or more: what do rows share that drifted one way?"
                )
            if not 0.5 * fresh <= spread <= 2 * fresh:
                raise Wrong(
                    f"{seen}. Its spread should be that of fresh rows, within a factor of 2: a shared drift "
                    "leaves it alone, shrinking or stretching the rows does not."
                )
        else:
            if abs(cosine) > 0.1:
                raise Wrong(f"{seen}. Its cosine should be within 0.1 of 0: begin with fresh rows.")
            if collapse.measure_rows(rows).distance < 1:
                raise Wrong(f"{seen}, but its rows are short or close together: keep their distance above 1.")
            if spread > 0.01 * fresh:
                raise Wrong(
                    f"{seen}. Its spread should be at most a hundredth of that: take out of every row what "
                    "lies along the 8 leading directions of the features."
                )


@exercise("3.4", "What pushes a row that no text uses")
def check_push(push: Callable[..., Any]) -> None:
    """``push(features, unembedding, row)``: gradient (D,) of the mean loss for a row never used."""
    features, unembedding = normal(60, 6, seed=37) + 0.5, normal(20, 6, seed=38)
    targets = torch.randint(0, 15, (60,), generator=torch.Generator().manual_seed(39))  # 15 to 19: unused
    weights = unembedding.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(features @ weights.T, targets), weights)
    p = (features @ unembedding.T).softmax(1)
    for row in (15, 19):
        call = f"push(features, unembedding, row={row}), 60 features of width 6 and 20 tokens"
        got, wanted = push(features.clone(), unembedding.clone(), row), gradient[row]
        mistakes = {
            "the negative of the gradient: that is where the step goes": -wanted,
            "the sum over the features, and the loss is a mean": wanted * len(features),
            "the mean probability times the mean feature: multiply at each position, then average": (
                p[:, row].mean() * features.mean(0)
            ),
            "a product with the logit and not with the probability": (
                (features @ unembedding[row])[:, None] * features
            ).mean(0),
            "a softmax over the features and not over the tokens": (
                (features @ unembedding.T).softmax(0)[:, row, None] * features
            ).mean(0),
        }
        for about, wrong in mistakes.items():
            same_shape = isinstance(got, Tensor) and got.shape == wrong.shape
            if same_shape and torch.allclose(got.double(), wrong, rtol=1e-4):
                raise Wrong(f"{call}\n  returned {about}.")
        expect_close(got, wanted, f"{call}\n  against autograd", tolerance=1e-4)


class _Work(TorchDispatchMode):
    """Counts tensor operations and remembers the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.operations = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def _leading(symmetric: Tensor, k: int) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(symmetric).eigenvectors
    return vectors[:, -k:]
