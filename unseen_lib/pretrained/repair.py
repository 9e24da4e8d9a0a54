"""Draw the rows of collapsed tokens anew, in a loaded model, so that they can be told apart again.

Two recipes go with it. To keep rows as they were drawn while the rest trains, as a frozen embedding
does in the course::

    reinitialize(model, tokens)
    kept = freeze_rows(model, tokens, optimizer)  # kept.remove() ends it

To forget actively, call ``reinitialize`` again every K steps with another seed, and drop what the optimizer
remembers of the rows: ``optimizer.state.pop(model.get_input_embeddings().weight, None)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.tables import tables_of_model
from unseen_lib.pretrained.tokens import NOTHING_KNOWN, given_group, ordinary_group, tokenizer_tokens

#: Ways of drawing rows anew.
HOW = ("norm", "covariance", "normal")
REFERENCE = 4096  # ordinary rows that give the mean, the norms and the covariance


def reinitialize(
    model: Any,
    tokens: Iterable[int | str],
    how: str = "covariance",
    *,
    tokenizer: Any = None,
    seed: int = 0,
) -> list[int]:
    """Replace the rows of ``tokens`` by fresh ones, in the embedding and in an unembedding of its own.

    The model is changed in place, and nothing is written. ``save_pretrained`` keeps the new rows.

    Parameters
    ----------
    model : a model of transformers, loaded
    tokens : list of int or str
        By id or, with a tokenizer, by text.
    how : {"norm", "covariance", "normal"}
        - ``covariance``: from the normal distribution with the mean and the covariance of ordinary rows. The
          new rows fill the directions that ordinary ones fill, which are those the model has learned to read.
          The default, since fine-tuning a small Gemma took the fewest steps with it at each strength of
          collapse (recorded runs of `.small`, chapter 8).
        - ``norm``: the mean ordinary row, plus a random direction of the length that ordinary rows have.
          The new rows look ordinary to whatever normalizes them, and share nothing but what all rows share.
        - ``normal``: from N(0, 1/D), as at the start of the course's own models; far from what a model with
          another scale is used to.
    tokenizer : optional
        Looks up texts, and keeps special and unused rows out of the ordinary ones.
    seed : int
        Draws the rows.

    Returns
    -------
    list of int
        Ids of the rows that were replaced.

    Raises
    ------
    PretrainedError
        If ``how`` is unknown, a token is unknown or out of range, or there is no table to write to. The model
        is then as it was.
    """
    if how not in HOW:
        raise PretrainedError(f"how={how!r} is unknown: use one of {', '.join(HOW)}")
    known = NOTHING_KNOWN if tokenizer is None else tokenizer_tokens(tokenizer)
    weights, size = _weights(model)
    ids = list(given_group(known, tokens, size).ids)
    ordinary = ordinary_group(known, ids, size, sample=REFERENCE, seed=seed).ids
    generator = torch.Generator().manual_seed(seed)
    fresh = [_draw(weight.detach()[list(ordinary)], len(ids), how, generator) for weight in weights]
    with torch.no_grad():
        for weight, drawn in zip(weights, fresh, strict=True):
            weight[ids] = drawn.to(weight.device, weight.dtype)
        bias = getattr(model.get_output_embeddings(), "bias", None)
        if bias is not None:  # training pushed it down like the rows
            bias[ids] = bias[list(ordinary)].mean()
    return ids


def freeze_rows(model: Any, tokens: Iterable[int | str], optimizer: Any, *, tokenizer: Any = None) -> Any:
    """Put the rows of ``tokens`` back after every step of ``optimizer``, until the handle is removed.

    A gradient of zero is not enough: momentum and weight decay move rows too.

    Returns
    -------
    handle
        ``handle.remove()`` lets the rows train.
    """
    known = NOTHING_KNOWN if tokenizer is None else tokenizer_tokens(tokenizer)
    weights, size = _weights(model)
    ids = list(given_group(known, tokens, size).ids)
    kept = [weight.detach()[ids].clone() for weight in weights]

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            for weight, values in zip(weights, kept, strict=True):
                weight[ids] = values

    return optimizer.register_step_post_hook(put_back)


def _weights(model: Any) -> tuple[list[Tensor], int]:
    """The embedding and an unembedding of its own, as parameters, and how many rows both have."""
    tables = tables_of_model(model)  # raises if they cannot be read
    weights = [model.get_input_embeddings().weight]
    sizes = [tables.embedding.size]
    if tables.unembedding is not None:
        weights.append(model.get_output_embeddings().weight)
        sizes.append(tables.unembedding.size)
    return weights, min(sizes)


def _draw(ordinary: Tensor, count: int, how: str, generator: torch.Generator) -> Tensor:
    """``count`` fresh rows (count, D) in float32, after the ordinary ones (N, D)."""
    ordinary = ordinary.to("cpu", torch.float32)
    size, width = ordinary.shape
    if how == "normal":
        return torch.randn(count, width, generator=generator).div(width**0.5)
    mean: Tensor = ordinary.mean(0)
    spread = ordinary - mean
    if how == "covariance":  # sums of ordinary rows with random weights have their covariance exactly
        return torch.addmm(mean, torch.randn(count, size, generator=generator) / (size - 1) ** 0.5, spread)
    lengths = spread.norm(dim=1)[torch.randint(size, (count,), generator=generator)]
    directions = torch.nn.functional.normalize(torch.randn(count, width, generator=generator))
    return torch.addcmul(mean, directions, lengths[:, None])
