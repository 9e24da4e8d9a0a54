"""The checks of chapter 5: plausible wrong answers are called wrong, with a message that helps."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import told
from torch import Tensor

from unseen_lib.exercises import copying

Answer = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ 5.1
def pointed(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    return weights.new_zeros(len(weights), vocab_size).scatter_add_(1, tokens, weights)


def assigned(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    words = weights.new_zeros(len(weights), vocab_size)
    for b in range(len(weights)):
        for s in range(tokens.shape[1]):
            words[b, tokens[b, s]] = weights[b, s]
    return words


def averaged(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    words = weights.new_zeros(len(weights), vocab_size)
    return words.scatter_reduce(1, tokens, weights, "mean", include_self=False)


def counted(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    return F.one_hot(tokens, vocab_size).sum(1)


def in_one_heap(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    return pointed(weights, tokens, vocab_size).sum(0).expand(len(weights), -1)


def into_plain_zeros(weights: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    return torch.zeros(len(weights), vocab_size).scatter_add_(1, tokens, weights)


@pytest.mark.parametrize("answer", [pointed, into_plain_zeros])
def test_pointed_has_a_right_answer(answer: Answer) -> None:
    assert copying.check_pointed(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (assigned, "a later one has replaced the others"),
        (averaged, "has the weight of both"),
        (counted, "whatever the weights"),
        (in_one_heap, "keep them apart"),
        (lambda *given: pointed(*given).softmax(-1), "add up to 1 already"),
        (lambda weights, tokens, size: weights, "returned shape (1, 3)"),
        (lambda *given: None, "end with a return"),
        (lambda weights, tokens, size: tokens[weights], "Your code raised"),
    ],
)
def test_pointed(answer: Answer, says: str) -> None:
    told(copying.check_pointed(answer), says)


# ------------------------------------------------------------------------------------------------ 5.2
def sharpness(cosine: float, names: int, weight: float) -> float:
    return math.log(weight / (1 - weight) * (names - 1)) / (1 - cosine)


def one_too_many(cosine: float, names: int, weight: float) -> float:
    return sharpness(cosine, names + 1, weight)


def one_rival(cosine: float, names: int, weight: float) -> float:
    return sharpness(cosine, 2, weight)


def without_the_rows(cosine: float, names: int, weight: float) -> float:
    return sharpness(0.0, names, weight)


def upside_down(cosine: float, names: int, weight: float) -> float:
    return sharpness(0.0, names, weight) * (1 - cosine)


def of_the_weight(cosine: float, names: int, weight: float) -> float:
    return math.log(weight * (names - 1)) / (1 - cosine)


@pytest.mark.parametrize("answer", [sharpness, lambda *given: torch.tensor(sharpness(*given))])
def test_sharpness_has_a_right_answer(answer: Answer) -> None:
    assert copying.check_sharpness(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (one_too_many, "none of its own rivals"),
        (one_rival, "the weights of all others add up"),
        (without_the_rows, "right for a cosine of 0"),
        (upside_down, "divide by (1 - cosine)"),
        (of_the_weight, "from its odds"),
        (lambda *given: math.exp(sharpness(*given)), "returned"),
        (lambda c, n, w: w / (1 - w) * (n - 1) / (1 - c), "without a logarithm"),
        (lambda *given: sharpness(*given) / math.log(10), "base e"),
        (lambda *given: 2 * sharpness(*given), "of the weight\n  expected a weight of 0.75"),
    ],
)
def test_sharpness(answer: Answer, says: str) -> None:
    told(copying.check_sharpness(answer), says)


# ------------------------------------------------------------------------------------------------ 5.3
def induction(
    width: int, *, query: str = "own", key: str = "before", sharp: float = 30
) -> tuple[Tensor, Tensor]:
    """The right answer, with a switch for each way to get it wrong."""
    one, none = torch.eye(width), torch.zeros(width, width)
    halves = {"own": torch.cat([one, none]), "before": torch.cat([none, one]), "both": torch.cat([one, one])}
    return sharp * halves[query], halves[key]


@pytest.mark.parametrize("sharp", [30, 300])
def test_induction_has_a_right_answer(sharp: float) -> None:
    assert copying.check_induction(lambda width: induction(width, sharp=sharp)).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda width: induction(width, key="own"), "to its own word"),
        (lambda width: induction(width, query="before", key="own"), "just before it"),
        (lambda width: induction(width, sharp=1), "larger scores make a softmax sharper"),
        (lambda width: induction(width, sharp=-30), "expected 0.90 or more"),
        (lambda width: induction(width, key="both"), "to its own word"),
        (lambda width: [matrix.T for matrix in induction(width)], "W_Q is (64, 128)"),
        (lambda width: induction(width)[0], "expected W_Q and W_K"),
        (lambda width: None, "expected W_Q and W_K"),
    ],
)
def test_induction(answer: Answer, says: str) -> None:
    told(copying.check_induction(answer), says)


# ------------------------------------------------------------------------------------------------ 5.4
def identity_head(
    x: Tensor,
    W_Q: Tensor,
    W_K: Tensor,
    W_V: Tensor,
    W_O: Tensor,
    a: float,
    b: float,
    *,
    alike: str = "products",
    copied: str = "mixed",
    causal: bool = True,
    scaled_by: float | None = None,
) -> Tensor:
    """The right answer, with a switch for each way to get it wrong."""
    scores = x @ W_Q @ (x @ W_K).T
    scores = scores + a * (x @ x.T if alike == "products" else torch.eye(len(x)))
    scores = scores / (W_Q.shape[1] if scaled_by is None else scaled_by) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    mixed = scores.softmax(-1) @ x
    return mixed @ W_V @ W_O + b * (mixed if copied == "mixed" else x)


def with_eyes(x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, a: float, b: float) -> Tensor:
    eye = torch.eye(x.shape[1])
    scores = (x @ W_Q @ W_K.T @ x.T + x @ (a * eye) @ x.T) / W_Q.shape[1] ** 0.5
    mixed = (scores + torch.full((len(x), len(x)), -torch.inf).triu(1)).softmax(-1) @ x
    return mixed @ W_V @ W_O + mixed @ (b * eye)


@pytest.mark.parametrize("answer", [identity_head, with_eyes])
def test_identity_head_has_a_right_answer(answer: Answer) -> None:
    assert copying.check_identity_head(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: identity_head(*given, copied="x"), "copies what it looks at"),
        (lambda *given: identity_head(*given, alike="eye"), "adds a x xᵀ"),
        (lambda *given: identity_head(*given, causal=False), "without the mask"),
        (lambda *given: identity_head(*given, scaled_by=1), "without the square root"),
        (lambda *given: identity_head(*given, scaled_by=6), "not of the head"),
        (lambda *given: identity_head(*given[:-1], 0.0), "without b"),
        (lambda *given: identity_head(*given[:-2], 0.0, given[-1]), "without a"),
        (lambda *given: identity_head(*given)[0], "returned shape (6,)"),
    ],
)
def test_identity_head(answer: Answer, says: str) -> None:
    told(copying.check_identity_head(answer), says)
