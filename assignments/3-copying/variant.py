"""What differs from course to course in assignment 3."""

from __future__ import annotations

import random

LIMITS = {"seconds": 240.0, "cell_seconds": 150.0, "call_seconds": 60.0}


def public(rng: random.Random) -> dict[str, object]:
    """The sizes of the copying task."""
    return {"width": rng.choice([28, 32, 36]), "length": rng.choice([10, 11, 12])}


def secret(rng: random.Random) -> dict[str, object]:
    """Seeds of the hidden checks."""
    names = ("secret_batch", "secret_cache", "secret_look", "secret_train")
    return {name: rng.randrange(10**9, 10**10) for name in names}
