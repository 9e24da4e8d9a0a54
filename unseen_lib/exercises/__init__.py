"""Checks for the book's exercises: plain functions that look at the reader's own and say what they saw.

A check takes what the reader wrote and raises `Wrong` with the first thing that is not right, or returns. The
decorator `exercise` turns it into a function that never raises and returns a `Result`, printed as the last
expression of a cell::

    @exercise("0.1", "Double")
    def check_double(double: Callable[..., Any]) -> None:
        expect_equal(double(3), 6, "double(3)")

On the page an exercise is a stub cell, which imports all it needs, raises ``NotImplementedError`` and ends in
one line that calls the check; its solution is a Python block that runs right after the stub cell.
``tests/test_exercises.py`` holds every page to that.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

TIME_LIMIT = 10.0  # seconds a check may take

_TO_DO = "Replace the line that raises, and run the cell again."
_PACKAGE = str(Path(__file__).parents[1])


class Wrong(Exception):
    """The answer is not right: the message says what is wrong, and where to look."""


class _TooLong(BaseException):
    """The time is up. Not an `Exception`, so that a reader's ``except Exception`` lets it through."""


@dataclass(frozen=True)
class Result:
    """What a check found; true in a condition exactly when the exercise is passed."""

    exercise: str
    title: str
    status: Literal["passed", "wrong", "not done yet"]
    message: str = ""

    def __bool__(self) -> bool:
        return self.status == "passed"

    def __repr__(self) -> str:
        heading = f"Exercise {self.exercise} ({self.title}): {self.status}."
        return f"{heading}\n{self.message}" if self.message else heading


def exercise(number: str, title: str) -> Callable[[Callable[..., None]], Callable[..., Result]]:
    """Make a check of exercise ``number`` return a `Result`, whatever the reader's function does.

    A check that ends without a word is passed; one that raises `Wrong` is wrong; ``NotImplementedError``
    means that the stub still stands; any other exception is shown with the reader's line that raised it.
    A check that takes longer than ``TIME_LIMIT`` is stopped and wrong, where the system can interrupt it.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., Result]:
        @functools.wraps(check)
        def checked(*answers: Any) -> Result:
            try:
                _in_time(check, *answers)
            except NotImplementedError:
                return Result(number, title, "not done yet", _TO_DO)
            except Wrong as wrong:
                return Result(number, title, "wrong", str(wrong))
            except _TooLong:
                return Result(number, title, "wrong", _too_long())
            except Exception as error:  # whatever the reader's code raises is an answer too
                return Result(number, title, "wrong", _describe(error))
            return Result(number, title, "passed")

        return checked

    return decorate


def _in_time(check: Callable[..., None], *answers: Any) -> None:
    """Call the check; raise `_TooLong` in it after ``TIME_LIMIT`` seconds, if there is such a clock here.

    The clock needs ``signal.setitimer`` and the main thread. It is handed back as it was found.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return check(*answers)

    def stop(*_: object) -> None:
        raise _TooLong

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        check(*answers)
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:  # also if the time is up just now
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
            if delay:
                left = delay - (time.monotonic() - began)
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)


def expect_equal(got: object, wanted: object, call: str) -> None:
    """Raise `Wrong` unless ``got``, which the reader's ``call`` returned, equals ``wanted``."""
    _expect_something(got, call)
    if type(got) is not type(wanted) or got != wanted:
        raise Wrong(f"{call}\n  returned {_shown(got)}\n  expected {_shown(wanted)}")


def expect_close(
    got: object, wanted: torch.Tensor | np.ndarray | float, call: str, *, tolerance: float = 1e-5
) -> None:
    """Raise `Wrong` unless ``got`` has the shape and the values of ``wanted``.

    A tensor, an array or a number may each stand for another; ``tolerance`` is relative and absolute.
    """
    _expect_something(got, call)
    target = np.asarray(wanted.detach().cpu() if isinstance(wanted, torch.Tensor) else wanted)
    try:
        values = np.asarray(got.detach().cpu() if isinstance(got, torch.Tensor) else got, dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{call}\n  returned {_shown(got)}\n  expected numbers of shape {target.shape}") from None
    if values.shape != target.shape:
        raise Wrong(f"{call}\n  returned shape {values.shape}\n  expected shape {target.shape}")
    differs = ~np.isclose(values, target, rtol=tolerance, atol=tolerance)
    if differs.any():
        place = tuple(int(i) for i in np.argwhere(differs)[0])
        at = f" at {list(place)}, the first of {differs.sum()} places that differ" if place else ""
        raise Wrong(f"{call}\n  returned {values[place]:.6g}{at}\n  expected {target[place]:.6g}")


def explain(got: object, right: torch.Tensor, call: str, mistakes: Mapping[str, torch.Tensor]) -> None:
    """Raise `Wrong` with the name of the mistake that ``got`` is the result of, unless it is right, too."""
    if same(got, right):
        return
    for about, wrong in mistakes.items():
        if same(got, wrong) and not same(wrong, right):
            raise Wrong(f"{call}\n  returned {about}.")


def same(got: object, wanted: torch.Tensor, *, tolerance: float = 1e-5) -> bool:
    """Whether ``got`` has the shape of ``wanted`` and, relative to its largest entry, the same values.

    Never raises: what is no number at all is not the same, and `expect_close` says what is wrong with it.
    """
    try:
        values = torch.as_tensor(got).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        return False
    if values.shape != wanted.shape or not values.isfinite().all():
        return False
    target = wanted.detach().double()
    return bool(((values - target).abs() <= tolerance * target.abs().max()).all())


def number(value: object) -> float | None:
    """``value`` as a number, or None: the comparison that follows says what is wrong with it."""
    try:
        return float(value)  # type: ignore[arg-type]  # whatever a reader returned
    except (TypeError, ValueError, RuntimeError):
        return None


def near(a: float | None, b: float) -> bool:
    """Whether a number, if it is one, agrees with ``b`` as `expect_close` would have it."""
    return a is not None and abs(a - b) <= 1e-5 * max(1.0, abs(b))


def normal(*shape: int, seed: int) -> torch.Tensor:
    """An example of doubles from a normal distribution, the same for each reader."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def compiler_loaded(check: Callable[..., Result]) -> Callable[..., Result]:
    """Load torch's compiler before the clock of the check runs.

    Torch imports it when it first makes an optimizer or enters a dispatch mode, which can take longer than a
    check may.
    """

    @functools.wraps(check)
    def checked(*answers: Any) -> Result:
        torch.optim.SGD([torch.zeros(1)])
        return check(*answers)

    return checked


def _expect_something(got: object, call: str) -> None:
    if got is None:
        raise Wrong(f"{call}\n  returned None: does the function end with a return?")


def _shown(value: object) -> str:
    """Sets in sorted order, so that the same answer always reads the same."""
    if isinstance(value, set | frozenset) and value:
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)


def _too_long() -> str:
    return f"Your function did not come back within {TIME_LIMIT:g} seconds: look for a loop that never ends."


def _describe(error: Exception) -> str:
    """The exception, and the last line outside this package that led to it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
    where = f" at line {frames[-1].lineno}" if frames else ""
    line = f":\n    {frames[-1].line}" if frames and frames[-1].line else ""
    return f"Your code raised {type(error).__name__}{where} ({error}){line}"
