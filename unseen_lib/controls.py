"""Controls at test time: one thing about a trained model is changed, nothing is trained, and it is tested.

Two things can be wrong with a model that fails on names it never saw: the rows of ``W_E`` that stand for
them, or what the model does with any row. A control that repairs only the rows tells the two apart. Every
function here returns a new model, or a function for `.evaluation.generate` to change logits with; the model
it is given stays as it is. Shapes: B batch, T tokens, V vocabulary, D width, N rows, M features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen_lib.collapse import mean_logit
from unseen_lib.errors import ConfigError
from unseen_lib.evaluation import Adjust, evaluate
from unseen_lib.model import GPT
from unseen_lib.problems import IGNORE, Task, sample_batch
from unseen_lib.vocabulary import Vocabulary

#: Where a row is changed, where tokens are read or where they are scored or both.
SIDES = ("both", "input", "output")


# ---------------------------------------------------------------------------------------- changes of the rows
@torch.no_grad()
def with_rows(model: GPT, ids: Sequence[int], rows: Tensor, *, side: str = "both") -> GPT:
    """A copy of the model in which other rows stand for some tokens; all other row controls rest on it.

    Given the rows that a model was initialized with, it restores them.

    Parameters
    ----------
    ids : sequence of int
        N tokens.
    rows : Tensor (N, D)
    side : {"both", "input", "output"}
        Where the rows are put: where tokens are read (and copied, with copy attention), where they are
        scored, or both. A tied model changed on one side comes back untied.

    Raises
    ------
    ConfigError
        If an id is no token or comes twice, the rows have another shape, the side is unknown, or the model is
        untied and the side is "both": its two matrices have nothing in common that one set of rows could be.
    """
    _check_side(side)
    if len(set(ids)) != len(ids) or not all(0 <= i < model.config.vocab_size for i in ids):
        raise ConfigError(f"ids is {list(ids)}, but should be different ids below {model.config.vocab_size}.")
    if rows.shape != (len(ids), model.config.width):
        raise ConfigError(
            f"rows has shape {tuple(rows.shape)}, but {len(ids)} ids and width {model.config.width} need "
            f"{(len(ids), model.config.width)}."
        )
    if side == "both" and not model.config.tied:
        raise ConfigError(
            "side is 'both', but an untied model reads and scores with two matrices; use 'input', then "
            "'output', each with rows of its own."
        )
    changed = deepcopy(model)
    if side != "both" and changed.untied is None:
        changed.config = replace(changed.config, tied=False)
        changed.untied = nn.Parameter(changed.embedding.clone(), changed.embedding.requires_grad)
    matrix = changed.unembedding if side == "output" else changed.embedding
    matrix[list(ids)] = rows.to(matrix)
    return changed


def redraw(
    model: GPT,
    vocabulary: Vocabulary,
    generator: torch.Generator,
    *,
    side: str = "both",
    matched: bool = False,
) -> GPT:
    """Draw the unseen rows again, from N(0, 1/D) as before training.

    On one side alone this breaks what ties the two: a model that writes a name by carrying its input row to
    the output finds no such row there, however good both are. To tell the sides apart, `center` one of them.

    Parameters
    ----------
    generator : torch.Generator
        On the CPU, so that a seed means the same rows on every device.
    side : {"both", "input", "output"}
        See `with_rows`. An untied model gets rows drawn independently for its two matrices.
    matched : bool
        Draw each coordinate with the mean and the standard deviation that it has over the seen rows, for a
        ``W_E`` that has learned a part common to all rows.

    Raises
    ------
    ConfigError
        If there is no unseen row, or the draw is matched and there are fewer than two seen rows.
    """
    if matched and vocabulary.seen < 2:
        raise ConfigError(
            f"seen is {vocabulary.seen}, but a matched draw needs the spread of at least 2 rows."
        )

    def draw(unseen: Tensor, seen: Tensor) -> Tensor:
        normal = torch.randn(unseen.shape, generator=generator).to(unseen)
        if matched:
            return seen.mean(0) + seen.std(0) * normal
        return normal / math.sqrt(unseen.shape[1])

    return _with_unseen(model, vocabulary, side, draw)


def center(model: GPT, vocabulary: Vocabulary, *, side: str = "both") -> GPT:
    """Subtract the mean of the unseen rows from each of them, then give each its old norm.

    This takes away the drift they share and nothing else. Their mean is then zero only as far as the
    subtraction changed all norms alike.

    Raises
    ------
    ConfigError
        If there are fewer than two unseen rows: a single one is its own mean.
    """
    if vocabulary.unseen < 2:
        raise ConfigError(f"unseen is {vocabulary.unseen}, but centering needs at least 2 unseen rows.")

    def centered(unseen: Tensor, seen: Tensor) -> Tensor:
        rows: Tensor = F.normalize(unseen - unseen.mean(0), dim=1) * unseen.norm(dim=1, keepdim=True)
        return rows

    return _with_unseen(model, vocabulary, side, centered)


def scatter(model: GPT, vocabulary: Vocabulary, generator: torch.Generator, *, side: str = "both") -> GPT:
    """Draw again what tells the unseen rows apart, from N(0, 1/D), and keep their mean.

    The counterpart of `center`: here the drift stays and the differences are fresh.

    Raises
    ------
    ConfigError
        If there is no unseen row.
    """

    def scattered(unseen: Tensor, seen: Tensor) -> Tensor:
        normal = torch.randn(unseen.shape, generator=generator).to(unseen) / math.sqrt(unseen.shape[1])
        return unseen.mean(0) + normal - normal.mean(0)

    return _with_unseen(model, vocabulary, side, scattered)


def recenter(model: GPT, vocabulary: Vocabulary, *, side: str = "both") -> GPT:
    """Shift the unseen rows, all by the same vector, so that their mean is that of the seen rows.

    Raises
    ------
    ConfigError
        If there is no unseen row.
    """
    return _with_unseen(model, vocabulary, side, lambda unseen, seen: unseen - unseen.mean(0) + seen.mean(0))


@torch.no_grad()
def _with_unseen(
    model: GPT, vocabulary: Vocabulary, side: str, change: Callable[[Tensor, Tensor], Tensor]
) -> GPT:
    """Replace the unseen rows by ``change(unseen rows, seen rows)``, computed in each matrix by itself."""
    _check_side(side)
    _check_unseen(vocabulary)
    if model.config.vocab_size != vocabulary.size:
        raise ConfigError(
            f"vocab_size is {model.config.vocab_size}, but the vocabulary has {vocabulary.size} words; "
            "give a model the vocabulary it was trained with."
        )
    sides = ("input", "output") if side == "both" and not model.config.tied else (side,)
    for part in sides:
        matrix = (model.unembedding if part == "output" else model.embedding).float()
        rows = change(matrix[list(vocabulary.unseen_ids)], matrix[list(vocabulary.seen_ids)])
        model = with_rows(model, vocabulary.unseen_ids, rows, side=part)
    return model


# -------------------------------------------------------------------------------------- changes of the logits
def raise_unseen(vocabulary: Vocabulary, by: float) -> Adjust:
    """Add a constant to the logit of every unseen name, before each word is chosen.

    Raises
    ------
    ConfigError
        If there is no unseen name, or the constant is not finite.
    """
    _check_unseen(vocabulary)
    if not math.isfinite(by):
        raise ConfigError(f"by is {by}, but only a finite constant leaves logits that can be compared.")

    def adjust(logits: Tensor, prompts: Tensor) -> Tensor:
        raised = logits.clone()
        raised[:, vocabulary.unseen_ids.start : vocabulary.unseen_ids.stop] += by
        return raised

    return adjust


def restrict_to_prompt(vocabulary: Vocabulary) -> Adjust:
    """Choose each word among those of the prompt and the control words only."""

    def adjust(logits: Tensor, prompts: Tensor) -> Tensor:
        allowed = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, prompts, True)
        allowed[:, : vocabulary.control_ids.stop] = True
        return logits.masked_fill(~allowed, -math.inf)

    return adjust


@torch.inference_mode()
def suppression(
    model: GPT, task: Task, vocabulary: Vocabulary, *, problems: int = 256, seed: int = 0
) -> float:
    """How far the mean logit of the unseen rows lies above that of the seen ones, in nats; mostly negative.

    The mean is over all words of the proofs of seen test problems, where the loss looks.

    Raises
    ------
    ConfigError
        If there is no unseen row, or the sample is not to be had.
    """
    _check_unseen(vocabulary)
    batch = sample_batch(
        task,
        vocabulary,
        batch_size=problems,
        seed=seed,
        index=0,
        stream="test",
        device=model.embedding.device,
    )
    features = model.features(batch.tokens)[batch.targets != IGNORE]  # (M, D)
    unseen, seen = (
        mean_logit(model.unembedding[list(ids)], features)
        for ids in (vocabulary.unseen_ids, vocabulary.seen_ids)
    )
    return unseen - seen


# ------------------------------------------------------------------------------------------------ all of them
@dataclass(frozen=True)
class Control:
    """What is changed, in words and as functions; what is None is left as it is.

    Attributes
    ----------
    meaning : str
        For a legend or a table.
    rows : Callable, optional
        From the model, its vocabulary and a generator to the model that is tested.
    logits : Callable, optional
        From the vocabulary and the model's `suppression` to the ``adjust`` of `.evaluation.evaluate`.
    """

    meaning: str
    rows: Callable[[GPT, Vocabulary, torch.Generator], GPT] | None = None
    logits: Callable[[Vocabulary, float], Adjust] | None = None


def _restrict(vocabulary: Vocabulary, suppressed: float) -> Adjust:
    return restrict_to_prompt(vocabulary)


CONTROLS: dict[str, Control] = {
    "as_trained": Control("nothing"),
    "redraw": Control("unseen rows drawn again", redraw),
    "redraw_input": Control("drawn again where tokens are read", partial(redraw, side="input")),
    "redraw_output": Control("drawn again where tokens are scored", partial(redraw, side="output")),
    "redraw_matched": Control(
        "drawn again with the seen rows' mean and deviation", partial(redraw, matched=True)
    ),
    "scatter": Control("differences drawn again, mean kept", scatter),
    "center": Control("unseen rows centered", lambda model, vocabulary, _: center(model, vocabulary)),
    "center_input": Control(
        "centered where tokens are read", lambda model, vocabulary, _: center(model, vocabulary, side="input")
    ),
    "center_output": Control(
        "centered where tokens are scored",
        lambda model, vocabulary, _: center(model, vocabulary, side="output"),
    ),
    "recenter": Control(
        "unseen mean moved to the seen mean", lambda model, vocabulary, _: recenter(model, vocabulary)
    ),
    "raise": Control(
        "unseen logits raised to the seen ones' mean",
        logits=lambda vocabulary, suppressed: raise_unseen(vocabulary, -suppressed),
    ),
    "restrict": Control("choice restricted to the prompt's words", logits=_restrict),
    "redraw_restrict": Control("drawn again and restricted", redraw, _restrict),
}
"""The controls that the grids record, by name.

The constant of "raise" is measured on seen problems, not tuned on the unseen ones it is tested on.
"""


def evaluate_controls(
    model: GPT,
    task: Task,
    vocabulary: Vocabulary,
    *,
    scenario: str = "all_unseen",
    problems: int = 256,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Test a model under each of `CONTROLS`, all on the same problems and all with the same draw of rows.

    With frozen embeddings nothing is worn, so what a new draw changes there repairs no collapse. It need not
    be chance alone: features may have turned away from the very rows that were there.

    Parameters
    ----------
    scenario, problems, seed
        Of the test problems, as in `.evaluation.transcribe`; the rows are drawn from the same seed.

    Returns
    -------
    dict
        For each control ``proof_validity``, ``true_proof_validity`` and ``answer_accuracy``.

    Raises
    ------
    ConfigError
        If one of the controls has no meaning for this vocabulary, or the problems are not to be had.
    """
    suppressed = suppression(model, task, vocabulary, problems=problems, seed=seed)
    results = {}
    for name, control in CONTROLS.items():
        generator = torch.Generator().manual_seed(seed)
        result = evaluate(
            control.rows(model, vocabulary, generator) if control.rows else model,
            task,
            vocabulary,
            scenario=scenario,
            problems=problems,
            seed=seed,
            adjust=control.logits(vocabulary, suppressed) if control.logits else None,
        )
        results[name] = {
            "proof_validity": result.proof_validity,
            "true_proof_validity": result.true_proof_validity,
            "answer_accuracy": result.answer_accuracy,
        }
    return results


def _check_side(side: str) -> None:
    if side not in SIDES:
        raise ConfigError(f"side is {side!r}, but it must be one of {', '.join(SIDES)}.")


def _check_unseen(vocabulary: Vocabulary) -> None:
    if vocabulary.unseen < 1:
        raise ConfigError("unseen is 0, but a control of unseen names needs a vocabulary that has some.")
