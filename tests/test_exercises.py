"""Every exercise of every chapter: its stub is "not done yet", its solution passes."""

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from unseen_lib import exercises
from unseen_lib.exercises import Result, Wrong, exercise, expect_close, expect_equal

CHAPTERS = sorted((Path(__file__).parents[1] / "chapters").glob("*.md"))
# On a page: an exercise card with one stub cell in it, and a solution of the same label with a Python block.
CARD = re.compile(r"^```+\{exercise-start\} *(.*?)\n(.*?)^```+\{exercise-end\}", re.DOTALL | re.MULTILINE)
LABEL = re.compile(r"^:label: *(\S+)", re.MULTILINE)
CELL = re.compile(
    r"^```+\{code-cell\}.*?\n(?:---\n.*?\n---\n|(?::.*\n)*)(.*?)^```+$", re.DOTALL | re.MULTILINE
)
SOLUTION = re.compile(r"^(`{3,})\{solution(?:-start)?\} *(\S+)\n(.*?)^\1", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Card(NamedTuple):
    chapter: str
    number: str  # as the book counts exercises
    title: str
    text: str
    stub: str
    solution: str


def cards_of(chapter: Path) -> list[Card]:
    text = chapter.read_text(encoding="utf-8")
    solutions = {label: PYTHON.findall(body) for _, label, body in SOLUTION.findall(text)}
    cards = []
    for i, (title, body) in enumerate(CARD.findall(text), start=1):
        label, (stub,) = LABEL.search(body), CELL.findall(body)
        assert label is not None, f"{chapter.name}: {title} has no label"
        number = f"{int(chapter.name[:2])}.{i}"
        cards.append(Card(chapter.name, number, title, body, stub, solutions[label[1]][0]))
    return cards


CARDS = [card for chapter in CHAPTERS for card in cards_of(chapter)]
each_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.number)


def run(card: Card, *, solved: bool) -> Result:
    """The stub's cell, then the solution if wanted, then the cell's last line, which calls the check."""
    *lines, check = card.stub.strip().splitlines()
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    if solved:
        exec(card.solution, namespace)
    return eval(check, namespace)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_a_chapter_has_at_least_three_exercises(chapter: Path) -> None:
    assert len(cards_of(chapter)) >= 3


@each_card
def test_the_stub_is_not_done_yet(card: Card) -> None:
    assert run(card, solved=False).status == "not done yet"


@each_card
def test_the_solution_passes(card: Card) -> None:
    result = run(card, solved=True)
    assert result.status == "passed", result


@each_card
def test_the_check_is_the_one_of_this_exercise(card: Card) -> None:
    result = run(card, solved=False)
    assert (result.exercise, result.title) == (card.number, card.title)


@each_card
def test_the_card_has_difficulty_minutes_hints_and_common_errors(card: Card) -> None:
    assert re.search(r"\b(Easy|Medium|Hard)\b.*\bminutes\b", card.text)
    assert len(re.findall(r"\{dropdown\} Hint", card.text)) == 2
    assert "{dropdown} Common errors" in card.text


# ---- the mechanism ----


@exercise("0.1", "Double")
def check_double(double: Callable[[int], int]) -> None:
    expect_equal(double(3), 6, "double(3)")


def test_a_result_reads_well_and_counts_as_a_truth_value() -> None:
    passed, wrong = check_double(lambda x: 2 * x), check_double(lambda x: x)
    assert passed and not wrong
    assert repr(passed) == "Exercise 0.1 (Double): passed."
    assert repr(wrong) == "Exercise 0.1 (Double): wrong.\ndouble(3)\n  returned 3\n  expected 6"


def test_an_error_in_the_answer_is_shown_with_its_line() -> None:
    def broken(x: int) -> int:
        return x // 0

    result = check_double(broken)
    assert result.status == "wrong"
    assert "ZeroDivisionError" in result.message and "return x // 0" in result.message


def test_what_is_no_function_at_all_is_wrong_not_a_crash() -> None:
    assert check_double(None).status == "wrong"  # type: ignore[arg-type]


def endless(x: int) -> int:
    while True:
        try:
            x += 1
        except Exception:
            x = 0


needs_a_clock = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer here")


@needs_a_clock
def test_a_loop_that_never_ends_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercises, "TIME_LIMIT", 0.2)
    handler = signal.getsignal(signal.SIGALRM)
    result = check_double(endless)
    assert result.status == "wrong"
    assert "did not come back within 0.2 seconds" in result.message
    assert "look for a loop that never ends" in result.message
    assert signal.getsignal(signal.SIGALRM) is handler


@needs_a_clock
@pytest.mark.parametrize("answer", [lambda x: 2 * x, lambda x: x, lambda x: x // 0, None])
def test_another_clock_that_runs_goes_on(answer: Callable[[int], int]) -> None:
    def ring(*_: object) -> None:
        raise AssertionError("rang too early")

    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        check_double(answer)
        assert signal.getsignal(signal.SIGALRM) is ring
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_a_check_runs_in_another_thread_too() -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(check_double(lambda x: 2 * x)))
    thread.start()
    thread.join()
    assert [result.status for result in results] == ["passed"]


@pytest.mark.parametrize(
    ("got", "wanted", "phrase"),
    [
        (None, 6, "does the function end with a return"),
        (6.0, 6, "returned 6.0"),
        ({"b", "a"}, {"a"}, "returned {'a', 'b'}"),
        (True, 1, "returned True"),
    ],
)
def test_expect_equal_refuses(got: object, wanted: object, phrase: str) -> None:
    with pytest.raises(Wrong, match=re.escape(phrase)):
        expect_equal(got, wanted, "call()")


@pytest.mark.parametrize(
    ("got", "phrase"),
    [
        (None, "does the function end with a return"),
        ("four", "expected numbers"),
        (np.zeros((3, 2)), "returned shape (3, 2)\n  expected shape (2, 3)"),
        (np.array([[0, 0, 0], [0, 9, 8]]), "returned 9 at [1, 1], the first of 2 places"),
        (np.array([[0, 0, np.nan], [0, 0, 0]]), "returned nan at [0, 2]"),
    ],
)
def test_expect_close_refuses(got: object, phrase: str) -> None:
    with pytest.raises(Wrong, match=re.escape(phrase)):
        expect_close(got, torch.zeros(2, 3), "call()")


def test_expect_close_takes_tensors_arrays_and_numbers_for_one_another() -> None:
    parameter = torch.full((2,), 1 / 3, requires_grad=True)
    expect_close(parameter, np.array([1 / 3, 1 / 3]), "call()")
    expect_close([1 / 3, 1 / 3], parameter, "call()")
    expect_close(torch.tensor(0.5), 0.5, "call()")
    expect_close(np.float32(0.5), 0.5, "call()")
