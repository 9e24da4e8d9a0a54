"""Checkpoints: one safetensors file that a killed run resumes from.

Tensors of the model and of its optimizers lie side by side; everything else is JSON in the file's header.
Nothing is unpickled. A file is written under another name, flushed, and renamed, so that there is always
one whole checkpoint, whatever happens while the next is being written.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from unseen_lib.errors import CheckpointError

FORMAT = "unseen-checkpoint-1"
TENSOR = "tensor of this file"  # stands, in the JSON data, where a tensor was


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], state: dict[str, Any]
) -> None:
    """Write model, optimizers and ``state`` (JSON data, with tensors in it) to ``path``, whole or not at all.

    Raises
    ------
    CheckpointError
        If the file cannot be written. The checkpoint that was there before is intact.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"optimizer.{number}.{index}.{name}"] = torch.as_tensor(value)
    plain = _without_tensors(state, tensors)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "state": json.dumps(plain)}
    replace_file(path, lambda unfinished: save_file(tensors, unfinished, metadata), what="checkpoint")


def load_checkpoint(
    path: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Read ``path`` into ``model`` and ``optimizers`` and return the state saved with them.

    Raises
    ------
    CheckpointError
        If the file is truncated, is not a checkpoint of this library, or is one of another model.
    """
    state = read_state(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    own = {f"model.{name}": tensor.shape for name, tensor in model.state_dict().items()}
    saved = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("model.")}
    if own != saved:
        odd = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
        raise CheckpointError(
            f"{path} holds another model: {odd[0]} is {_shape(saved.get(odd[0]))} in the file and "
            f"{_shape(own.get(odd[0]))} here; choose an empty folder"
        )
    model.load_state_dict({name: tensors[f"model.{name}"] for name in model.state_dict()})
    for number, optimizer in enumerate(optimizers):
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer" and rest.startswith(f"{number}."):
                _, index, moment = rest.split(".", 2)
                moments.setdefault(int(index), {})[moment] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    found = {name: tensor.to(place) for name, tensor in tensors.items() if name.startswith("state.")}
    complete: dict[str, Any] = _with_tensors(state, found)
    return complete


def read_state(path: Path) -> dict[str, Any]:
    """The JSON data of a checkpoint, without any tensor. Raises as :func:`load_checkpoint` does."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}); it is left alone: move it away to start afresh"
        ) from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but not a checkpoint of this library (format "
            f"{metadata.get('format')!r}, expected {FORMAT!r}); it is left as it is: choose another folder"
        )
    state: dict[str, Any] = json.loads(metadata["state"])
    return state


def _without_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """``value`` as JSON data; its tensors are put into ``tensors``, with their names in their places."""
    if isinstance(value, torch.Tensor):
        name = f"state.{len(tensors)}"
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, dict):
        return {key: _without_tensors(part, tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(part, tensors) for part in value]
    return value


def _with_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """What :func:`_without_tensors` was given."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    return [_with_tensors(part, tensors) for part in value] if isinstance(value, list) else value


def replace_file(path: Path, write: Callable[[Path], object], *, what: str) -> None:
    """Let ``write`` make a file beside ``path``, then rename it to ``path`` in one step.

    Raises
    ------
    CheckpointError
        If writing fails (a full disk, a folder without permission). Whatever ``path`` held is still there.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(unfinished)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            unfinished.unlink()
        kept = "the one written before is intact" if path.is_file() else "nothing was written"
        advice = (
            "free some space" if getattr(error, "errno", None) == errno.ENOSPC else "choose another place"
        )
        raise CheckpointError(
            f"the {what} {path} could not be written ({error}); {kept}: {advice}"
        ) from error


def check_writable(folder: Path) -> None:
    """Raise CheckpointError if no file can be made in ``folder``: better before a run than after it."""
    probe = folder / f".{os.getpid()}.probe"
    replace_file(probe, lambda unfinished: unfinished.touch(), what="test file")
    probe.unlink()


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else "×".join(str(size) for size in shape)
