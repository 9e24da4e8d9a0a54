"""The exercises of chapter 5: copy attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen_lib.exercises import Wrong, exercise, expect_close, explain, normal


@exercise("5.1", "A pointer")
def check_pointed(pointed: Callable[..., Any]) -> None:
    """``pointed(weights, tokens, vocab_size)``: how much of a look (B, S) falls on each word, (B, V)."""
    examples: list[tuple[list[list[float]], list[list[int]], str]] = [
        ([[0.1, 0.7, 0.2]], [[2, 0, 3]], "each word once"),
        ([[0.1, 0.6, 0.3]], [[2, 0, 2]], "word 2 twice"),
        ([[1.0, 0.0], [0.5, 0.5]], [[1, 3], [3, 3]], "two texts"),
    ]
    for example, words, about in examples:
        call = f"pointed({example}, {words}, vocab_size=5): {about}"
        _check_pointed(pointed, torch.tensor(example, dtype=torch.float64), torch.tensor(words), 5, call)
    generator = torch.Generator().manual_seed(51)
    tokens = torch.randint(12, (3, 20), generator=generator)
    weights = normal(3, 20, seed=52).softmax(-1)
    call = "pointed(weights, tokens, vocab_size=12), 3 random texts of 20 words"
    _check_pointed(pointed, weights, tokens, 12, call)


def _check_pointed(
    pointed: Callable[..., Any], weights: Tensor, tokens: Tensor, size: int, call: str
) -> None:
    onehot = F.one_hot(tokens, size).to(weights)  # (B, S, V)
    right = (weights[..., None] * onehot).sum(1)
    last = torch.zeros_like(right)
    for row in range(len(tokens)):
        last[row, tokens[row]] = weights[row]
    got = pointed(weights.float(), tokens.clone(), size)  # single, as torch.zeros is
    explain(
        got,
        right,
        call,
        {
            "one weight for a word that stands in several places: a later one has replaced the others. Add "
            "them up": last,
            "the mean over the places of a word: a word in two places has the weight of both": right
            / onehot.sum(1).clamp(min=1),
            "a softmax of the weights: they add up to 1 already": right.softmax(-1),
            "how often each word stands in the text, whatever the weights": onehot.sum(1),
            "the same for all texts of the batch: keep them apart": right.sum(0, keepdim=True).expand_as(
                right
            ),
        },
    )
    expect_close(got, right, call)


@exercise("5.2", "How sharp must a look be?")
def check_sharpness(sharpness: Callable[..., Any]) -> None:
    """``sharpness(cosine, names, weight)``: the beta at which one of several names gets this weight."""
    for cosine, names, weight in [
        (0.0, 2, 0.75),
        (0.0, 6, 0.9),
        (0.5, 6, 0.9),
        (0.9, 6, 0.9),
        (0.9, 20, 0.6),
    ]:
        call = f"sharpness(cosine={cosine}, names={names}, weight={weight})"
        got = sharpness(cosine, names, weight)
        odds = math.log(weight / (1 - weight))
        right = (odds + math.log(names - 1)) / (1 - cosine)
        mistakes = {
            "what it takes against as many others as there are names: the right one is none of its own "
            "rivals": (odds + math.log(names)) / (1 - cosine),
            "what it takes against a single other name: the weights of all others add up": odds
            / (1 - cosine),
            "right for a cosine of 0: the scores differ by beta times (1 - cosine)": right * (1 - cosine),
            "smaller, and not larger, for rows that are alike: divide by (1 - cosine)": right
            * (1 - cosine) ** 2,
            "taken from the weight and not from its odds, weight / (1 - weight)": (
                math.log(weight) + math.log(names - 1)
            )
            / (1 - cosine),
            "without a logarithm: odds are the exponential of a difference of scores": (
                weight / (1 - weight) * (names - 1) / (1 - cosine)
            ),
            "with a logarithm of base 10: a softmax has base e": right / math.log(10),
        }
        explain(got, torch.tensor(right), call, {k: torch.tensor(v) for k, v in mistakes.items()})
        if isinstance(got, int | float) and got > 0:
            scores = [got] + [got * cosine] * (names - 1)
            reached = float(torch.tensor(scores, dtype=torch.float64).softmax(0)[0])
            if abs(reached - weight) > 1e-4:
                raise Wrong(
                    f"{call}\n  returned {got:.6g}, with which the right name gets {reached:.3f} of the "
                    f"weight\n  expected a weight of {weight}"
                )
        expect_close(got, right, call)


@exercise("5.3", "An induction head that copies")
def check_induction(induction: Callable[..., Any]) -> None:
    """``induction(width)``: W_Q and W_K, (2 D, D) each, that look at the word after the same word."""
    width = 64
    answer = induction(width)
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Wrong(f"induction({width})\n  returned {type(answer).__name__}\n  expected W_Q and W_K")
    for name, matrix in zip(("W_Q", "W_K"), answer, strict=True):
        if not isinstance(matrix, Tensor) or matrix.shape != (2 * width, width):
            shape = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise Wrong(f"{name} is {shape}; for rows of width {width} it should be {(2 * width, width)}")
    W_Q, W_K = (matrix.detach().double() for matrix in answer)
    rows = normal(40, width, seed=53) / width**0.5
    after, same, last = (_given_to(place, rows, W_Q, W_K) for place in ("after", "same", "last"))
    where = (
        "texts of 20 different words and then one of them again\n  of its look, the last place gives "
        f"{after:.2f} to the word after the first one of its kind"
    )
    if after >= 0.9:
        return
    if same > 0.5:
        raise Wrong(
            f"{where},\n  and {same:.2f} to its own word: make the keys of the second half of the stream, "
            "the word before."
        )
    if last > 0.5:
        raise Wrong(
            f"{where},\n  and {last:.2f} to the place just before it: the query is made of the first half "
            "of the stream, the key of the second."
        )
    if any(_given_to("after", rows, factor * W_Q, W_K) >= 0.9 for factor in (4, 16, 64)):
        raise Wrong(
            f"{where}.\n  It looks at the right place and at all others too: larger scores make a softmax "
            "sharper."
        )
    raise Wrong(f"{where}\n  expected 0.90 or more")


def _given_to(place: str, rows: Tensor, W_Q: Tensor, W_K: Tensor) -> float:
    """Mean weight that the last word of a text, met once before, gives to certain places."""
    generator, found = torch.Generator().manual_seed(54), []
    for _ in range(20):
        text = torch.randperm(len(rows), generator=generator)[:20]
        at = int(torch.randint(1, 18, (1,), generator=generator))
        weights = _look(torch.cat([text, text[at : at + 1]]), rows, W_Q, W_K)
        places = {"after": [at + 1], "same": [at, 20], "last": [19]}[place]
        found.append(float(weights[places].sum()))
    return sum(found) / len(found)


def _look(text: Tensor, rows: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    """Where the last place of a text looks, (T,), by streams of its own row and the one before."""
    own = rows[text]
    stream = torch.cat([own, torch.cat([torch.zeros_like(own[:1]), own[:-1]])], 1)  # (T, 2 D)
    scores: Tensor = (stream @ W_K) @ (stream[-1] @ W_Q)
    return scores.softmax(0)


@exercise("5.4", "The other way to copy")
def check_identity_head(identity_head: Callable[..., Any]) -> None:
    """``identity_head(x, W_Q, W_K, W_V, W_O, a, b)``: a head whose two products gain a multiple of I."""
    x = normal(7, 6, seed=55)
    W_Q, W_K, W_V = (normal(6, 4, seed=seed) / 2 for seed in (56, 57, 58))
    W_O = normal(4, 6, seed=59) / 2
    for a, b, about in [
        (0.0, 0.0, "an ordinary head"),
        (0.0, 0.7, "only the values gain"),
        (0.5, 0.0, "only the scores gain"),
        (0.5, -0.3, "both"),
    ]:
        call = f"identity_head(x, W_Q, W_K, W_V, W_O, a={a}, b={b}), x of 7 tokens: {about}"
        right = _identity_head(x, W_Q, W_K, W_V, W_O, a, b)
        got = identity_head(*(part.float() for part in (x, W_Q, W_K, W_V, W_O)), a, b)
        ordinary = _identity_head(x, W_Q, W_K, W_V, W_O, a, 0.0)
        scores = x @ (W_Q @ W_K.T) @ x.T
        alike = a * x @ x.T
        mistakes = {
            "b times the token itself: b belongs inside, so that the head copies what it looks at": ordinary
            + b * x,
            "a times the identity added to the table of scores: a I stands between x and its transpose, so "
            "it adds a x xᵀ": _mix((scores + a * torch.eye(7)) / 2, x, W_V, W_O, b),
            "without the mask: a token may not look at later ones": _mix(
                (scores + alike) / 2, x, W_V, W_O, b, causal=False
            ),
            "without the square root of the head's width": _mix(scores + alike, x, W_V, W_O, b),
            "a x xᵀ added after the division by the root of the head's width": _mix(
                scores / 2 + alike, x, W_V, W_O, b
            ),
            "scores divided by the root of the width of x, not of the head": _mix(
                (scores + alike) / 6**0.5, x, W_V, W_O, b
            ),
            "what the head does without b": ordinary,
            "what the head does without a": _identity_head(x, W_Q, W_K, W_V, W_O, 0.0, b),
        }
        explain(got, right, call, mistakes)
        expect_close(got, right, call)


def _identity_head(
    x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, a: float, b: float
) -> Tensor:
    scores = (x @ (W_Q @ W_K.T) @ x.T + a * x @ x.T) / W_Q.shape[1] ** 0.5
    return _mix(scores, x, W_V, W_O, b)


def _mix(scores: Tensor, x: Tensor, W_V: Tensor, W_O: Tensor, b: float, *, causal: bool = True) -> Tensor:
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    mixed: Tensor = scores.softmax(-1) @ x
    return mixed @ W_V @ W_O + b * mixed
