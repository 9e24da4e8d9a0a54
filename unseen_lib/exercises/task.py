"""The exercises of chapter 1: the task."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from unseen_lib.exercises import Wrong, exercise
from unseen_lib.logic import Problem, Proof, Rule, Step, check_proof, prove
from unseen_lib.problems import IGNORE, Task, problem_of, sample_batch
from unseen_lib.vocabulary import Vocabulary

_HORN = Task(family="rule_priority", predicates=(4, 7), rules=(0, 12))


@exercise("1.1", "How deep is a query?")
def check_depth(depth: Callable[..., Any]) -> None:
    """``depth(problem)`` is the number of rounds until the query is known, or None if it never is."""
    chain = (Rule(("a",), "b"), Rule(("b",), "c"))
    circle = (Rule(("b",), "c"), Rule(("c",), "b"))
    diamond = (Rule(("a",), "b"), Rule(("a",), "c"), Rule(("b", "c"), "d"))
    for problem, wanted, about in [
        (Problem(chain, ("a",), "a"), 0, "a given fact is known before the first round"),
        (Problem(chain, ("a",), "b"), 1, "one round makes b known"),
        (Problem(chain, ("a",), "c"), 2, "a round uses what was known when it began, so c has to wait for b"),
        (Problem(tuple(reversed(chain)), ("a",), "c"), 2, "the order of the rules does not matter"),
        (Problem(diamond, ("a",), "d"), 2, "b and c come in one round"),
        (Problem((Rule(("a", "b"), "c"),), ("a",), "c"), None, "a rule needs every symbol of its body"),
        (Problem(circle, ("a",), "c"), None, "b and c only lead to each other"),
    ]:
        _expect_depth(depth(problem), wanted, problem, about)
    vocabulary = Vocabulary("compact", 32, 0)
    batch = sample_batch(_HORN, vocabulary, batch_size=300, seed=10, index=0)
    for row in range(300):
        wanted = int(batch.depth[row]) if batch.answer[row] else None
        problem = problem_of(batch, row, vocabulary)
        _expect_depth(depth(problem), wanted, problem, "the sampler counts these rounds")


def _expect_depth(got: object, wanted: int | None, problem: Problem, about: str) -> None:
    if got == wanted and type(got) is type(wanted):
        return
    drawing = f"rules: {_drawn(problem.rules)}\nfacts: {_listed(problem.facts)}\nquery: {problem.query}"
    raise Wrong(f"{drawing}\n  depth returned {got!r}, expected {wanted!r}: {about}.")


@exercise("1.2", "Where a proof goes wrong")
def check_first_wrong_step(first_wrong_step: Callable[..., Any]) -> None:
    """``first_wrong_step(problem, symbols)`` is the index of the first wrong symbol, or None."""
    problem = Problem((Rule(("a", "b"), "c"), Rule(("c",), "d")), ("a", "b"), "d")
    for text, wanted, about in [
        ("a b c d", None, "every symbol is given or follows from those before it"),
        ("b a c d", None, "the given facts may come in any order"),
        ("a b d", 2, "d needs c, which does not stand before it"),
        ("a c b d", 1, "c needs b, which is a given fact but is not stated yet"),
        ("a b c e", 3, "no rule gives e"),
        ("", None, "an empty list has no wrong step"),
    ]:
        symbols: list[Any] = text.split()
        _expect_step(first_wrong_step(problem, list(symbols)), wanted, problem, symbols, about)
    rng = random.Random(12)
    for problem in _random_problems(200):
        symbols = [step.new for step in prove(problem, rng=rng).compact().steps]
        if len(symbols) > 1 and rng.random() < 0.5:
            symbols.pop(rng.randrange(len(symbols)))
        got, wanted = first_wrong_step(problem, list(symbols)), _first_wrong_step(problem, symbols)
        _expect_step(got, wanted, problem, symbols, "a symbol left out spoils those that rest on it")


def _first_wrong_step(problem: Problem, symbols: list[Any]) -> int | None:
    """The library's checker, used on each beginning of the list: the answer no is wrong only at the end."""
    for i in range(len(symbols)):
        verdict = check_proof(problem, Proof(tuple(Step(symbol) for symbol in symbols[: i + 1]), False))
        if verdict.step is not None and verdict.step <= i:
            return i
    return None


def _expect_step(got: object, wanted: int | None, problem: Problem, symbols: list[Any], about: str) -> None:
    if got == wanted and type(got) is type(wanted):
        return
    drawing = f"rules:   {_drawn(problem.rules)}\nfacts:   {_listed(problem.facts)}\n"
    drawing += f"symbols: {_listed(symbols)}"
    if wanted is not None:
        before = sum(len(str(symbol)) + 1 for symbol in symbols[:wanted])
        drawing += f"\n         {' ' * before}{'^' * len(str(symbols[wanted]))} first wrong step"
    raise Wrong(f"{drawing}\n  returned {got!r}, expected {wanted!r}: {about}.")


@exercise("1.3", "The same problem under other names")
def check_rename(rename: Callable[..., Any]) -> None:
    """``rename(problem, names)`` replaces every symbol that has an entry in ``names``, and no other."""
    problem = Problem((Rule(("a", "b"), "c"), Rule(("c",), "d")), ("a", "b"), "d")
    swap = {"a": "c", "c": "a"}
    for names, about in [
        ({"d": "Q"}, "only d has a new name, and it is the query and the head of a rule"),
        (dict(zip("abcd", "WXYZ", strict=True)), "every symbol has a new name"),
        (swap, "two symbols change places: names replaced one after the other would meet again"),
        ({}, "nothing has a new name"),
    ]:
        got = rename(problem, dict(names))
        _expect_problem(got, _renamed(problem, names), f"rename(problem, {names})", about)
    for random_problem in _random_problems(100):
        new_names: dict[Any, str] = {symbol: f"N{i}" for i, symbol in enumerate(random_problem.symbols)}
        got = rename(random_problem, dict(new_names))
        _expect_problem(
            got, _renamed(random_problem, new_names), "rename(problem, names)", "a random problem"
        )


def _renamed(problem: Problem, names: dict[Any, str]) -> Problem:
    def renamed(symbols: Iterable[Hashable]) -> tuple[Hashable, ...]:
        return tuple(names.get(symbol, symbol) for symbol in symbols)

    rules = tuple(Rule(renamed(rule.body), *renamed([rule.head])) for rule in problem.rules)
    return Problem(rules, renamed(problem.facts), *renamed([problem.query]))


def _expect_problem(got: object, wanted: Problem, call: str, about: str) -> None:
    if not isinstance(got, Problem):
        raise Wrong(f"{call}\n  returned {got!r}\n  expected a Problem")
    parts = [
        ("rules", _drawn(got.rules), _drawn(wanted.rules)),
        ("facts", _listed(got.facts), _listed(wanted.facts)),
        ("query", str(got.query), str(wanted.query)),
    ]
    for part, found, right in parts:
        if found != right:
            raise Wrong(f"{call}: {about}.\n  its {part}: {found}\n  expected: {right}")


@exercise("1.4", "Where the loss looks")
def check_loss_mask(loss_mask: Callable[..., Any]) -> None:
    """``loss_mask(prompt_length, length, T)``, (B, T), is true where the target is in the completion."""
    examples = [(torch.tensor([3]), torch.tensor([6]), 5), (torch.tensor([3, 2]), torch.tensor([6, 4]), 5)]
    for prompt_length, length, width in examples:
        position = torch.arange(1, width + 1)
        wanted = (position >= prompt_length[:, None]) & (position < length[:, None])
        _expect_mask(loss_mask(prompt_length.clone(), length.clone(), width), wanted, prompt_length, length)
    batch = sample_batch(Task(), Vocabulary("compact", 32, 16), batch_size=32, seed=1, index=0)
    wanted = batch.targets != IGNORE
    width, length = wanted.shape[1], batch.prompt_length + wanted.sum(1)
    got = loss_mask(batch.prompt_length.clone(), length.clone(), width)
    _expect_mask(got, wanted, batch.prompt_length, length)


def _expect_mask(got: object, wanted: Tensor, prompt_length: Tensor, length: Tensor) -> None:
    call = f"loss_mask(prompt_length, length, T={wanted.shape[1]})"
    if not isinstance(got, Tensor):
        raise Wrong(f"{call}\n  returned {got!r}\n  expected a tensor of bool, shape {tuple(wanted.shape)}")
    if got.shape != wanted.shape or got.dtype != torch.bool:
        expected = f"torch.bool, shape {tuple(wanted.shape)}"
        raise Wrong(f"{call}\n  returned {got.dtype}, shape {tuple(got.shape)}\n  expected {expected}")
    for row in range(len(wanted)):
        if not torch.equal(got[row], wanted[row]):
            at = f"row {row}: prompt_length={prompt_length[row]}, length={length[row]}"
            if _is_shifted(got[row], wanted[row]):
                at += " (off by one: the target at position t is word t + 1)"
            raise Wrong(f"{call}, {at}\n  returned {_bar(got[row])}\n  expected {_bar(wanted[row])}")


def _is_shifted(got: Tensor, wanted: Tensor) -> bool:
    return torch.equal(got[1:], wanted[:-1]) or torch.equal(got[:-1], wanted[1:])


def _bar(mask: Tensor) -> str:
    return "".join("#" if value else "." for value in mask.tolist())


def _random_problems(count: int) -> Iterator[Problem]:
    """Small problems with rules of several premises, under the names of a vocabulary."""
    vocabulary = Vocabulary("compact", 32, 0)
    batch = sample_batch(_HORN, vocabulary, batch_size=count, seed=11, index=0)
    return (problem_of(batch, row, vocabulary) for row in range(count))


def _drawn(rules: Iterable[Rule]) -> str:
    return ", ".join(f"{_listed(rule.body)} → {rule.head}" for rule in rules) or "none"


def _listed(symbols: Iterable[Hashable]) -> str:
    """In their order; a set in sorted order."""
    words = [str(symbol) for symbol in symbols]
    return " ".join(sorted(words) if isinstance(symbols, set) else words) or "none"
