"""Chapter 2: plausible wrong solutions are found out, with a message that helps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from unseen_lib.exercises import failure


# ---- 2.1 ----
def _greedy(
    model: Any, prompt: list[int], eos: int, most: int, reads: Callable[[list[int]], list[int]]
) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + most:
        ids.append(int(model(torch.tensor([reads(ids)]))[0, -1].argmax()))
        if ids[-1] == eos:
            break
    return ids[len(prompt) :]


def greedy_right(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return _greedy(model, prompt, eos, most, lambda ids: ids)


def greedy_last_token_only(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return _greedy(model, prompt, eos, most, lambda ids: ids[-1:])


def greedy_all_at_once(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return [int(token) for token in model(torch.tensor([prompt]))[0].argmax(-1)][:most]


def greedy_with_prompt(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return prompt + greedy_right(model, prompt, eos, most)


def greedy_without_eos(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return [token for token in greedy_right(model, prompt, eos, most) if token != eos]


def greedy_never_ends(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return greedy_right(model, prompt, -1, most)


def greedy_one_too_many(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    return greedy_right(model, prompt, eos, most + 1)


def greedy_in_place(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    written = greedy_right(model, prompt, eos, most)
    prompt += written
    return written


def greedy_no_copy(model: Any, prompt: list[int], eos: int, most: int) -> list[int]:
    ids = prompt
    for _ in range(most):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == eos:
            break
    return ids[len(prompt) :]  # always empty: both are one list


def greedy_tensors(model: Any, prompt: list[int], eos: int, most: int) -> list[Tensor]:
    return [torch.tensor(token) for token in greedy_right(model, prompt, eos, most)]


# ---- 2.2 ----
Answers, Shares = list[bool | None], tuple[float, float, float]


def score_right(said: Answers, truth: list[bool]) -> Shares:
    right = [answer is fact for answer, fact in zip(said, truth, strict=True)]
    share = sum(truth) / len(truth)
    return (
        sum(right) / len(right),
        sum(r and t for r, t in zip(right, truth, strict=True)) / sum(truth),
        max(share, 1 - share),
    )


def score_silence_is_no(said: Answers, truth: list[bool]) -> Shares:
    return score_right([bool(answer) for answer in said], truth)


def score_true_over_all(said: Answers, truth: list[bool]) -> Shares:
    accuracy, on_true, chance = score_right(said, truth)
    return accuracy, on_true * sum(truth) / len(truth), chance


def score_fixed_chance(said: Answers, truth: list[bool]) -> Shares:
    return *score_right(said, truth)[:2], 0.5


def score_chance_of_yes(said: Answers, truth: list[bool]) -> Shares:
    return *score_right(said, truth)[:2], sum(truth) / len(truth)


def score_two_numbers(said: Answers, truth: list[bool]) -> tuple[float, ...]:
    return score_right(said, truth)[:2]


# ---- 2.3 ----
def rank_right(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    rows = torch.arange(len(logits))
    at, due = logits[rows, prompt_length - 1], targets[rows, prompt_length - 1]
    return (at > at[rows, due][:, None]).sum(1)


def rank_one_too_late(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    rows = torch.arange(len(logits))
    at, due = logits[rows, prompt_length], targets[rows, prompt_length]
    return (at > at[rows, due][:, None]).sum(1)


def rank_from_one(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    return rank_right(logits, targets, prompt_length) + 1


def rank_by_argsort(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    rows = torch.arange(len(logits))
    order = logits[rows, prompt_length - 1].argsort(dim=1, descending=True)
    return order[rows, targets[rows, prompt_length - 1]]


def rank_from_below(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    return logits.shape[-1] - 1 - rank_right(logits, targets, prompt_length)


def rank_first_length_for_all(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    at = int(prompt_length[0]) - 1
    return (logits[:, at] > logits[:, at].gather(1, targets[:, at : at + 1].clamp(min=0))).sum(1)


def rank_of_the_mean(logits: Tensor, targets: Tensor, prompt_length: Tensor) -> Tensor:
    return rank_right(logits, targets, prompt_length).float().mean()


WRONG = [
    (failure.check_greedy, greedy_last_token_only, "read the whole text again"),
    (failure.check_greedy, greedy_all_at_once, "read the whole text again"),
    (failure.check_greedy, greedy_with_prompt, "only what follows the prompt"),
    (failure.check_greedy, greedy_without_eos, "the last token is missing"),
    (failure.check_greedy, greedy_never_ends, "goes on after <eos>"),
    (failure.check_greedy, greedy_one_too_many, "writes more than max_new_tokens"),
    (failure.check_greedy, greedy_in_place, "changed the prompt"),
    (failure.check_greedy, greedy_no_copy, "changed the prompt"),
    (failure.check_greedy, greedy_tensors, "expected a list of int"),
    (failure.check_score, score_silence_is_no, "no answer is never right"),
    (failure.check_score, score_true_over_all, "accuracy over true queries is"),
    (failure.check_score, score_fixed_chance, "the better of 'always yes' and 'always no'"),
    (failure.check_score, score_chance_of_yes, "the better of 'always yes' and 'always no'"),
    (failure.check_score, score_two_numbers, "expected three numbers"),
    (failure.check_rank_of_first, rank_one_too_late, "prompt of 2"),
    (failure.check_rank_of_first, rank_from_one, "too large by one"),
    (failure.check_rank_of_first, rank_by_argsort, "expected"),
    (failure.check_rank_of_first, rank_from_below, "expected 0"),
    (failure.check_rank_of_first, rank_first_length_for_all, "places that differ"),
    (failure.check_rank_of_first, rank_of_the_mean, "expected shape"),
]


@pytest.mark.parametrize(
    ("check", "answer", "phrase"), WRONG, ids=[answer.__name__ for _, answer, _ in WRONG]
)
def test_a_wrong_solution_is_told_why(check: Callable[[Any], Any], answer: Any, phrase: str) -> None:
    result = check(answer)
    assert result.status == "wrong"
    assert phrase in result.message


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (failure.check_greedy, greedy_right),
        (failure.check_score, score_right),
        (failure.check_rank_of_first, rank_right),
    ],
)
def test_another_right_solution_passes(check: Callable[[Any], Any], answer: Any) -> None:
    assert check(answer)
