"""What happens to the embedding matrix W_E while the rest of the model trains.

A policy is plain data. Training calls :func:`apply_policy` before every step; nothing else touches W_E
behind the optimizer's back. All randomness of a reset follows from the run's seed and the step, so a
resumed run resets to the same rows as an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unseen_lib.errors import ConfigError
from unseen_lib.model import GPT
from unseen_lib.vocabulary import Vocabulary

KINDS = ("trainable", "frozen", "forgetting")
ROWS = ("all", "symbols")


@dataclass(frozen=True)
class EmbeddingPolicy:
    """How W_E is treated during training.

    Parameters
    ----------
    kind : {"trainable", "frozen", "forgetting"}
        Trained like any weight; kept at its random initialization; or trained and re-drawn now and then
        (active forgetting, Chen et al. 2023).
    every : int, optional
        Steps between two resets. Needed by ``forgetting``, meaningless otherwise.
    until : int, optional
        Last step at which a reset may happen. With it, forgetting is temporary.
    rows : {"all", "symbols"}
        Which rows a reset re-draws: all of W_E, as in the paper, or only those of the symbols. Small models
        need the second: they cannot relearn their control words within a short cycle.

    Raises
    ------
    ConfigError
        If the parts do not fit.
    """

    kind: str = "trainable"
    every: int | None = None
    until: int | None = None
    rows: str = "all"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"policy kind={self.kind!r} is unknown; use one of {', '.join(KINDS)}")
        if self.rows not in ROWS:
            raise ConfigError(f"policy rows={self.rows!r} is unknown; use one of {', '.join(ROWS)}")
        if self.kind != "forgetting":
            if self.every is not None or self.until is not None:
                raise ConfigError(
                    f"policy kind={self.kind!r} never resets, so every={self.every} and until={self.until} "
                    "must be left out"
                )
            return
        if self.every is None or self.every < 1:
            raise ConfigError(f"policy every={self.every} must be at least 1 step between resets")
        if self.until is not None and self.until < self.every:
            raise ConfigError(
                f"policy until={self.until} ends before the first reset; use at least every={self.every}"
            )

    def resets_at(self, step: int) -> bool:
        """Whether rows are re-drawn just before optimizer step ``step`` (counted from 0)."""
        if self.kind != "forgetting" or step == 0:
            return False
        assert self.every is not None
        return step % self.every == 0 and (self.until is None or step <= self.until)


def rows_of(policy: EmbeddingPolicy, vocabulary: Vocabulary) -> range:
    """Ids of the rows that a reset re-draws."""
    first = 0 if policy.rows == "all" else vocabulary.seen_ids.start
    return range(first, vocabulary.size)


def set_trainable(policy: EmbeddingPolicy, model: GPT) -> None:
    """Let gradients reach W_E, or not if it is frozen."""
    for matrix in embedding_matrices(model):
        matrix.requires_grad_(policy.kind != "frozen")


def embedding_matrices(model: GPT) -> list[torch.nn.Parameter]:
    """W_E, followed by the unembedding where that is a matrix of its own."""
    return [matrix for matrix in (model.embedding, model.untied) if matrix is not None]


def apply_policy(
    policy: EmbeddingPolicy,
    step: int,
    *,
    model: GPT,
    vocabulary: Vocabulary,
    optimizer: torch.optim.Optimizer | None,
    seed: int,
) -> None:
    """Reset rows if the policy asks for it before optimizer step ``step``.

    Adam's two moments of a re-drawn row are zeroed with it: they describe a row that no longer exists, and
    would push the new one in its direction. The step counter of the bias correction stays, which only makes
    the first update after a reset a little smaller.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer or None
        The one that updates W_E; None if nothing does.
    """
    if not policy.resets_at(step):
        return
    rows = rows_of(policy, vocabulary)
    generator = torch.Generator().manual_seed(reset_seed(seed, step))
    model.reset_rows(rows, generator)
    if optimizer is None:
        return
    for matrix in embedding_matrices(model):
        for moment in optimizer.state[matrix].values():
            if torch.is_tensor(moment) and moment.shape == matrix.shape:
                moment[rows.start : rows.stop] = 0


def reset_seed(seed: int, step: int) -> int:
    """One seed a reset, never that of the initialization (which uses ``seed`` itself)."""
    return (seed + 1) * 1_000_003 + step
