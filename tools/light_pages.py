"""A Sphinx extension: pages load what they show, and no more.

A figure further down waits until the reader comes near it, and has its place on the page before. When the
pages are written, figures lose what no eye sees, the style sheets lose the rules for icons and cards that no
page uses, and the font of icons keeps the few that are there, inside the style sheet. A printed book is left
as it is.
"""

import base64
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

IMAGE = re.compile(r'<img\b[^>]*\bsrc="(?P<source>[^"]*)"[^>]*>')
SVG_SIZE = re.compile(r'<svg\b[^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
# Sets of rules that come whole, of which a book uses a few: icons (fa), cards and grids (sd).
RULE = re.compile(r"(?P<selectors>[^{}@;/]*\.(?:fa|sd)-[^{}@;/]*)\{[^{}]*\}")
LISTED_CLASS = re.compile(r"\.((?:fa|sd)-[\w-]+)")
# An icon in a style sheet: its code point, or the character itself.
ICON = re.compile(r'"\\([ef][0-9a-f]{3})"|([\ue000-\uf8ff])')
ICON_FONT = re.compile(r"src:url\((?P<woff2>[^)]*/fa-solid-900\.woff2)\)[^;}]*")


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


def slim_svg(drawing: str) -> str:
    """The same picture in fewer bytes: hundredths of a point, each style and name written once and short."""
    drawing = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)

    def rounded(attribute: re.Match[str]) -> str:
        short = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", attribute[2])
        return f'{attribute[1]}="{" ".join(short.split())}"'

    drawing = re.sub(r'\b(d|x|y)="([^"]*)"', rounded, drawing)
    drawing = re.sub(r">\s+<", "><", drawing)
    for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([mp][0-9a-f]{10})"', drawing))):
        drawing = drawing.replace(f'"{name}"', f'"i{number}"').replace(f"#{name}", f"#i{number}")
    styles = [
        style for style, times in Counter(re.findall(r' style="([^"]*)"', drawing)).items() if times > 1
    ]
    rules = ""
    for number, style in enumerate(styles):
        drawing = drawing.replace(f' style="{style}"', f' class="s{number}"')
        rules += f".s{number}{{{style}}}"
    return drawing.replace("</style>", f"{rules}</style>", 1)


# ---- style sheets ----


def drop_unused_rules(style: str, used: set[str]) -> str:
    """Leave out each rule of the listed sets all of whose selectors need a class that is not in `used`."""

    def kept(rule: re.Match[str]) -> str:
        selectors = rule["selectors"].split(",")
        if any(used.issuperset(LISTED_CLASS.findall(selector)) for selector in selectors):
            return rule[0]
        return ""

    return RULE.sub(kept, style)


def icon_font(file: Path, icons: Iterable[int]) -> str:
    """The font with only these icons (code points), as the source of a CSS font face."""
    options = subset.Options(flavor="woff", layout_features=[], name_IDs=[], notdef_outline=True)
    maker = subset.Subsetter(options)
    maker.populate(unicodes=icons)
    font = TTFont(file)
    maker.subset(font)
    font.flavor = "woff"
    written = BytesIO()
    font.save(written)
    return f'src:url(data:font/woff;base64,{base64.b64encode(written.getvalue()).decode()}) format("woff")'


def trim_styles(static: Path, pages: Iterable[str]) -> None:
    """Trim every style sheet in `static` to what the pages use."""
    used = {
        name for page in pages for names in re.findall(r'class="([^"]*)"', page) for name in names.split()
    }
    scripts = " ".join(file.read_text(encoding="utf-8") for file in (static / "scripts").glob("*theme.js"))
    used.update(re.findall(r"fa-[\w-]+", scripts))
    styles = {
        file: drop_unused_rules(file.read_text(encoding="utf-8"), used) for file in static.rglob("*.css")
    }
    found = {icon for style in styles.values() for icon in ICON.findall(style)}
    icons = sorted(int(code, 16) if code else ord(character) for code, character in found)
    for file, style in styles.items():
        if face := ICON_FONT.search(style):
            font = (file.parent / face["woff2"]).with_suffix(".ttf")  # to read woff2 takes one more package
            style = style.replace(face[0], icon_font(font, icons))
        file.write_text(style, encoding="utf-8")


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
    trim_styles(static, pages)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", on_page)
    app.connect("build-finished", on_finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
