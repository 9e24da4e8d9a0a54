"""Figures show the numbers that they are given, and can be told apart."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from unseen_lib import plots
from unseen_lib.language import read_problem
from unseen_lib.problems import SCENARIOS
from unseen_lib.records import interval, load_arms


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def baseline():
    arms = load_arms("main")
    return [run for arm, runs in arms.items() if arm.startswith("trainable-plain") for run in runs]


def problem(text):
    return read_problem(text.split(), "compact")


def boxes(figure):
    return {text.get_text(): text for text in figure.axes[0].texts if text.get_text().strip()}


def test_a_problem_is_drawn_with_what_follows_filled_and_the_query_ringed():
    figure = plots.problem_graph(
        problem("<bos> Rules: A then B B then C X then Y Facts: A Query: C Reasoning:")
    )
    drawn = boxes(figure)
    assert set(drawn) == {"A", "B", "C", "X", "Y"}
    filled = {
        name
        for name, text in drawn.items()
        if text.get_bbox_patch().get_facecolor()[:3] == to_rgb(plots.BLUE)
    }
    assert filled == {"A", "B", "C"}
    widest = max(drawn, key=lambda name: drawn[name].get_bbox_patch().get_linewidth())
    assert widest == "C"
    # A column is a round of forward chaining; the chain that no fact starts stands below.
    assert [drawn[name].get_position()[0] for name in "ABC"] == [0, 1, 2]
    assert drawn["X"].get_position()[1] < drawn["A"].get_position()[1]
    arrows = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None) is not None]
    assert len(arrows) == 3


@pytest.mark.parametrize(
    "text",
    [
        "<bos> Rules: Facts: Query: A Reasoning:",
        "<bos> Rules: A then B B then A Facts: Query: A Reasoning:",
        "<bos> Rules: A B then C C then C Facts: A B Query: C Reasoning:",
    ],
)
def test_odd_problems_are_drawn_too(text):
    assert set(boxes(plots.problem_graph(problem(text)))) == set(problem(text).symbols)


def test_a_grid_shows_the_mean_of_its_seeds_and_their_interval(baseline):
    figure = plots.against_names(baseline)
    drawn = {container.get_label(): container for container in figure.axes[0].containers}
    for scenario in SCENARIOS:
        line, _, (bars,) = drawn[plots.SCENARIO_STYLE[scenario]["label"]].lines
        names = sorted({record.names for record in baseline})
        for number, mean, bar in zip(names, line.get_ydata(), bars.get_segments(), strict=True):
            group = [r.final[scenario]["proof_validity"] for r in baseline if r.names == number]
            assert (mean, *bar[:, 1]) == pytest.approx(interval(group))
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert sum(len(line.get_ydata()) for line in dots) == 3 * len(baseline)


def test_curves_are_the_curve_that_is_given(baseline):
    curve = baseline[0].curve
    axes = plots.training_curves(curve, ("true_proof_validity", "answer_accuracy")).axes
    for panel, quantity in zip(axes, ("true_proof_validity", "answer_accuracy"), strict=True):
        for line, scenario in zip(
            [line for line in panel.lines if len(line.get_xdata()) > 2], SCENARIOS, strict=True
        ):
            assert list(line.get_xdata()) == [entry["step"] for entry in curve]
            assert list(line.get_ydata()) == [entry[scenario][quantity] for entry in curve]
    assert "chance" in [text.get_text() for text in axes[1].texts]


def test_measures_are_drawn_as_mean_and_range_over_runs(baseline):
    runs = [record.curve for record in baseline if record.names == 512]
    figure = plots.row_measures(runs, ("cosine",))
    line = figure.axes[0].lines[1]
    values = np.array([[entry["rows"]["unseen"]["cosine"] for entry in curve] for curve in runs])
    assert line.get_label() == "unseen rows"
    np.testing.assert_allclose(line.get_ydata(), values.mean(0))
    band = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(values.max()) and band.min() == pytest.approx(values.min())


def test_every_failed_proof_is_counted_in_the_bars():
    counts = {
        "query_unseen": {"stopped_early": 3, "no_answer": 0},
        "all_unseen": {"stopped_early": 1, "malformed": 7},
    }
    figure = plots.error_shares(counts)
    widths = [bar.get_width() for container in figure.axes[0].containers for bar in container]
    assert sorted(widths) == [0, 1, 3, 7]  # a kind that never happens has no bar
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == {"stopped early", "malformed"}


@pytest.mark.parametrize("style", [plots.SCENARIO_STYLE, plots.ROW_STYLE])
def test_lines_stand_out_from_their_ground_and_differ_in_more_than_color(style):
    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for entry in style.values():
        assert 1.05 / (luminance(entry["color"]) + 0.05) >= 3  # WCAG 2.2, 1.4.11, on white
    assert len({(entry["marker"], entry["linestyle"]) for entry in style.values()}) == len(style)
