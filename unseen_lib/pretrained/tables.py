"""Find the embedding of a published model, and the unembedding if it has one of its own, and read rows of it.

They are found by what a model says about itself: the vocabulary and the width in its config.json, the names
and shapes in the headers of its safetensors. There is no list of model names, and no model is built.

Shapes: V rows, D width.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.files import INSTALL, Folder, Meter

# The types of safetensors in which a row is its numbers and nothing else.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LONGEST_HEADER = 100_000_000  # what the format allows
FIRST_READ = 1 << 17  # the header of a shard mostly fits
BLOCK = 1 << 24  # bytes in memory at a time while a whole table is read

# Which matrices can be a table, by the last part of the name before ".weight", and which of them are outputs.
ANY = re.compile(r"emb|wte|shared|tok|word|head|out|decoder")
OUTPUT = re.compile(r"head|out|unemb|decoder")


@dataclass(frozen=True)
class Table:
    """A matrix (V, D) of which rows are read when they are asked for.

    Parameters
    ----------
    name : str
        Of the tensor.
    size, width : int
        V and D.
    dtype : str
        As it is stored.
    read : function
        ``read(start, stop)`` gives rows ``start`` to ``stop`` in float32, (stop - start, D).
    row_bytes : int
        What one row takes where it is stored.
    readers : int
        How many calls of ``read`` may run at once.
    """

    name: str
    size: int
    width: int
    dtype: str
    read: Callable[[int, int], Tensor]
    row_bytes: int
    readers: int = 1


@dataclass(frozen=True)
class Tables:
    """The tables of one model.

    Parameters
    ----------
    embedding : Table
    unembedding : Table or None
        If it is a matrix of its own: not in a tied model, nor in one without a language head.
    stored : int
        Bytes in all weights.
    meter : Meter
        Counts what is read of them.
    """

    embedding: Table
    unembedding: Table | None
    stored: int
    meter: Meter


def rows(table: Table, ids: Sequence[int]) -> Tensor:
    """The rows with these ids, in their order: (N, D), float32. Neighbors are read in one go."""
    ordered = sorted(set(ids))
    runs: list[list[int]] = []
    for row in ordered:
        if runs and runs[-1][1] == row and (row - runs[-1][0]) * table.row_bytes < BLOCK:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    if table.readers > 1:
        with ThreadPoolExecutor(table.readers) as pool:
            parts = list(pool.map(lambda run: table.read(*run), runs))
    else:
        parts = [table.read(*run) for run in runs]
    place = {row: index for index, row in enumerate(ordered)}
    return torch.cat(parts)[[place[row] for row in ids]]


def blocks(table: Table) -> Iterator[tuple[int, Tensor]]:
    """The whole table from top to bottom, as (first id, rows), a few megabytes at a time."""
    height = max(1, BLOCK // table.row_bytes)
    for start in range(0, table.size, height):
        yield start, table.read(start, min(start + height, table.size))


# ---- a folder of safetensors ----


def find_tables(folder: Folder) -> Tables:
    """The tables of a folder of safetensors, sharded or not.

    Raises
    ------
    PretrainedError
        If there are no safetensors or no config, if a shard is missing, truncated or foreign, if no matrix
        has the shape of an embedding, or if it is quantized.
    """
    config = _text_config(folder)
    shards = _index(folder)
    headers = {}
    if shards is None:
        single = _single(folder)
        headers[single] = _header(folder, single)
        shards = dict.fromkeys(headers[single][1], single)
    wanted = [name for name in shards if ANY.search(_role(name)) and "pos" not in _role(name)]
    for file in sorted({shards[name] for name in wanted} - headers.keys()):
        headers[file] = _header(folder, file)

    vocabulary, width = config.get("vocab_size"), config.get("hidden_size")
    found = []
    for name in wanted:
        start, header = headers[shards[name]]
        if name not in header:
            raise PretrainedError(
                f"{INDEX} of {folder.name} says that {name} is in {shards[name]}, and it is not: these files "
                "are of two versions; download the model again"
            )
        entry = header[name]
        if len(entry["shape"]) != 2 or entry["shape"][0] < (vocabulary or 2):
            continue
        if entry["dtype"] not in DTYPES:
            raise PretrainedError(
                f"{name} of {folder.name} is quantized ({entry['dtype']}), which is not read here: audit the "
                "model that it was made from, or a GGUF of it"
            )
        if width in (None, entry["shape"][1]):
            found.append(_safetensors_table(folder, shards[name], name, entry, start))
    found.sort(key=lambda table: (-table.size, len(table.name)))
    embedding = next((table for table in found if not OUTPUT.search(_role(table.name))), None)
    if embedding is None:
        raise PretrainedError(
            f"{folder.name} has no embedding of {vocabulary or '?'} × {width or '?'} (vocab_size × "
            "hidden_size in config.json): it is no language model, or only a part of one; audit all of it"
        )
    outputs = [
        table
        for table in found
        if OUTPUT.search(_role(table.name)) and table.size >= (vocabulary or embedding.size)
    ]
    tied = not outputs or bool(config.get("tie_word_embeddings"))
    stored = sum(folder.sizes[file] for file in set(shards.values()))
    return Tables(embedding, None if tied else outputs[0], stored, folder.meter)


def _text_config(folder: Folder) -> dict[str, Any]:
    """config.json, with what it nests about the language part of a multimodal model brought to the top."""
    if "config.json" not in folder.sizes:
        raise PretrainedError(
            f"{folder.name} has no config.json, so it is not a model in the layout of transformers: name the "
            "folder of the whole model (for an adapter, that of its base model)"
        )
    config = folder.read_json("config.json")
    if not isinstance(config, dict):
        raise PretrainedError(f"config.json of {folder.name} is not a JSON object: download it again")
    parts = {
        key: value for key, value in config.items() if isinstance(value, dict) and "hidden_size" in value
    }
    # Of a multimodal model, the part that has a vocabulary, or else the one that is called after text.
    for key in sorted(parts, key=lambda key: ("vocab_size" not in parts[key], "text" not in key)):
        if "vocab_size" in parts[key] or "text" in key:
            return {**config, **parts[key]}
    return config


def _index(folder: Folder) -> dict[str, str] | None:
    """The file in which each tensor lies, if the model has an index."""
    if INDEX not in folder.sizes:
        return None
    index = folder.read_json(INDEX)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise PretrainedError(f"{INDEX} of {folder.name} has no weight_map: download it again")
    missing = sorted({str(file) for file in shards.values()} - folder.sizes.keys())
    if missing:
        raise PretrainedError(
            f"{INDEX} of {folder.name} names {missing[0]}, which is not there: download the model again"
        )
    return {str(name): str(file) for name, file in shards.items()}


def _single(folder: Folder) -> str:
    """The one file of safetensors of a model without an index."""
    found = sorted(file for file in folder.sizes if file.endswith(".safetensors"))
    if SINGLE in found or len(found) == 1:
        return SINGLE if SINGLE in found else found[0]
    if found:
        raise PretrainedError(
            f"{folder.name} has {len(found)} safetensors files but no {INDEX} to say what is where: download "
            "the model again, with its index"
        )
    pickled = sorted(file for file in folder.sizes if file.endswith((".bin", ".pt", ".pth")))
    has = f"only pickled weights ({pickled[0]}), which are not opened here" if pickled else "no safetensors"
    raise PretrainedError(
        f"{folder.name} has {has}: choose a model or a revision with safetensors, or convert it with "
        "save_pretrained"
    )


def _header(folder: Folder, file: str) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a safetensors file begin, and its header without the metadata.

    The safetensors format: an 8-byte little-endian length and then JSON.
    """
    size = folder.sizes[file]
    damaged = f"{file} of {folder.name} is not a whole safetensors file: download it again"
    first = folder.read(file, 0, min(size, FIRST_READ))
    if len(first) < 8:
        raise PretrainedError(damaged)
    (length,) = struct.unpack("<Q", first[:8])
    start = 8 + length
    if length > LONGEST_HEADER or start > size:
        raise PretrainedError(damaged)
    text = first[8:start] + (folder.read(file, len(first), start) if start > len(first) else b"")
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        end = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise PretrainedError(damaged) from error
    if end > size:
        raise PretrainedError(
            f"{file} of {folder.name} is truncated, {size:,} of {end:,} bytes: download it again"
        )
    return start, header


def _safetensors_table(folder: Folder, file: str, name: str, entry: dict[str, Any], start: int) -> Table:
    size, width = entry["shape"]
    dtype = DTYPES[entry["dtype"]]
    first, last = entry["data_offsets"]
    row_bytes = width * dtype.itemsize
    if last - first != size * row_bytes:
        raise PretrainedError(
            f"{name} in {file} of {folder.name} has {last - first:,} bytes, but {size} × {width} "
            f"numbers of {entry['dtype']} take {size * row_bytes:,}: download it again"
        )

    def read(begin: int, end: int) -> Tensor:
        offset = start + first
        data = folder.read(file, offset + begin * row_bytes, offset + end * row_bytes)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(-1, width).float()

    return Table(name, size, width, entry["dtype"], read, row_bytes, folder.readers)


def _role(name: str) -> str:
    """What a tensor is for, by its name: ``embed_tokens`` of ``model.embed_tokens.weight``."""
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else ""


# ---- GGUF ----


def open_gguf(path: Path) -> tuple[Tables, list[str] | None, list[int] | None]:
    """The tables of a GGUF file, and the texts and kinds of its tokens if it has them.

    Raises
    ------
    PretrainedError
        If gguf is not installed, the file is damaged, or its table is of a type that gguf cannot unpack.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise PretrainedError(f"{path} is a GGUF file, and to read it gguf is missing: {INSTALL}") from error
    try:
        reader = GGUFReader(path)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        fields = {
            name: reader.fields[f"tokenizer.ggml.{name}"].contents()
            for name in ("tokens", "token_type")
            if f"tokenizer.ggml.{name}" in reader.fields
        }
    except (ValueError, KeyError, IndexError, OSError, TypeError) as error:
        raise PretrainedError(f"{path} is not a whole GGUF file: download it again") from error
    if "token_embd.weight" not in tensors:
        raise PretrainedError(
            f"{path} has no token_embd.weight: it is not a language model, or a later part of a split file; "
            "audit its first part"
        )
    meter = Meter(other=int(reader.data_offset))
    output = tensors.get("output.weight")
    tables = Tables(
        _gguf_table(path, tensors["token_embd.weight"], meter),
        None if output is None else _gguf_table(path, output, meter),
        path.stat().st_size,
        meter,
    )
    return tables, fields.get("tokens"), fields.get("token_type")


def _gguf_table(path: Path, tensor: Any, meter: Meter) -> Table:
    from gguf import dequantize

    def read(begin: int, end: int) -> Tensor:
        try:
            unpacked = torch.tensor(dequantize(tensor.data[begin:end], tensor.tensor_type))
        except NotImplementedError as error:
            raise PretrainedError(
                f"{tensor.name} of {path} is quantized as {tensor.tensor_type.name}, which gguf does not "
                "unpack: audit a file in another quantization, such as Q8_0"
            ) from error
        meter.weights += (end - begin) * row_bytes
        return unpacked

    width, size = (int(length) for length in tensor.shape)
    row_bytes = tensor.n_bytes // size
    return Table(tensor.name, size, width, tensor.tensor_type.name, read, row_bytes)


# ---- a loaded model ----


def tables_of_model(model: Any) -> Tables:
    """The tables of a loaded model of transformers.

    Raises
    ------
    PretrainedError
        If it has no embedding, or one whose numbers are not here or are quantized.
    """
    embedding = _weight(model, model.get_input_embeddings(), "input embedding")
    output = model.get_output_embeddings()
    unembedding = None if output is None else _weight(model, output, "output embedding")
    tied = unembedding is None or unembedding is embedding
    stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Tables(
        _loaded_table("input", embedding),
        None if tied or unembedding is None else _loaded_table("output", unembedding),
        stored,
        Meter(),
    )


def _weight(model: Any, module: Any, name: str) -> Tensor:
    weight = getattr(module, "weight", None)
    kind = type(model).__name__
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise PretrainedError(f"the {name} of this {kind} has no weight matrix: load a language model")
    if weight.is_meta:
        raise PretrainedError(
            f"the {name} of this {kind} is on the meta device: load the model onto a real one"
        )
    if weight.dtype not in DTYPES.values():
        raise PretrainedError(f"the {name} of this {kind} is quantized ({weight.dtype}): load it unquantized")
    return weight


def _loaded_table(name: str, weight: Tensor) -> Table:
    def read(begin: int, end: int) -> Tensor:
        return weight.detach()[begin:end].to("cpu", torch.float32, copy=True)  # never the model's own memory

    size, width = weight.shape
    return Table(
        name, size, width, str(weight.dtype).removeprefix("torch."), read, width * weight.element_size()
    )
