"""The exercises of chapter 8: look at a model you use."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from unseen_lib.collapse import measure_rows
from unseen_lib.exercises import Wrong, compiler_loaded, exercise, expect_close, expect_equal, same


# ------------------------------------------------------------------------------------------------ 8.1
class _Counted(io.BytesIO):
    """A file that counts the bytes that were read from it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        length = super().readinto(buffer)
        self.count += length
        return length


@exercise("8.1", "Rows without the model")
def check_read_rows(read_rows: Callable[..., Any]) -> None:
    """``read_rows(file, name, ids)``: rows of one table of a safetensors file, and nothing else of it."""
    generator = torch.Generator().manual_seed(81)
    for dtype, ids in [(torch.float32, [3, 0, 7, 40]), (torch.bfloat16, [90, 6, 7, 8])]:
        table = torch.randn(300, 16, generator=generator).to(dtype)
        other = torch.randn(200, 16, generator=generator).to(dtype)
        data = save({"a.other.weight": other, "embed.weight": table, "z.last": other[:50].clone()})
        file = _Counted(data)
        kind = str(dtype).removeprefix("torch.")
        call = f'read_rows(file, "embed.weight", {ids}), a table of 300 rows of 16 numbers in {kind}'
        got = read_rows(file, "embed.weight", list(ids))
        wanted = table[ids].float()
        if isinstance(got, Tensor):
            _explain_rows_read(got, data, ids, dtype, wanted, call)
        expect_close(got.float() if isinstance(got, Tensor) else got, wanted, call)
        header = 8 + int.from_bytes(data[:8], "little")
        needed = header + len(ids) * 16 * dtype.itemsize
        if file.count > needed + 64:
            table_bytes = table.numel() * dtype.itemsize
            what = "the whole file" if file.count >= len(data) else f"{file.count:,} bytes"
            what = "the whole table" if needed < header + table_bytes <= file.count < len(data) else what
            raise Wrong(
                f"{call}\n  is right, but it read {what}\n  expected {needed:,} of {len(data):,} bytes, the "
                "header and the rows: seek to each row"
            )


def _explain_rows_read(
    got: Tensor, data: bytes, ids: Sequence[int], dtype: torch.dtype, wanted: Tensor, call: str
) -> None:
    """Raise with the name of the mistake that leads to just these numbers."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    begin = header["embed.weight"]["data_offsets"][0]
    size = dtype.itemsize

    def read(
        start: int, order: Sequence[int] = ids, itemsize: int = size, kind: torch.dtype = dtype
    ) -> Tensor:
        rows = [data[start + 16 * itemsize * row :][: 16 * kind.itemsize] for row in order]
        return torch.stack([torch.frombuffer(bytearray(row), dtype=kind) for row in rows]).float()

    start = 8 + length + begin
    mistakes = {
        "counts data_offsets from the start of the file: they count from the end of the header": read(begin),
        "forgets the 8 bytes before the header, which hold its length": read(length + begin),
        "forgets the header, and skips its 8 bytes of length only": read(8 + begin),
        "reads the first tensor of the file: look up data_offsets of the one that is named": read(8 + length),
        "returns the rows in the order of their ids: keep the order of the list": read(start, sorted(ids)),
    }
    if size == 2:
        mistakes["reads bfloat16 as float16, whose bits mean something else"] = read(
            start, kind=torch.float16
        )
        mistakes["steps by four bytes a number: bfloat16 has two"] = read(start, itemsize=4)
    if got.shape != wanted.shape or torch.equal(got.float(), wanted):
        return
    for about, wrong in mistakes.items():
        if torch.equal(got.float().nan_to_num(), wrong.nan_to_num()):
            raise Wrong(f"{call}\n  {about}.")


# ------------------------------------------------------------------------------------------------ 8.2
@exercise("8.2", "Tokens that lie where the unused ones lie")
def check_nearest_tokens(nearest_tokens: Callable[..., Any]) -> None:
    """``nearest_tokens(table, unused, k)``: ids of other rows nearest to the mean unused row."""
    table = torch.tensor([[9.0, 9], [1, 1], [1, 3], [1, 2.2], [-4, -4], [2, 2.1], [30, 60]])
    call = f"table = {table.int().tolist()} (rounded), unused = [1, 2]\nnearest_tokens(table, unused, k=2)"
    got = nearest_tokens(table.clone(), [1, 2], 2)
    if not isinstance(got, Tensor | list | tuple):
        raise Wrong(f"{call}\n  returned {type(got).__name__}\n  expected a list of two ids")
    _explain_nearest(_ids(got), table, [1, 2], 2, call)
    expect_equal(_ids(got), [3, 5], call)
    generator = torch.Generator().manual_seed(82)
    drift = torch.randn(12, generator=generator)
    table = torch.randn(400, 12, generator=generator) + 2 * drift
    unused = [350, *range(20, 60)]
    table[unused] = drift + 0.3 * torch.randn(len(unused), 12, generator=generator)
    table[[7, 399]] = drift + 0.1 * torch.randn(2, 12, generator=generator)
    for k in (1, 2, 6):
        call = f"nearest_tokens(table, unused, k={k}), 400 rows with a drift, of which 41 are unused"
        got = _ids(nearest_tokens(table.clone(), list(unused), k))
        _explain_nearest(got, table, unused, k, call)
        expect_equal(got, _nearest(table, unused, k), call)


def _ids(got: object) -> object:
    if isinstance(got, Tensor):
        return got.tolist()
    if isinstance(got, list | tuple):
        return [one.item() if isinstance(one, Tensor) and one.numel() == 1 else one for one in got]
    return got


def _nearest(table: Tensor, unused: Sequence[int], k: int) -> list[int]:
    return _first(_distances(table, table[list(unused)].mean(0)), unused, k)


def _distances(table: Tensor, point: Tensor) -> Tensor:
    distances: Tensor = (table - point).norm(dim=1)
    return distances


def _first(score: Tensor, without: Sequence[int], k: int) -> list[int]:
    """The k ids of smallest score, the smallest first."""
    score = score.clone()
    score[list(without)] = float("inf")
    return score.argsort(stable=True)[:k].tolist()


def _explain_nearest(got: object, table: Tensor, unused: Sequence[int], k: int, call: str) -> None:
    right = _nearest(table, unused, k)
    if got == right or not isinstance(got, list):
        return
    mean = table[list(unused)].mean(0)
    rest = [row for row in range(len(table)) if row not in set(unused)]
    distance = _distances(table, mean)
    if len(got) != k:
        raise Wrong(f"{call}\n  returned {len(got)} ids\n  expected {k}")
    if got == distance[rest].argsort()[:k].tolist():
        raise Wrong(
            f"{call}\n  returned {got}, places in a table without the unused rows: translate them back to ids"
        )
    if set(got) & set(unused):
        raise Wrong(
            f"{call}\n  returned {got}, some of them unused tokens, which are near themselves: leave them out"
        )
    farthest = _first(-distance, unused, k)
    by_cosine = _first(-F.cosine_similarity(table, mean, dim=1), unused, k)
    near_any = _first(torch.cdist(table, table[list(unused)]).min(1).values, unused, k)
    mistakes = {
        "the farthest: sort the distances upwards": farthest,
        "the nearest, but not in order: the nearest first": right[::-1] if k > 1 else None,
        "those nearest to the mean of all rows: take the mean of the unused ones": _first(
            _distances(table, table.mean(0)), unused, k
        ),
        "those of the largest cosine, which looks at the direction alone and forgets the length": by_cosine,
        "those nearest to any single unused row: take the distance from their mean": near_any,
    }
    for about, wrong in mistakes.items():
        if got == wrong:
            raise Wrong(f"{call}\n  returned {got}: {about}.\n  expected {right}")


# ------------------------------------------------------------------------------------------------ 8.3
@exercise("8.3", "Rows of ordinary length")
def check_rows_of_ordinary_length(rows_of_ordinary_length: Callable[..., Any]) -> None:
    """``rows_of_ordinary_length(ordinary, count, generator)``: the mean, plus directions at random."""
    generator = torch.Generator().manual_seed(83)
    drift, scale = torch.tensor([3.0, -2.0, 0.0, 1.0, 0.0, 2.0]), torch.tensor([0.2, 0.3, 0.5, 1.0, 1.5, 2.0])
    ordinary = drift + scale * torch.randn(500, 6, generator=generator)
    count = 4000
    call = f"rows_of_ordinary_length(ordinary, {count}, generator), 500 ordinary rows of width 6 with a drift"
    given = ordinary.clone()
    got = rows_of_ordinary_length(given, count, torch.Generator().manual_seed(1))
    if not torch.equal(given, ordinary):
        raise Wrong(f"{call}\n  changed the rows it was given")
    if not isinstance(got, Tensor) or got.shape != (count, 6):
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        raise Wrong(f"{call}\n  returned {shape}\n  expected a tensor of shape {(count, 6)}")
    drawn = got.detach().to(ordinary)
    if not drawn.isfinite().all():
        raise Wrong(f"{call}\n  returned numbers that are not finite")
    _check_drawn(drawn, ordinary, call)
    if torch.equal(
        rows_of_ordinary_length(ordinary.clone(), count, torch.Generator().manual_seed(2)).detach(), got
    ):
        raise Wrong(f"{call}\n  two generators gave the same rows: draw with the generator")


def _check_drawn(drawn: Tensor, ordinary: Tensor, call: str) -> None:
    if len(torch.unique(drawn, dim=0)) == 1:
        raise Wrong(f"{call}\n  returned {len(drawn)} equal rows: draw a direction for each of them")
    if torch.cdist(drawn[:50], ordinary).min() < 1e-4:
        raise Wrong(f"{call}\n  returned rows that are in use already: two tokens could not be told apart")
    mean = ordinary.mean(0)
    lengths = (ordinary - mean).norm(dim=1)
    raw = ordinary.norm(dim=1)
    off = drawn.mean(0)
    if same(off, torch.zeros(6), tolerance=0) or off.norm() < 0.15:
        raise Wrong(
            f"{call}\n  returned rows around zero: ordinary rows share a mean, {_rounded(mean)}; start there"
        )
    own = drawn - mean
    # A model that normalizes looks at directions, so these come first.
    cosine = measure_rows(own).cosine
    if cosine > 0.1:
        raise Wrong(
            f"{call}\n  two directions have a mean cosine of {cosine:.2f}\n  expected about 0: numbers from "
            "torch.rand are never negative, those from torch.randn are as often"
        )
    found = own.norm(dim=1)
    width = drawn.shape[1]
    if found.std() < 0.05 * lengths.std():
        raise Wrong(f"{call}\n  all rows have one length: give each that of some ordinary row, at random")
    if abs(found.mean() - raw.mean()) < 0.1 and abs(found.std() - raw.std()) < 0.15:
        raise Wrong(
            f"{call}\n  rows lie {found.mean():.2f} from the mean, which is the length of ordinary rows as "
            f"they are\n  expected {lengths.mean():.2f}, their length once the mean is subtracted"
        )
    if abs(found.mean() - lengths.mean() * width**0.5) < 0.15 * lengths.mean() * width**0.5:
        raise Wrong(
            f"{call}\n  rows lie {found.mean():.2f} from the mean, √D times too far: scale each direction to "
            "length 1 first"
        )
    unit = F.normalize(own)
    share = unit.square().mean(0) * width
    if share.max() > 1.5:
        raise Wrong(
            f"{call}\n  the coordinates hold these shares of the squared length, times D: {_rounded(share)}\n"
            "  expected about 1 in each: here every direction is as likely, as in a new table (the rows of "
            "exercise 7.4 keep the scale of each coordinate)"
        )
    for what, value, wanted in [
        ("mean length", found.mean(), lengths.mean()),
        ("deviation of the lengths", found.std(), lengths.std()),
    ]:
        if abs(value - wanted) > 0.1:
            raise Wrong(f"{call}\n  the {what} about the mean is {value:.2f}\n  expected about {wanted:.2f}")
    if (off - mean).abs().max() > 0.25:
        raise Wrong(f"{call}\n  the mean row is {_rounded(off)}\n  expected about {_rounded(mean)}")


def _rounded(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())


# ------------------------------------------------------------------------------------------------ 8.4
@compiler_loaded
@exercise("8.4", "Hold rows still")
def check_hold_rows(hold_rows: Callable[..., Any]) -> None:
    """``hold_rows(weight, ids, optimizer)``: from now on these rows stay as they are, and no others."""
    generator = torch.Generator().manual_seed(84)
    weight = torch.nn.Parameter(torch.randn(8, 4, generator=generator))
    optimizer = torch.optim.AdamW([weight], lr=0.05, weight_decay=0.5)
    goal = torch.randn(8, 4, generator=generator)
    ids, others = [1, 4, 5], [0, 2, 3, 6, 7]

    def step() -> None:
        optimizer.zero_grad()
        (weight - goal).square().sum().backward()
        optimizer.step()

    for _ in range(3):  # the optimizer has a momentum by then
        step()
    before = weight.detach().clone()
    call = f"hold_rows(weight, {ids}, optimizer), after 3 steps of AdamW with weight decay"
    hold_rows(weight, list(ids), optimizer)
    if not torch.equal(weight.detach(), before):
        raise Wrong(f"{call}\n  changed the weight before any step was made")
    for number in range(1, 6):
        step()
        _check_held(weight, before, ids, others, f"{call}\nstep {number} after it")
    if optimizer.param_groups[0]["weight_decay"] != 0.5 or optimizer.param_groups[0]["lr"] != 0.05:
        raise Wrong(f"{call}\n  changed the settings of the optimizer, which the other rows need")


def _check_held(weight: Tensor, before: Tensor, ids: Sequence[int], others: Sequence[int], call: str) -> None:
    now = weight.detach()
    moved = (now - before).norm(dim=1)
    if (moved[list(others)] == 0).any():
        raise Wrong(f"{call}\n  the other rows stand still too: hold these rows only")
    if (moved[list(ids)] == 0).all():
        return
    gradient = None if weight.grad is None else weight.grad[list(ids)]
    if gradient is not None and not gradient.any():
        raise Wrong(
            f"{call}\n  the rows moved by {moved[list(ids)].max():.3f}, though their gradient is zero: "
            "momentum and weight decay move them too"
        )
    if same(now[list(ids)], torch.zeros(len(ids), now.shape[1])):
        raise Wrong(f"{call}\n  the rows are zero: keep a copy of them, and put that back")
    raise Wrong(
        f"{call}\n  the rows moved by {moved[list(ids)].max():.3f}: put a copy of them back after every step "
        "(before a step is too early)"
    )
