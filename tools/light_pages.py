"""A Sphinx extension: pages load what they show, and no more.

A figure further down waits until the reader comes near it, and has its place on the page before. When the
pages are written, figures lose what no eye sees, and style sheets the rules that no page uses. A printed book
is left as it is.
"""

import base64
import logging
import re
import struct
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from sphinx.application import Sphinx

from tools.light_styles import trim_styles

IMAGE = re.compile(r'<img\b[^>]*\bsrc="(?P<source>[^"]*)"[^>]*>')
SVG_SIZE = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
# Paths, places and shifts: not scales, which are small.
COORDINATES = re.compile(r'\b(?:d|x|y)="[^"]*"|translate\([^)]*\)')
REFERENCE = re.compile(r'(?:(?<=url\(#)|(?<=href="#))[^")]+')
BITMAP = re.compile(r'data:image/png;base64,([^"]*)')


# ---- figures ----


def size_of(image: Path) -> tuple[int, int] | None:
    """Width and height of an image in CSS pixels; None for a kind that a chapter does not make."""
    if image.suffix == ".png":
        width, height = struct.unpack(">II", image.read_bytes()[16:24])
        return width, height
    found = SVG_SIZE.search(image.read_text(encoding="utf-8")) if image.suffix == ".svg" else None
    return (round(float(found[1]) * 4 / 3), round(float(found[2]) * 4 / 3)) if found else None


def place_figures(body: str, sizes: Callable[[str], tuple[int, int] | None]) -> str:
    """The page's HTML, where each image names its size, and all but the first wait to be near the window."""
    first = True

    def placed(image: re.Match[str]) -> str:
        nonlocal first
        size = sizes(image["source"].rpartition("/")[2])
        added = "" if first else ' loading="lazy"'
        if size is not None and not re.search(r"\b(width|height)=", image[0]):
            added += f' width="{size[0]}" height="{size[1]}"'
        first = False
        return f"<img{added}{image[0].removeprefix('<img')}"

    return IMAGE.sub(placed, body)


def as_webp(png: str) -> str:
    """A bitmap (PNG in base64) as the same pixels in WebP, a data URI of half the length."""
    written = BytesIO()
    with Image.open(BytesIO(base64.b64decode(png))) as bitmap:
        bitmap.save(written, format="WEBP", lossless=True, exact=True, method=6)
    return f"data:image/webp;base64,{base64.b64encode(written.getvalue()).decode()}"


def slim_svg(drawing: str) -> str:
    """The same picture in fewer bytes: hundredths of a point, each style and name written once and short."""
    drawing = re.sub(r"\s*<metadata>.*?</metadata>|<!-- .*? -->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r">\s+<", "><", drawing)
    drawing = BITMAP.sub(lambda bitmap: as_webp(bitmap[1]), drawing)
    drawing = COORDINATES.sub(_rounded, drawing)
    drawing = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"\s*([A-Za-z])\s+", r"\1", path[0]), drawing)
    return _short_styles(_short_names(drawing))


def _rounded(coordinates: re.Match[str]) -> str:
    short = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", coordinates[0])
    return " ".join(short.split())


def _short_names(drawing: str) -> str:
    """Without the names that nothing refers to."""
    short = {name: f"i{number}" for number, name in enumerate(dict.fromkeys(REFERENCE.findall(drawing)))}
    drawing = REFERENCE.sub(lambda name: short[name[0]], drawing)
    return re.sub(
        r' id="([^"]*)"', lambda name: f' id="{short[name[1]]}"' if name[1] in short else "", drawing
    )


def _short_styles(drawing: str) -> str:
    styles = [
        style for style, times in Counter(re.findall(r' style="([^"]*)"', drawing)).items() if times > 1
    ]
    rules = ""
    for number, style in enumerate(styles):
        drawing = drawing.replace(f' style="{style}"', f' class="s{number}"')
        rules += f".s{number}{{{style}}}"
    return drawing.replace("</style>", f"{rules}</style>", 1)


# ---- what Sphinx calls ----


def on_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if app.builder.name == "html" and "body" in context:
        files = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}
        context["body"] = place_figures(
            context["body"], lambda name: size_of(files[name]) if name in files else None
        )


def on_finish(app: Sphinx, exception: Exception | None) -> None:
    if app.builder.name != "html" or exception is not None:
        return
    out = Path(app.outdir)
    static = out / "_static"
    pages = [
        file.read_text(encoding="utf-8") for file in out.rglob("*.html") if not file.is_relative_to(static)
    ]
    shown = {name for page in pages for name in re.findall(r'_images/([^"]+)"', page)}
    for image in (out / "_images").glob("*"):
        if image.name not in shown:  # of an earlier build
            image.unlink()
        elif image.suffix == ".svg":
            image.write_text(slim_svg(image.read_text(encoding="utf-8")), encoding="utf-8")
    # Extensions add theirs to the folders of the book, with a path from the root.
    own = [folder for folder in app.config.html_static_path if not Path(folder).is_absolute()]
    trim_styles(static, pages, own=[Path(app.confdir, folder) for folder in own])


def setup(app: Sphinx) -> dict[str, Any]:
    # What a build made lighter, the next one copies afresh: no news to whoever builds.
    logging.getLogger("sphinx.sphinx.util.osutil").addFilter(
        lambda record: "will overwrite data" not in str(record.msg)
    )
    app.connect("html-page-context", on_page)
    app.connect("build-finished", on_finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
