"""The checks of chapter 6: plausible wrong answers are called wrong, with a message that helps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import told

from unseen_lib.exercises import managing

Answer = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ 6.1
def rows_met(names, steps, every, until):
    resets = [s for s in range(1, steps) if s % every == 0 and (until is None or s <= until)]
    return names * (1 + len(resets))


def without_the_first_draw(names, steps, every, until):
    return rows_met(names, steps, every, until) - names


def reset_at_the_end(names, steps, every, until):
    return names * (1 + min(steps, until or steps) // every)


def never_stopping(names, steps, every, until):
    return rows_met(names, steps, every, None)


@pytest.mark.parametrize("answer", [rows_met, lambda *given: np.int64(rows_met(*given))])
def test_rows_met_has_a_right_answer(answer: Answer):
    assert managing.check_rows_met(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (without_the_first_draw, "leaves out the rows drawn before training"),
        (reset_at_the_end, "once more at the end"),
        (never_stopping, "goes on resetting after step until"),
        (lambda names, *given: rows_met(names, *given) // names, "not that of rows"),
        (lambda *given: float(rows_met(*given)), "returned 640.0"),
        (lambda *given: None, "end with a return"),
        (lambda names, steps, every, until: names * min(steps, until) // every, "Your code raised"),
    ],
)
def test_rows_met(answer: Answer, says: str):
    told(managing.check_rows_met(answer), says)


# ------------------------------------------------------------------------------------------------ 6.2
def reset(matrix, rows, optimizer, generator, *, scale=None, shared=False, state="drop"):
    """The right answer, with a switch for each way to get it wrong."""
    width = matrix.shape[1]
    drawn = torch.randn(1 if shared else len(rows), width, generator=generator)
    drawn = drawn * (width**-0.5 if scale is None else scale)
    with torch.no_grad():
        matrix[list(rows)] = drawn.expand(len(rows), width)
    if state == "drop":
        optimizer.state.pop(matrix, None)
    elif state == "drop all":
        optimizer.state.clear()


def reset_all(matrix, rows, optimizer, generator):
    reset(matrix, range(len(matrix)), optimizer, generator)


def into_a_new_parameter(matrix, rows, optimizer, generator):
    fresh = matrix.detach().clone()
    fresh[list(rows)] = torch.randn(len(rows), matrix.shape[1], generator=generator) / matrix.shape[1] ** 0.5
    matrix = torch.nn.Parameter(fresh)


def without_the_generator(matrix, rows, optimizer, generator):
    reset(matrix, rows, optimizer, None)


def momentum_alone(matrix, rows, optimizer, generator):
    reset(matrix, rows, optimizer, generator, state="keep")
    optimizer.state[matrix]["exp_avg_sq"].zero_()


def only_the_mean_is_zeroed(matrix, rows, optimizer, generator):
    reset(matrix, rows, optimizer, generator, state="keep")
    optimizer.state[matrix]["exp_avg"].zero_()


def all_moments_are_zeroed(matrix, rows, optimizer, generator):
    reset(matrix, rows, optimizer, generator)
    for remembered in optimizer.state.values():
        remembered["exp_avg"].zero_()
        remembered["exp_avg_sq"].zero_()


def the_moments_are_zeroed(matrix, rows, optimizer, generator):
    only_the_mean_is_zeroed(matrix, rows, optimizer, generator)
    optimizer.state[matrix]["exp_avg_sq"].zero_()


def the_entry_is_emptied(matrix, rows, optimizer, generator):
    reset(matrix, rows, optimizer, generator, state="keep")
    optimizer.state[matrix] = {}


@pytest.mark.parametrize("answer", [reset, the_entry_is_emptied])
def test_reset_has_a_right_answer(answer: Answer):
    assert managing.check_reset(answer).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: reset(*given, scale=1.0), "not 1. N(0, 1/D)"),
        (lambda *given: reset(*given, scale=1 / given[0].shape[1]), "the variance of N(0, 1/D)"),
        (lambda *given: reset(*given, scale=0.02), "as N(0, 1/D) has"),
        (lambda *given: reset(*given, shared=True), "each needs its own"),
        (lambda *given: reset(*given, state="keep"), "the momentum of the old ones"),
        (momentum_alone, "the momentum of the old ones"),
        (lambda *given: reset(*given, state="drop all"), "forgot another parameter"),
        (all_moments_are_zeroed, "forgot another parameter"),
        (only_the_mean_is_zeroed, "still remembers step, exp_avg_sq"),
        (the_moments_are_zeroed, "still remembers step:"),
        (reset_all, "changed rows 0 to 99"),
        (into_a_new_parameter, "left 400 of its 400 rows"),
        (without_the_generator, "generators of the same seed"),
        (lambda *given: None, "left 400"),
    ],
)
def test_reset(answer: Answer, says: str):
    told(managing.check_reset(answer), says)


# ------------------------------------------------------------------------------------------------ 6.3
def frozen_step(matrix, rows, optimizer):
    inside = slice(rows.start, rows.stop)
    kept = matrix.detach()[inside].clone()
    matrix.grad[inside] = 0
    optimizer.step()
    matrix.data[inside] = kept


def no_gradient_alone(matrix, rows, optimizer):
    matrix.grad[rows.start : rows.stop] = 0
    optimizer.step()


def a_view_is_kept(matrix, rows, optimizer):
    kept = matrix.detach()[rows.start : rows.stop]
    optimizer.step()
    matrix.data[rows.start : rows.stop] = kept


def nothing_trains(matrix, rows, optimizer):
    matrix.requires_grad_(False)
    matrix.grad = None
    optimizer.step()


def the_other_rows_are_put_back(matrix, rows, optimizer):
    kept = matrix.detach().clone()
    optimizer.step()
    matrix.data[: rows.start] = kept[: rows.start]


def momentum_is_dropped(matrix, rows, optimizer):
    optimizer.state.pop(matrix)
    frozen_step(matrix, rows, optimizer)


def test_frozen_step_has_right_answers():
    assert managing.check_frozen_step(frozen_step).status == "passed"

    def restored_only(matrix, rows, optimizer):
        kept = matrix.detach()[rows.start : rows.stop].clone()
        optimizer.step()
        matrix.data[rows.start : rows.stop] = kept

    assert managing.check_frozen_step(restored_only).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (no_gradient_alone, "Momentum and weight decay go on"),
        (a_view_is_kept, "A copy needs .clone()"),
        (nothing_trains, "no row moved at all"),
        (lambda matrix, rows, optimizer: optimizer.step(), "as if nothing was done"),
        (the_other_rows_are_put_back, "as if nothing was done"),
        (momentum_is_dropped, "did not move as they do without freezing"),
        (lambda matrix, rows, optimizer: matrix.nonsense(), "Your code raised"),
    ],
)
def test_frozen_step(answer: Answer, says: str):
    told(managing.check_frozen_step(answer), says)


# ------------------------------------------------------------------------------------------------ 6.4
def spikes(steps, losses, resets, *, height="rise", back="steps", stop=True):
    """The right answer, with a switch for each way to get it wrong."""
    found = []
    for reset, end in zip(resets, [*resets[1:], steps[-1]], strict=True):
        at = steps.index(reset)
        heights = {
            "rise": losses[at + 1] - losses[at],
            "top": losses[at + 1],
            "early": losses[at] - losses[at - 1],
            "ratio": losses[at + 1] / losses[at],
        }
        end = end if stop else steps[-1]
        there = [i for i, s in enumerate(steps) if reset < s <= end and losses[i] <= losses[at]]
        ways = {i: {"steps": steps[i] - reset, "places": i - at, "step": steps[i]}[back] for i in there}
        found.append((heights[height], ways[there[0]] if there else None))
    return found


def test_spikes_has_a_right_answer():
    assert managing.check_spikes(spikes).status == "passed"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: spikes(*given, height="top"), "not how far it rose"),
        (lambda *given: spikes(*given, height="early"), "is before the reset"),
        (lambda *given: spikes(*given, height="ratio"), "a difference, in nats"),
        (lambda *given: spikes(*given, back="places"), "counted in measurements"),
        (lambda *given: spikes(*given, back="step"), "the step itself"),
        (lambda *given: spikes(*given, stop=False), "beyond the next reset"),
        (lambda *given: [(rise, back or 0) for rise, back in spikes(*given)], "None"),
        (lambda *given: spikes(*given)[:1], "expected"),
        (lambda *given: [list(pair) for pair in spikes(*given)], "expected"),
        (lambda *given: None, "end with a return"),
    ],
)
def test_spikes(answer: Answer, says: str):
    told(managing.check_spikes(answer), says)
