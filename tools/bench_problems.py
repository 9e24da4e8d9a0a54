"""How fast problems are made: all of a batch at once, and one by one by a plain sampler of the same recipe.

Run it as ``python -m tools.bench_problems``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch.nn.utils.rnn import pad_sequence

from unseen_lib.language import write_problem, write_proof
from unseen_lib.logic import Problem, Proof, Rule, closure, prove
from unseen_lib.problems import IGNORE, Task, sample_batch
from unseen_lib.vocabulary import Vocabulary

SIZES = {
    "cpu": (Task(family="chain", format="compact"), 512, 64),
    "paper": (Task(family="rule_priority", format="full"), 9600, 256),
}


# ----------------------------------------------------------------------------------------- the plain sampler
def plain_problem(task: Task, names: Sequence[str], rng: random.Random) -> tuple[Problem, Proof]:
    """One problem and its proof, by the recipe of `unseen_lib.problems.Task`, its ``depth`` left out."""
    true = rng.random() < 0.5
    while True:
        chosen = rng.sample(names, rng.randint(*task.sizes))
        rules, facts = _chains(task, chosen, rng) if task.chain else _random_rules(task, chosen, rng)
        follows = closure(Problem(rules, facts, chosen[0]))
        queries = [
            name for name in chosen if (name in follows) == true and (name not in facts or not task.chain)
        ]
        if queries:
            problem = Problem(rules, facts, rng.choice(queries))
            return problem, prove(problem, rng=rng if task.choose == "any" else None)


def _chains(task: Task, names: list[str], rng: random.Random) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    assert task.chain is not None
    length = rng.randint(task.chain[0], min(task.chain[1], len(names) - 2))
    chains = names[:length], names[length:]
    rules = [Rule((a,), b) for chain in chains for a, b in pairwise(chain)]
    rng.shuffle(rules)
    return tuple(rules), (names[0],)


def _random_rules(
    task: Task, names: list[str], rng: random.Random
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    number = rng.randint(*(task.rules or (0, 4 * len(names))))
    rules: dict[tuple[frozenset[str], str], Rule] = {}
    while len(rules) < number:
        head, *body = rng.sample(names, 1 + rng.randint(*task.body))
        rules.setdefault((frozenset(body), head), Rule(tuple(body), head))
    return tuple(rules.values()), tuple(rng.sample(names, rng.randint(0, len(names))))


def plain_batch(
    task: Task, vocabulary: Vocabulary, batch_size: int, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets (B, T), as `unseen_lib.problems.sample_batch` gives them."""
    names = vocabulary.words[vocabulary.seen_ids.start : vocabulary.seen_ids.stop]
    rows, labels = [], []
    for _ in range(batch_size):
        problem, proof = plain_problem(task, names, rng)
        prompt = vocabulary.encode(write_problem(problem, task.format))
        completion = vocabulary.encode(write_proof(problem, proof, task.format))
        rows.append(torch.tensor(prompt + completion[:-1]))
        labels.append(torch.tensor([IGNORE] * (len(prompt) - 1) + completion))
    return (
        pad_sequence(rows, batch_first=True, padding_value=vocabulary.pad),
        pad_sequence(labels, batch_first=True, padding_value=IGNORE),
    )


# --------------------------------------------------------------------------------------------- the stopwatch
def seconds_each(make: Callable[[int], object], least: float = 2.0) -> float:
    """The median time of a call, over as many as fit into ``least`` seconds (five or more)."""
    make(0)
    times: list[float] = []
    while len(times) < 5 or sum(times) < least:
        began = time.perf_counter()
        make(1 + len(times))
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def measure(task: Task, vocabulary: Vocabulary, batch_size: int) -> dict[str, float]:
    """Seconds a batch, both ways."""
    rng = random.Random(0)
    return {
        "at once": seconds_each(
            lambda i: sample_batch(task, vocabulary, batch_size=batch_size, seed=0, index=i)
        ),
        "one by one": seconds_each(lambda i: plain_batch(task, vocabulary, batch_size, rng)),
    }


def main() -> None:
    """Print milliseconds a batch and problems a second, both ways, at ``cpu`` and at ``paper`` scale."""
    torch.set_num_threads(1)
    for scale, (task, seen, batch_size) in SIZES.items():
        print(f"{scale}: {task.family}, {task.format}, {batch_size} problems a batch, one thread")
        taken = measure(task, Vocabulary(task.format, seen, 100), batch_size)
        for way, seconds in taken.items():
            print(
                f"  {way:<10} {1e3 * seconds:8.2f} ms a batch {batch_size / seconds:10,.0f} problems a second"
            )
        print(f"  {taken['one by one'] / taken['at once']:.0f} times as many")


if __name__ == "__main__":
    main()
