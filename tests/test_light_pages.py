"""What is taken from a page before it is sent: nothing that a reader would see."""

import re
from io import BytesIO, StringIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from playwright.sync_api import Browser

from tests.browsing import serving
from tools.light_pages import slim_svg
from tools.light_styles import classes_of, drop_unused_rules


def a_drawing() -> str:
    """A figure with all that chapters use: text, lines, markers, clips, and points as a bitmap."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
    for slope in (1, 2, 3):
        left.plot(np.arange(20), slope * np.sqrt(np.arange(20)), marker="o", label=f"$x^{slope}$, a line")
    left.set(title="Lines", xlabel="steps", ylim=(-1, 8))
    left.legend()
    generator = np.random.default_rng(0)
    right.scatter(*generator.normal(size=(2, 500)), alpha=0.5, linewidth=0, rasterized=True)
    right.bar([0, 1], [2, -2], hatch="//", edgecolor="#222222", alpha=0.3)
    written = StringIO()
    figure.savefig(written, format="svg")
    plt.close(figure)
    return written.getvalue()


def test_a_slim_drawing_is_the_same_picture(browser: Browser, tmp_path: Path) -> None:
    full = a_drawing()
    slim = slim_svg(full)
    assert len(slim) < 0.75 * len(full)
    shots = []
    page = browser.new_page(viewport={"width": 800, "height": 320}, device_scale_factor=2)
    with serving(tmp_path) as address:
        for name, drawing in {"full.svg": full, "slim.svg": slim}.items():
            (tmp_path / name).write_text(drawing, encoding="utf-8")
            page.set_content(f'<img src="{address}{name}">')
            page.evaluate("() => document.images[0].decode()")
            with Image.open(BytesIO(page.screenshot())) as shot:
                shots.append(np.asarray(shot.convert("L"), dtype=float))
    page.close()
    assert shots[0].std() > 20  # something is drawn
    # Places are rounded to hundredths of a point: the edges of letters may change in shade, nothing more.
    difference = np.abs(shots[0] - shots[1])
    assert difference.mean() < 0.1
    assert difference.max() < 128


def test_names_of_colors_are_no_references() -> None:
    slim = slim_svg(a_drawing())
    assert set(re.findall(r"(?:url\(|href=\")#([^\")]+)", slim)) == set(re.findall(r' id="([^"]*)"', slim))
    assert "#222222" in slim


PAGE = '<p class="note big"><i class="fa-solid fa-circle"></i></p>'
SCRIPT = 'element.classList.add("open"); tip.classList.add(`bs-${kind}-auto`)'


def trimmed(style: str) -> str:
    return drop_unused_rules(style, classes_of([PAGE], [SCRIPT]))


def test_rules_for_classes_on_a_page_or_in_a_script_stay() -> None:
    for rule in (
        ".note{color:red}",
        "p.note.big > i:hover{color:red}",
        ".open{color:red}",
        ".bs-tooltip-auto .open{color:red}",
        'a[href$=".gone"]{color:red}',
        "p:not(.gone){color:red}",
        ":is(.gone,.note) p{color:red}",
        "@media print{.note{color:red}}",
        "@media (width >= 5px) { @supports (gap: 1px) { .note{color:red} } }",
        "@font-face{font-family:a;src:url(a.woff)}",
        "@keyframes turn{0%{opacity:.5}to{opacity:1}}",
        ":root{--gone:1}",
        '@import url("b.css");',
    ):
        assert re.sub(r"\s", "", trimmed(rule)) == re.sub(r"\s", "", rule)


def test_rules_for_other_classes_go_and_their_neighbors_stay() -> None:
    assert trimmed(".gone{color:red}p{color:blue}") == "p{color:blue}"
    assert trimmed(".note .gone,.note,.gone:is(p){color:red}") == ".note{color:red}"
    assert trimmed("@media print{.gone{color:red}}") == ""
    assert trimmed(".fa-gone:before{content:'a'}.fa-circle:before{content:'b'}") == (
        '.fa-circle:before{content:"b"}'
    )
