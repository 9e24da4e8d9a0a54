"""What differs from course to course in assignment 1."""

from __future__ import annotations

import random

from unseen_lib.logic import Problem, closure
from unseen_lib.problems import Task, problem_of, sample_batch
from unseen_lib.vocabulary import Vocabulary


def public(rng: random.Random) -> dict[str, object]:
    """A problem of four or five rounds with some distractors, and what each round adds."""
    vocabulary = Vocabulary("compact", seen=2000, unseen=0)
    task = Task("rule_priority", "compact", predicates=(11, 11), rules=(12, 12), depth=(4, 5))
    batch = sample_batch(task, vocabulary, batch_size=64, seed=rng.randrange(10**6), index=0)
    problems = [problem_of(batch, row, vocabulary) for row in range(64) if batch.answer[row]]
    # Enough to do by hand, and something left that does not follow.
    fitting = [p for p in problems if 7 <= len(closure(p)) < len(p.symbols) and len(p.facts) <= 4]
    problem = rng.choice(fitting)
    return {"problem": _written(problem), "rounds": _rounds(problem)}


def secret(rng: random.Random) -> dict[str, object]:
    """Seeds of the hidden checks, and the names in them."""
    seeds = ("secret_levels", "secret_length", "secret_detours", "secret_shortest", "secret_witness")
    values: dict[str, object] = {name: rng.randrange(10**9, 10**10) for name in seeds}
    letters = "bdgklmnprstvz"
    names = ["".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(4)) for _ in range(5)]
    return values | {"secret_names": names}


def _rounds(problem: Problem) -> list[set[str]]:
    known, rounds = set(problem.facts), []
    while new := {rule.head for rule in problem.rules if set(rule.body) <= known} - known:
        rounds.append({str(name) for name in new})
        known |= new
    return rounds


def _written(problem: Problem) -> str:
    """The problem as code."""
    rules = "".join(f"        Rule({rule.body!r}, {rule.head!r}),\n" for rule in problem.rules)
    return (
        f"Problem(\n    rules=(\n{rules}    ),\n    facts={problem.facts!r},\n    query={problem.query!r},\n)"
    )
