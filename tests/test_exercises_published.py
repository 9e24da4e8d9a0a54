"""The checks of chapter 8: plausible wrong answers are called wrong, with a message that helps."""

import json
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest
import torch
import torch.nn.functional as F
from conftest import told
from torch import Generator, Tensor

from unseen_lib.exercises import published

Answer = Callable[..., Any]
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


# ------------------------------------------------------------------------------------------------ 8.1
def read_rows(
    file: BinaryIO,
    name: str,
    ids: list[int],
    *,
    length_bytes: int = 8,
    with_header: bool = True,
    with_offset: bool = True,
    as_float16: bool = False,
    itemsize: int | None = None,
    whole: str = "",
) -> Tensor:
    """The right answer, with a switch for each way to get it wrong."""
    length = int.from_bytes(file.read(8), "little")
    entry = json.loads(file.read(length))[name]
    dtype = DTYPES[entry["dtype"]]
    width = entry["shape"][1]
    start = length_bytes + (length if with_header else 0)
    start += entry["data_offsets"][0] if with_offset else 0
    kind = torch.float16 if as_float16 and dtype == torch.bfloat16 else dtype
    step = width * (itemsize or dtype.itemsize)
    if whole == "table":
        file.seek(start)
        data = file.read(entry["shape"][0] * width * dtype.itemsize)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(-1, width)[ids].float()
    if whole == "file":
        file.seek(0)
        file.read()
    found = []
    for row in ids:
        file.seek(start + step * row)
        found.append(torch.frombuffer(bytearray(file.read(width * dtype.itemsize)), dtype=kind))
    return torch.stack(found).float()


def with_one_seek(file: BinaryIO, name: str, ids: list[int]) -> Tensor:
    return read_rows(file, name, sorted(ids))


def test_read_rows_has_a_right_answer() -> None:
    result = published.check_read_rows(read_rows)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *g: read_rows(*g, length_bytes=0, with_header=False), "count from the end of the header"),
        (lambda *g: read_rows(*g, length_bytes=0), "forgets the 8 bytes before the header"),
        (lambda *g: read_rows(*g, with_header=False), "forgets the header"),
        (lambda *g: read_rows(*g, with_offset=False), "reads the first tensor of the file"),
        (lambda *g: read_rows(*g, as_float16=True), "reads bfloat16 as float16"),
        (lambda *g: read_rows(*g, itemsize=4), "bfloat16 has two"),
        (with_one_seek, "keep the order of the list"),
        (lambda *g: read_rows(*g, whole="table"), "read the whole table"),
        (lambda *g: read_rows(*g, whole="file"), "read the whole file"),
        (lambda *g: read_rows(*g)[0], "expected shape"),
        (lambda *g: None, "does the function end with a return"),
    ],
)
def test_read_rows(answer: Answer, says: str) -> None:
    told(published.check_read_rows(answer), says)


# ------------------------------------------------------------------------------------------------ 8.2
def nearest(
    table: Tensor,
    unused: list[int],
    k: int,
    *,
    out: bool = True,
    sign: float = 1.0,
    of: Callable[[Tensor, list[int]], Tensor] = lambda table, unused: table[unused].mean(0),
    score: Callable[[Tensor, Tensor], Tensor] = lambda table, point: (table - point).norm(dim=1),
) -> list[int]:
    found = sign * score(table, of(table, unused))
    if out:
        found[unused] = float("inf")
    return found.argsort()[:k].tolist()


def in_a_shorter_table(table: Tensor, unused: list[int], k: int) -> list[int]:
    kept = torch.ones(len(table), dtype=torch.bool)
    kept[unused] = False
    return (table[kept] - table[unused].mean(0)).norm(dim=1).argsort()[:k].tolist()


def near_any(table: Tensor, unused: list[int], k: int) -> list[int]:
    return nearest(
        table,
        unused,
        k,
        of=lambda table, unused: table[unused],
        score=lambda table, rows: torch.cdist(table, rows).min(1).values,
    )


def by_cosine(table: Tensor, point: Tensor) -> Tensor:
    return -F.cosine_similarity(table, point, dim=1)


@pytest.mark.parametrize("answer", [nearest, lambda *g: torch.tensor(nearest(*g))])
def test_nearest_tokens_has_a_right_answer(answer: Answer) -> None:
    result = published.check_nearest_tokens(answer)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *g: nearest(*g, out=False), "leave them out"),
        (lambda *g: nearest(*g, sign=-1.0), "sort the distances upwards"),
        (lambda *g: nearest(*g)[::-1], "the nearest first"),
        (lambda *g: nearest(*g, of=lambda table, _: table.mean(0)), "the mean of the unused ones"),
        (lambda *g: nearest(*g, score=by_cosine), "forgets the length"),
        (in_a_shorter_table, "translate them back to ids"),
        (near_any, "the distance from their mean"),
        (lambda table, unused, k: nearest(table, unused, k + 1), "expected 2"),
        (lambda *g: None, "NoneType"),
    ],
)
def test_nearest_tokens(answer: Answer, says: str) -> None:
    told(published.check_nearest_tokens(answer), says)


# ------------------------------------------------------------------------------------------------ 8.3
def drawn(
    ordinary: Tensor,
    count: int,
    generator: Generator,
    *,
    around: Callable[[Tensor], Tensor] = lambda rows: rows.mean(0),
    lengths: Callable[[Tensor], Tensor] = lambda rows: (rows - rows.mean(0)).norm(dim=1),
    directions: Callable[[Tensor], Tensor] = F.normalize,
    draw: Callable[..., Tensor] = torch.randn,
) -> Tensor:
    found = lengths(ordinary)
    chosen = found[torch.randint(len(found), (count,), generator=generator)]
    random = draw(count, ordinary.shape[1], generator=generator)
    return around(ordinary) + directions(random) * chosen[:, None]


def per_coordinate(ordinary: Tensor, count: int, generator: Generator) -> Tensor:
    """The answer to exercise 7.4."""
    return ordinary.mean(0) + ordinary.std(0) * torch.randn(count, ordinary.shape[1], generator=generator)


def copies(ordinary: Tensor, count: int, generator: Generator) -> Tensor:
    return ordinary[torch.randint(len(ordinary), (count,), generator=generator)]


def at_the_start(ordinary: Tensor, count: int, generator: Generator) -> Tensor:
    width = ordinary.shape[1]
    return torch.randn(count, width, generator=generator) / width**0.5


def test_rows_of_ordinary_length_has_a_right_answer() -> None:
    result = published.check_rows_of_ordinary_length(drawn)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *g: drawn(*g, around=lambda rows: torch.zeros(6)), "rows around zero"),
        (at_the_start, "rows around zero"),
        (lambda *g: drawn(*g, lengths=lambda rows: rows.norm(dim=1)), "once the mean is subtracted"),
        (lambda *g: drawn(*g, directions=lambda found: found), "scale each direction to length 1"),
        (lambda *g: drawn(*g, draw=torch.rand), "torch.rand are never negative"),
        (
            lambda *g: drawn(*g, lengths=lambda rows: (rows - rows.mean(0)).norm(dim=1).mean()[None]),
            "all rows have one length",
        ),
        (per_coordinate, "keep the scale of each coordinate"),
        (copies, "in use already"),
        (lambda *g: drawn(g[0], 1, g[2]).expand(g[1], -1), "equal rows"),
        (lambda rows, count, _: drawn(rows, count, Generator().manual_seed(0)), "draw with the generator"),
        (lambda *g: drawn(*g)[:5], "expected a tensor of shape"),
        (lambda *g: None, "expected a tensor of shape"),
    ],
)
def test_rows_of_ordinary_length(answer: Answer, says: str) -> None:
    told(published.check_rows_of_ordinary_length(answer), says)


# ------------------------------------------------------------------------------------------------ 8.4
def hold(weight: Tensor, ids: list[int], optimizer: Any, *, early: bool = False, zero: bool = False) -> None:
    kept = weight.detach()[ids].clone() * (0 if zero else 1)

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            weight[ids] = kept

    register = optimizer.register_step_pre_hook if early else optimizer.register_step_post_hook
    register(put_back)


def without_gradient(weight: Tensor, ids: list[int], optimizer: Any) -> None:
    def clear(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[ids] = 0
        return gradient

    weight.register_hook(clear)


def nothing_learns(weight: Tensor, ids: list[int], optimizer: Any) -> None:
    hold(weight, list(range(len(weight))), optimizer)


def without_decay(weight: Tensor, ids: list[int], optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.0
    hold(weight, ids, optimizer)


def with_gradients_of_the_copy(weight: Tensor, ids: list[int], optimizer: Any) -> None:
    kept = weight[ids].clone()

    def put_back(*_: Any) -> None:
        weight[ids] = kept

    optimizer.register_step_post_hook(put_back)


def test_hold_rows_has_a_right_answer() -> None:
    result = published.check_hold_rows(hold)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (without_gradient, "momentum and weight decay move them too"),
        (lambda *g: hold(*g, early=True), "before a step is too early"),
        (lambda *g: hold(*g, zero=True), "keep a copy of them"),
        (nothing_learns, "hold these rows only"),
        (without_decay, "the settings of the optimizer"),
        (with_gradients_of_the_copy, "RuntimeError"),
        (lambda *g: None, "put a copy of them back after every step"),
    ],
)
def test_hold_rows(answer: Answer, says: str) -> None:
    told(published.check_hold_rows(answer), says)
