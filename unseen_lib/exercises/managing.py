"""The exercises of chapter 6: managing embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen_lib.embeddings import EmbeddingPolicy
from unseen_lib.exercises import Wrong, compiler_loaded, exercise, expect_equal


@exercise("6.1", "How many rows the model meets")
def check_rows_met(rows_met: Callable[..., Any]) -> None:
    """``rows_met(names, steps, every, until)``: names times the draws that active forgetting gives them."""
    for names, steps, every, until in [
        (32, 1000, 50, None),
        (32, 1000, 50, 500),
        (512, 1000, 300, None),
        (10, 101, 20, None),
        (7, 90, 30, 59),
    ]:
        call = f"rows_met(names={names}, steps={steps}, every={every}, until={until})"
        policy = EmbeddingPolicy("forgetting", every=every, until=until)
        resets = sum(policy.resets_at(step) for step in range(steps))
        got, wanted = rows_met(names, steps, every, until), names * (1 + resets)
        got = int(got) if isinstance(got, np.integer) else got
        mistakes = {
            "counts the resets and leaves out the rows drawn before training": names * resets,
            "goes on resetting after step until": names
            * (1 + sum(step % every == 0 for step in range(1, steps))),
            "resets once more at the end, where no step follows that could use the rows": names
            * (1 + sum(step % every == 0 and step <= (until or steps) for step in range(1, steps + 1))),
            "gives the number of draws, not that of rows": 1 + resets,
        }
        for about, wrong in mistakes.items():
            if got == wrong != wanted:
                raise Wrong(f"{call}\n  returned {got}, which {about}.\n  expected {wanted}")
        expect_equal(got, wanted, call)


@compiler_loaded
@exercise("6.2", "Draw rows again")
def check_reset(reset: Callable[..., Any]) -> None:
    """``reset(matrix, rows, optimizer, generator)`` draws rows anew and drops what is remembered of them."""
    rows, width = range(100, 500), 64
    matrix, other, optimizer = _in_training(500, width, weight_decay=0.0)
    before = matrix.detach().clone()
    remembered = {key: value.clone() for key, value in optimizer.state[other].items()}
    reset(matrix, rows, optimizer, torch.Generator().manual_seed(1))
    if optimizer.param_groups[0]["params"][0] is not matrix or not matrix.requires_grad:
        raise Wrong("the optimizer no longer trains this matrix: change its values in place.")
    drawn, kept = matrix.detach()[100:], matrix.detach()[:100]
    if not torch.equal(kept, before[:100]):
        raise Wrong("reset(matrix, rows=range(100, 500), …) changed rows 0 to 99: they are to stay.")
    same = int((drawn == before[100:]).all(1).sum())
    if same:
        raise Wrong(f"reset(matrix, rows=range(100, 500), …) left {same} of its 400 rows as they were.")
    if torch.equal(drawn, drawn[:1].expand_as(drawn)):
        raise Wrong("all rows were given the same draw: each needs its own.")
    _check_scale(drawn, width)
    again, _, another = _in_training(500, width, weight_decay=0.0)
    reset(again, rows, another, torch.Generator().manual_seed(1))
    if not torch.equal(again.detach()[100:], drawn):
        raise Wrong(
            "two calls with generators of the same seed drew different rows: pass generator=generator on."
        )
    now = optimizer.state.get(other, {})
    if now.keys() != remembered.keys() or any(not torch.equal(now[key], remembered[key]) for key in now):
        raise Wrong(
            "the optimizer forgot another parameter too: drop its state of this matrix, and only that."
        )
    state = optimizer.state.get(matrix, {})
    left = [key for key, value in state.items() if torch.as_tensor(value).count_nonzero()]
    before = matrix.detach().clone()
    optimizer.zero_grad()
    matrix.grad = torch.zeros_like(matrix)
    optimizer.step()
    moved = float((matrix.detach() - before)[100:].norm(dim=1).mean())
    if moved > 0:
        raise Wrong(
            f"in a step with a gradient of zero the new rows moved by {moved:.2g}: the optimizer still "
            "follows the momentum of the old ones. Drop its state of the matrix."
        )
    if left:
        raise Wrong(
            f"of the old matrix the optimizer still remembers {', '.join(left)}: drop the whole entry of "
            "this matrix in optimizer.state."
        )


def _check_scale(drawn: Tensor, width: int) -> None:
    wanted, got = width**-0.5, float(drawn.std())
    for about, wrong in {
        "a standard deviation of 1: norms are then √D and not 1. N(0, 1/D) has the deviation 1/√D": 1.0,
        "a standard deviation of 1/D: that is the variance of N(0, 1/D)": 1 / width,
    }.items():
        if abs(got / wrong - 1) < 0.05:
            raise Wrong(f"the new rows, of width {width}, have {about}.")
    if abs(got / wanted - 1) > 0.05 or float(drawn.mean().abs()) > 0.1 * wanted:
        raise Wrong(
            f"the new rows, of width {width}, have mean {float(drawn.mean()):.3f} and standard deviation "
            f"{got:.3f}; expected 0 and {wanted:.3f}, as N(0, 1/D) has."
        )


@compiler_loaded
@exercise("6.3", "Freeze some rows")
def check_frozen_step(frozen_step: Callable[..., Any]) -> None:
    """``frozen_step(matrix, rows, optimizer)`` takes a step that moves all rows but some."""
    for kind, decay in [(torch.optim.AdamW, 0.1), (torch.optim.SGD, 0.0)]:
        free, _, reference = _in_training(8, 5, weight_decay=decay, kind=kind)
        reference.step()
        idle, _, without_gradient = _in_training(8, 5, weight_decay=decay, kind=kind)
        assert idle.grad is not None
        idle.grad[3:] = 0
        without_gradient.step()
        matrix, _, optimizer = _in_training(8, 5, weight_decay=decay, kind=kind)
        before = matrix.detach().clone()
        frozen_step(matrix, range(3, 8), optimizer)
        frozen, others = matrix.detach()[3:], matrix.detach()[:3]
        name = f"frozen_step(matrix, rows=range(3, 8), optimizer), {kind.__name__} with momentum"
        name += f" and weight_decay={decay}" if decay else ""
        if torch.equal(matrix.detach(), before):
            raise Wrong(f"{name}: no row moved at all. Rows 0 to 2 have to make their step.")
        if torch.equal(frozen, free.detach()[3:]):
            raise Wrong(
                f"{name}: rows 3 to 7 moved as if nothing was done. A copy needs .clone(): without it you "
                "keep the rows themselves, which the step changes."
            )
        if torch.equal(frozen, idle.detach()[3:]):
            raise Wrong(
                f"{name}: rows 3 to 7 moved without a gradient. Momentum and weight decay go on; put the "
                "rows back after the step."
            )
        if not torch.equal(frozen, before[3:]):
            raise Wrong(f"{name}: rows 3 to 7 are not exactly what they were.")
        if not torch.equal(others, free.detach()[:3]):
            raise Wrong(f"{name}: rows 0 to 2 did not move as they do without freezing.")


def _in_training(
    rows: int, width: int, *, weight_decay: float, kind: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> tuple[torch.nn.Parameter, torch.nn.Parameter, torch.optim.Optimizer]:
    """A matrix (rows, width) and another weight after a few steps, each with a gradient for the next one."""
    generator = torch.Generator().manual_seed(61)
    matrix = torch.nn.Parameter(torch.randn(rows, width, generator=generator) / width**0.5)
    other = torch.nn.Parameter(torch.ones(3))
    options = {"lr": 0.05, "weight_decay": weight_decay}
    if kind is torch.optim.SGD:
        options["momentum"] = 0.9
    optimizer = kind([matrix, other], **options)  # type: ignore[arg-type]  # each kind has options of its own
    for step in range(4):
        matrix.grad = torch.randn(rows, width, generator=generator) + 0.3
        other.grad = torch.ones(3)
        if step < 3:
            optimizer.step()
    return matrix, other, optimizer


@exercise("6.4", "Read a spike")
def check_spikes(spikes: Callable[..., Any]) -> None:
    """``spikes(steps, losses, resets)``: for each reset the jump of the loss and the way back."""
    for about, steps, losses, resets in [
        ("one reset, measured at each step", [0, 1, 2, 3, 4, 5], [4.0, 3.0, 9.0, 6.0, 3.0, 1.0], [1]),
        (
            "measured at unequal distances",
            [0, 10, 11, 12, 14, 18, 20, 21, 22, 24, 28, 30],
            [8.0, 4.0, 9.0, 7.0, 5.0, 4.5, 3.5, 6.5, 5.5, 4.0, 3.0, 2.0],
            [10, 20],
        ),
        (
            "a loss that is not back before the next reset",
            [0, 2, 4, 5, 6, 8, 9, 10, 12],
            [5.0, 3.0, 1.0, 6.0, 4.0, 2.0, 7.0, 5.0, 0.5],
            [4, 8],
        ),
        ("a reset that nothing is seen of", [0, 1, 2, 3], [1.0, 1.0, 1.0, 0.5], [1]),
    ]:
        call = f"spikes({steps}, {losses}, {resets})\n  ({about})"
        got = spikes(list(steps), list(losses), list(resets))
        wanted = _spikes(steps, losses, resets)
        if isinstance(got, list) and len(got) == len(wanted) and got != wanted:
            _explain_spikes(got, steps, losses, resets, call, wanted)
        expect_equal(got, wanted, call)


def _spikes(
    steps: Sequence[int], losses: Sequence[float], resets: Sequence[int]
) -> list[tuple[float, int | None]]:
    found: list[tuple[float, int | None]] = []
    for reset, end in zip(resets, [*resets[1:], steps[-1]], strict=True):
        at = steps.index(reset)
        back = [s for s, loss in zip(steps, losses, strict=True) if reset < s <= end and loss <= losses[at]]
        found.append((losses[at + 1] - losses[at], back[0] - reset if back else None))
    return found


def _explain_spikes(
    got: Sequence[Any],
    steps: Sequence[int],
    losses: Sequence[float],
    resets: Sequence[int],
    call: str,
    wanted: object,
) -> None:
    places = [steps.index(reset) for reset in resets]
    heights = {
        "the loss after the reset, not how far it rose": [losses[i + 1] for i in places],
        "the change up to the reset's own step: what is measured there is before the reset": [
            losses[i] - losses[i - 1] for i in places
        ],
        "a ratio; the height is a difference, in nats": [losses[i + 1] / losses[i] for i in places],
    }
    seen = [pair[0] if isinstance(pair, tuple | list) and len(pair) == 2 else None for pair in got]
    right = [losses[i + 1] - losses[i] for i in places]
    for about, wrong in heights.items():
        if seen == wrong != right:
            raise Wrong(f"{call}\n  returned heights {seen}: {about}.\n  expected {wanted}")
    if seen != right:
        return
    backs = [pair[1] for pair in got]
    last = steps[-1]
    later = [_first_back(steps, losses, i, last) for i in places]
    ends = [*resets[1:], last]
    here = [_first_back(steps, losses, i, end) for i, end in zip(places, ends, strict=True)]
    durations = {
        "counted in measurements, not in steps": [
            None if s is None else steps.index(s) - i for s, i in zip(here, places, strict=True)
        ],
        "looked for beyond the next reset": [
            None if s is None else s - r for s, r in zip(later, resets, strict=True)
        ],
        "the step itself, not the steps since the reset": here,
    }
    for about, way_back in durations.items():
        if backs == way_back:
            raise Wrong(f"{call}\n  returned {got}: the way back is {about}.\n  expected {wanted}")


def _first_back(steps: Sequence[int], losses: Sequence[float], at: int, end: int) -> int | None:
    """The first step after place ``at``, up to ``end``, at which the loss is no higher than there."""
    return next(
        (s for s, loss in zip(steps, losses, strict=True) if steps[at] < s <= end and loss <= losses[at]),
        None,
    )
