"""The theory lab: why rows of labels that never occur collapse, where exact statements can be made.

A softmax classifier p(y | x) ∝ exp(φ(x) · W_y) on given features stands in for the last layer of a language
model: the features are the output of its final LayerNorm, the labels its next tokens, W its unembedding.

Let i and j be labels that no sample has, Δ = W_i − W_j, and let one gradient step at rate η act on the mean
cross-entropy plus λ/2 ‖W‖². Neither row is ever pulled to a feature, so only probabilities and decay move Δ:

    Δ' = (1 − ηλ) Δ − η mean((p_i − p_j) φ).

Now log p_i − log p_j = φ · Δ, for the normalizer cancels. So p_i − p_j = p̃ φ · Δ, where p̃ is exactly the
*logarithmic mean* (a − b) / (log a − log b) of the two probabilities at that sample, and

    Δ' = [(1 − ηλ) I − η H] Δ,    H = mean(p̃ φ φᵀ), positive semidefinite.

√(p_i p_j) ≤ p̃ ≤ (p_i + p_j) / 2, so p̃ is at most p, the largest probability given to either, and at most
1/2. With ‖φ‖ ≤ r and q = min(p, 1/2), H has its eigenvalues in [0, r² q]. From there:

- **Printed bound** (Lazić et al. 2026, Lemma 4.1): ‖Δ'‖ ≤ (1 − ηλ + η r² p) ‖Δ‖, which is the triangle
  inequality and needs the condition ηλ ≤ 1. It promises contraction only where r² p < λ.
- **Corrected bound**: ‖Δ'‖ ≤ (1 − ηλ) ‖Δ‖ wherever η (λ + r² q / 2) ≤ 1, for the second term contracts too.
  It does not ask for r² p < λ. Where even η (λ + r² q) ≤ 1 no part of Δ changes sign. As q ≤ 1/2,
  η (λ + r² / 4) ≤ 1 is enough at every step, however badly the model fits.

Adam is not covered. It divides each entry of a row's gradient by that entry's own running size, so a gradient
times any constant gives the same step: the tiny gradient −p φ that all rows without a label share moves them
by full-size steps, together. :func:`trace` shows it.

Shapes: N samples, D width, V labels, of which the first K are used and the last U are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen_lib.collapse import functional_spread, logit_spread, mean_logit, measure_rows
from unseen_lib.errors import ConfigError
from unseen_lib.optimizers import CoupledAdam

OPTIMIZERS = ("sgd", "adam", "adamw", "coupled_adam")


# ---------------------------------------------------------------------------------------------- configuration
@dataclass(frozen=True)
class ProblemConfig:
    """A random classification problem.

    Parameters
    ----------
    samples, width : int
        N and D.
    used, unused : int
        K labels that occur, each equally often, and U that never do.
    noise : float
        Size of what tells apart the features of one label, whose common part has norm about 1.
    shared : float
        Size of what the features of all labels have in common.
    """

    samples: int = 256
    width: int = 32
    used: int = 16
    unused: int = 16
    noise: float = 0.5
    shared: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("width", 2), ("used", 1), ("unused", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.samples < self.used:
            raise ConfigError(
                f"samples={self.samples} must be at least used={self.used}, for each used label occurs"
            )
        for name in ("noise", "shared"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be 0 or more, and finite")


@dataclass(frozen=True)
class LabConfig:
    """How a problem's classifier is trained.

    Parameters
    ----------
    optimizer : {"sgd", "adam", "adamw", "coupled_adam"}
        ``sgd`` and ``adam`` add the penalty's gradient λW to the gradient; ``adamw`` and ``coupled_adam``
        shrink W by 1 − ηλ apart from it. For ``sgd`` the two are the same.
    rate, weight_decay : float
        η and λ.
    layer_norm : bool
        Whether each feature is centered and scaled to norm √D, as a final LayerNorm does.
    steps : int
    batch_size : int, optional
        Samples a step, drawn without replacement; all of them if left out, which makes ``sgd`` plain
        gradient descent.
    betas, eps : Adam's.
    """

    optimizer: str = "sgd"
    rate: float = 0.1
    weight_decay: float = 0.0
    layer_norm: bool = True
    steps: int = 200
    batch_size: int | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
        if not 0 < self.rate < math.inf:
            raise ConfigError(f"rate={self.rate} must be above 0, and finite")
        for name in ("weight_decay", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be 0 or more, and finite")
        if self.steps < 1:
            raise ConfigError(f"steps={self.steps} must be at least 1")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size} must be at least 1, or None for all samples")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas} must be two numbers from 0 up to, but not including, 1")


# ---------------------------------------------------------------------------------------------------- problem
@dataclass(frozen=True)
class Problem:
    """Features (N, D), labels (N,) and initial weights (V, D); rows from ``used`` on belong to no sample."""

    features: Tensor
    labels: Tensor
    weights: Tensor
    used: int


def make_problem(config: ProblemConfig, generator: torch.Generator) -> Problem:
    """Draw a problem in float64: one center a label, noise around it, and a part shared by all features.

    Centers, noise and shared part are drawn from N(0, I/D), times 1, ``noise`` and ``shared``; the rows of
    the weights, as in the paper, from N(0, I/D).
    """

    def normal(count: int) -> Tensor:
        scale = 1 / math.sqrt(config.width)
        drawn = torch.randn(count, config.width, dtype=torch.float64, generator=generator)
        return drawn * scale

    labels = torch.arange(config.samples) % config.used
    centers = normal(config.used) + config.shared * normal(1)  # (K, D)
    features = centers[labels] + config.noise * normal(config.samples)
    return Problem(features, labels, normal(config.used + config.unused), config.used)


def normalized(features: Tensor) -> Tensor:
    """The features (N, D) after a LayerNorm of gain 1: each centered over its entries and of norm √D."""
    return F.layer_norm(features, features.shape[-1:], eps=1e-24)


# ----------------------------------------------------------------------------------------------- one step
def gradient(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Gradient (V, D) of the mean cross-entropy, without penalty: mean((p_v − [y = v]) φ) in row v.

    Over all v the rows sum to 0: no gradient step without decay, and no Coupled Adam step, moves the mean of
    all rows.
    """
    residual = torch.softmax(features @ weights.T, dim=1)  # (N, V)
    residual[torch.arange(len(labels)), labels] -= 1
    return residual.T @ features / len(labels)


def logarithmic_mean(log_a: Tensor, log_b: Tensor) -> Tensor:
    """(a − b) / (log a − log b), and a where both are equal; takes logarithms, so that nothing underflows."""
    gap = (log_a - log_b).abs()
    shrink = torch.where(gap > 0, -torch.expm1(-gap) / gap, 1.0)
    return torch.maximum(log_a, log_b).exp() * shrink


def difference_map(
    weights: Tensor, features: Tensor, i: int, j: int, *, rate: float, weight_decay: float
) -> Tensor:
    """The matrix (D, D) that takes W_i − W_j to itself after one gradient step, i and j being no one's label.

    It is (1 − ηλ) I − η mean(p̃ φ φᵀ), exact at any rate. The features (N, D) are those of the step's batch:
    it is enough that i and j do not occur in that one.
    """
    log_p = torch.log_softmax(features @ weights.T, dim=1)  # (N, V)
    mean_p = logarithmic_mean(log_p[:, i], log_p[:, j])  # (N,)
    curvature = (mean_p[:, None] * features).T @ features / len(features)  # H
    return (1 - rate * weight_decay) * torch.eye(len(curvature), dtype=features.dtype) - rate * curvature


@dataclass(frozen=True)
class Bounds:
    """What the lemma says of ‖Δ'‖ / ‖Δ‖, and whether its conditions hold.

    Attributes
    ----------
    printed : float
        1 − ηλ + η r² p.
    printed_holds : bool
        ηλ ≤ 1, the condition that the paper leaves out.
    printed_contracts : bool
        r² p < λ, without which the printed bound is 1 or more and promises nothing.
    corrected : float
        1 − ηλ.
    corrected_holds : bool
        η (λ + r² q / 2) ≤ 1 with q = min(p, 1/2).
    no_overshoot : bool
        η (λ + r² q) ≤ 1: besides, no part of Δ changes sign.
    """

    printed: float
    printed_holds: bool
    printed_contracts: bool
    corrected: float
    corrected_holds: bool
    no_overshoot: bool


def bounds(*, rate: float, weight_decay: float, radius: float, probability: float) -> Bounds:
    """Both bounds for a gradient step on features of norm at most ``radius``.

    Parameters
    ----------
    rate, weight_decay : float
        η and λ.
    radius : float
        r, the largest norm of a feature in the batch.
    probability : float
        p, the largest probability that a sample of the batch gives to one of the labels compared.
    """
    pull = radius**2 * probability
    curvature = radius**2 * min(probability, 0.5)  # of H, the largest it can be
    return Bounds(
        printed=1 - rate * weight_decay + rate * pull,
        printed_holds=rate * weight_decay <= 1,
        printed_contracts=pull < weight_decay,
        corrected=1 - rate * weight_decay,
        corrected_holds=rate * (weight_decay + curvature / 2) <= 1,
        no_overshoot=rate * (weight_decay + curvature) <= 1,
    )


# --------------------------------------------------------------------------------------------------- training
@dataclass(frozen=True)
class Moment:
    """The unused rows before one step, and what that step did to their differences.

    Attributes
    ----------
    step : int
        Steps taken before.
    loss : float
        Mean cross-entropy over all samples, in nats.
    probability : float
        p, the largest probability that a sample of the batch gives to an unused label.
    factor, worst_factor : float
        Distance after the step by distance before: root mean square over pairs, and largest of all pairs
        (not a number where rows coincide).
    printed, corrected : float
        The two bounds on both factors (:class:`Bounds`), whatever the optimizer.
    conditions_hold : bool
        Whether the corrected bound speaks of this step: the optimizer is ``sgd`` and the step small enough.
    printed_contracts : bool
        Whether r² p < λ.
    cosine, distance, centered_cosine, norm : float
        Of the unused rows (:func:`unseen_lib.collapse.measure_rows`).
    drift, vocabulary_drift : float
        How far the mean unused row, and the mean of all rows, have moved since step 0. Without decay the
        second is 0 for ``sgd`` and ``coupled_adam`` (:func:`gradient`).
    functional_spread, logit_spread : float
        What is left of the rows' differences where the features point (:mod:`unseen_lib.collapse`).
    suppression : float
        Mean logit of the unused rows minus that of the used ones.
    """

    step: int
    loss: float
    probability: float
    factor: float
    worst_factor: float
    printed: float
    corrected: float
    conditions_hold: bool
    printed_contracts: bool
    cosine: float
    distance: float
    centered_cosine: float
    norm: float
    drift: float
    vocabulary_drift: float
    functional_spread: float
    logit_spread: float
    suppression: float

    def to_dict(self) -> dict[str, Any]:
        """The values by name, for a record or a figure."""
        return asdict(self)


def trace(
    problem: Problem,
    config: LabConfig,
    *,
    generator: torch.Generator | None = None,
    record_every: int = 1,
) -> list[Moment]:
    """Train on ``problem`` and say at every ``record_every``-th step, and the last, what its unused rows do.

    Parameters
    ----------
    problem : Problem
        Left as it is.
    config : LabConfig
    generator : torch.Generator, optional
        Draws the batches; needed only with a ``batch_size``.
    record_every : int

    Returns
    -------
    list of Moment

    Raises
    ------
    ConfigError
        If ``batch_size`` exceeds the samples or comes without a generator.
    """
    count = len(problem.labels)
    if config.batch_size is not None and config.batch_size > count:
        raise ConfigError(f"batch_size={config.batch_size} must be at most the number of samples, {count}")
    if config.batch_size is not None and generator is None:
        raise ConfigError(f"batch_size={config.batch_size} needs a generator to draw the batches")
    if record_every < 1:
        raise ConfigError(f"record_every={record_every} must be at least 1")
    all_features = normalized(problem.features) if config.layer_norm else problem.features
    weights = problem.weights.clone()
    optimizer = _optimizer(weights, config)
    moments = []
    for step in range(config.steps):
        features, labels = all_features, problem.labels
        if config.batch_size is not None:
            batch = torch.randperm(count, generator=generator)[: config.batch_size]
            features, labels = features[batch], labels[batch]
        before = weights.clone()
        weights.grad = gradient(weights, features, labels)
        optimizer.step()
        if step % record_every == 0 or step == config.steps - 1:
            moments.append(_moment(step, before, weights, features, all_features, problem, config))
    return moments


def _optimizer(weights: Tensor, config: LabConfig) -> torch.optim.Optimizer:
    """Torch's own optimizer, or :class:`unseen_lib.optimizers.CoupledAdam`, of the weights (V, D)."""
    if config.optimizer == "sgd":
        return torch.optim.SGD([weights], lr=config.rate, weight_decay=config.weight_decay)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "coupled_adam": CoupledAdam,
    }
    return kinds[config.optimizer](
        [weights], lr=config.rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )


def _moment(
    step: int,
    before: Tensor,
    after: Tensor,
    features: Tensor,
    all_features: Tensor,
    problem: Problem,
    config: LabConfig,
) -> Moment:
    used, rows = before[: problem.used], before[problem.used :]
    measured, new_rows = measure_rows(rows), after[problem.used :]
    probability = torch.softmax(features @ before.T, dim=1)[:, problem.used :].max().item()
    said = bounds(
        rate=config.rate,
        weight_decay=config.weight_decay,
        radius=features.norm(dim=1).max().item(),
        probability=probability,
    )
    pairs, new_pairs = torch.pdist(rows), torch.pdist(new_rows)
    return Moment(
        step=step,
        loss=F.cross_entropy(all_features @ before.T, problem.labels).item(),
        probability=probability,
        factor=(new_pairs.norm() / pairs.norm()).item(),
        worst_factor=(new_pairs / pairs).max().item(),
        printed=said.printed,
        corrected=said.corrected,
        conditions_hold=config.optimizer == "sgd" and said.corrected_holds,
        printed_contracts=said.printed_contracts,
        cosine=measured.cosine,
        distance=measured.distance,
        centered_cosine=measured.centered_cosine,
        norm=measured.norm,
        drift=(rows - problem.weights[problem.used :]).mean(0).norm().item(),
        vocabulary_drift=(before - problem.weights).mean(0).norm().item(),
        functional_spread=functional_spread(rows, all_features, k=min(8, *all_features.shape)),
        logit_spread=logit_spread(rows, all_features),
        suppression=mean_logit(rows, all_features) - mean_logit(used, all_features),
    )
