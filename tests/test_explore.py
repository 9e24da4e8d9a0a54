"""One function for a figure with a slider: frames on a page, a live widget in a notebook, and no dead end."""

import re
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient
from playwright.sync_api import Browser, Page

from unseen_lib import explore as module
from unseen_lib import plots
from unseen_lib.errors import ConfigError
from unseen_lib.explore import Frames, explore

ROOT = Path(__file__).parents[1]
STEPS = [0, 100, 300]
HOW = {
    "label": "training <step>",
    "alt": lambda step: f'A line that has risen to "{step}".',
    "say": lambda step: f"step {step}",
}


class Reader(HTMLParser):
    """Each start tag of a text with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def line_to(step):
    figure, axes = plt.subplots(figsize=(3, 2))
    axes.plot([0, step])
    axes.set_ylim(0, 300)
    return figure


@pytest.fixture
def on_page(monkeypatch):
    monkeypatch.setenv(module.MODE, "frames")


@pytest.fixture
def frames(on_page) -> str:
    return explore(line_to, STEPS, **HOW)._repr_html_()


# ---- frames ----
def test_a_page_holds_every_frame_with_words_of_its_own(frames):
    images = Reader(frames).all("img")
    assert [image["alt"] for image in images] == [
        f'step {step}: A line that has risen to "{step}".' for step in STEPS
    ]
    for image in images:
        kind, _, data = str(image["src"]).partition(";base64,")
        start = {"data:image/svg+xml": b"<?xml", "data:image/webp": b"RIFF"}[kind]
        assert b64decode(data).startswith(start)
        assert (image["width"], image["height"]) == ("288", "192")
    assert len({image["src"] for image in images}) == len(STEPS)
    assert plt.get_fignums() == []  # what stayed open would be shown below the cell, too


def test_frames_load_nothing_from_anywhere(frames):
    for _, attributes in Reader(frames).found:
        for name in ("src", "href", "srcset"):
            assert str(attributes.get(name, "data:")).startswith("data:")
    assert not re.search(r"\b(import|fetch|require)\b\s*\(", frames)


def test_the_same_call_gives_the_same_frames(on_page):
    plots.use_book_style()
    one, two = (Reader(explore(line_to, STEPS, **HOW).markup).all("img") for _ in range(2))
    assert one == two


def test_two_figures_on_a_page_do_not_share_a_name(on_page):
    texts = "".join(explore(line_to, STEPS, **HOW).markup for _ in range(2))
    names = [a["id"] for _, a in Reader(texts).found if "id" in a]
    assert len(names) == len(set(names)) == 4


def test_frames_are_as_sharp_as_there_is_room_for(on_page, monkeypatch):
    def kinds():
        images = Reader(explore(line_to, STEPS, **HOW).markup).all("img")
        sources = [str(image["src"]) for image in images]
        return {source.partition(";")[0] for source in sources}, sum(map(len, sources))

    kind, size = kinds()
    assert kind == {"data:image/svg+xml"}  # all of one kind: the eye must not stumble between two frames
    monkeypatch.setattr(module, "MOST_BYTES", size - 1)
    kind, smaller = kinds()
    assert kind == {"data:image/webp"} and smaller < size
    monkeypatch.setattr(module, "MOST_BYTES", smaller - 1)
    assert kinds()[1] < smaller


def test_what_cannot_be_explored_is_refused(on_page, monkeypatch):
    with pytest.raises(ConfigError, match="length 1: a slider needs at least two"):
        explore(line_to, [0], **HOW)
    with pytest.raises(ConfigError, match=r"start=3: .* from 0 to 2"):
        explore(line_to, STEPS, start=3, **HOW)
    with pytest.raises(ConfigError, match=r"alt\(100\) is empty"):
        explore(line_to, STEPS, **HOW | {"alt": lambda step: "" if step == 100 else "A line."})
    monkeypatch.setattr(module, "MOST_BYTES", 3_000)
    with pytest.raises(ConfigError, match=r"the 3 frames of .* take \d+ kB, .* room for 3: give fewer"):
        explore(line_to, STEPS, **HOW)


# ---- frames in a browser ----
def opened(browser: Browser, text: str, file: Path, **context) -> Page:
    """The text as a page from disk, in a browser that fails the test on a script error."""
    file.write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>{text}')
    page = browser.new_context(offline=True, **context).new_page()
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(file.as_uri())
    return page


def shown(page: Page) -> list[str]:
    """The descriptions of the frames that can be seen, each loaded."""
    images = [image for image in page.query_selector_all("img") if image.is_visible()]
    assert all(
        image.evaluate("image => image.decode().then(() => image.naturalWidth > 0)") for image in images
    )
    return [str(image.get_attribute("alt")).partition(":")[0] for image in images]


def test_keys_move_from_frame_to_frame_and_say_where_they_are(browser, frames, tmp_path):
    page = opened(browser, frames, tmp_path / "page.html")
    slider = page.get_by_role("slider", name="training <step>", exact=True)
    assert shown(page) == ["step 0"]
    page.keyboard.press("Tab")
    assert slider.evaluate("slider => slider === document.activeElement")
    for key, step in [
        ("ArrowRight", 100),
        ("ArrowRight", 300),
        ("ArrowRight", 300),
        ("Home", 0),
        ("End", 300),
    ]:
        page.keyboard.press(key)
        assert shown(page) == [f"step {step}"]
        assert slider.get_attribute("aria-valuetext") == f"step {step}"
        assert page.locator("output").inner_text() == f"step {step}"


def test_it_begins_where_it_is_told(browser, on_page, tmp_path):
    page = opened(browser, explore(line_to, STEPS, start=1, **HOW).markup, tmp_path / "page.html")
    assert shown(page) == ["step 100"]
    assert page.get_by_role("slider").get_attribute("aria-valuetext") == "step 100"


def test_two_sliders_move_their_own_frames(browser, on_page, tmp_path):
    texts = "".join(explore(line_to, STEPS, **HOW).markup for _ in range(2))
    page = opened(browser, texts, tmp_path / "page.html")
    page.get_by_role("slider").nth(1).press("ArrowRight")
    assert shown(page) == ["step 0", "step 100"]


def test_without_script_and_in_print_the_first_and_last_frame_stand(browser, frames, tmp_path):
    page = opened(browser, frames, tmp_path / "page.html", java_script_enabled=False)
    assert shown(page) == ["step 0", "step 300"]
    assert not page.locator("input").is_visible()

    page = opened(browser, frames, tmp_path / "page.html")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.emulate_media(media="print")
    assert shown(page) == ["step 0", "step 300"]
    assert not page.locator("input").is_visible()


# ---- live ----
@pytest.fixture
def live(monkeypatch):
    monkeypatch.delenv(module.MODE, raising=False)


def test_in_a_notebook_the_slider_draws_anew(live):
    pytest.importorskip("ipywidgets")
    drawn = []

    def draw(step):
        drawn.append(step)
        if step == 100:
            raise ValueError("no such <step>")
        return line_to(step)

    widget = explore(draw, STEPS, start=2, **HOW)
    assert "step 300: A line" in widget.picture.value
    drawn.clear()
    widget.slider.value = 0
    assert drawn == [0] and "step 0: A line" in widget.picture.value
    widget.slider.value = 1  # nobody else shows what went wrong
    assert drawn == [0, 100] and widget.picture.value == "<pre>ValueError: no such &lt;step&gt;</pre>"
    assert plt.get_fignums() == []


def test_a_saved_notebook_shows_two_frames_where_there_are_no_widgets(live, monkeypatch):
    pytest.importorskip("ipywidgets")
    widget = explore(line_to, STEPS, **HOW)
    bundle = widget._repr_mimebundle_()
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == widget.widget.model_id
    alts = [image["alt"] for image in Reader(bundle["text/html"]).all("img")]
    assert [str(alt).partition(":")[0] for alt in alts] == ["step 0", "step 300"]
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert list(widget._repr_mimebundle_()) == ["application/vnd.jupyter.widget-view+json"]


def test_without_ipywidgets_there_are_frames(live, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(module, "MOST_BYTES", 10)  # which is a limit of pages
    found = explore(line_to, STEPS, **HOW)
    assert isinstance(found, Frames)
    assert len(Reader(found.markup).all("img")) == len(STEPS)


CELL = """\
import matplotlib.pyplot as plt
from unseen_lib.explore import explore

def draw(step):
    figure, axes = plt.subplots(figsize=(3, 2))
    axes.plot([0, step])
    return figure

explore(draw, [0, 100, 300], label="step", alt=lambda step: f"A line to {step}.")
"""


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_that_runs_unattended_comes_to_its_end(live, monkeypatch, tmp_path, widgets):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "ipython").mkdir()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    hidden = "" if widgets else "import sys; sys.modules['ipywidgets'] = None\n"
    if widgets:
        pytest.importorskip("ipywidgets")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(hidden + CELL)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[-1].outputs
    assert output.data["text/html"].count("<img") == (2 if widgets else 3)
    assert ("application/vnd.jupyter.widget-view+json" in output.data) == widgets


# ---- the built pages ----
@pytest.mark.parametrize(
    ("chapter", "figure"),
    [
        ("01-the-task", "fig-winter"),
        ("03-the-collapse", "fig-moving-rows"),
        ("05-copy-attention", "fig-copy-words"),
    ],
)
@pytest.mark.parametrize("width", [1300, 360])
def test_sliders_of_the_book_work_from_disk_by_keyboard(browser, site, chapter, figure, width):
    page = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
    page.goto((site / "chapters" / f"{chapter}.html").as_uri())
    box = page.locator(f"figure#{figure}")
    assert box.locator("figcaption .caption-number").inner_text().startswith("Fig.")
    slider, images = box.get_by_role("slider"), box.locator("img")
    assert images.count() == int(str(slider.get_attribute("max"))) + 1 >= 3
    alts = [str(image.get_attribute("alt")) for image in images.all()]
    assert len(set(alts)) == len(alts) and all(len(alt.split()) > 8 for alt in alts)
    seen = []
    for key in ["Home", *["ArrowRight"] * (len(alts) - 1)]:
        slider.press(key)
        (now,) = [index for index, image in enumerate(images.all()) if image.is_visible()]
        assert alts[now].startswith(f"{slider.get_attribute('aria-valuetext')}: ")
        seen.append(now)
    assert seen == list(range(len(alts)))
    # On a phone the frame scrolls, the page does not.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
