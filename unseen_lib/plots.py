"""Every figure of the book. Functions take results and return a matplotlib figure; none of them computes one.

Colors are from the palette of Okabe and Ito, made to stay apart for readers with any color vision; lines
differ in marker and dash as well.
Figures keep a light ground of their own, so that they read the same in the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from unseen_lib.logic import Problem, Symbol, closure
from unseen_lib.problems import IGNORE, SCENARIOS, Batch
from unseen_lib.records import Interval, Record, interval, value_at

BLUE, GREEN, ORANGE, GRAY = "#0072B2", "#009E73", "#D55E00", "#5A5A5A"
SCENARIO_STYLE: dict[str, dict[str, Any]] = {
    "seen": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "all names seen"},
    "query_unseen": {"color": GREEN, "marker": "s", "linestyle": "--", "label": "query unseen"},
    "all_unseen": {"color": ORANGE, "marker": "^", "linestyle": ":", "label": "all names unseen"},
}
ROW_STYLE: dict[str, dict[str, Any]] = {
    "seen": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "seen rows"},
    "unseen": {"color": ORANGE, "marker": "^", "linestyle": ":", "label": "unseen rows"},
    "fresh": {"color": GRAY, "marker": "", "linestyle": "--", "label": "freshly drawn rows"},
}
MEASURES = {
    "cosine": "mean pairwise cosine",
    "distance": "rms pairwise distance",
    "centered_cosine": "rms centered cosine",
    "norm": "mean norm",
    "functional_spread": "functional spread",
    "logit": "mean logit",
}


def use_book_style() -> None:
    """Set the look of the book's figures, and SVG as their format in a notebook."""
    sns.set_theme(
        context="notebook",
        style="whitegrid",
        rc={
            "figure.figsize": (7.2, 4.0),
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.titlesize": "medium",
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": "#E3E3E3",
            "legend.frameon": False,
            "lines.markersize": 5,
            "svg.hashsalt": "unseen",  # the same figure gives the same file
        },
    )
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # not in a notebook
        return
    set_matplotlib_formats("svg")


def problem_graph(problem: Problem) -> Figure:
    """Draw a problem: an arrow a rule, what can be derived filled, the query ringed.

    A column holds what one round of forward chaining adds; what cannot be derived stands below. The premises
    of a rule that has several meet in a dot. Made for problems of a few rules: more will cross.
    """
    places = _symbol_places(problem)
    columns, rows = zip(*places.values(), strict=True)
    figure, axes = plt.subplots(figsize=(1.75 * max(2, max(columns) + 1), 0.5 + 0.8 * (max(rows) + 1)))
    axes.set(xlim=(-0.5, max(columns) + 0.5), ylim=(-max(rows) - 0.6, 0.6))
    axes.axis("off")
    known = closure(problem)
    boxes = {}
    for name, (column, row) in places.items():
        ring = (ORANGE, 3) if name == problem.query else (BLUE, 1)
        fill, ink = (BLUE, "white") if name in known else ("white", "black")
        boxes[name] = _box(axes, (column, -row), str(name), "round,pad=0.5", fill, ink, *ring)
    for rule in problem.rules:
        start, head = boxes[rule.body[0]], boxes[rule.head]
        if len(rule.body) > 1:
            ends = np.array([boxes[symbol].get_position() for symbol in (*rule.body, rule.head)])
            dot = ends.mean(0) + 0.2
            if (ends[:-1, 0] < ends[-1, 0]).all():  # room between the premises and the head
                dot[0] = ends[-1, 0] - 0.5
                dot[1] -= 0.2
            start = _box(axes, tuple(dot), " ", "circle,pad=-0.2", GRAY, GRAY, GRAY, 1)
            for symbol in rule.body:
                _connect(axes, boxes[symbol], start, "-")
        _connect(axes, start, head, "-|>")
    return figure


def _symbol_places(problem: Problem) -> dict[Symbol, tuple[int, int]]:
    """Column and row of each symbol: first what follows, round by round, then what does not."""
    places: dict[Symbol, tuple[int, int]] = {}
    left = [symbol for symbol in problem.symbols if symbol not in problem.facts]
    layer, top = list(dict.fromkeys(problem.facts)), 0
    while layer or left:
        if not layer:  # the next group starts where no rule leads, or anywhere on a circle
            heads = {rule.head for rule in problem.rules}
            layer = [symbol for symbol in left if symbol not in heads] or left[:1]
        column, height = 0, 0
        while layer:
            places |= {symbol: (column, top + row) for row, symbol in enumerate(layer)}
            column, height = column + 1, max(height, len(layer))
            left = [symbol for symbol in left if symbol not in layer]
            reached = {rule.head for rule in problem.rules if places.keys() >= set(rule.body)}
            layer = [symbol for symbol in left if symbol in reached]
        top += height
    return places


def _box(
    axes: Axes,
    place: tuple[float, float],
    text: str,
    shape: str,
    fill: str,
    ink: str,
    edge: str,
    width: float,
) -> Text:
    box = {"boxstyle": shape, "facecolor": fill, "edgecolor": edge, "linewidth": width}
    return axes.text(*place, text, ha="center", va="center", color=ink, bbox=box, zorder=3)


def _connect(axes: Axes, start: Text, end: Text, style: str) -> None:
    """A line from box to box; one that would run through others on its way bends around them."""
    (x0, y0), (x1, y1) = start.get_position(), end.get_position()
    bend = 0.35 if y0 == y1 and not 0 < x1 - x0 <= 1 else 0.0
    axes.annotate(
        "",
        (x1, y1),
        (x0, y0),
        zorder=2,
        arrowprops={
            "arrowstyle": style,
            "connectionstyle": f"arc3,rad={bend}",
            "color": GRAY,
            "patchA": start.get_bbox_patch(),
            "patchB": end.get_bbox_patch(),
        },
    )


def depth_shares(depths: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """How deep problems are: a panel for each ``{title: (depth (B,), answer (B,))}``, by the answer."""
    figure, grid = plt.subplots(1, len(depths), figsize=(3.6 * len(depths), 3.2), sharey=True, squeeze=False)
    for axes, (title, (depth, answer)) in zip(grid.flat, depths.items(), strict=True):
        places = np.arange(depth.max() + 1)
        for label, rows, shift, look in [
            ("yes", answer, -0.2, {"facecolor": BLUE, "edgecolor": BLUE}),
            ("no", ~answer, 0.2, {"facecolor": "white", "edgecolor": ORANGE, "hatch": "///"}),
        ]:
            shares = np.bincount(depth[rows], minlength=len(places)) / len(depth)
            axes.bar(places + shift, shares, 0.36, label=f"the answer is {label}", **look)
        axes.set(title=title, xlabel="rounds of forward chaining", xticks=places)
        axes.grid(axis="x", visible=False)
    grid.flat[0].set_ylabel("share of problems")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def loss_mask(batch: Batch) -> Figure:
    """Where the loss looks: a row a problem, a cell a position, colored by where its target belongs."""
    position = np.arange(1, batch.tokens.shape[1] + 1)
    asked = position < batch.prompt_length.numpy()[:, None]
    scored = (batch.targets != IGNORE).numpy()
    rows, columns = scored.shape
    figure, axes = plt.subplots(figsize=(7.2, 1.3 + 0.22 * rows))
    for label, cells, color in [("question", asked, "#CFCFCF"), ("proof and answer: loss", scored, BLUE)]:
        y, x = np.nonzero(cells)
        axes.barh(y, 0.9, left=x + 0.05, height=0.8, color=color, label=label)
    axes.set(xlim=(0, columns), xlabel="position")
    axes.set(ylim=(rows - 0.5, -0.5), ylabel="problem", yticks=range(rows))
    axes.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def validity_over_seeds(records: Sequence[Record], scenarios: Sequence[str] = SCENARIOS) -> Figure:
    """Runs that differ in their seed: the share of valid proofs against the step, their mean and range."""
    figure, axes = plt.subplots()
    for scenario in scenarios:
        steps = records[0].series(scenario, "proof_validity")[0]
        values = np.array([record.series(scenario, "proof_validity")[1] for record in records])
        style = SCENARIO_STYLE[scenario]
        axes.plot(steps, values.mean(0), **style)
        axes.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="training step", ylabel=_words("proof_validity"), ylim=(-0.03, 1.03))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def training_curves(
    curve: Sequence[dict[str, Any]], quantities: Sequence[str] = ("proof_validity",)
) -> Figure:
    """One run: shares of each scenario's problems against the step, a panel a quantity."""
    figure, panels = _share_panels(quantities, chance=value_at(curve[-1], ("seen", "answer_chance")))
    for axes, quantity in zip(panels, quantities, strict=True):
        for scenario in SCENARIOS:
            values = [value_at(entry, (scenario, quantity)) for entry in curve]
            axes.plot([entry["step"] for entry in curve], values, **SCENARIO_STYLE[scenario])
        axes.set_xlabel("training step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def against_names(records: Sequence[Record], quantities: Sequence[str] = ("proof_validity",)) -> Figure:
    """A grid: final shares against the number of training names, a dot a seed, mean and 95 % interval."""
    names = sorted({record.names for record in records})
    figure, panels = _share_panels(quantities, chance=value_at(records[0].final, ("seen", "answer_chance")))
    for axes, quantity in zip(panels, quantities, strict=True):
        for offset, scenario in zip((0.9, 1.0, 1.11), SCENARIOS, strict=True):
            style = SCENARIO_STYLE[scenario]
            groups = [
                [value_at(record.final, (scenario, quantity)) for record in records if record.names == number]
                for number in names
            ]
            places = [number * offset for number in names]
            _error_bars(axes, places, [interval(group) for group in groups], style)
            for place, group in zip(places, groups, strict=True):
                axes.plot([place] * len(group), group, ".", color=style["color"], alpha=0.45, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(names, [str(number) for number in names])
        axes.minorticks_off()
        axes.set_xlabel("names used in training")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _share_panels(quantities: Sequence[str], chance: float) -> tuple[Figure, list[Axes]]:
    """Panels side by side for shares between 0 and 1; those for answers show what a fixed answer reaches."""
    size = (max(6.4, 3.8 * len(quantities)), 3.9)
    figure, grid = plt.subplots(1, len(quantities), figsize=size, squeeze=False)
    panels = list(grid.flat)
    for axes, quantity in zip(panels, quantities, strict=True):
        axes.set(title=_words(quantity), ylabel="share of problems", ylim=(-0.04, 1.04))
        axes.label_outer()
        if quantity == "answer_accuracy":
            axes.axhline(chance, color=GRAY, linewidth=1)
            where = {"ha": "right", "va": "top", "transform": axes.get_yaxis_transform()}
            axes.text(0.99, chance - 0.02, "chance", color=GRAY, **where)
    return figure, panels


def _error_bars(
    axes: Axes, places: Sequence[float], means: Sequence[Interval], style: Mapping[str, Any]
) -> None:
    middle = [mean.mean for mean in means]
    ends = [[mean.mean - mean.low for mean in means], [mean.high - mean.mean for mean in means]]
    axes.errorbar(places, middle, yerr=ends, capsize=3, **style)


def error_shares(counts: Mapping[str, Mapping[str, int]]) -> Figure:
    """What goes wrong: for each scenario in ``counts``, how many failed proofs have which first error."""
    kinds = [kind for kind in dict.fromkeys(kind for group in counts.values() for kind in group)]
    totals = {kind: sum(group.get(kind, 0) for group in counts.values()) for kind in kinds}
    kinds = sorted((kind for kind in kinds if totals[kind]), key=lambda kind: totals[kind])
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.32 * len(kinds) * len(counts)))
    height = 0.8 / len(counts)
    for index, (group, values) in enumerate(counts.items()):
        places = np.arange(len(kinds)) + (len(counts) - 1) * height / 2 - index * height
        style = {key: SCENARIO_STYLE[group][key] for key in ("color", "label")}
        bars = axes.barh(places, [values.get(kind, 0) for kind in kinds], height=height * 0.9, **style)
        axes.bar_label(bars, padding=3, fontsize="small")
    axes.set_yticks(np.arange(len(kinds)), [_words(kind) for kind in kinds])
    axes.set_xlabel("failed proofs with this first error")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure


def row_measures(
    curves: Sequence[Sequence[dict[str, Any]]], measures: Sequence[str] = tuple(MEASURES)
) -> Figure:
    """Small multiples: each measure of the rows against the step; with several runs, their mean and range."""
    columns = 3 if len(measures) > 2 else len(measures)
    lines = -(-len(measures) // columns)
    size, layout = (3.2 * columns, 2.8 * lines), ConstrainedLayoutEngine(h_pad=0.1)
    figure, grid = plt.subplots(lines, columns, figsize=size, squeeze=False, layout=layout)
    steps = [entry["step"] for entry in curves[0]]
    for axes, measure in zip(grid.flat, measures, strict=False):
        for group, style in ROW_STYLE.items():
            path = ("rows", group, measure)
            values = np.array([[value_at(entry, path) for entry in curve] for curve in curves])
            axes.plot(steps, values.mean(0), **{**style, "markersize": 3})
            if len(curves) > 1:
                band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                axes.fill_between(steps, values.min(0), values.max(0), **band)
        axes.set_title(MEASURES[measure])
        if measure != "logit":  # each from its zero, so that a small change looks small
            top = 1.05 if "cosine" in measure else 1.15 * axes.dataLim.y1
            axes.set_ylim(-0.05 if "cosine" in measure else 0, top)
        if axes in grid[-1]:
            axes.set_xlabel("training step")
    for axes in list(grid.flat)[len(measures) :]:
        axes.set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def rows_in_two_dimensions(windows: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]) -> Figure:
    """Rows as points on one scale: a column for each window on them, a row of panels for each moment.

    ``{"features 1 and 2": {"before": {"seen": (N, 2), "unseen": (M, 2)}, "after": …}, …}``
    """
    moments = list(next(iter(windows.values())))
    size = (3.2 * len(windows), 3.0 * len(moments) + 0.6)
    figure, grid = plt.subplots(
        len(moments), len(windows), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for column, (window, panels) in enumerate(windows.items()):
        for row, moment in enumerate(moments):
            axes = grid[row, column]
            for group, points in panels[moment].items():
                style = {name: ROW_STYLE[group][name] for name in ("color", "marker", "label")}
                axes.scatter(points[:, 0], points[:, 1], s=12, alpha=0.55, linewidth=0, **style)
            axes.set(aspect="equal")
            if row == 0:
                axes.set_title(window)
            if column == 0:
                axes.set_ylabel(moment, fontweight="bold")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=2)
    return figure


def _words(name: str) -> str:
    """How a field's name reads on an axis."""
    known = {
        "proof_validity": "valid whole proofs",
        "true_proof_validity": "valid whole proofs, true queries",
        "answer_accuracy": "right answers",
    }
    return known.get(name, name.replace("_", " "))
