"""Every figure of the book. Functions take results and return a matplotlib figure; none of them computes one.

Colors are from the palette of Okabe and Ito, made to stay apart for readers with any color vision; lines
differ in marker and dash as well.
Figures keep a light ground of their own, so that they read the same in the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from unseen_lib.logic import Problem, Symbol, closure
from unseen_lib.problems import IGNORE, SCENARIOS, Batch
from unseen_lib.records import Record, interval, value_at
from unseen_lib.theory import Moment

BLUE, GREEN, ORANGE, GRAY = "#0072B2", "#009E73", "#D55E00", "#5A5A5A"
# Colors that text lies on: dark text keeps a contrast of at least 4.5 on all of them, on a dimmed page too.
PALE = LinearSegmentedColormap.from_list("pale", ["white", "#56B4E9"])
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
#: What an axis calls each measure.
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
            "figure.dpi": 144,  # of what is a bitmap inside a drawing
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


def problem_graph(problem: Problem, known: Collection[Symbol] | None = None) -> Figure:
    """Draw a problem: an arrow a rule, what is ``known`` filled (all that can be derived), the query ringed.

    A column holds what one round of forward chaining adds; what cannot be derived stands below. The premises
    of a rule that has several meet in a dot. Made for problems of a few rules: more will cross.
    """
    known = closure(problem) if known is None else known
    places = _symbol_places(problem)
    columns, rows = zip(*places.values(), strict=True)
    figure, axes = plt.subplots(figsize=(1.3 * max(2, max(columns) + 1), 0.5 + 0.8 * (max(rows) + 1)))
    axes.set(xlim=(-0.5, max(columns) + 0.5), ylim=(-max(rows) - 0.6, 0.6))
    axes.axis("off")
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
    """Runs that differ in their seed: the share of valid proofs against the step, their mean and range.

    Each line is named beside its end, so that the figure fits a phone.
    """
    figure, axes = plt.subplots(figsize=(4.4, 3.2))
    for scenario in scenarios:
        steps = records[0].series(scenario, "proof_validity")[0]
        values = np.array([record.series(scenario, "proof_validity")[1] for record in records])
        style = SCENARIO_STYLE[scenario]
        axes.plot(steps, values.mean(0), **style)
        axes.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
        later = values[:, len(steps) // 2 :]
        high = later.mean() > 0.5  # then its name stands below it, else above
        axes.annotate(
            style["label"],
            (steps[-1], later.min() if high else later.max()),
            (0, -4 if high else 4),
            textcoords="offset points",
            color=[0.7 * part for part in to_rgb(style["color"])],  # orange words on white are too pale
            fontweight="bold",
            ha="right",
            va="top" if high else "bottom",
        )
    axes.set(xlabel="training step", ylabel=_words("proof_validity"), ylim=(-0.03, 1.03))
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
            groups = {
                number: [
                    value_at(record.final, (scenario, quantity))
                    for record in records
                    if record.names == number
                ]
                for number in names
            }
            _seeds_against_names(axes, groups, SCENARIO_STYLE[scenario], offset)
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


def _seeds_against_names(
    axes: Axes, groups: Mapping[int, Sequence[float]], style: Mapping[str, Any], offset: float
) -> None:
    """One line of a grid: at each number of names a dot a seed, their mean and 95 % interval."""
    numbers = sorted(groups)
    means = [interval(groups[number]) for number in numbers]
    ends = [[mean.mean - mean.low for mean in means], [mean.high - mean.mean for mean in means]]
    places = [number * offset for number in numbers]  # beside each other, so that lines do not hide lines
    axes.errorbar(places, [mean.mean for mean in means], yerr=ends, capsize=3, **style)
    for place, number in zip(places, numbers, strict=True):
        dots = {"color": style["color"], "alpha": 0.45, "markersize": 4}
        axes.plot([place] * len(groups[number]), groups[number], ".", **dots)
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()


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
                _cloud(axes, points, s=12, **style)
            axes.set(aspect="equal")
            if row == 0:
                axes.set_title(window)
            if column == 0:
                axes.set_ylabel(moment, fontweight="bold")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=2)
    return figure


def _cloud(axes: Axes, points: np.ndarray, alpha: float = 0.55, **style: Any) -> None:
    """Points (N, 2), so many that they are a bitmap even where the rest of the figure is not."""
    axes.scatter(points[:, 0], points[:, 1], alpha=alpha, linewidth=0, rasterized=True, **style)


def rows_at_a_step(
    windows: Mapping[str, Mapping[str, np.ndarray]],
    reach: float,
    curve: Sequence[dict[str, Any]],
    step: int,
) -> Figure:
    """One moment of training: rows as points, a panel a window, and valid proofs up to this moment.

    ``{"features 1 and 2": {"seen": (N, 2), "unseen": (M, 2)}, …}``; all windows show what lies within
    ``reach`` of zero, and ``curve`` is that of the whole run, so that two moments can be compared. With two
    windows it fits a phone.
    """
    figure, grid = plt.subplots(1, len(windows) + 1, figsize=(1.75 * (len(windows) + 1), 2.5), squeeze=False)
    *panels, proofs = grid.flat
    tick = float(f"{0.7 * reach:.1g}")
    ticks = (-tick, 0, tick)  # few, and short: they must not meet
    for axes, (window, groups) in zip(panels, windows.items(), strict=True):
        for group, points in groups.items():
            style = {name: ROW_STYLE[group][name] for name in ("color", "marker", "label")}
            _cloud(axes, points, alpha=1.0, s=10, **style)
        axes.set_title(window, fontsize="small")
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=ticks, yticks=ticks)
        axes.set_box_aspect(1)
        axes.tick_params(labelleft=axes is panels[0])
    past = [entry for entry in curve if entry["step"] <= step]
    for scenario, group in (("seen", "seen"), ("all_unseen", "unseen")):
        values = [value_at(entry, (scenario, "proof_validity")) for entry in past]
        look = {**ROW_STYLE[group], "marker": "", "label": None}
        proofs.plot([entry["step"] for entry in past], values, **look)
        proofs.plot([step], values[-1:], **{**ROW_STYLE[group], "label": None, "clip_on": False})
    proofs.set_title("valid proofs", fontsize="small")
    proofs.set(xlabel="training step")
    proofs.set(xlim=(0, curve[-1]["step"]), ylim=(-0.04, 1.04))
    proofs.set_box_aspect(1)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=2)
    return figure


def audited_rows(points: Mapping[str, np.ndarray], *, title: str = "") -> Figure:
    """Where the rows of an audited model lie, as seen from the mean row of its unused tokens.

    ``{"ordinary tokens": (N, 2), "<unused0> … <unused98>": (M, 2), …}``: distance from that row, and cosine
    with it, the mean ordinary row subtracted. Rows that collapsed sit together at the top left.
    """
    figure, axes = plt.subplots()
    styles = [(GRAY, "."), (ORANGE, "^"), (BLUE, "o"), (GREEN, "s")]
    for number, (label, places) in enumerate(points.items()):
        color, marker = styles[0] if number == 0 else styles[1 + (number - 1) % 3]
        label = f"{label} ({len(places)} rows)".replace("$", r"\$").removeprefix("_")
        _cloud(axes, places, s=18, color=color, marker=marker, label=label)
    axes.set(xlabel="distance from the mean unused row", ylabel="cosine with it, centered", title=title)
    axes.set_ylim(-1.05, 1.05)
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", markerscale=1.5)
    return figure


def _words(name: str) -> str:
    """How a field's name reads on an axis."""
    known = {
        "proof_validity": "valid whole proofs",
        "true_proof_validity": "valid whole proofs, true queries",
        "answer_accuracy": "right answers",
        "exact_match": "right whole completions",
    }
    return known.get(name, name.replace("_", " "))


# ---------------------------------------------------------------------------------------- managing embeddings
#: Color, mark, line and label of each embedding policy.
POLICY_STYLE: dict[str, dict[str, Any]] = {
    "trainable": {"color": ORANGE, "marker": "^", "linestyle": ":", "label": "trainable"},
    "frozen": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "frozen"},
    "forgetting": {"color": GREEN, "marker": "s", "linestyle": "--", "label": "forgetting"},
    "temporary": {"color": GRAY, "marker": "D", "linestyle": "-.", "label": "temporary forgetting"},
}


def losses_between_resets(
    steps: Sequence[int],
    losses: Mapping[str, Sequence[float]],
    resets: Sequence[int],
    zoom: tuple[int, int],
) -> Figure:
    """A test loss a scenario (nats, S of them) against the step, over the whole run and from step to step.

    Values are drawn as they are, on a logarithmic axis; a vertical line marks each reset.
    """
    layout = {"width_ratios": (3, 2)}
    figure, (whole, part) = plt.subplots(1, 2, figsize=(8.6, 3.9), sharey=True, gridspec_kw=layout)
    near = (np.asarray(steps) >= zoom[0]) & (np.asarray(steps) <= zoom[1])
    for axes, inside, size in ((whole, slice(None), 0.0), (part, near, 4.0)):
        for scenario, values in losses.items():
            style = {**SCENARIO_STYLE[scenario], "markersize": size, "linewidth": 1.3}
            axes.plot(np.asarray(steps)[inside], np.asarray(values)[inside], **style)
        for reset in resets:
            if axes is whole or zoom[0] <= reset <= zoom[1]:
                axes.axvline(reset, color=GRAY, linewidth=0.6, alpha=0.6, zorder=0)
        axes.set(yscale="log", xlabel="training step")
        axes.grid(axis="x", visible=False)
    whole.set_ylabel("test loss in nats")
    whole.set_title("the whole run")
    part.set_title(f"steps {zoom[0]} to {zoom[1]}")
    figure.legend(*part.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def over_steps(
    steps: Sequence[int],
    panels: Mapping[str, Mapping[str, np.ndarray]],
    styles: Mapping[str, Mapping[str, Any]],
    stop: int | None = None,
    ylabel: str = "",
    sharey: bool = False,
) -> Figure:
    """Arms of a grid side by side: a panel a quantity, a line an arm (its mean), a band from least to most.

    ``{"valid proofs": {"frozen": (R, S), …}, …}`` has R runs measured at S steps; ``styles`` has a look for
    each arm, such as `POLICY_STYLE`. A vertical line marks the step ``stop``.
    """
    size = (max(6.4, 3.4 * len(panels)), 3.9)
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=sharey, squeeze=False)
    for axes, (title, arms) in zip(grid.flat, panels.items(), strict=True):
        for arm, values in arms.items():
            axes.plot(steps, values.mean(0), **{**styles[arm], "markersize": 4})
            band = {"color": styles[arm]["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(steps, values.min(0), values.max(0), **band)
        if stop is not None:
            axes.axvline(stop, color="black", linewidth=1)
            where = {"va": "top", "fontsize": "small", "transform": axes.get_xaxis_transform()}
            axes.text(stop + 0.015 * (steps[-1] - steps[0]), 0.99, "last reset", **where)
        axes.set(title=title, xlabel="training step")
    grid.flat[0].set_ylabel(ylabel)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


# ------------------------------------------------------------------------------- the combined fix (chapter 7)
COPYING_STYLE: dict[str, dict[str, Any]] = {
    "plain": {"color": GRAY, "marker": "s", "linestyle": "--", "label": "without copy attention"},
    "copy": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "with copy attention"},
}
GRID_ROWS = (
    ("seen", "proof_validity"),
    ("query_unseen", "true_proof_validity"),
    ("all_unseen", "proof_validity"),
)


def whole_grid(arms: Mapping[str, Sequence[Record]], rows: Sequence[tuple[str, str]] = GRID_ROWS) -> Figure:
    """All cells of the main grid: a column of panels a policy, a row for each ``(scenario, quantity)``.

    ``arms`` is what `.records.load_arms` returns, ``{"frozen-copy-512": [one Record a seed], …}``. A panel
    shows the final share against the number of names: a dot a seed, mean and 95 % interval.
    """
    cells = {tuple(arm.rsplit("-", 2)): records for arm, records in arms.items()}
    policies = list(dict.fromkeys(policy for policy, _, _ in cells))
    size = (0.8 + 2.0 * len(policies), 0.9 + 1.9 * len(rows))
    figure, grid = plt.subplots(
        len(rows), len(policies), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for line, (scenario, quantity) in zip(grid, rows, strict=True):
        for axes, policy in zip(line, policies, strict=True):
            for (copying, style), offset in zip(COPYING_STYLE.items(), (0.93, 1.08), strict=True):
                groups = {
                    int(number): [value_at(record.final, (scenario, quantity)) for record in records]
                    for (its_policy, its_copying, number), records in cells.items()
                    if (its_policy, its_copying) == (policy, copying)
                }
                _seeds_against_names(axes, groups, {**style, "markersize": 4}, offset)
            axes.set_ylim(-0.06, 1.06)
        kind = ", true queries" if quantity.startswith("true_") else ""
        line[0].set_ylabel(f"{SCENARIO_STYLE[scenario]['label']}{kind}".replace("unseen, ", "unseen,\n"))
    for axes, policy in zip(grid[0], policies, strict=True):
        axes.set_title(policy)
    for axes in grid[-1]:
        axes.set_xlabel("names", fontsize="small")
        axes.tick_params(axis="x", labelsize="small")
    figure.supylabel("valid whole proofs", fontsize="medium")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def seeds_by_arm(panels: Mapping[str, Mapping[str, Sequence[float]]], xlabel: str) -> Figure:
    """A line for each arm of a comparison: its seeds as dots, their mean and 95 % interval.

    ``{"title of a panel": {"arm": [one share a seed], …}, …}``, the same arms in all panels; the first is
    what the others are compared with, and its mean is drawn through all of them.
    """
    size = (1.6 + 2.8 * len(panels), 1.3 + 0.34 * max(map(len, panels.values())))
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, (title, arms) in zip(grid.flat, panels.items(), strict=True):
        axes.axvline(interval(next(iter(arms.values()))).mean, color=GRAY, linewidth=1, linestyle="--")
        for place, values in enumerate(arms.values()):
            _line_of_seeds(axes, place, values, *((BLUE, "o") if place == 0 else (ORANGE, "^")))
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set(title=title, xlim=(-0.04, 1.04))
        axes.grid(axis="y", visible=False)
    grid[0, 0].invert_yaxis()  # shared: the first arm on top in every panel
    figure.supxlabel(xlabel, fontsize="medium")
    return figure


def _line_of_seeds(axes: Axes, place: int, values: Sequence[float], color: str, marker: str) -> None:
    """Mean and 95 % interval of one arm at height ``place``, and its seeds below, where the bar is not."""
    mean = interval(values)
    ends = [[mean.mean - mean.low], [mean.high - mean.mean]]
    axes.errorbar([mean.mean], [place], xerr=ends, color=color, marker=marker, capsize=3)
    axes.plot(values, [place + 0.25] * len(values), ".", color=color, alpha=0.5, markersize=4)


def table_of_shares(panels: Mapping[str, Mapping[str, Mapping[str, float]]], label: str) -> Figure:
    """Tables with a colored cell a share, in percent, side by side: ``{panel: {line: {column: share}}}``."""
    lines = list(next(iter(panels.values())))
    columns = list(next(iter(panels.values()))[lines[0]])
    size = (2.0 + 0.5 * len(columns) * len(panels), 1.6 + 0.32 * len(lines))
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, (title, table) in zip(grid.flat, panels.items(), strict=True):
        shares = np.array([[table[line][column] for column in columns] for line in lines])
        image = axes.imshow(shares, vmin=0, vmax=1, cmap=PALE, aspect="auto")
        for (row, column), share in np.ndenumerate(shares):
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize="small")
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(lines)), lines)
        axes.set_title(title)
        axes.grid(visible=False)
        axes.tick_params(length=0)
    figure.colorbar(image, ax=grid, label=label, format=lambda share, _: f"{100 * share:.0f} %")
    return figure


# --------------------------------------------------------------------------------------- copy attention
def copy_maps(panels: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str], np.ndarray]]) -> Figure:
    """Where a copy attention looks while it writes: a panel a text, a line a word due, a column a word read.

    ``{title: (weights (N, S), the N words due, the S words read, due (N, S))}``; a place where the word that
    is due stands, ``due``, is framed. Weights above 1 are drawn as 1.
    """
    sizes = [weights.shape for weights, *_ in panels.values()]
    height = sum(lines for lines, _ in sizes)
    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(1.6 + 0.27 * max(columns for _, columns in sizes), 1.35 * len(panels) + 0.27 * height),
        gridspec_kw={"height_ratios": [lines for lines, _ in sizes]},
        squeeze=False,
    )
    for axes, (title, (weights, lines, columns, due)) in zip(grid.flat, panels.items(), strict=True):
        image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for row, column in np.argwhere(due):
            corner = (float(column) - 0.5, float(row) - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.8))
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize="x-small")
        axes.set_yticks(range(len(lines)), lines, fontsize="x-small")
        axes.set_title(title, loc="left")
        axes.set_ylabel("due")
        axes.grid(visible=False)
        axes.tick_params(length=0)
    figure.colorbar(image, ax=grid, label="weight", aspect=40)
    return figure


def look_over_words(
    panels: Mapping[str, tuple[Sequence[str], np.ndarray, str, str]], columns: int = 6
) -> Figure:
    """Where a copy attention looks at one place of a text: a panel a text, its words on a ground by weight.

    ``{title: (all words, weights (S,) of those read so far, word that is due, word that is written)}``.
    Words stand ``columns`` to a line; what is not read yet is left out, and the word that is due is framed.
    """
    lines = [-(-len(words) // columns) for words, *_ in panels.values()]
    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(0.85 * columns, 0.45 * len(panels) + 0.34 * sum(lines)),
        gridspec_kw={"height_ratios": lines},
        squeeze=False,
    )
    for axes, (title, (words, weights, due, written)) in zip(grid.flat, panels.items(), strict=True):
        for index, weight in enumerate(weights):
            line, column = divmod(index, columns)
            edge = {"edgecolor": ORANGE, "linewidth": 2} if words[index] == due else {"edgecolor": "none"}
            place = (column + 0.04, line + 0.1)
            axes.add_patch(Rectangle(place, 0.92, 0.8, facecolor=PALE(min(1.0, weight)), **edge))
            axes.text(column + 0.5, line + 0.5, words[index], ha="center", va="center", fontsize="small")
        axes.set(xlim=(0, columns), ylim=(-(-len(words) // columns), 0))
        axes.axis("off")
        axes.set_title(f"{title}: {due} is due, {written} written", loc="left")
    return figure


def copying_against_names(
    arms: Mapping[str, Sequence[Record]], panels: Mapping[str, tuple[str, ...]]
) -> Figure:
    """Runs with and without copy attention: final shares against the number of training names.

    ``arms`` maps ``"<policy>-<plain or copy>-<names>"`` to runs, of one policy; ``panels`` maps a title to
    what is drawn of each run, ``("all_unseen", "proof_validity")``. Dots are seeds, bars 95 % intervals.
    """
    figure, grid = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.7), sharey=True, squeeze=False)
    for axes, (title, path) in zip(grid.flat, panels.items(), strict=True):
        for (copying, style), offset in zip(COPYING_STYLE.items(), (0.94, 1.06), strict=True):
            groups = {
                int(arm.rpartition("-")[2]): [value_at(run.final, path) for run in runs]
                for arm, runs in arms.items()
                if f"-{copying}-" in arm
            }
            _seeds_against_names(axes, groups, style, offset)
        axes.set(title=title, xlabel="names used in training", ylim=(-0.06, 1.06))
    grid.flat[0].set_ylabel("valid whole proofs")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


# ------------------------------------------------------------------------------------------ why rows collapse
LAB_STYLE: dict[str, dict[str, Any]] = {
    "gradient descent": {"color": BLUE, "linestyle": "-", "marker": "o", "markevery": 6},
    "SGD, batches of 32": {"color": GRAY, "linestyle": ":", "marker": "s", "markevery": (1, 6)},
    "Adam": {"color": ORANGE, "linestyle": "-.", "marker": "^", "markevery": (2, 6)},
    "AdamW": {"color": "black", "linestyle": (0, (1, 4)), "marker": "x", "markevery": (5, 6)},
    "Coupled Adam": {"color": GREEN, "linestyle": "--", "marker": "D", "markevery": (4, 6)},
}
LAB_MEASURES = {
    "cosine": "mean pairwise cosine",
    "distance": "rms pairwise distance",
    "functional_spread": "share of functional spread kept",
    "suppression": "suppression (nats)",
}


def lab_against_loss(paths: Mapping[str, Sequence[Sequence[Moment]]]) -> Figure:
    """The unused rows in the theory lab against the loss, which falls to the right; a line for each run.

    ``{"Adam": [a run's moments, ...], ...}``, with ways to train from ``LAB_STYLE``.
    """
    layout = ConstrainedLayoutEngine(h_pad=0.1)
    figure, grid = plt.subplots(2, 2, figsize=(7.2, 6.0), sharex=True, layout=layout)
    for axes, (measure, title) in zip(grid.flat, LAB_MEASURES.items(), strict=True):
        for way, runs in paths.items():
            for index, run in enumerate(runs):
                label = way if index == 0 else None
                values = np.array([getattr(moment, measure) for moment in run])
                if measure == "functional_spread":  # problems differ in what they start with
                    values = values / values[0]
                axes.plot([moment.loss for moment in run], values, label=label, **LAB_STYLE[way])
        axes.set_title(title)
        axes.set_xscale("log")
        if measure != "suppression":
            axes.set_ylim(-0.08 if measure == "cosine" else 0, None if measure == "distance" else 1.05)
    grid[0, 0].invert_xaxis()  # shared: once turns all
    for axes in grid[-1]:
        axes.set_xlabel("loss (nats), falling")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def lab_against_decay(
    values: Mapping[str, Mapping[tuple[str, bool], Mapping[float, Sequence[float]]]],
) -> Figure:
    """Measures in the theory lab against weight decay: a panel a measure, mean and range over the runs.

    ``{"cosine": {("AdamW", True): {0.0: [one value a run], 0.001: [...]}, ...}, ...}``, where the truth value
    says whether the features went through a LayerNorm. Decays stand at equal steps, as 0 has no logarithm.
    """
    figure, grid = plt.subplots(1, len(values), figsize=(3.8 * len(values), 4.0), squeeze=False)
    for axes, (measure, ways) in zip(grid.flat, values.items(), strict=True):
        for (way, layer_norm), by_decay in ways.items():
            places = np.arange(len(by_decay))
            runs = np.array(list(by_decay.values()))  # (decays, runs)
            style = {
                "color": LAB_STYLE[way]["color"],
                "marker": "o" if layer_norm else "^",
                "linestyle": "-" if layer_norm else "--",
                "label": f"{way}, {'with' if layer_norm else 'without'} LayerNorm",
            }
            ends = np.array([runs.mean(1) - runs.min(1), runs.max(1) - runs.mean(1)])
            axes.errorbar(places, runs.mean(1), yerr=ends, capsize=3, **style)
            axes.set_xticks(places, [f"{decay:g}" for decay in by_decay])
        axes.set(title=measure, xlabel="weight decay", ylim=(-0.04, 1.06))
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def measures_by_arm(values: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Arms of a grid side by side: a panel a measure, a line an arm, dots for seeds, mean and 95 % interval.

    ``{"cosine": {"trainable": [one value a seed], ...}, ...}``; every measure has the same arms.
    """
    arms = list(next(iter(values.values())))
    size = (1.2 + 2.1 * len(values), 1.0 + 0.36 * len(arms))
    figure, grid = plt.subplots(1, len(values), figsize=size, sharey=True, squeeze=False)
    for axes, (measure, by_arm) in zip(grid.flat, values.items(), strict=True):
        for place, arm in enumerate(arms):
            _line_of_seeds(axes, place, by_arm[arm], BLUE, "o")
        axes.axvline(0, color=GRAY, linewidth=1)
        axes.set(title=measure, yticks=range(len(arms)), yticklabels=arms)
        axes.grid(axis="y", visible=False)
    grid[0, 0].invert_yaxis()  # shared: the first arm on top in every panel
    return figure


# ------------------------------------------------------------------------------------------ published models
#: The same of reserved and of ordinary tokens.
TOKEN_STYLE: dict[str, dict[str, Any]] = {
    "reserved": {"color": ORANGE, "marker": "^", "linestyle": ":", "label": "reserved tokens"},
    "ordinary": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "ordinary tokens"},
}
#: The same of each kind of symbols, and of each repair, in the fine-tuning of chapter 8.
SYMBOL_STYLE: dict[str, dict[str, Any]] = {
    "ordinary": {"color": GRAY, "marker": "s", "linestyle": "--", "label": "ordinary tokens"},
    "as_is": {"color": ORANGE, "marker": "^", "linestyle": ":", "label": "reserved, as they are"},
    "norm": {"color": BLUE, "marker": "o", "linestyle": "-", "label": "repaired: norm"},
    "covariance": {"color": GREEN, "marker": "D", "linestyle": "-.", "label": "repaired: covariance"},
    "normal": {"color": "black", "marker": "x", "linestyle": (0, (1, 4)), "label": "repaired: normal"},
}


def cosines_of_models(models: Mapping[str, Mapping[str, float]], lines: Mapping[str, float]) -> Figure:
    """The mean cosine of reserved and of ordinary rows, a line a model, with marks where a verdict changes.

    ``{"1B": {"reserved": 0.8, "ordinary": 0.1}, …}`` and ``{"collapsed": 0.5, …}``.
    """
    figure, axes = plt.subplots(figsize=(7.2, 1.4 + 0.34 * len(models)))
    for place, cosines in enumerate(models.values()):
        axes.plot(list(cosines.values()), [place] * len(cosines), color="#BBBBBB", linewidth=1, zorder=1)
    for kind, style in TOKEN_STYLE.items():
        axes.plot(
            [cosines[kind] for cosines in models.values()],
            range(len(models)),
            **{**style, "linestyle": "none", "markersize": 7},
        )
    for name, cosine in lines.items():
        axes.axvline(cosine, color="black", linewidth=1, linestyle="--")
        above = axes.get_xaxis_transform()
        axes.text(cosine, 1.01, name, va="bottom", ha="center", fontsize="small", transform=above)
    axes.set_yticks(range(len(models)), list(models))
    axes.invert_yaxis()
    axes.set(xlabel="mean pairwise cosine", xlim=(-0.03, 1.03))
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def steps_by_group(groups: Mapping[str, Mapping[str, Sequence[float]]], ylabel: str) -> Figure:
    """Steps that runs needed: groups side by side, in each the arms of `SYMBOL_STYLE`.

    ``{"weak": {"ordinary": [one number a seed], "as_is": […], …}, …}``: a dot a seed, mean and 95 %
    interval. The axis is logarithmic from 10 steps up, so that no steps at all have a place on it.
    """
    figure, axes = plt.subplots(figsize=(max(6.4, 2.3 * len(groups)), 4.2))
    arms = [arm for arm in SYMBOL_STYLE if any(arm in group for group in groups.values())]
    for index, arm in enumerate(arms):
        style = {key: value for key, value in SYMBOL_STYLE[arm].items() if key != "linestyle"}
        shift = 0.16 * (index - (len(arms) - 1) / 2)
        places, means, ends = [], [], []
        for place, group in enumerate(groups.values()):
            if arm not in group:
                continue
            mean = interval(group[arm])
            places.append(place + shift)
            means.append(mean.mean)
            ends.append([mean.mean - mean.low, mean.high - mean.mean])
            dots = [place + shift + 0.05] * len(group[arm])
            axes.plot(dots, group[arm], ".", color=style["color"], alpha=0.5, markersize=4)
        axes.errorbar(places, means, yerr=np.array(ends).T, linestyle="none", capsize=3, **style)
    axes.set_yscale("symlog", linthresh=10)
    most = max(max(values) for group in groups.values() for values in group.values())
    ticks = [tick for tick in (0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if tick <= 1.2 * most]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(ylabel)
    axes.grid(axis="x", visible=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def curves_by_symbols(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[Mapping[str, float]]]]], quantity: str, level: float
) -> Figure:
    """Fine-tuning with each kind of symbols: a panel a model, a line a run, a dashed line at ``level``.

    ``{"strong": {"as_is": [curve, …], "norm": […]}, …}``, where a curve has entries with ``step`` and
    ``quantity``. Runs that end earlier than others were stopped there.
    """
    size = (max(6.4, 3.2 * len(panels)), 3.9)
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, (title, arms) in zip(grid.flat, panels.items(), strict=True):
        for arm, curves in arms.items():
            style = {**SYMBOL_STYLE[arm], "markersize": 4, "alpha": 1.0 if len(curves) == 1 else 0.6}
            for index, curve in enumerate(curves):
                steps = [entry["step"] for entry in curve]
                label = style["label"] if index == 0 else None
                axes.plot(steps, [entry[quantity] for entry in curve], **{**style, "label": label})
        axes.axhline(level, color="black", linewidth=1, linestyle="--")
        axes.set(title=title, xlabel="fine-tuning step", ylim=(-0.04, 1.04))
    grid[0, 0].set_ylabel(_words(quantity))
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
