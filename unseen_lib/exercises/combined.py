"""The exercises of chapter 7: the combined fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen_lib.exercises import Wrong, exercise, expect_close, expect_equal, near, number
from unseen_lib.records import Interval, interval

DRAWS = 150  # so many that an honest draw misses no name, but for one time in millions


# ------------------------------------------------------------------------------------------------ 7.1
@exercise("7.1", "How many names are needed")
def check_names_needed(names_needed: Callable[..., Any]) -> None:
    """``names_needed(numbers, shares, level)``: where the share first reaches the level, over log2."""
    for numbers, shares, level, wanted in [
        ([32, 128], [0.0, 1.0], 0.5, 64.0),
        ([32, 128, 512, 2048], [0.0, 0.2, 0.8, 0.9], 0.5, 256.0),
        ([32, 128, 512, 2048], [0.0, 0.0, 0.0, 1.0], 0.25, 512 * 2**0.5),
        ([32, 128, 512, 2048], [0.0, 0.5, 0.9, 1.0], 0.5, 128.0),
        ([32, 128, 512, 2048], [0.6, 0.7, 0.9, 1.0], 0.5, 32.0),
        ([32, 128, 512, 2048], [0.0, 0.8, 0.2, 0.9], 0.4, 64.0),
        ([32, 128, 512, 2048], [0.0, 0.1, 0.3, 0.4], 0.5, None),
    ]:
        call = f"names_needed({numbers}, {shares}, {level})"
        got = names_needed(list(numbers), list(shares), level)
        if wanted is None:
            if got is not None:
                raise Wrong(f"{call}\n  returned {got!r}\n  expected None: no share reaches the level")
            continue
        _explain_names_needed(got, numbers, shares, level, wanted, call)
        expect_close(got, wanted, call)


def _explain_names_needed(
    got: object, numbers: Sequence[int], shares: Sequence[float], level: float, wanted: float, call: str
) -> None:
    value = number(got)
    if value is None or near(value, wanted):
        return
    mistakes: dict[str, float] = {}
    if shares[0] >= level:
        about = "not the first number, though the first share is at the level already"
        raise Wrong(f"{call}\n  returned {value:.6g}, which is {about}.\n  expected {wanted:.6g}")
    crossings = [i for i in range(1, len(numbers)) if shares[i - 1] < level <= shares[i]]
    for i in crossings:
        t = (level - shares[i - 1]) / (shares[i] - shares[i - 1])
        low, high = numbers[i - 1], numbers[i]
        place = 2 ** (log2(low) + t * (log2(high) - log2(low)))
        if i == crossings[0]:
            mistakes["on a straight line over the numbers: draw it over their logarithms"] = low + t * (
                high - low
            )
            mistakes["the first number that reaches the level: read between it and the one before"] = high
            mistakes["read from the wrong end of the line: the way begins at the left share"] = 2 ** (
                log2(high) - t * (log2(high) - log2(low))
            )
            mistakes["the logarithm of the number of names: raise 2 to it"] = log2(place)
        else:
            mistakes["where the level is reached a second time: look for the first"] = place
    for about, wrong in mistakes.items():
        if near(value, wrong):
            raise Wrong(f"{call}\n  returned {value:.6g}, which is {about}.\n  expected {wanted:.6g}")


# ------------------------------------------------------------------------------------------------ 7.2
@exercise("7.2", "Worth more together?")
def check_interaction_of(interaction_of: Callable[..., Any]) -> None:
    """``interaction_of(both, first, second, neither)``: mean, low and high end over paired seeds."""
    rng = np.random.default_rng(72)
    luck = rng.uniform(0.1, 0.3, 5)  # what the arms of one seed share
    for about, worth in [
        ("each is worth the same with and without the other", (0.5, 0.3, 0.2, 0.0)),
        ("each is worth something with the other only", (0.4, 0.0, 0.0, 0.0)),
        ("either will do", (0.5, 0.48, 0.45, 0.0)),
    ]:
        noise = rng.normal(0, 0.01, (4, 5))
        cells = [[float(v) for v in value + luck + part] for value, part in zip(worth, noise, strict=True)]
        call = f"interaction_of(both, first, second, neither), five seeds, {about}"
        got = interaction_of(*(list(cell) for cell in cells))
        b, f, s, n = (np.array(cell) for cell in cells)
        _explain_interaction(got, b, f, s, n, call)
        expect_close(got, np.array(interval((b - f) - (s - n))), call)


def _explain_interaction(
    got: object, b: np.ndarray, f: np.ndarray, s: np.ndarray, n: np.ndarray, call: str
) -> None:
    if got is None:
        return
    try:
        values = np.asarray(got, dtype=float)
    except (TypeError, ValueError):
        return
    if values.shape == ():
        raise Wrong(f"{call}\n  returned one number\n  expected three: the mean, the low and the high end")
    right = (b - f) - (s - n)
    if values.shape != (3,) or np.allclose(values, np.array(interval(right)), atol=1e-5):
        return
    mistakes = {
        "the interaction with the other sign": -right,
        "what both are worth together, against neither": b - n,
        "what the second adds where the first is there: subtract what it adds without the first": b - f,
        "the two worths added where the one should be subtracted from the other": (b - f) + (s - n),
        "what both have above the mean of the two alone": b - (f + s) / 2,
        "both less the sum of the two alone: the part that all arms have, neither, is subtracted twice": (
            b - f - s
        ),
    }
    for about, wrong in mistakes.items():
        if abs(values[0] - wrong.mean()) < 1e-5 and abs(right.mean() - wrong.mean()) > 1e-5:
            raise Wrong(f"{call}\n  returned a mean of {values[0]:.4f}: {about}.")
    if abs(values[0] - right.mean()) < 1e-5:
        cells = [interval(cell) for cell in (b, f, s, n)]
        ends = _subtracted(cells)
        deviation = right.std(ddof=1)
        half = {
            "the ends of four intervals, added and subtracted: take the difference for each seed first": ends,
            "the spread of the seeds, not the uncertainty of their mean: divide by √seeds": deviation,
            "the standard error: an interval of 95 % is wider": deviation / len(right) ** 0.5,
            "the interval of a normal distribution: with five seeds Student's is wider": (
                NormalDist().inv_cdf(0.975) * deviation / len(right) ** 0.5
            ),
            "an interval of unpaired runs: take the difference for each seed first": (
                2.7764451 * sum(cell.var(ddof=1) / len(cell) for cell in (b, f, s, n)) ** 0.5
            ),
        }
        for about, width in half.items():
            if abs((values[2] - values[1]) / 2 - abs(width)) < 1e-4:
                raise Wrong(f"{call}\n  the mean is right, but the ends are {about}.")


def _subtracted(cells: Sequence[Interval]) -> float:
    """Half the width of (b - f) - (s - n), low ends with low ends and high ends with high ends."""
    b, f, s, n = (cell.high - cell.low for cell in cells)
    return ((b - f) - (s - n)) / 2


# ------------------------------------------------------------------------------------------------ 7.3
@exercise("7.3", "New names for each text")
def check_new_names(new_names: Callable[..., Any]) -> None:
    """``new_names(tokens, names, pool, generator)``: the text under other names, one for one."""
    names, pool = torch.arange(10, 20), torch.arange(10, 17)  # some of the pool are in the text
    tokens = torch.tensor([1, 10, 4, 11, 11, 4, 12, 5, 10, 6, 13, 12, 9, 14])
    call = f"tokens = {tokens.tolist()}, names 10 to 19, pool 10 to 16"
    reached: dict[int, set[int]] = {int(old): set() for old in tokens[torch.isin(tokens, names)].unique()}
    for seed in range(DRAWS):
        given = tokens.clone()
        got = new_names(given, names.clone(), pool.clone(), torch.Generator().manual_seed(seed))
        if not torch.equal(given, tokens):
            raise Wrong(f"{call}\n  new_names changed the tokens it was given: write into a copy")
        _check_renamed(got, tokens, names, pool, call)
        for old, choices in reached.items():
            choices.add(int(got[tokens == old][0]))
    if all(len(choices) == 1 for choices in reached.values()):
        raise Wrong(f"{call}\n  {DRAWS} generators gave the same names: draw with the generator")
    for old, choices in reached.items():
        if len(choices) < len(pool):
            left = sorted(set(pool.tolist()) - choices)
            raise Wrong(
                f"{call}\n  in {DRAWS} draws, {old} never became one of {left}: any of the pool may be"
            )
    text = torch.tensor([1, 4, 5, 6])
    got = new_names(text.clone(), names.clone(), pool.clone(), torch.Generator().manual_seed(0))
    expect_equal(_listed(got), text.tolist(), "new_names([1, 4, 5, 6], …): a text without names")


def _check_renamed(got: object, tokens: Tensor, names: Tensor, pool: Tensor, call: str) -> None:
    if not isinstance(got, Tensor) or got.shape != tokens.shape:
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        raise Wrong(f"{call}\n  returned {shape}\n  expected a tensor of shape {tuple(tokens.shape)}")
    shown = f"{call}\n  returned {got.tolist()}"
    is_name = torch.isin(tokens, names)
    if not torch.equal(got[~is_name], tokens[~is_name]):
        raise Wrong(f"{shown}\n  control words, which are no names, should stay as they are")
    if not torch.isin(got[is_name], pool).all():
        raise Wrong(f"{shown}\n  a new name is not from the pool")
    became: dict[int, int] = {}
    for old, new in zip(tokens[is_name].tolist(), got[is_name].tolist(), strict=True):
        if became.setdefault(old, new) != new:
            raise Wrong(
                f"{shown}\n  {old} became {became[old]} in one place and {new} in another: draw once for "
                "each name"
            )
    for new in became.values():
        twins = [other for other in became if became[other] == new]
        if len(twins) > 1:
            raise Wrong(
                f"{shown}\n  {twins[0]} and {twins[1]} both became {new}: different names need different "
                "ones (drawn without repetition, and read from the original text)"
            )


# ------------------------------------------------------------------------------------------------ 7.4
@exercise("7.4", "Rows for new names")
def check_rows_for_new_names(rows_for_new_names: Callable[..., Any]) -> None:
    """``rows_for_new_names(rows, count, generator)``: (count, D), matched to rows in each coordinate."""
    generator = torch.Generator().manual_seed(74)
    shared, scale = torch.tensor([2.0, -1.0, 0.0, 0.5]), torch.tensor([0.2, 0.5, 1.0, 1.5])
    rows = shared + scale * torch.randn(300, 4, generator=generator)
    mean, deviation = rows.mean(0), rows.std(0)
    count = 4000
    call = f"rows_for_new_names(rows, {count}, generator), 300 rows of width 4"
    given = rows.clone()
    got = rows_for_new_names(given, count, torch.Generator().manual_seed(1))
    if not torch.equal(given, rows):
        raise Wrong(f"{call}\n  changed the rows it was given")
    if not isinstance(got, Tensor) or got.shape != (count, 4):
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        raise Wrong(f"{call}\n  returned {shape}\n  expected a tensor of shape {(count, 4)}")
    drawn = got.detach().to(rows)
    if len(torch.unique(drawn, dim=0)) == 1:
        raise Wrong(f"{call}\n  returned {count} equal rows: draw each of them")
    if len(torch.unique(drawn, dim=0)) <= len(rows):
        raise Wrong(f"{call}\n  returned rows that come again: draw new ones, do not choose among the old")
    _explain_rows(drawn, rows, call)
    for what, seen, wanted in [
        ("mean", drawn.mean(0), mean),
        ("standard deviation", drawn.std(0), deviation),
    ]:
        if not torch.allclose(seen, wanted, atol=0.12):  # more than four standard errors
            raise Wrong(
                f"{call}\n  the {what} of the coordinates is {_rounded(seen)}\n  expected about "
                f"{_rounded(wanted)}"
            )
    correlation = torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max()
    if correlation > 0.5:
        raise Wrong(
            f"{call}\n  coordinates of one row move together (correlation {correlation:.2f}): draw a number "
            "for each coordinate, not for each row"
        )
    again = rows_for_new_names(rows.clone(), count, torch.Generator().manual_seed(2))
    if torch.equal(again, got):
        raise Wrong(f"{call}\n  two generators gave the same rows: draw with the generator")


def _explain_rows(drawn: Tensor, rows: Tensor, call: str) -> None:
    mean, deviation = drawn.mean(0), drawn.std(0)
    fresh = 1 / rows.shape[1] ** 0.5

    def alike(values: Tensor, wanted: Tensor | float) -> bool:
        return torch.allclose(values, torch.as_tensor(wanted).expand(values.shape), atol=0.12)

    if alike(mean, 0.0) and alike(deviation, fresh):
        raise Wrong(
            f"{call}\n  returned rows from N(0, 1/D), as before training: match those that are in use"
        )
    if alike(mean, 0.0) and not alike(rows.mean(0), 0.0):
        raise Wrong(
            f"{call}\n  returned rows of mean 0: the rows in use share a part, {_rounded(rows.mean(0))}"
        )
    if alike(mean, rows.mean()) and alike(deviation, rows.std()):
        raise Wrong(
            f"{call}\n  one mean and one deviation of the whole matrix: take them for each coordinate, over "
            "the rows"
        )
    if alike(mean, rows.mean(0)) and alike(deviation, rows.var(0)):
        raise Wrong(f"{call}\n  the variance stands where the standard deviation belongs")


def _rounded(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())


def _listed(value: object) -> object:
    return value.tolist() if isinstance(value, Tensor) else value
