"""The measures of collapse on matrices built by hand, and against loops over all pairs."""

import math
from collections.abc import Callable
from itertools import combinations

import pytest
import torch

from unseen_lib.collapse import functional_spread, logit_spread, mean_logit, measure_rows


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(width: int) -> torch.Tensor:
    return torch.linalg.qr(normal(width, width, seed=99)).Q


# ---------------------------------------------------------------------------------------------- built by hand
def test_identical_rows() -> None:
    # Thirds are not exact in binary: what centering leaves is rounding error and must not be a direction.
    found = measure_rows(torch.tensor([[1 / 3, 2 / 3, 2 / 3]], dtype=torch.float64).expand(9, 3))
    assert found.to_dict() == pytest.approx(
        dict(cosine=1, distance=0, centered_cosine=0, norm=1, norm_spread=0, effective_rank=1), abs=1e-12
    )


def test_orthogonal_rows() -> None:
    found = measure_rows(2 * torch.eye(5))
    assert found.to_dict() == pytest.approx(
        dict(
            cosine=0,
            distance=2 * math.sqrt(2),
            centered_cosine=1 / 4,
            norm=2,
            norm_spread=0,
            effective_rank=5,
        ),
        abs=1e-12,
    )


def test_rows_on_a_line_through_zero() -> None:
    found = measure_rows(torch.tensor([[1.0], [2.0], [6.0]]) * torch.tensor([[0.6, 0.8]]))
    assert found.to_dict() == pytest.approx(
        dict(
            cosine=1,
            distance=math.sqrt((1 + 16 + 25) / 3),
            centered_cosine=1,
            norm=3,
            norm_spread=math.sqrt((4 + 1 + 9) / 3),
            effective_rank=1,
        ),
        abs=1e-6,
    )


def test_pairs_of_opposite_rows() -> None:
    half = torch.eye(3)
    found = measure_rows(torch.cat([half, -half]))
    assert found.to_dict() == pytest.approx(
        dict(  # 3 of 15 pairs are opposite (distance 2), the others orthogonal; the mean is 0
            cosine=-1 / 5,
            distance=math.sqrt((3 * 4 + 12 * 2) / 15),
            centered_cosine=math.sqrt(3 / 15),
            norm=1,
            norm_spread=0,
            effective_rank=3,
        ),
        abs=1e-12,
    )


def test_a_common_drift_raises_the_cosine_and_nothing_else_that_tells_rows_apart() -> None:
    rows = normal(100, 64) / 8
    drift = torch.zeros(64, dtype=torch.float64)
    drift[0] = 5
    before, after = measure_rows(rows), measure_rows(rows + drift)
    assert abs(before.cosine) < 0.02
    assert after.cosine > 0.95
    assert after.distance == pytest.approx(before.distance)
    assert after.centered_cosine == pytest.approx(before.centered_cosine)
    assert after.effective_rank < before.effective_rank


def test_centered_cosine_tells_a_line_from_a_cloud_where_the_cosine_cannot() -> None:
    drift, line = normal(64, seed=1), normal(64, seed=2)
    on_a_line = measure_rows(10 * drift + normal(100, 1) * line)
    in_a_cloud = measure_rows(10 * drift + normal(100, 64))
    assert on_a_line.cosine > 0.98
    assert in_a_cloud.cosine > 0.98
    assert on_a_line.centered_cosine == pytest.approx(1)
    assert in_a_cloud.centered_cosine == pytest.approx(1 / math.sqrt(64), rel=0.1)


def test_rows_of_zeros_have_no_direction() -> None:
    rows = torch.zeros(4, 3)
    assert set(measure_rows(rows).to_dict().values()) == {0.0}
    rows[:2, 0] = 1
    found = measure_rows(rows)
    assert found.cosine == pytest.approx(1 / 6)  # one pair of six has two directions, and they agree
    assert (found.norm, found.norm_spread) == pytest.approx((0.5, 0.5))


def test_effective_rank_between_whole_numbers() -> None:
    weights = [0.5, 0.25, 0.25]
    expected = math.exp(-sum(w * math.log(w) for w in weights))
    rows = torch.zeros(6, 4, dtype=torch.float64)
    rows[0, 2], rows[3, 0], rows[5, 1] = 0.5, -0.25, 0.25
    assert measure_rows(rows @ rotation(4)).effective_rank == pytest.approx(expected)


def test_functional_spread_counts_only_what_the_features_see() -> None:
    features = normal(50, 6)
    features[:, 2:] *= 1e-3  # the model looks in directions 0 and 1
    rows = torch.zeros(4, 6, dtype=torch.float64)
    rows[:, 5] = torch.tensor([1.0, -1.0, 3.0, -3.0])  # far apart, where nothing looks
    assert functional_spread(rows, features, k=2) == pytest.approx(0, abs=1e-4)
    rows[:, 0] += torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert functional_spread(rows, features, k=2) == pytest.approx(4 / 3, rel=1e-3)
    turn = rotation(6)
    assert functional_spread(rows @ turn, features @ turn, k=2) == pytest.approx(
        functional_spread(rows, features, k=2)
    )
    assert functional_spread(rows + 7, features, k=6) == pytest.approx(
        (20 + 4) / 3
    )  # all directions: all variance


def test_functional_spread_looks_along_the_mean_feature_too() -> None:
    features = 1e-3 * normal(30, 4)
    features[:, 3] += 1  # hardly any variance in this direction, but every logit is read along it
    rows = torch.zeros(2, 4, dtype=torch.float64)
    rows[:, 3] = torch.tensor([1.0, -1.0])
    assert functional_spread(rows, features, k=1) == pytest.approx(2, rel=1e-4)


def test_functional_spread_of_fresh_rows_is_k_over_width() -> None:
    features = normal(300, 64, seed=1) * torch.linspace(3, 0.1, 64)
    found = [functional_spread(normal(100, 64, seed=seed) / 8, features, k=8) for seed in range(2, 42)]
    assert sum(found) / len(found) == pytest.approx(8 / 64, rel=0.03)


# ------------------------------------------------------------------------------------------ against all pairs
def rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


def with_drift(n: int, d: int) -> torch.Tensor:
    return normal(n, d, seed=n) + 0.7


def few_clumps(n: int, d: int) -> torch.Tensor:
    return 4 * normal(3, d, seed=n)[torch.arange(n) % 3] + 0.1 * normal(n, d, seed=n + 1)


@pytest.mark.parametrize("make", [normal, with_drift, few_clumps])
@pytest.mark.parametrize(("n", "d"), [(2, 3), (9, 4), (30, 50)])
def test_closed_forms_equal_loops_over_pairs(
    make: Callable[[int, int], torch.Tensor], n: int, d: int
) -> None:
    rows, features = make(n, d), normal(11, d, seed=5) + 0.3
    pairs = list(combinations(range(n), 2))

    def cosines(x: torch.Tensor) -> list[float]:
        return [float(x[i] @ x[j] / (x[i].norm() * x[j].norm())) for i, j in pairs]

    found = measure_rows(rows)
    assert found.cosine == pytest.approx(sum(cosines(rows)) / len(pairs), abs=1e-12)
    assert found.centered_cosine == pytest.approx(rms(cosines(rows - rows.mean(0))))
    assert found.distance == pytest.approx(rms([float((rows[i] - rows[j]).norm()) for i, j in pairs]))
    gaps = [float((rows[i] - rows[j]) @ f) for i, j in pairs for f in features]
    assert logit_spread(rows, features) == pytest.approx(rms(gaps))
    logits = [float(row @ f) for row in rows for f in features]
    assert mean_logit(rows, features) == pytest.approx(sum(logits) / len(logits))
    # Half the mean squared distance over pairs, once everything but the directions is projected away.
    k = min(3, d)
    directions = torch.linalg.svd(features).Vh[:k]
    inside = rms([float(((rows[i] - rows[j]) @ directions.T).norm()) for i, j in pairs])
    assert functional_spread(rows, features, k) == pytest.approx(inside**2 / 2)


# ------------------------------------------------------------------------------------------------ invariances
def test_what_changes_which_measure() -> None:
    rows = with_drift(40, 10)
    base = measure_rows(rows)
    assert measure_rows(rows @ rotation(10)).to_dict() == pytest.approx(base.to_dict())
    assert measure_rows(rows[torch.randperm(40)]).to_dict() == pytest.approx(base.to_dict())

    scaled = measure_rows(3 * rows)
    for unchanged in ("cosine", "centered_cosine", "effective_rank"):
        assert getattr(scaled, unchanged) == pytest.approx(getattr(base, unchanged))
    for tripled in ("distance", "norm", "norm_spread"):
        assert getattr(scaled, tripled) == pytest.approx(3 * getattr(base, tripled))

    lengths = torch.linspace(0.1, 5, 40, dtype=torch.float64)[:, None]
    assert measure_rows(lengths * rows).cosine == pytest.approx(base.cosine)

    moved = measure_rows(rows + torch.arange(10))
    assert moved.distance == pytest.approx(base.distance)
    assert moved.centered_cosine == pytest.approx(base.centered_cosine)
    assert moved.cosine > base.cosine + 0.1

    features = normal(20, 10, seed=8)
    assert logit_spread(rows + torch.arange(10), features) == pytest.approx(logit_spread(rows, features))
    assert functional_spread(rows + torch.arange(10), features) == pytest.approx(
        functional_spread(rows, features)
    )


def test_a_parameter_in_single_precision_is_measured_without_touching_it() -> None:
    rows = torch.nn.Parameter(normal(20, 6).float())
    assert measure_rows(rows).to_dict() == pytest.approx(measure_rows(rows.detach().double()).to_dict())
    assert rows.dtype == torch.float32
    assert rows.grad is None


# ------------------------------------------------------------------------------------------ what does not fit
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: measure_rows(torch.ones(1, 4)), r"rows has shape \(1, 4\).*2 rows or more"),
        (lambda: measure_rows(torch.ones(4)), r"rows has shape \(4,\).*matrix"),
        (lambda: measure_rows(torch.full((2, 2), math.nan)), "rows holds a value that is not finite"),
        (lambda: logit_spread(torch.ones(1, 4), torch.ones(3, 4)), r"rows has shape \(1, 4\)"),
        (
            lambda: logit_spread(torch.ones(2, 4), torch.ones(3, 5)),
            "features has width 5, but the rows have 4",
        ),
        (lambda: mean_logit(torch.ones(1, 4), torch.ones(0, 4)), r"features has shape \(0, 4\)"),
        (lambda: functional_spread(torch.ones(2, 4), torch.ones(3, 4), k=4), "features.*4 rows or more"),
        (lambda: functional_spread(torch.ones(2, 4), torch.ones(9, 4), k=5), "k is 5.*the width, 4"),
        (lambda: functional_spread(torch.ones(2, 4), torch.ones(9, 4), k=0), "k is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(call: Callable[[], float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_logit_spread_is_zero_where_rows_differ_in_nothing_that_a_feature_sees() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 16, generator=generator)
    features[:, 8:] = 0
    for _ in range(200):
        rows = torch.randn(30, 16, generator=generator)
        rows[:, :8] = rows[0, :8] * 1e3
        assert logit_spread(rows, features) == pytest.approx(0, abs=1e-3)
