"""The checks of chapter 7: plausible wrong answers are called wrong, with a message that helps."""

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import pytest
import torch
from conftest import told
from torch import Generator, Tensor

from unseen_lib.exercises import combined
from unseen_lib.records import interval

Answer = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ 7.1
def needed(
    numbers: list[int],
    shares: list[float],
    level: float,
    *,
    over: Callable[[float], float] = log2,
    back: Callable[[float], float] = lambda x: 2**x,
    last: bool = False,
    backwards: bool = False,
    never: float | None = None,
    first: bool = True,
) -> float | None:
    """The right answer, with a switch for each way to get it wrong."""
    if first and shares[0] >= level:
        return float(numbers[0])
    places = []
    for i in range(1, len(numbers)):
        if shares[i - 1] < level <= shares[i]:
            t = (level - shares[i - 1]) / (shares[i] - shares[i - 1])
            t = 1 - t if backwards else t
            places.append(back(over(numbers[i - 1]) + t * (over(numbers[i]) - over(numbers[i - 1]))))
    return places[-1 if last else 0] if places else never


def on_the_grid(numbers: list[int], shares: list[float], level: float) -> float | None:
    return next((number for number, share in zip(numbers, shares, strict=True) if share >= level), None)


def by_numpy(numbers: list[int], shares: list[float], level: float) -> float:
    return float(2 ** np.interp(level, shares, np.log2(numbers)))


def test_names_needed_has_a_right_answer() -> None:
    assert combined.check_names_needed(needed).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: needed(*given, over=float, back=float), "over their logarithms"),
        (on_the_grid, "read between it and the one before"),
        (lambda *given: needed(*given, back=float), "raise 2 to it"),
        (lambda *given: needed(*given, last=True), "look for the first"),
        (lambda *given: needed(*given, backwards=True), "from the wrong end"),
        (lambda *given: needed(*given, never=float(given[0][-1])), "expected None"),
        (lambda *given: needed(*given, first=False), "returned None"),
        (by_numpy, "returned"),
        (lambda *given: None, "does the function end with a return"),
    ],
)
def test_names_needed(answer: Answer, says: str) -> None:
    told(combined.check_names_needed(answer), says)


# ------------------------------------------------------------------------------------------------ 7.2
def over_seeds(*cells: list[float], combine: Callable[..., Any]) -> tuple[float, ...]:
    return tuple(interval(combine(*map(np.array, cells))))


def right(b: Any, f: Any, s: Any, n: Any) -> Any:
    return (b - f) - (s - n)


def with_half_width(cells: tuple[list[float], ...], width: Callable[[Any], float]) -> tuple[float, ...]:
    values = right(*map(np.array, cells))
    return values.mean(), values.mean() - width(values), values.mean() + width(values)


def four_intervals(*cells: list[float]) -> tuple[float, ...]:
    b, f, s, n = (np.array(interval(cell)) for cell in cells)
    return tuple((b - f) - (s - n))


def unpaired(*cells: list[float]) -> tuple[float, ...]:
    error = sum(np.var(cell, ddof=1) / len(cell) for cell in cells) ** 0.5
    return with_half_width(cells, lambda _: 2.7764451 * error)


def test_interaction_of_has_a_right_answer() -> None:
    result = combined.check_interaction_of(lambda *cells: over_seeds(*cells, combine=right))
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *c: over_seeds(*c, combine=lambda b, f, s, n: f + s - b - n), "the other sign"),
        (lambda *c: over_seeds(*c, combine=lambda b, f, s, n: b - n), "against neither"),
        (lambda *c: over_seeds(*c, combine=lambda b, f, s, n: b - f), "without the first"),
        (lambda *c: over_seeds(*c, combine=lambda b, f, s, n: b - f - s), "subtracted twice"),
        (lambda *c: over_seeds(*c, combine=lambda b, f, s, n: b - (f + s) / 2), "the mean of the two alone"),
        (lambda *c: over_seeds(*c, combine=right)[0], "expected three"),
        (four_intervals, "four intervals"),
        (unpaired, "for each seed first"),
        (lambda *c: with_half_width(c, lambda v: v.std(ddof=1)), "the spread of the seeds"),
        (lambda *c: with_half_width(c, lambda v: 1.959964 * v.std(ddof=1) / 5**0.5), "Student's is wider"),
        (lambda *c: with_half_width(c, lambda v: v.std(ddof=1) / 5**0.5), "95 % is wider"),
        (lambda *c: None, "does the function end with a return"),
    ],
)
def test_interaction_of(answer: Answer, says: str) -> None:
    told(combined.check_interaction_of(answer), says)


# ------------------------------------------------------------------------------------------------ 7.3
def renamed(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    there = tokens[torch.isin(tokens, names)].unique()
    return exchange(tokens, there, pool[torch.randperm(len(pool), generator=generator)])


def exchange(tokens: Tensor, there: Tensor, new: Tensor) -> Tensor:
    result = tokens.clone()
    for a, b in zip(there, new, strict=False):
        result[tokens == a] = b
    return result


def at_each_place(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    drawn = pool[torch.randint(len(pool), tokens.shape, generator=generator)]
    return torch.where(torch.isin(tokens, names), drawn, tokens)


def with_repetition(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    there = tokens[torch.isin(tokens, names)].unique()
    return exchange(tokens, there, pool[torch.randint(len(pool), there.shape, generator=generator)])


def one_after_the_other(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    result, there = tokens.clone(), tokens[torch.isin(tokens, names)].unique()
    for a, b in zip(there, pool[torch.randperm(len(pool), generator=generator)], strict=False):
        result[result == a] = b
    return result


def control_words_too(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    long = torch.arange(10, 30)
    return exchange(tokens, tokens.unique(), long[torch.randperm(20, generator=generator)])


def in_place(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    tokens[:] = renamed(tokens, names, pool, generator)
    return tokens


def not_at_random(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    return exchange(tokens, tokens[torch.isin(tokens, names)].unique(), pool)


def only_strangers(tokens: Tensor, names: Tensor, pool: Tensor, generator: Generator) -> Tensor:
    """Turns the order of the pool, so each name has its own few to become."""
    turn = int(torch.randint(2, (1,), generator=generator))
    return exchange(tokens, tokens[torch.isin(tokens, names)].unique(), pool.roll(turn))


def test_new_names_has_a_right_answer() -> None:
    result = combined.check_new_names(renamed)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (at_each_place, "draw once for each name"),
        (with_repetition, "different names need different ones"),
        (one_after_the_other, "read from the original text"),
        (control_words_too, "should stay as they are"),
        (in_place, "write into a copy"),
        (not_at_random, "draw with the generator"),
        (only_strangers, "never became"),
        (lambda tokens, names, pool, generator: names[: len(tokens)], "expected a tensor of shape"),
        (lambda *given: renamed(*given).tolist(), "returned list"),
        (lambda tokens, names, pool, generator: exchange(tokens, names, names + 50), "not from the pool"),
    ],
)
def test_new_names(answer: Answer, says: str) -> None:
    told(combined.check_new_names(answer), says)


# ------------------------------------------------------------------------------------------------ 7.4
def normal(rows: Tensor, count: int, generator: Generator) -> Tensor:
    return torch.randn(count, rows.shape[1], generator=generator)


def matched(rows: Tensor, count: int, generator: Generator) -> Tensor:
    return rows.mean(0) + rows.std(0) * normal(rows, count, generator)


def same_for_a_row(rows: Tensor, count: int, generator: Generator) -> Tensor:
    return rows.mean(0) + rows.std(0) * torch.randn(count, 1, generator=generator)


def test_rows_for_new_names_has_a_right_answer() -> None:
    result = combined.check_rows_for_new_names(matched)
    assert result.status == "passed", result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda rows, n, g: normal(rows, n, g) / rows.shape[1] ** 0.5, "as before training"),
        (lambda rows, n, g: rows.std(0) * normal(rows, n, g), "rows of mean 0"),
        (lambda rows, n, g: rows.mean() + rows.std() * normal(rows, n, g), "for each coordinate"),
        (lambda rows, n, g: rows.mean(0) + rows.var(0) * normal(rows, n, g), "the variance stands"),
        (lambda rows, n, g: matched(rows, 1, g).repeat(n, 1), "equal rows"),
        (lambda rows, n, g: rows[torch.randint(len(rows), (n,), generator=g)], "do not choose among the old"),
        (same_for_a_row, "not for each row"),
        (lambda rows, n, g: matched(rows, n, Generator().manual_seed(0)), "two generators"),
        (lambda rows, n, g: matched(rows, n, g).T, "expected a tensor of shape"),
        (lambda rows, n, g: rows.mean(0) + 2 * rows.std(0) * normal(rows, n, g), "standard deviation of"),
    ],
)
def test_rows_for_new_names(answer: Answer, says: str) -> None:
    told(combined.check_rows_for_new_names(answer), says)
