"""The exercises of chapter 2: the failure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen_lib.evaluation import generate
from unseen_lib.exercises import Wrong, exercise, expect_close
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.problems import Batch, Task, sample_batch
from unseen_lib.vocabulary import Vocabulary

_TASK = Task(family="rule_priority", predicates=(4, 6), rules=(0, 8))  # prompts of different lengths
_VOCABULARY = Vocabulary("compact", 32, 16)


# ---------------------------------------------------------------------------------------------- 2.1
@exercise("2.1", "Greedy decoding")
def check_greedy(greedy: Callable[..., Any]) -> None:
    """``greedy(model, prompt, eos, max_new_tokens)`` is the list of ids that follow the prompt."""
    adding = _Adding(8)
    for prompt, eos, most, about in [
        ([1, 2], 7, 3, "each new token depends on all tokens before it, the written ones included"),
        ([1, 2], 4, 9, "the text ends with <eos>, which belongs to it"),
        ([5], 5, 2, "the first token written is <eos>"),
        ([3, 1], 7, 1, "there is room for one token"),
    ]:
        _expect_ids(greedy, adding, prompt, eos, most, _continued(prompt, eos, most), about)
    model, batch = _random_model(), _batch()
    written = generate(
        model, batch.tokens, batch.prompt_length, vocabulary=_VOCABULARY, max_new_tokens=6, use_cache=False
    )
    for row in range(4):
        prompt = batch.tokens[row, : int(batch.prompt_length[row])].tolist()
        ids = written[row].tolist()
        wanted = ids[: ids.index(_VOCABULARY.eos) + 1] if _VOCABULARY.eos in ids else ids
        _expect_ids(greedy, model, prompt, _VOCABULARY.eos, 6, wanted, "an untrained GPT")


class _Adding(nn.Module):
    """Writes the sum of all tokens so far, modulo V: another word as soon as one of them is left out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, tokens: Tensor) -> Tensor:
        return F.one_hot(tokens.cumsum(1) % self.size, self.size).float()


def _continued(prompt: Sequence[int], eos: int, most: int) -> list[int]:
    """What `_Adding` of size 8 writes."""
    written: list[int] = []
    while len(written) < most and eos not in written:
        written.append((sum(prompt) + sum(written)) % 8)
    return written


def _expect_ids(
    greedy: Callable[..., Any],
    model: nn.Module,
    prompt: list[int],
    eos: int,
    most: int,
    wanted: list[int],
    about: str,
) -> None:
    given = list(prompt)
    got = greedy(model, given, eos, most)
    call = f"greedy(model, prompt={prompt}, eos={eos}, max_new_tokens={most})"
    if given != prompt:  # first, as the result is then often wrong for this reason
        raise Wrong(f"{call}\n  changed the prompt it was given to {given}: work on a copy.")
    if not isinstance(got, list) or not all(isinstance(token, int) for token in got):
        raise Wrong(f"{call}\n  returned {got!r}\n  expected a list of int, {wanted}: use .item() or int().")
    if got == wanted:
        return
    if got == prompt + wanted:
        hint = "return only what follows the prompt"
    elif got == wanted[:-1]:
        hint = "the last token is missing"
    elif got[: len(wanted)] == wanted:
        hint = "it goes on after <eos>, or writes more than max_new_tokens"
    else:
        hint = "for each token the model must read the whole text again; only the logits at its end count"
    raise Wrong(f"{call}: {about}.\n  returned {got}\n  expected {wanted}\n  Look here: {hint}.")


# ---------------------------------------------------------------------------------------------- 2.2
@exercise("2.2", "What an answer is worth")
def check_score(score: Callable[..., Any]) -> None:
    """``score(said, truth)`` is (answer accuracy, the same over true queries, chance)."""
    yes, no = True, False
    examples: list[tuple[list[bool | None], list[bool], str]] = [
        ([yes, no, no, yes], [yes, no, yes, no], "two of four are right, one of the two true queries"),
        ([no, no, no, no], [yes, no, no, no], "always no: as good as chance, and no true query is right"),
        ([yes, yes, yes], [yes, yes, no], "always yes: every true query is right"),
        ([None, None, no], [yes, no, no], "no answer is never right, also not where no would be"),
    ]
    rng = random.Random(22)
    for _ in range(50):
        said = [rng.choice((yes, no, None)) for _ in range(9)]
        examples.append((said, [True, *rng.choices((yes, no), k=8)], "a random example"))
    for said, truth, about in examples:
        _expect_shares(score(list(said), list(truth)), said, truth, about)


_SHARES = ("accuracy", "accuracy over true queries", "chance")


def _expect_shares(got: object, said: Sequence[bool | None], truth: Sequence[bool], about: str) -> None:
    right = [answer is fact for answer, fact in zip(said, truth, strict=True)]
    true = [ok for ok, fact in zip(right, truth, strict=True) if fact]
    share = sum(truth) / len(truth)
    wanted = (sum(right) / len(right), sum(true) / len(true), max(share, 1 - share))
    call = f"said:  {_column(said)}\ntruth: {_column(truth)}\nscore(said, truth)"
    if not isinstance(got, tuple) or len(got) != 3:
        raise Wrong(f"{call}\n  returned {got!r}\n  expected three numbers, ({', '.join(_SHARES)})")
    for name, number, target in zip(_SHARES, got, wanted, strict=True):
        if isinstance(number, int | float) and math.isclose(number, target, abs_tol=1e-6):
            continue
        hint = about
        if name == "chance":
            hint = "chance is what the better of 'always yes' and 'always no' reaches on these queries"
        raise Wrong(f"{call}: the {name} is {number!r}, expected {target:.4f}: {hint}.")


def _column(answers: Sequence[bool | None]) -> str:
    return " ".join({True: "yes", False: "no ", None: "-  "}[answer] for answer in answers).rstrip()


# ---------------------------------------------------------------------------------------------- 2.3
@exercise("2.3", "How far from being written")
def check_rank_of_first(rank_of_first: Callable[..., Any]) -> None:
    """``rank_of_first(logits, targets, prompt_length)`` counts the words ahead of the first one due."""
    logits = torch.tensor([[[0.0, 0.0, 9.0, 0.0], [1.0, 4.0, 3.0, 2.0], [9.0, 0.0, 0.0, 0.0]]])
    for due, rank in [(1, 0), (2, 1), (3, 2), (0, 3)]:
        targets, length = torch.tensor([[-100, due, 0]]), torch.tensor([2])
        about = (
            f"one problem, prompt of 2 words, logits at its end {logits[0, 1].tolist()}, word {due} is due"
        )
        _expect_ranks(rank_of_first(logits.clone(), targets, length), torch.tensor([rank]), about)
    model, batch = _random_model(), _batch()
    with torch.inference_mode():
        logits = model(batch.tokens)
    got = rank_of_first(logits.clone(), batch.targets.clone(), batch.prompt_length.clone())
    _expect_ranks(got, _ranks(logits, batch), f"an untrained GPT, logits of shape {tuple(logits.shape)}")


def _ranks(logits: Tensor, batch: Batch) -> Tensor:
    rows, place = torch.arange(len(logits)), batch.prompt_length - 1
    at = logits[rows, place]  # (B, V)
    due = at.gather(1, batch.targets[rows, place][:, None])  # (B, 1)
    return (at > due).sum(1)


def _expect_ranks(got: object, wanted: Tensor, about: str) -> None:
    if isinstance(got, Tensor) and got.shape == wanted.shape and torch.equal(got, wanted + 1):
        raise Wrong(
            f"{about}\n  all ranks are too large by one: count only the words that are strictly ahead."
        )
    expect_close(got, wanted, f"{about}\nrank_of_first(logits, targets, prompt_length)")


def _random_model() -> GPT:
    config = GPTConfig(_VOCABULARY.size, width=16, layers=2, heads=2, mlp_width=16, context=64)
    return GPT(config, torch.Generator().manual_seed(2)).eval()


def _batch() -> Batch:
    return sample_batch(_TASK, _VOCABULARY, batch_size=16, seed=2, index=0, stream="test")
