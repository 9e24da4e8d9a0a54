"""What happens to the embedding matrix W_E while the rest of the model trains.

A policy is plain data. :class:`ActivePolicy` carries it out: training calls it three times a step, and
nothing else touches W_E behind the optimizer's back. All randomness of a policy follows from the run's seed
and the step, and it keeps nothing from one step to the next, so a resumed run does the same as an
uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch

from unseen_lib.errors import ConfigError
from unseen_lib.model import GPT
from unseen_lib.vocabulary import Vocabulary

#: Every kind of policy, and the fields that it has a use for.
KINDS = {
    "trainable": (),
    "frozen": ("rows", "drawn"),
    "forgetting": ("rows", "every", "until", "optimizer_state"),
    "reset_then_freeze": ("rows", "at"),
}
ROWS = ("all", "symbols", "unseen")
DRAWN = ("normal", "orthogonal")
OPTIMIZER_STATES = ("reset", "keep")


@dataclass(frozen=True)
class EmbeddingPolicy:
    """How W_E is treated during training.

    Parameters
    ----------
    kind : {"trainable", "frozen", "forgetting", "reset_then_freeze"}
        Trained like any weight; kept at its random initialization; trained and re-drawn now and then (active
        forgetting, Chen et al. 2023); or trained, re-drawn once, and kept from then on.
    every : int, optional
        Steps between two resets. Needed by ``forgetting``.
    until : int, optional
        Last step at which a reset may happen. With it, forgetting is temporary.
    rows : {"all", "symbols", "unseen"}
        Which rows are re-drawn or frozen: all of W_E, as in the paper, only those of the symbols, or only
        those that training never uses. The other rows train as always. Small models need to reset less than
        all: they cannot relearn their control words within a short cycle.
    drawn : {"normal", "orthogonal"}
        How a ``frozen`` W_E is drawn at the start: from N(0, 1/D), where rows are nearly orthogonal and have
        norms near 1, or with all its rows exactly orthonormal, which needs D >= V.
    at : int, optional
        The step of the one reset of ``reset_then_freeze``.
    optimizer_state : {"reset", "keep"}
        What ``forgetting`` does to the optimizer's memory of W_E. ``reset`` drops all of it, as Chen et al.
        do: momentum and second moment describe rows that are gone, and would push the new ones along their
        way. Adam's step counter goes too, for all rows: zeroed moments that a high counter leaves uncorrected
        would make steps up to half as large again over a whole cycle.

    Raises
    ------
    ConfigError
        If the parts do not fit. :func:`check_policy` says whether they fit a run.
    """

    kind: str = "trainable"
    every: int | None = None
    until: int | None = None
    rows: str = "all"
    drawn: str = "normal"
    at: int | None = None
    optimizer_state: str = "reset"

    def __post_init__(self) -> None:
        choices = {"kind": KINDS, "rows": ROWS, "drawn": DRAWN, "optimizer_state": OPTIMIZER_STATES}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"policy {name}={getattr(self, name)!r} is unknown; use one of {', '.join(known)}"
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("kind", *KINDS[self.kind]) and value != field.default:
                raise ConfigError(
                    f"policy {field.name}={value!r} means nothing to kind={self.kind!r}; leave it out"
                )
        needed = {"forgetting": "every", "reset_then_freeze": "at"}.get(self.kind)
        if needed and (getattr(self, needed) is None or getattr(self, needed) < 1):
            raise ConfigError(
                f"policy {needed}={getattr(self, needed)} must be at least 1 step for kind={self.kind!r}"
            )
        if self.every is not None and self.until is not None and self.until < self.every:
            raise ConfigError(
                f"policy until={self.until} ends before the first reset; use at least every={self.every}"
            )

    def resets_at(self, step: int) -> bool:
        """Whether rows are re-drawn just before optimizer step ``step`` (counted from 0)."""
        if self.kind == "reset_then_freeze":
            return step == self.at
        if self.kind != "forgetting" or step == 0:
            return False
        assert self.every is not None
        return step % self.every == 0 and (self.until is None or step <= self.until)

    def freezes_at(self, step: int) -> bool:
        """Whether optimizer step ``step`` leaves the policy's rows as they are."""
        return self.kind == "frozen" or (self.at is not None and step >= self.at)


def check_policy(policy: EmbeddingPolicy, vocabulary: Vocabulary, *, width: int, steps: int) -> None:
    """Raise ConfigError if ``policy`` cannot be carried out in a run of ``steps`` with rows of ``width``."""
    if policy.rows == "unseen" and vocabulary.unseen == 0:
        raise ConfigError(
            "policy rows='unseen' names rows that a vocabulary with unseen=0 lacks; use unseen=1 or more, or "
            "other rows"
        )
    if policy.drawn == "orthogonal" and vocabulary.size > width:
        raise ConfigError(
            f"policy drawn='orthogonal' does not fit: {vocabulary.size} rows of width={width} cannot all be "
            f"orthogonal; use width={vocabulary.size} or more, fewer names, or drawn='normal'"
        )
    for name, first in (("every", policy.every), ("at", policy.at)):
        if first is not None and first >= steps:
            raise ConfigError(
                f"policy {name}={first} puts the first reset beyond the run of steps={steps}; use at most "
                f"{name}={steps - 1}"
            )


def rows_of(policy: EmbeddingPolicy, vocabulary: Vocabulary) -> range:
    """Ids of the rows that the policy re-draws or freezes."""
    first = {"all": 0, "symbols": vocabulary.seen_ids.start, "unseen": vocabulary.unseen_ids.start}
    return range(first[policy.rows], vocabulary.size)


def embedding_matrices(model: GPT) -> list[torch.nn.Parameter]:
    """W_E, followed by the unembedding where that is a matrix of its own."""
    return [matrix for matrix in (model.embedding, model.untied) if matrix is not None]


class ActivePolicy:
    """A policy at work on one model: made before the optimizers are, then called three times a step.

    Parameters
    ----------
    policy : EmbeddingPolicy
    model : GPT
        Freshly initialized. A frozen W_E stops asking for gradients, and is drawn anew if orthogonal.
    vocabulary : Vocabulary
    seed : int
        The run's.
    """

    def __init__(self, policy: EmbeddingPolicy, model: GPT, vocabulary: Vocabulary, seed: int) -> None:
        self.policy, self.model, self.seed = policy, model, seed
        self.rows = rows_of(policy, vocabulary)
        self._slice = slice(self.rows.start, self.rows.stop)
        self._kept: list[torch.Tensor] = []
        if policy.drawn == "orthogonal":
            generator = torch.Generator().manual_seed(reset_seed(seed, 0))
            for matrix in embedding_matrices(model):
                drawn = torch.nn.init.orthogonal_(torch.empty(matrix.shape), generator=generator)  # (V, D)
                matrix.data.copy_(drawn)
        self._ask_for_gradients(0)

    def before_step(self, step: int, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Re-draw rows if it is time to, and drop what ``optimizers`` remember of W_E."""
        self._ask_for_gradients(step)
        if not self.policy.resets_at(step):
            return
        self.model.reset_rows(self.rows, torch.Generator().manual_seed(reset_seed(self.seed, step)))
        if self.policy.optimizer_state == "keep":
            return
        for matrix in embedding_matrices(self.model):
            for optimizer in optimizers:
                optimizer.state.pop(matrix, None)

    def after_backward(self, step: int) -> None:
        """Take frozen rows out of the gradient, before its norm is clipped."""
        if self._freezes_some(step):
            matrices = embedding_matrices(self.model)
            self._kept = [matrix.detach()[self._slice].clone() for matrix in matrices]
            for matrix in matrices:
                assert matrix.grad is not None
                matrix.grad[self._slice] = 0

    def after_step(self, step: int) -> None:
        """Put frozen rows back: weight decay and momentum move rows without a gradient too."""
        if self._freezes_some(step):
            for matrix, kept in zip(embedding_matrices(self.model), self._kept, strict=True):
                matrix.data[self._slice] = kept

    def _freezes_some(self, step: int) -> bool:
        return self.policy.freezes_at(step) and self.policy.rows != "all"

    def _ask_for_gradients(self, step: int) -> None:
        """A matrix without a gradient is left alone by every optimizer, and costs no backward pass."""
        for matrix in embedding_matrices(self.model):
            matrix.requires_grad_(not self.policy.freezes_at(step) or self.policy.rows != "all")


def reset_seed(seed: int, step: int) -> int:
    """One seed a reset, never that of the initialization (which uses ``seed`` itself)."""
    return (seed + 1) * 1_000_003 + step
