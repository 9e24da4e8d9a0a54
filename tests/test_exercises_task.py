"""Chapter 1: plausible wrong solutions are found out, with a message that helps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unseen_lib.exercises import task
from unseen_lib.logic import Problem, Rule


# ---- 1.1 ----
def depth_in_steps(problem: Problem) -> int | None:
    known, steps = set(problem.facts), 0
    while problem.query not in known:
        rule = next((r for r in problem.rules if r.head not in known and set(r.body) <= known), None)
        if rule is None:
            return None
        known.add(rule.head)
        steps += 1
    return steps


def depth_from_one(problem: Problem) -> int | None:
    known, rounds = set(problem.facts), 1
    while problem.query not in known:
        new = {r.head for r in problem.rules if set(r.body) <= known} - known
        if not new:
            return None
        known, rounds = known | new, rounds + 1
    return rounds


def depth_growing_within_a_round(problem: Problem) -> int | None:
    known, rounds = set(problem.facts), 0
    while problem.query not in known:
        before = len(known)
        for rule in problem.rules:
            if set(rule.body) <= known:
                known.add(rule.head)
        if len(known) == before:
            return None
        rounds += 1
    return rounds


def depth_by_any_premise(problem: Problem) -> int | None:
    known, rounds = set(problem.facts), 0
    while problem.query not in known:
        new = {r.head for r in problem.rules if set(r.body) & known} - known
        if not new:
            return None
        known, rounds = known | new, rounds + 1
    return rounds


def depth_until_rest(problem: Problem) -> int | None:
    known, rounds = set(problem.facts), 0
    while problem.query not in known:
        new = {r.head for r in problem.rules if set(r.body) <= known} - known
        if not new:
            return rounds
        known, rounds = known | new, rounds + 1
    return rounds


# ---- 1.2 ----
def step_with_facts_stated(problem: Problem, symbols: list[str]) -> int | None:
    stated = set(problem.facts)
    for i, symbol in enumerate(symbols):
        follows = any(r.head == symbol and set(r.body) <= stated for r in problem.rules)
        if symbol not in stated and not follows:
            return i
        stated.add(symbol)
    return None


def step_with_any_order(problem: Problem, symbols: list[str]) -> int | None:
    for i, symbol in enumerate(symbols):
        if symbol not in problem.facts and not any(
            r.head == symbol and set(r.body) <= set(symbols) for r in problem.rules
        ):
            return i
    return None


def step_with_zero_for_none(problem: Problem, symbols: list[str]) -> int | None:
    stated: set[str] = set()
    for i, symbol in enumerate(symbols):
        if symbol not in problem.facts and not any(
            r.head == symbol and set(r.body) <= stated for r in problem.rules
        ):
            return i
        stated.add(symbol)
    return 0


def step_with_first_rule_only(problem: Problem, symbols: list[str]) -> int | None:
    stated: set[str] = set()
    for i, symbol in enumerate(symbols):
        rule = next((r for r in problem.rules if r.head == symbol), None)
        if symbol not in problem.facts and (rule is None or not set(rule.body) <= stated):
            return i
        stated.add(symbol)
    return None


# ---- 1.3 ----
def rename_without_query(problem: Problem, names: dict[str, str]) -> Problem:
    right = rename(problem, names)
    return Problem(right.rules, right.facts, problem.query)


def rename_only_query(problem: Problem, names: dict[str, str]) -> Problem:
    return Problem(problem.rules, problem.facts, names.get(problem.query, problem.query))


def rename_one_after_the_other(problem: Problem, names: dict[str, str]) -> Problem:
    for old, new in names.items():
        problem = rename(problem, {old: new})
    return problem


def rename_all_required(problem: Problem, names: dict[str, str]) -> Problem:
    rules = tuple(Rule(tuple(names[s] for s in r.body), names[r.head]) for r in problem.rules)
    return Problem(rules, tuple(names[s] for s in problem.facts), names[problem.query])


def rename(problem: Problem, names: dict[str, str]) -> Problem:
    def new(symbols: Any) -> tuple[Any, ...]:
        return tuple(names.get(s, s) for s in symbols)

    rules = tuple(Rule(new(r.body), *new([r.head])) for r in problem.rules)
    return Problem(rules, new(problem.facts), *new([problem.query]))


# ---- 1.4 ----
def mask_of_tokens(prompt_length: torch.Tensor, length: torch.Tensor, T: int) -> torch.Tensor:
    position = torch.arange(T)
    return (position >= prompt_length[:, None]) & (position < length[:, None])


def mask_with_padding(prompt_length: torch.Tensor, length: torch.Tensor, T: int) -> torch.Tensor:
    return torch.arange(1, T + 1) >= prompt_length[:, None]


def mask_without_end(prompt_length: torch.Tensor, length: torch.Tensor, T: int) -> torch.Tensor:
    target = torch.arange(1, T + 1)
    return (target >= prompt_length[:, None]) & (target < length[:, None] - 1)


def mask_of_floats(prompt_length: torch.Tensor, length: torch.Tensor, T: int) -> torch.Tensor:
    target = torch.arange(1, T + 1)
    return ((target >= prompt_length[:, None]) & (target < length[:, None])).float()


def mask_turned(prompt_length: torch.Tensor, length: torch.Tensor, T: int) -> torch.Tensor:
    target = torch.arange(1, T + 1)[:, None]
    return (target >= prompt_length) & (target < length)


@pytest.mark.parametrize(
    ("check", "answer", "phrase"),
    [
        (task.check_depth, depth_in_steps, "b and c come in one round"),
        (task.check_depth, depth_from_one, "known before the first round"),
        (task.check_depth, depth_growing_within_a_round, "c has to wait for b"),
        (task.check_depth, depth_by_any_premise, "every symbol of its body"),
        (task.check_depth, depth_until_rest, "expected None"),
        (task.check_depth, lambda problem: None, "expected 0"),
        (task.check_first_wrong_step, step_with_facts_stated, "not stated yet"),
        (task.check_first_wrong_step, step_with_any_order, "not stated yet"),
        (task.check_first_wrong_step, step_with_zero_for_none, "returned 0, expected None"),
        (task.check_first_wrong_step, step_with_first_rule_only, "expected None"),
        (task.check_first_wrong_step, lambda problem, symbols: None, "^ first wrong step"),
        (task.check_rename, rename_without_query, "its query: d\n  expected: Q"),
        (task.check_rename, rename_only_query, "its rules: a b → c, c → d\n  expected: a b → c, c → Q"),
        (task.check_rename, rename_one_after_the_other, "two symbols change places"),
        (task.check_rename, rename_all_required, "KeyError"),
        (task.check_rename, lambda problem, names: names, "expected a Problem"),
        (task.check_loss_mask, mask_of_tokens, "off by one"),
        (task.check_loss_mask, mask_with_padding, "returned .####\n  expected .##.."),
        (task.check_loss_mask, mask_without_end, "returned ..##.\n  expected ..###"),
        (task.check_loss_mask, mask_of_floats, "expected torch.bool"),
        (task.check_loss_mask, mask_turned, "returned torch.bool, shape (5, 1)"),
    ],
)
def test_a_plausible_wrong_solution_is_found_out(
    check: Callable[..., Any], answer: Callable[..., Any], phrase: str
) -> None:
    result = check(answer)
    assert result.status == "wrong"
    assert phrase in result.message
