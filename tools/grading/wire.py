"""Values as lines of JSON, between the grader and the process that runs a submission.

Both ends build plain values only: numbers, texts, containers, tensors, and the dataclasses of the logic.
Nothing is unpickled, so whatever a submission sends can be wrong but cannot run.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import numpy as np
import torch

from unseen_lib.logic import Problem, Proof, Rule, Step

_DATACLASSES = {kind.__name__: kind for kind in (Problem, Proof, Rule, Step)}
_DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.int64, torch.bool)}
_CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NotData(TypeError):
    """A value that cannot be sent: a function, a module, an object of some class."""


def to_line(value: Any) -> bytes:
    """One line that :func:`from_line` turns back into an equal value; raises NotData where there is none."""
    try:
        return json.dumps(_encode(value)).encode() + b"\n"
    except RecursionError:
        raise NotData("a value is nested too deeply to be sent") from None


def from_line(line: bytes) -> Any:
    """The value of a line; raises ValueError for a line that nothing of ours has written."""
    try:
        return _decode(json.loads(line))
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError, AttributeError) as error:
        raise ValueError(f"a reply cannot be read ({type(error).__name__})") from None


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        # Of a subclass only the plain value travels: what it would print or compare as stays behind.
        return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value)
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return {"is": name, "of": [_encode(item) for item in value]}
    if isinstance(value, dict):
        return {"is": "dict", "of": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if type(value).__name__ in _DATACLASSES and dataclasses.is_dataclass(value):
        fields = [_encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {"is": type(value).__name__, "of": fields}
    raise NotData(f"a {type(value).__name__} is not data that can be graded")


def _encode_tensor(value: torch.Tensor) -> Any:
    value = value.detach().cpu()
    if str(value.dtype) not in _DTYPES:
        value = value.to(torch.float64 if value.is_floating_point() else torch.int64)
    shape, name = list(value.shape), str(value.dtype)
    raw = base64.b64encode(value.contiguous().numpy().tobytes()).decode()
    return {"is": "tensor", "of": [name, shape, raw]}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, parts = value["is"], value["of"]
    if kind == "tensor":
        name, shape, raw = parts
        flat = torch.frombuffer(bytearray(base64.b64decode(raw)) or bytearray(1), dtype=torch.uint8)
        return flat[: len(base64.b64decode(raw))].view(_DTYPES[name]).reshape(shape)
    if kind == "dict":
        return {_decode(key): _decode(item) for key, item in parts}
    decoded = [_decode(item) for item in parts]
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](decoded)
    return _DATACLASSES[kind](*decoded)
