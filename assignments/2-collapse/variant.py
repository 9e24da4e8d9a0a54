"""What differs from course to course in assignment 2."""

from __future__ import annotations

import random


def public(rng: random.Random) -> dict[str, object]:
    """The size of the course's classification problems, and the first of their seeds."""
    samples, labels = rng.choice([96, 128, 160]), rng.choice([6, 8, 10])
    config = f"ProblemConfig(samples={samples}, width=16, used={labels}, unused={labels})"
    return {"problem_config": config, "first_seed": rng.randrange(1000, 9000)}


def secret(rng: random.Random) -> dict[str, object]:
    """Seeds of the hidden checks."""
    names = ("secret_split", "secret_steps", "secret_many", "secret_rate", "secret_seed")
    return {name: rng.randrange(10**9, 10**10) for name in names}
