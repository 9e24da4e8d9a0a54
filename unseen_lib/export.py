"""A model small enough to travel inside a page: its weights in half precision, and what using them takes.

The format is safetensors (https://huggingface.co/docs/safetensors): 8 bytes with the length of a header, the
header as JSON, then the tensors one after another, little-endian; here all float16, under the names that
``GPT.state_dict()`` gives them. The header's ``__metadata__`` has one entry, ``unseen``, itself JSON text::

    {"format": 1, "config": the fields of GPTConfig with head_dim and copy_heads filled in,
     "vocabulary": {"format", "seen", "unseen", "words": [the word of id 0, of id 1, ...]},
     "about": whatever the caller wants to say of the model}

``assets/playground/engine.js`` reads it and runs the model in a browser; `import_model` reads it back here,
so that what a page computes can be checked against the same rounded weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.vocabulary import Vocabulary

#: The version of the format.
FORMAT = 1
# What the engine of the page leaves out; the defaults of GPTConfig, and what the course trains with.
_REQUIRED = {"tied": (True,), "identity": (False,)}
_REQUIRED_OF_COPIES = {
    "copy_where": ("last",),
    "copy_combine": ("sum", "mean"),
    "copy_rope": (True,),
    "copy_norm": (True,),
}


@dataclass(frozen=True)
class Exported:
    """What `import_model` finds: the model in float32 with its rounded weights, its words, and ``about``."""

    model: GPT
    vocabulary: Vocabulary
    about: dict[str, Any]


def export_model(model: GPT, vocabulary: Vocabulary, about: Mapping[str, Any] | None = None) -> bytes:
    """The file of a model.

    Parameters
    ----------
    model : GPT
        Tied, without ``identity``; its copy attention, if any, beside the last block, with whole rows that
        are summed or averaged over the heads, rotary positions and a LayerNorm.
    vocabulary : Vocabulary
        In the compact format, with as many words as the model has rows.
    about : dict, optional
        JSON data that travels along, such as the seed.

    Returns
    -------
    bytes
        About two bytes a weight. The same arguments give the same bytes.

    Raises
    ------
    ConfigError
        If the model or the vocabulary is not one that the engine of the page can run, or a weight is not
        finite or too large for float16 (65504).
    """
    config = model.config
    _check_supported(config, vocabulary)
    tensors = {}
    for name, weight in model.state_dict().items():
        rounded = weight.detach().cpu().to(torch.float16).contiguous()
        if not bool(rounded.isfinite().all()):
            raise ConfigError(
                f"{name} holds {float(weight.abs().max()):g}, but float16 holds finite numbers up to 65504"
            )
        tensors[name] = rounded.clone()  # a tensor of its own, as safetensors asks
    header = {
        "format": FORMAT,
        "config": asdict(replace(config, head_dim=config.head_size, copy_heads=config.copies)),
        "vocabulary": {**asdict(vocabulary), "words": vocabulary.words},
        "about": dict(about or {}),
    }
    # One entry, because the order of several is not fixed.
    return save(tensors, {"unseen": json.dumps(header, allow_nan=False, separators=(",", ":"))})


def import_model(data: bytes) -> Exported:
    """Read the bytes of `export_model` back.

    Raises
    ------
    CheckpointError
        If they are truncated, of another format, or the tensors do not fit the config beside them.
    """
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"the data cannot be read as safetensors ({error}); export the model again"
        ) from error
    header = json.loads(metadata.get("unseen", "{}"))
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"the data has format {header.get('format')!r}, but an exported model has format {FORMAT}"
        )
    words = header["vocabulary"].pop("words")
    vocabulary = Vocabulary(**header["vocabulary"])
    if list(vocabulary.words) != words:
        raise CheckpointError(
            "the data has other words than this version of the library: export the model again"
        )
    model = GPT(GPTConfig(**header["config"]))
    try:
        model.load_state_dict({name: weight.float() for name, weight in tensors.items()})
    except RuntimeError as error:
        raise CheckpointError(f"the tensors do not fit the config beside them: {error}") from error
    return Exported(model, vocabulary, header["about"])


def _check_supported(config: GPTConfig, vocabulary: Vocabulary) -> None:
    for field, values in {**_REQUIRED, **(_REQUIRED_OF_COPIES if config.copy else {})}.items():
        if getattr(config, field) not in values:
            raise ConfigError(
                f"{field} is {getattr(config, field)!r}, but a model to export needs "
                f"{' or '.join(map(repr, values))}"
            )
    if vocabulary.format != "compact":
        raise ConfigError(f"format is {vocabulary.format!r}, but a vocabulary to export needs 'compact'")
    if vocabulary.size != config.vocab_size:
        raise ConfigError(
            f"vocab_size is {config.vocab_size}, but the vocabulary has {vocabulary.size} words"
        )
