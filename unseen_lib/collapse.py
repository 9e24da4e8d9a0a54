"""How far the rows of a matrix have collapsed, by measures that each see something the others miss.

The rows are mostly some of ``W_E``'s: those of the unseen names, of the seen ones, or fresh ones to compare.

- **Cosine** near 1: the rows point one way. A common drift does that without bringing any two rows closer.
- **Distance** near 0: the rows are one row. Shrinking all of them does that without turning any.
- **Centered cosine**: the root mean square cosine once the mean row is taken away. Near 1 / sqrt(D) where the
  cosine is high, it says that the rows share a drift and are as spread around it as ever; near 1, that what
  still tells them apart lies on one line. (Without the square it would say nothing: the mean cosine of rows
  equally far from their own mean is -1 / (N - 1), however little is left of them.)
- **Norm** and its spread: whether rows shrank or grew, together or apart.
- **Effective rank**: how many directions the rows fill.
- **Functional spread**, **logit spread** and **mean logit** ask only about the directions in which the model
  looks, its final features. There rows can lose every difference while their plain cosine is still modest.

Everything is computed in float64 on the CPU. No pair is ever listed: a sum over pairs has a closed form that
costs N·D, and what needs a D x D matrix costs N·D². Shapes: N rows, M features, D width.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RowMeasures:
    """What ``measure_rows`` found; N fresh rows from N(0, 1/D) have the values in brackets.

    Parameters
    ----------
    cosine : float
        Mean cosine over pairs of rows (0).
    distance : float
        Root mean square distance over pairs of rows (1.41).
    centered_cosine : float
        Root mean square cosine over pairs after subtracting the mean row (about 1 / sqrt(D)).
    norm, norm_spread : float
        Mean and standard deviation of the rows' norms (1 and about 0.7 / sqrt(D)).
    effective_rank : float
        exp of the entropy of the singular values, scaled to sum 1 (somewhat below min(N, D)).
    """

    cosine: float
    distance: float
    centered_cosine: float
    norm: float
    norm_spread: float
    effective_rank: float

    def to_dict(self) -> dict[str, float]:
        """The measures by name, for a record."""
        return asdict(self)


def measure_rows(rows: Tensor) -> RowMeasures:
    """Measure the rows (N, D) of any matrix by themselves.

    A row of zeros has no direction: its cosine with any other counts as 0. So rows that are all the same have
    a centered cosine of 0. The effective rank of a matrix of zeros is 0.

    Raises
    ------
    ValueError
        If there are fewer than two rows or a value is not finite.
    """
    rows = _checked(rows, "rows", at_least=2)
    centered = rows - rows.mean(0)
    norms = rows.norm(dim=1)
    smallest = 1e-12 * norms.max().item()  # what is left of equal rows is rounding error, not a direction
    return RowMeasures(
        cosine=_mean_cosine(_unit(rows, smallest)),
        distance=math.sqrt(2 * _total_variance(centered)),
        centered_cosine=_rms_cosine(_unit(centered, smallest)),
        norm=norms.mean().item(),
        norm_spread=norms.std(correction=0).item(),
        effective_rank=_effective_rank(rows),
    )


def functional_spread(rows: Tensor, features: Tensor, k: int = 8) -> float:
    """Total variance of the rows (N, D) within the k directions along which the features (M, D) are largest.

    Fresh rows from N(0, 1/D) have k / D. The directions are the leading eigenvectors of the features' second
    moment, about zero and not about their mean: a logit is a product with the whole feature, and it is along
    this second moment that a gradient step shrinks the difference of two rows that are never a label.

    Raises
    ------
    ValueError
        If there are fewer than two rows or than k features, if k is not in 1..D, or if widths differ.
    """
    rows = _checked(rows, "rows", at_least=2)
    features = _checked(features, "features", at_least=k, width=rows)
    if not 1 <= k <= rows.shape[1]:
        raise ValueError(f"k is {k}, but it must be between 1 and the width, {rows.shape[1]}.")
    _, directions = torch.linalg.eigh(features.T @ features)  # (D, D), eigenvalues ascending
    return _total_variance((rows - rows.mean(0)) @ directions[:, -k:])


def logit_spread(rows: Tensor, features: Tensor) -> float:
    """Root mean square difference of two rows' logits, over all pairs of rows (N, D) and all features (M, D).

    Raises
    ------
    ValueError
        If there are fewer than two rows or no features, or if widths differ.
    """
    rows = _checked(rows, "rows", at_least=2)
    features = _checked(features, "features", width=rows)
    centered = rows - rows.mean(0)
    # sum over i, m of (centered_i . feature_m)^2 = <C^T C, F^T F>, without an (N, M) matrix
    total = ((centered.T @ centered) * (features.T @ features)).sum().item()
    # Where rows differ only in directions that no feature has, rounding can leave the sum just below 0.
    return math.sqrt(max(2 * total, 0.0) / ((len(rows) - 1) * len(features)))


def mean_logit(rows: Tensor, features: Tensor) -> float:
    """Mean logit over the rows (N, D) and the features (M, D).

    The suppression of unseen names is that of the unseen rows minus that of the seen ones.

    Raises
    ------
    ValueError
        If there are no rows or no features, or if widths differ.
    """
    rows = _checked(rows, "rows")
    return (rows.mean(0) @ _checked(features, "features", width=rows).mean(0)).item()


def _total_variance(centered: Tensor) -> float:
    """Variance summed over the columns, without bias; half the mean squared distance over pairs of rows."""
    return centered.square().sum().item() / (len(centered) - 1)


def _unit(rows: Tensor, smallest: float) -> Tensor:
    """The rows at length 1; those no longer than ``smallest`` are zero."""
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > smallest, F.normalize(rows, eps=0.0), 0.0)


def _mean_cosine(unit: Tensor) -> float:
    """Mean of u_i . u_j over pairs, from |sum_i u_i|^2 = sum_i |u_i|^2 + sum_{i != j} u_i . u_j."""
    pairs = len(unit) * (len(unit) - 1)
    return (unit.sum(0).square().sum() - unit.square().sum()).item() / pairs


def _rms_cosine(unit: Tensor) -> float:
    """Root mean square of u_i . u_j over pairs: all N·N squares sum to |U U^T|^2=|U^T U|^2."""
    pairs = len(unit) * (len(unit) - 1)
    gram = unit @ unit.T if len(unit) < unit.shape[1] else unit.T @ unit
    squares = gram.square().sum() - unit.square().sum()
    return math.sqrt(max(squares.item(), 0.0) / pairs)  # rounding can leave orthogonal rows just below 0


def _effective_rank(rows: Tensor) -> float:
    """Effective rank of Roy & Vetterli (2007), of the rows as they are.

    They are not centered: what all rows share is a direction that they fill, and rows that are all the same
    have rank 1, not 0 / 0.
    """
    values = torch.linalg.svdvals(rows)
    total = values.sum()
    return 0.0 if total == 0 else torch.special.entr(values / total).sum().exp().item()


def _checked(matrix: Tensor, name: str, *, at_least: int = 1, width: Tensor | None = None) -> Tensor:
    """The matrix in float64 on the CPU, or a ValueError that says what would fit."""
    if matrix.ndim != 2 or len(matrix) < at_least:
        raise ValueError(
            f"{name} has shape {tuple(matrix.shape)}, but it must be a matrix of {at_least} rows or more."
        )
    if width is not None and matrix.shape[1] != width.shape[1]:
        raise ValueError(
            f"{name} has width {matrix.shape[1]}, but the rows have {width.shape[1]}; they must agree."
        )
    if not matrix.isfinite().all():
        raise ValueError(f"{name} holds a value that is not finite, but only finite rows can be measured.")
    return matrix.detach().to("cpu", torch.float64)
