"""A figure with a slider: live in a notebook, precomputed frames on a page of the book, by one function.

``explore(draw, values, …)`` calls ``draw(value)`` for a figure. In a notebook with ipywidgets it draws as the
slider moves. Where nothing can answer the slider, on a page of the book or where ipywidgets is missing, it
draws every frame beforehand, and a few lines of script in the same output show one of them at a time. Without
that script, and in print, the first and the last frame stand there.

It draws no figure itself and knows nothing of what they show.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any, TypeVar

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from unseen_lib.errors import ConfigError

#: What the slider chooses from.
Value = TypeVar("Value")

#: The environment variable that says ``frames`` while the book is built: a page has no kernel, and a notebook
#: that runs unattended must not wait for a widget.
MODE = "UNSEEN_EXPLORE"
#: Room for all frames of one figure, on a page that should load on a phone.
MOST_BYTES = 250_000
#: Forms of a frame, sharpest first (a drawing, then bitmaps without loss). A page shows 96 dots per inch.
FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("svg+xml", {"format": "svg", "dpi": 192, "metadata": {"Date": None, "Creator": None}}),
    ("webp", {"format": "webp", "dpi": 192, "pil_kwargs": {"lossless": True, "method": 6}}),
    ("webp", {"format": "webp", "dpi": 120, "pil_kwargs": {"lossless": True, "method": 6}}),
)
_numbers = itertools.count()


@dataclass(frozen=True)
class Picture:
    """One frame.

    Attributes
    ----------
    sources : tuple of str
        Data URIs, one for each of `FORMS`.
    width, height : int
        In pixels of a page.
    words : str
        What it shows.
    """

    sources: tuple[str, ...]
    width: int
    height: int
    words: str

    def tag(self, form: int) -> str:
        """The picture in HTML, in one of `FORMS` (its index)."""
        return (
            f'<img src="{self.sources[form]}" width="{self.width}" height="{self.height}" '
            f'alt="{html.escape(self.words)}">'
        )


@dataclass(frozen=True)
class Frames:
    """Precomputed frames; a notebook or a page shows them as HTML."""

    markup: str

    def _repr_html_(self) -> str:
        return self.markup


def explore(
    draw: Callable[[Value], Figure],
    values: Sequence[Value],
    *,
    label: str,
    alt: Callable[[Value], str],
    say: Callable[[Value], str] = str,
    start: int = 0,
) -> Any:
    """A figure for each value, and a slider that chooses one.

    Parameters
    ----------
    draw : callable
        Takes a value and returns a matplotlib figure, which is closed here. All figures should have one size,
        and axes whose limits do not depend on the value, so that nothing jumps.
    values : sequence
        At least two, in the order of the slider.
    label : str
        What the slider changes, such as ``"training step"``.
    alt : callable
        Takes a value and returns what its figure shows, in words.
    say : callable, optional
        Takes a value and returns how it reads beside the slider and aloud, such as ``"step 300"``.
    start : int, optional
        Index of the value shown first.

    Returns
    -------
    object
        The last expression of a cell shows it. `Frames` on a page of the book (``UNSEEN_EXPLORE=frames``) and
        where ipywidgets is missing, else a live widget.

    Raises
    ------
    ConfigError
        If there are fewer than two values, ``start`` is none of them, ``alt`` has no words for one, or the
        frames of a page are too large together.
    """
    values = list(values)
    if len(values) < 2:
        raise ConfigError(f"values has length {len(values)}: a slider needs at least two")
    if not 0 <= start < len(values):
        raise ConfigError(f"start={start}: the values have indices from 0 to {len(values) - 1}")
    on_page = os.environ.get(MODE) == "frames"
    if not on_page:
        try:
            return _Live(draw, values, label, alt, say, start)
        except ImportError:  # no ipywidgets
            pass
    pictures = [_picture(draw, value, alt, say) for value in values]
    form, size = _sharpest(pictures)
    if on_page and size > MOST_BYTES:
        raise ConfigError(
            f"the {len(pictures)} frames of {label!r} take {size / 1000:.0f} kB, and a page has room for "
            f"{MOST_BYTES / 1000:.0f}: give fewer values, or draw a smaller figure"
        )
    frames = [picture.tag(form) for picture in pictures]
    return Frames(_markup(frames, [say(value) for value in values], label, start))


# ------------------------------------------------------------------------------------------------- one frame
def _picture(
    draw: Callable[[Value], Figure],
    value: Value,
    alt: Callable[[Value], str],
    say: Callable[[Value], str],
) -> Picture:
    words = alt(value).strip()
    if not words:
        raise ConfigError(f"alt({value!r}) is empty: say what the figure shows there")
    figure = draw(value)
    try:
        sources = tuple(_source(figure, kind, how) for kind, how in FORMS)
    finally:
        plt.close(figure)  # else the notebook shows it, too
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Picture(sources, width, height, f"{say(value)}: {words}")


def _source(figure: Figure, kind: str, how: dict[str, Any]) -> str:
    file = BytesIO()
    figure.savefig(file, **how)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def _sharpest(pictures: Sequence[Picture]) -> tuple[int, int]:
    """The first form in which all pictures have room on a page, else the last; and their size in bytes."""
    sizes = [sum(len(picture.sources[form]) for picture in pictures) for form in range(len(FORMS))]
    form = next((form for form, size in enumerate(sizes) if size <= MOST_BYTES), len(FORMS) - 1)
    return form, sizes[form]


# ------------------------------------------------------------------------------------------ frames on a page
STYLE = """\
.explore { color: inherit; max-width: 100%; }
.explore-choose { align-items: center; display: flex; flex-wrap: wrap; gap: 0 0.8rem; padding: 0.3rem; }
.explore-choose[hidden] { display: none; }
.explore input { accent-color: #0072b2; flex: 1 1 12rem; max-width: 26rem; min-height: 1.75rem; }
.explore output { font-weight: 600; min-width: 6em; }
.explore-frame { display: none; margin: 0 0 0.8rem; }
.explore-frame:first-child, .explore-frame:last-child { display: block; }
.explore-frame p { font-weight: 600; margin: 0 0 0.2rem; }
.explore img { background: #fff; height: auto; max-width: 100%; }
@media screen {
  .explore[data-shown] .explore-frame { display: none; }
  .explore[data-shown] .explore-frame.now { display: block; margin: 0; }
  .explore[data-shown] .explore-frame p { display: none; }
}
@media (max-width: 576px) {
  .explore label { flex-basis: 100%; }
  .explore input { flex-basis: 8rem; }
}
@media print {
  .explore-choose { display: none; }
  .explore-frame { break-inside: avoid; }
}
"""

# Runs where it stands, so that it needs neither an event of the page nor anything outside this output.
SCRIPT = """\
(() => {
  const box = document.getElementById(%s);
  const words = %s;
  const [slider, shown] = [box.querySelector("input"), box.querySelector("output")];
  const frames = box.querySelectorAll(".explore-frame");
  const show = () => {
    const now = Number(slider.value);
    frames.forEach((frame, i) => frame.classList.toggle("now", i === now));
    shown.textContent = words[now];
    slider.setAttribute("aria-valuetext", words[now]);
    box.dataset.shown = now;
  };
  slider.addEventListener("input", show);
  box.querySelector(".explore-choose").hidden = false;
  show();
})();
"""


def _markup(frames: Sequence[str], words: Sequence[str], label: str, start: int) -> str:
    """All frames, the slider and the script that connects them, as one HTML text that loads nothing."""
    # Of its own on a page, and in a book that is printed as one page.
    name = f"explore-{hashlib.sha256(''.join(frames).encode()).hexdigest()[:8]}-{next(_numbers)}"
    blocks = "\n".join(
        f'<div class="explore-frame"><p>{html.escape(word)}</p>{frame}</div>'
        for word, frame in zip(words, frames, strict=True)
    )
    said = json.dumps(list(words)).replace("</", "<\\/")
    return f"""\
<div class="explore" id="{name}">
<style>
{STYLE}</style>
<div class="explore-choose" hidden>
<label for="{name}-slider">{html.escape(label)}</label>
<input type="range" id="{name}-slider" min="0" max="{len(frames) - 1}" step="1" value="{start}"
 autocomplete="off" aria-valuetext="{html.escape(words[start])}">
<output for="{name}-slider" aria-live="off">{html.escape(words[start])}</output>
</div>
<div class="explore-frames">
{blocks}
</div>
<script>
{SCRIPT % (json.dumps(name), said)}</script>
</div>
"""


# ----------------------------------------------------------------------------------------- live in a notebook
class _Live:
    """A slider and a picture, which the kernel draws again; where widgets are not shown, two frames stand.

    There is no `Output` widget and no `interact`: both can wait forever where no browser answers.
    """

    def __init__(
        self,
        draw: Callable[[Value], Figure],
        values: Sequence[Value],
        label: str,
        alt: Callable[[Value], str],
        say: Callable[[Value], str],
        start: int,
    ) -> None:
        widgets: Any = import_module("ipywidgets")

        def frame(index: int) -> str:
            picture = _picture(draw, values[index], alt, say)
            return picture.tag(_sharpest([picture])[0])

        self.frame = frame
        self.ends = [(say(values[index]), frame(index)) for index in (0, len(values) - 1)]
        self.slider = widgets.SelectionSlider(
            options=[(say(value), index) for index, value in enumerate(values)],
            value=start,
            description=label,
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "min(30rem, 100%)"},
        )
        self.picture = widgets.HTML(frame(start))
        self.widget = widgets.VBox([self.slider, self.picture])
        self.slider.observe(self._redraw, "value")

    def _redraw(self, change: Any) -> None:
        try:
            self.picture.value = self.frame(change["new"])
        except Exception as error:  # nobody else shows what a callback raises
            self.picture.value = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget, with HTML beside it for programs that show a saved notebook without widgets."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        bundle: dict[str, Any] = {"application/vnd.jupyter.widget-view+json": view}
        if "google.colab" in sys.modules:  # which of two forms it would show is not documented
            return bundle
        ends = "\n".join(f"<p><b>{html.escape(word)}</b></p>\n{frame}" for word, frame in self.ends)
        return bundle | {"text/html": ends}
