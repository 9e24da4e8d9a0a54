"""The model of this assignment: how to load it, and how to ask it about some of its names."""

import json

import torch
from safetensors import safe_open

from unseen_lib.evaluation import generate, read_transcripts
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.problems import IGNORE, Task, longest_sequence, sample_batch
from unseen_lib.vocabulary import Vocabulary

TASK = Task(family="chain", format="compact")


def load_model(folder="."):
    """The model in ``model.safetensors``, and its vocabulary."""
    with safe_open(f"{folder}/model.safetensors", framework="pt") as file:
        config = GPTConfig(**json.loads(file.metadata()["config"]))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    model = GPT(config)
    model.load_state_dict(weights)
    control = len(Vocabulary("compact", 1, 0).control_ids)
    return model.eval(), Vocabulary("compact", config.vocab_size - control, 0)


def problems_of(names, count=128, seed=0):
    """Problems and proofs with names among some ids: tokens and targets (B, T), prompt lengths (B,)."""
    small = Vocabulary("compact", len(names), 0)
    batch = sample_batch(TASK, small, batch_size=count, seed=seed, index=0, stream="test")
    real = torch.tensor([*small.control_ids, *names])
    targets = torch.where(batch.targets == IGNORE, IGNORE, real[batch.targets.clamp(min=0)])
    return real[batch.tokens], targets, batch.prompt_length


def valid_share(model, vocabulary, names, count=128, seed=0):
    """Share of valid proofs on problems whose names are among some ids."""
    tokens, _, lengths = problems_of(names, count, seed)
    room = longest_sequence(TASK) + 1 - int(lengths.max())
    written = generate(model, tokens, lengths, vocabulary=vocabulary, max_new_tokens=room)
    transcripts = read_transcripts(tokens, lengths, written, vocabulary)
    return sum(transcript.valid for transcript in transcripts) / count


@torch.no_grad()
def features_of(model, names, count=128, seed=0):
    """Final features (M, D) at the places of such problems where a word has to be written."""
    tokens, targets, _ = problems_of(names, count, seed)
    return model.features(tokens)[targets != IGNORE]


def with_table(model, table):
    """The same model with another W_E; the old one stays as it is."""
    changed = GPT(model.config)
    changed.load_state_dict({**model.state_dict(), "embedding": table.to(torch.float32)})
    return changed.eval()
