"""Figures show the numbers that they are given, and can be told apart."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from unseen_lib import plots
from unseen_lib.language import read_problem
from unseen_lib.problems import SCENARIOS
from unseen_lib.records import interval, load_arms
from unseen_lib.theory import LabConfig, ProblemConfig, make_problem, trace


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


@pytest.mark.parametrize(
    "style",
    [plots.SCENARIO_STYLE, plots.ROW_STYLE, plots.COPYING_STYLE, plots.POLICY_STYLE, plots.LAB_STYLE],
)
def test_lines_stand_out_from_their_ground_and_differ_in_more_than_color(style):
    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for entry in style.values():
        assert 1.05 / (luminance(entry["color"]) + 0.05) >= 3  # WCAG 2.2, 1.4.11, on white
    assert len({(entry["marker"], entry["linestyle"]) for entry in style.values()}) == len(style)


def test_the_whole_grid_has_a_panel_for_each_policy_and_row(baseline):
    numbers = sorted({record.names for record in baseline})
    plain = {number: [r for r in baseline if r.names == number] for number in numbers}
    arms = {f"trainable-plain-{number}": runs for number, runs in plain.items()}
    arms |= {f"frozen-{copying}-512": plain[512] for copying in plots.COPYING_STYLE}  # other cells are empty
    figure = plots.whole_grid(arms)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["trainable", "frozen"]
    for row, path in enumerate(plots.GRID_ROWS):
        axes = figure.axes[2 * row]
        drawn = axes.containers[0].lines[0].get_ydata()
        wanted = [interval(r.series(*path)[1][-1] for r in runs).mean for runs in plain.values()]
        assert list(drawn) == pytest.approx(wanted)
        dots = [line for line in axes.lines if line.get_marker() == "."]
        assert sum(len(line.get_ydata()) for line in dots) == len(baseline)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [style["label"] for style in plots.COPYING_STYLE.values()]


def test_arms_are_drawn_with_their_seeds_and_compared_with_the_first():
    panels = {
        "left": {"all": [0.9, 1.0], "less": [0.1, 0.3, 0.2]},
        "right": {"all": [0.5, 0.6], "less": [0, 0]},
    }
    figure = plots.seeds_by_arm(panels, "a share")
    for axes, (title, arms) in zip(figure.axes, panels.items(), strict=True):
        assert axes.get_title() == title
        dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "."]
        assert dots == list(arms.values())
        means = [container.lines[0].get_xdata()[0] for container in axes.containers]
        assert means == pytest.approx([np.mean(shares) for shares in arms.values()])
        assert set(axes.lines[0].get_xdata()) == {means[0]}


def test_a_table_says_each_share_in_percent():
    panels = {"32": {"a": {"x": 0.0, "y": 0.256}}, "512": {"a": {"x": 1.0, "y": 0.5}}}
    figure = plots.table_of_shares(panels, "valid")
    written = [[text.get_text() for text in axes.texts] for axes in figure.axes[:2]]
    assert written == [["0", "26"], ["100", "50"]]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["x", "y"]


def test_losses_between_resets_are_drawn_as_they_are_and_the_resets_marked():
    steps, resets = [0, 10, 11, 15, 20, 21, 30], [10, 20]
    losses = {"seen": [4.0, 1.0, 3.0, 1.0, 0.5, 0.9, 0.2], "all_unseen": [4.0, 3.0, 3.1, 3.0, 2.0, 0.8, 0.9]}
    whole, part = plots.losses_between_resets(steps, losses, resets, (10, 20)).axes
    for panel, inside in ((whole, slice(None)), (part, slice(1, 5))):
        curves = [line for line in panel.lines if len(line.get_xdata()) > 2]
        for line, values in zip(curves, losses.values(), strict=True):
            assert list(line.get_xdata()) == steps[inside]
            assert list(line.get_ydata()) == values[inside]
        marks = [line.get_xdata()[0] for line in panel.lines if len(line.get_xdata()) == 2]
        assert marks == resets


def test_arms_over_steps_are_means_and_ranges_with_the_last_reset_marked():
    values = {"frozen": np.array([[0.0, 0.5, 1.0], [0.2, 0.7, 0.8]]), "temporary": np.zeros((2, 3))}
    figure = plots.over_steps([0, 5, 10], {"valid": values}, plots.POLICY_STYLE, stop=5, ylabel="share")
    (axes,) = figure.axes
    assert (axes.get_title(), axes.get_ylabel()) == ("valid", "share")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 0.6, 0.9])
    assert axes.lines[0].get_label() == "frozen"
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == 1.0 and band[:, 1].min() == 0.0
    assert "last reset" in [text.get_text() for text in axes.texts]
    assert axes.lines[-1].get_xdata()[0] == 5


def test_a_copy_map_frames_the_places_of_the_word_that_is_due():
    weights = np.array([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]])
    due = np.array([[True, False, False], [False, True, True]])
    figure = plots.copy_maps(
        {"one": (weights, ["A", "B"], ["A", "B", "B"], due), "two": (weights, "AB", "ABB", due)}
    )
    for axes in figure.axes[:2]:
        np.testing.assert_allclose(axes.images[0].get_array(), weights)
        framed = {(round(box.get_x() + 0.5), round(box.get_y() + 0.5)) for box in axes.patches}
        assert framed == {(0, 0), (1, 1), (2, 1)}
        assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B", "B"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]


def test_copying_is_compared_at_each_number_of_names(baseline):
    arms = {f"trainable-{kind}-512": [r for r in baseline if r.names == 512] for kind in ("plain", "copy")}
    arms["trainable-plain-2048"] = [r for r in baseline if r.names == 2048]
    path = ("query_unseen", "true_proof_validity")
    axes = plots.copying_against_names(arms, {"true queries": path}).axes[0]
    drawn = {container.get_label(): container.lines[0] for container in axes.containers}
    for kind, names in {"plain": (512, 2048), "copy": (512,)}.items():
        means = [
            interval(r.final[path[0]][path[1]] for r in arms[f"trainable-{kind}-{number}"]).mean
            for number in names
        ]
        assert list(drawn[plots.COPYING_STYLE[kind]["label"]].get_ydata()) == pytest.approx(means)
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert sum(len(line.get_ydata()) for line in dots) == sum(map(len, arms.values()))


def test_a_run_of_the_lab_is_drawn_against_its_loss():
    problem = make_problem(ProblemConfig(samples=8, used=4), torch.Generator().manual_seed(0))
    run = trace(problem, LabConfig(rate=0.1, steps=4))
    figure = plots.lab_against_loss({"gradient descent": [run], "Adam": [run, run]})
    for axes, measure in zip(figure.axes, plots.LAB_MEASURES, strict=True):
        assert [line.get_label() for line in axes.lines][:2] == ["gradient descent", "Adam"]
        wanted = np.array([getattr(moment, measure) for moment in run])
        if measure == "functional_spread":
            wanted = wanted / wanted[0]
        for line in axes.lines:
            assert list(line.get_xdata()) == [moment.loss for moment in run]
            np.testing.assert_allclose(line.get_ydata(), wanted)
        assert axes.get_xlim()[0] > axes.get_xlim()[1]  # the loss falls to the right


def test_the_lab_against_decay_shows_mean_and_range():
    by_decay = {0.0: [0.1, 0.3], 0.1: [0.5, 0.9]}
    (axes,) = plots.lab_against_decay({"cosine": {("AdamW", True): by_decay, ("Adam", False): by_decay}}).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.1"]
    assert [bars.get_label() for bars in axes.containers] == [
        "AdamW, with LayerNorm",
        "Adam, without LayerNorm",
    ]
    line, _, (bars,) = axes.containers[0].lines
    assert list(line.get_ydata()) == pytest.approx([0.2, 0.7])
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], [[0.1, 0.3], [0.5, 0.9]])


def test_measures_by_arm_have_a_panel_each_with_seeds_and_interval():
    values = {
        "cosine": {"plain": [0.1, 0.2], "other": [0.0, 0.4]},
        "nats": {"plain": [-3, -5], "other": [0, 1]},
    }
    figure = plots.measures_by_arm(values)
    for axes, (measure, arms) in zip(figure.axes, values.items(), strict=True):
        assert axes.get_title() == measure
        dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "."]
        assert dots == list(arms.values())
        for bars, group in zip(axes.containers, arms.values(), strict=True):
            line, _, (ends,) = bars.lines
            assert (line.get_xdata()[0], *ends.get_segments()[0][:, 0]) == pytest.approx(interval(group))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["plain", "other"]


def test_cosines_of_models_stand_in_their_line_with_the_marks_of_the_verdict():
    models = {"one": {"reserved": 0.8, "ordinary": 0.1}, "two": {"reserved": 0.3, "ordinary": 0.0}}
    (axes,) = plots.cosines_of_models(models, {"collapsed": 0.5}).axes
    drawn = {line.get_label(): line for line in axes.lines}
    for kind, style in plots.TOKEN_STYLE.items():
        assert list(drawn[style["label"]].get_xdata()) == [cosines[kind] for cosines in models.values()]
        assert list(drawn[style["label"]].get_ydata()) == [0, 1]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(models)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    assert [text.get_text() for text in axes.texts] == ["collapsed"]
    assert axes.lines[-1].get_xdata()[0] == 0.5


def test_steps_by_group_show_mean_interval_and_seeds():
    groups = {
        "weak": {"as_is": [20, 40], "norm": [10, 10]},
        "strong": {"as_is": [200, 240], "norm": [10, 12]},
    }
    (axes,) = plots.steps_by_group(groups, "steps").axes
    assert axes.get_ylim()[0] == 0
    assert [label.get_text() for label in axes.get_xticklabels()] == list(groups)
    drawn = {bars.get_label(): bars for bars in axes.containers}
    assert set(drawn) == {plots.SYMBOL_STYLE[arm]["label"] for arm in ("as_is", "norm")}
    for arm in ("as_is", "norm"):
        line, _, (bars,) = drawn[plots.SYMBOL_STYLE[arm]["label"]].lines
        means = [interval(group[arm]) for group in groups.values()]
        assert list(line.get_ydata()) == pytest.approx([mean.mean for mean in means])
        for bar, mean in zip(bars.get_segments(), means, strict=True):
            assert list(bar[:, 1]) == pytest.approx([mean.low, mean.high])
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert sum(len(line.get_ydata()) for line in dots) == 8


def test_curves_by_symbols_draw_each_run_as_it_is():
    short = [{"step": 0, "exact_match": 0.2}, {"step": 10, "exact_match": 0.95}]
    long = [*short[:1], {"step": 10, "exact_match": 0.3}, {"step": 20, "exact_match": 0.9}]
    (axes,) = plots.curves_by_symbols(
        {"strong": {"as_is": [long, long], "norm": [short]}}, "exact_match", level=0.9
    ).axes
    lines = [line for line in axes.lines if line.get_linestyle() != "--"]
    assert [list(line.get_ydata()) for line in lines] == [[0.2, 0.3, 0.9]] * 2 + [[0.2, 0.95]]
    assert list(lines[0].get_xdata()) == [0, 10, 20] and list(lines[2].get_xdata()) == [0, 10]
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [plots.SYMBOL_STYLE[arm]["label"] for arm in ("as_is", "norm")]
    assert axes.lines[-1].get_ydata()[0] == 0.9


# ---- legible ----
def contrast(one, other):
    """Contrast of two colors (R, G, B) as the Web Content Accessibility Guidelines define it."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def contrasts(figure):
    """Each text of a figure with its least contrast, in both themes, to the ground that is drawn under it."""
    figure.canvas.draw()
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    inks = [to_rgb(text.get_color()) for text in texts]
    places = [text.get_window_extent() for text in texts]
    for text in texts:
        text.set_color("none")
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[::-1, :, :3] / 255
    for text, ink, box in zip(texts, inks, places, strict=True):
        under = pixels[round(box.y0) : round(box.y1), round(box.x0) : round(box.x1)]
        if under.size == 0:  # outside the axes, as the labels of ticks that are not shown
            continue
        ground = np.median(under.reshape(-1, 3), axis=0)  # not a line that passes through
        # On a dark page, pictures are dimmed: `brightness(0.9)` in assets/course.css.
        yield text.get_text(), min(contrast(ink, ground), contrast(0.9 * np.array(ink), 0.9 * ground))


SHARES = {"a": {str(share): share / 100 for share in range(0, 101, 10)}}
WORDS = {"seen": (["Rules:", "dax", "then", "fep"], np.array([0.0, 0.5, 1.2]), "dax", "fep")}


@pytest.mark.parametrize(
    "draw",
    [
        lambda runs: plots.problem_graph(problem("<bos> Rules: A then B Facts: A Query: B Reasoning:")),
        lambda runs: plots.training_curves(runs[0].curve, ("proof_validity", "answer_accuracy")),
        lambda runs: plots.table_of_shares({"512": SHARES}, "valid"),
        lambda runs: plots.look_over_words(WORDS),
        lambda runs: plots.error_shares({"seen": {"bad_token": 4}, "all_unseen": {"bad_token": 2}}),
        lambda runs: plots.over_steps([0, 9], {"a": {"frozen": np.eye(2)}}, plots.POLICY_STYLE, stop=4),
        lambda runs: plots.cosines_of_models({"1B": {"reserved": 0.8, "ordinary": 0.1}}, {"collapsed": 0.5}),
    ],
)
def test_text_can_be_read_on_what_lies_under_it_in_both_themes(draw, baseline):
    plots.use_book_style()
    found = list(contrasts(draw(baseline)))
    assert len(found) >= 2
    assert {text: ratio for text, ratio in found if ratio < 4.5} == {}


def test_the_check_of_contrast_sees_gray_on_blue():
    figure, axes = plt.subplots()
    axes.text(0.5, 0.5, "on blue", color="#777777", bbox={"facecolor": plots.BLUE})
    assert dict(contrasts(figure))["on blue"] < 1.5


def test_lines_and_markers_stand_out_from_the_ground():
    """Three to one, which the guidelines ask of what is not text."""
    for color in (plots.BLUE, plots.GREEN, plots.ORANGE, plots.GRAY):
        assert contrast(to_rgb(color), (1, 1, 1)) >= 3
        assert contrast(0.9 * np.array(to_rgb(color)), (0.9, 0.9, 0.9)) >= 3


# ---- figures with a slider ----
def test_what_is_known_so_far_is_filled():
    asked = problem("<bos> Rules: A then B B then C Facts: A Query: C Reasoning:")
    for known in ({"A"}, {"A", "B"}, {"A", "B", "C"}):
        drawn = boxes(plots.problem_graph(asked, known))
        blue = to_rgb(plots.BLUE)
        assert {n for n, t in drawn.items() if t.get_bbox_patch().get_facecolor()[:3] == blue} == known
        assert drawn["C"].get_position()[0] == 2  # nothing jumps


def test_rows_at_a_step_stand_next_to_the_proofs_up_to_it(baseline):
    curve = baseline[0].curve
    points = {"seen": np.array([[0.1, 0.2], [0.3, -0.4]]), "unseen": np.array([[0.0, 0.0]])}
    for index in (0, 3):
        figure = plots.rows_at_a_step({"a": points, "b": points}, 0.5, curve, curve[index]["step"])
        *windows, proofs = figure.axes
        for axes in windows:
            drawn = [np.asarray(cloud.get_offsets()) for cloud in axes.collections]
            assert all((a == b).all() for a, b in zip(drawn, points.values(), strict=True))
            assert axes.get_xlim() == axes.get_ylim() == (-0.5, 0.5)
        assert proofs.get_xlim() == (0, curve[-1]["step"])
        for line, scenario in zip(proofs.lines[::2], ("seen", "all_unseen"), strict=True):
            assert list(line.get_ydata()) == [e[scenario]["proof_validity"] for e in curve[: index + 1]]


def test_a_look_over_words_colors_what_is_read_and_frames_what_is_due():
    words = ["Rules:", "dax", "then", "fep", "Facts:", "dax"]
    (axes,) = plots.look_over_words(
        {"seen": (words, np.array([0, 0.9, 0, 0.1]), "dax", "no")}, columns=3
    ).axes
    assert [text.get_text() for text in axes.texts] == words[:4]  # the rest is not read yet
    assert axes.get_title(loc="left") == "seen: dax is due, no written"
    framed = [patch.get_edgecolor()[:3] == to_rgb(plots.ORANGE) for patch in axes.patches]
    assert framed == [False, True, False, False]
    blue = [1 - patch.get_facecolor()[0] for patch in axes.patches]
    assert blue[0] == blue[2] == 0 < blue[3] < blue[1]
    assert [patch.get_y() > 1 for patch in axes.patches] == [False, False, False, True]
