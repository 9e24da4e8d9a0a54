"""Style sheets with what the pages of a book use, and no more.

Themes and extensions bring rules for everything a site may have. Here each selector goes that needs a class
which is on no page and in no script. The font of icons keeps the few that the rules left over name, and comes
with the sheet. The book's own sheets stay whole.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import tinycss2
from fontTools import subset
from fontTools.ttLib import TTFont

CLASSES = re.compile(r'\bclass="([^"]*)"')
SCRIPT = re.compile(r'<script\b[^>]*\bsrc="[^"?]*_static/([^"?]*)')
NAME = re.compile(r"[A-Za-z][\w-]*")
HOLDS_RULES = ("media", "supports", "layer", "container")
# An icon in a style sheet: its code point, or the character itself.
ICON = re.compile(r'"\\([ef][0-9a-f]{3})"|([\ue000-\uf8ff])')
ICON_FONT = re.compile(r"src:\s*url\((?P<woff2>[^)]*/fa-solid-900\.woff2)\)[^;}]*")


@dataclass(frozen=True)
class Classes:
    """The classes that an element of the book may have."""

    names: frozenset[str]
    beginnings: tuple[str, ...]  # of names that a script puts together, as in `bs-${kind}-auto`

    def have(self, name: str) -> bool:
        return name in self.names or name.startswith(self.beginnings)


def classes_of(pages: Iterable[str], scripts: Iterable[str]) -> Classes:
    """Every class on a page, and every name in a script, for it may be one that the script gives."""
    on_pages = {name for page in pages for found in CLASSES.findall(page) for name in found.split()}
    in_scripts = {name for script in scripts for name in NAME.findall(script)}
    return Classes(frozenset(on_pages | in_scripts), tuple(name for name in in_scripts if name.endswith("-")))


# ---- rules ----


def drop_unused_rules(style: str, classes: Classes) -> str:
    """Leave out each selector that needs a class which no element has, and each rule without a selector left.

    Classes inside ``:not()``, ``:is()`` and the like are not asked about: a rule may hold without them.
    """
    return _used(tinycss2.parse_stylesheet(style, skip_comments=True, skip_whitespace=True), classes)


def _used(rules: Iterable[Any], classes: Classes) -> str:
    used = ""
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [s for s in _selectors(rule.prelude) if _can_match(s, classes)]
            if selectors:
                used += f"{','.join(map(_written, selectors))}{{{_written(rule.content)}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in HOLDS_RULES and rule.content is not None:
            inside = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            if kept := _used(inside, classes):
                used += f"@{rule.at_keyword} {_written(rule.prelude)}{{{kept}}}"
        else:
            used += rule.serialize()
    return used


def _selectors(prelude: Iterable[Any]) -> list[list[Any]]:
    """A rule's selectors, which commas part, as tokens."""
    selectors: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            selectors.append([])
        else:
            selectors[-1].append(token)
    return selectors


def _can_match(selector: list[Any], classes: Classes) -> bool:
    return all(
        classes.have(name.value)
        for dot, name in itertools.pairwise(selector)
        if dot == "." and name.type == "ident"
    )


def _written(tokens: list[Any]) -> str:
    return str(tinycss2.serialize(tokens)).strip()


# ---- icons ----


def icon_font(file: Path, icons: Iterable[int]) -> str:
    """The font with only these icons (code points), as the source of a CSS font face."""
    options = subset.Options(flavor="woff", layout_features=[], name_IDs=[], notdef_outline=True)
    maker = subset.Subsetter(options)
    maker.populate(unicodes=icons)
    font = TTFont(file, recalcTimestamp=False)  # the same font in every build
    maker.subset(font)
    font.flavor = "woff"
    written = BytesIO()
    font.save(written)
    return f'src:url(data:font/woff;base64,{base64.b64encode(written.getvalue()).decode()}) format("woff")'


# ---- all of them ----


def trim_styles(static: Path, pages: Sequence[str], own: Iterable[Path]) -> None:
    """Trim the style sheets in `static` to what the pages use, but for those of the folders in `own`."""
    scripts = {static / name for page in pages for name in SCRIPT.findall(page)}
    scripts.update((static / "playground").glob("*.js"))  # which its first script loads
    texts = (script.read_text(encoding="utf-8") for script in scripts if script.is_file())
    classes = classes_of(pages, texts)
    whole = {static / file.relative_to(folder) for folder in own for file in folder.rglob("*.css")}
    styles = {
        file: drop_unused_rules(file.read_text(encoding="utf-8"), classes)
        for file in set(static.rglob("*.css")) - whole
    }
    found = {icon for style in styles.values() for icon in ICON.findall(style)}
    icons = sorted(int(code, 16) if code else ord(character) for code, character in found)
    for file, style in styles.items():
        if face := ICON_FONT.search(style):
            font = (file.parent / face["woff2"]).with_suffix(".ttf")  # to read woff2 takes one more package
            style = style.replace(face[0], icon_font(font, icons))
        file.write_text(style, encoding="utf-8")
