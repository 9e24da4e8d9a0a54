"""What differs from course to course in assignment 4: a model, its names, and what is wrong with which.

The model is trained once a course, which takes a minute or two, and kept. Its rows for names that training
never used have collapsed by themselves. Two other groups are damaged by hand, and one is left as it is.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save, save_file

from unseen_lib.checkpoint import replace_file
from unseen_lib.experiments import preset
from unseen_lib.training import TrainConfig, train

GROUP = 24  # names
LIMITS = {"seconds": 240.0, "cell_seconds": 120.0, "call_seconds": 60.0}
LABELS = "ABCD"
FAULTS = ("sound", "unused", "twins", "faint")


def public(rng: random.Random) -> dict[str, object]:
    """The seed of the course's model, and how many names a group has."""
    return {"model_seed": rng.randrange(10**6), "group_size": GROUP}


def secret(rng: random.Random) -> dict[str, object]:
    """Which group has which fault, how ids are mixed, and the seeds of the hidden checks."""
    diagnosis = dict(zip(LABELS, rng.sample(FAULTS, 4), strict=True))
    seeds = {name: rng.randrange(10**9, 10**10) for name in ("secret_mix", "secret_problems")}
    return {"secret_diagnosis": diagnosis, **seeds}


def files(public: dict[str, object], secret: dict[str, object], cache: Path) -> dict[str, bytes]:
    """The model, the ids of its groups, and the module that loads it."""
    config = preset("cpu", names=512, seed=int(str(public["model_seed"])))
    weights = _trained(config, cache / f"{public['model_seed']}.safetensors")
    vocabulary, rng = config.vocabulary, random.Random(str(secret["secret_mix"]))

    # Ids are mixed, so that an id does not tell whether training used it.
    first, size = vocabulary.seen_ids.start, vocabulary.size
    old = rng.sample(range(first, size), size - first)
    table = weights["embedding"]
    table[first:] = table[old].clone()
    seen = [first + new for new, was in enumerate(old) if was in vocabulary.seen_ids]
    unseen = [first + new for new, was in enumerate(old) if was in vocabulary.unseen_ids]
    chosen = rng.sample(seen, 3 * GROUP)
    members = {"unused": sorted(rng.sample(unseen, GROUP))}
    members |= {
        fault: sorted(chosen[i * GROUP : (i + 1) * GROUP])
        for i, fault in enumerate(("sound", "twins", "faint"))
    }

    g = torch.Generator().manual_seed(int(str(secret["secret_mix"])))
    pairs = rng.sample(members["twins"], GROUP)
    originals, copies = pairs[::2], pairs[1::2]
    noise = torch.randn(len(copies), table.shape[1], generator=g) / table.shape[1] ** 0.5
    table[copies] = table[originals] + 1e-3 * noise
    table[members["faint"]] *= 0.15

    diagnosis = secret["secret_diagnosis"]
    assert isinstance(diagnosis, dict)
    groups = {label: members[fault] for label, fault in diagnosis.items()}
    metadata = {"config": json.dumps(asdict(config.model))}
    return {
        "model.safetensors": save(weights, metadata),
        "groups.json": json.dumps(groups).encode(),
        "course_model.py": (Path(__file__).parent / "course_model.py").read_bytes(),
    }


def _trained(config: TrainConfig, file: Path) -> dict[str, torch.Tensor]:
    if not file.exists():
        print("4-audit: training the model of this course, which takes a minute or two")
        model = train(config).model
        replace_file(file, lambda unfinished: save_file(model.state_dict(), unfinished), what="model")
    return load_file(file)
