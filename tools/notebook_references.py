"""What the pages of the book refer to: chapters, figures, equations, exercises, terms, papers.

A notebook that stands alone cannot link to another page, so its cross-references are written out, with the
numbers that the built book gives. Sphinx knows these only after the chapters have run, since most figures are
outputs; here they are counted in the sources. ``tests/test_notebooks.py`` compares the two.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from markdown_it.tree import SyntaxTreeNode
from pybtex.backends.markdown import Backend  # type: ignore[import-untyped]
from pybtex.database import (  # type: ignore[import-untyped]
    BibliographyData,
    Entry,
    parse_file,
)
from pybtex.plugin import find_plugin  # type: ignore[import-untyped]
from pybtex.richtext import Text  # type: ignore[import-untyped]

from tools.notebook_syntax import (
    Directive,
    MystError,
    blocks_of,
    directive_of,
    label_of_math,
    page_cells,
)

NUMBERED_DIRECTIVES = {"figure": "figure", "glue:figure": "figure", "exercise": "exercise"}


@dataclass(frozen=True)
class Target:
    """Something that a page refers to: ``kind`` is section, figure, equation, exercise or solution."""

    kind: str
    page: str
    number: str
    title: str


@dataclass
class Names:
    """All that pages refer to.

    Attributes
    ----------
    chapters : dict
        Number of each page, "" where the table of contents gives none.
    titles : dict
        First heading of each page, as plain text in Markdown.
    targets : dict
        By label.
    terms : dict
        Each term of the glossary as it is spelled there, with its definition in MyST, by the term in lower
        case: a text may refer to it in either case.
    """

    chapters: dict[str, str]
    titles: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    terms: dict[str, tuple[str, str]] = field(default_factory=dict)
    papers: BibliographyData = field(default_factory=BibliographyData)

    def target(self, label: str, kinds: tuple[str, ...]) -> Target:
        """What ``label`` names. Raises MystError if nothing does, or something of another kind."""
        found = self.targets.get(label)
        if found is None or found.kind not in kinds:
            raise MystError(f"no {' or '.join(kinds)} of the book is labelled {label!r}")
        return found

    def paper(self, key: str) -> Entry:
        try:
            return self.papers.entries[key]
        except KeyError:
            raise MystError(f"references.bib has no entry {key!r}") from None


# ---- reading the book ----
def numbered_pages(toc: dict[str, Any]) -> dict[str, str]:
    """Every page of a table of contents with its number, "" if it has none; one count over all parts."""
    pages = {f"{str(toc['root']).removesuffix('.md')}.md": ""}
    count = 0
    for part in toc.get("parts", [{"chapters": toc.get("chapters", [])}]):
        for chapter in part["chapters"]:
            count += bool(part.get("numbered"))
            pages[_page_of(chapter)] = str(count) if part.get("numbered") else ""
            for section in chapter.get("sections", []):
                pages[_page_of(section)] = ""
    return pages


def _page_of(entry: dict[str, Any]) -> str:
    return f"{str(entry['file']).removesuffix('.md')}.md"


def read_names(book: Path) -> Names:
    """Read every page of the book once, and note what it defines."""
    toc = yaml.safe_load((book / "_toc.yml").read_text(encoding="utf-8"))
    names = Names(numbered_pages(toc))
    if (book / "references.bib").is_file():
        names.papers = parse_file(str(book / "references.bib"))
    counts: Counter[tuple[str, str]] = Counter()
    for page in names.chapters:
        text = (book / page).read_text(encoding="utf-8")
        waiting: list[str] = []
        for cell in page_cells(text):
            if cell.cell_type == "code":
                figure = cell.metadata.get("mystnb", {}).get("figure", {})
                if figure.get("caption"):
                    _define(names, counts, page, "figure", figure.get("name"))
                continue
            for node in _walk(blocks_of(cell.source)):
                _note(names, counts, page, node, waiting)
    return names


def _walk(nodes: list[SyntaxTreeNode]) -> list[SyntaxTreeNode]:
    """Blocks in reading order, those inside directives too."""
    found = []
    for node in nodes:
        found.append(node)
        directive = directive_of(node)
        inside = blocks_of(directive.body) if directive is not None and directive.holds_markdown else []
        found += _walk(inside or list(node.children))
    return found


def _note(
    names: Names, counts: Counter[tuple[str, str]], page: str, node: SyntaxTreeNode, waiting: list[str]
) -> None:
    """Note what one block defines; ``waiting`` holds labels for the heading that comes next."""
    if node.type == "heading":
        title = node.children[0].content
        names.titles.setdefault(page, title)
        for label in waiting:
            names.targets[label] = Target("section", page, "", title)
        waiting.clear()
    elif node.type == "myst_target":
        waiting.append(str(node.meta.get("label", node.content)))
    elif node.type in ("math_block", "math_block_label", "amsmath"):
        if label := label_of_math(node):
            _define(names, counts, page, "equation", label)
    elif (directive := directive_of(node)) is not None:
        _note_directive(names, counts, page, directive)


def _note_directive(names: Names, counts: Counter[tuple[str, str]], page: str, directive: Directive) -> None:
    name = directive.name.removesuffix("-start")
    options = directive.options
    if name in NUMBERED_DIRECTIVES:
        label = options.get("label") or options.get("name")
        _define(names, counts, page, NUMBERED_DIRECTIVES[name], label, directive.argument)
    elif name == "math" and options.get("label"):
        _define(names, counts, page, "equation", options["label"])
    elif name == "glossary":
        term = ""
        for line in directive.body.splitlines():
            if line.strip() and not line.startswith(" "):
                term = line.strip()
                names.terms[term.lower()] = (term, "")
            elif term:
                definition = f"{names.terms[term.lower()][1]} {line.strip()}".strip()
                names.terms[term.lower()] = (term, definition)


def _define(
    names: Names,
    counts: Counter[tuple[str, str]],
    page: str,
    kind: str,
    label: str | None,
    title: str = "",
) -> None:
    """Give the next number of its kind, which starts afresh in each numbered chapter."""
    chapter = names.chapters[page]
    counts[kind, chapter] += 1
    number = f"{chapter}.{counts[kind, chapter]}" if chapter else str(counts[kind, chapter])
    # What nothing refers to still has a number; its place in the page is its name.
    names.targets[label or f"{page}#{kind}-{counts[kind, chapter]}"] = Target(kind, page, number, title)


# ---- papers ----
def cited(entry: Entry) -> tuple[str, str]:
    """Authors and year of a paper as a text cites them."""
    people = [
        Text.from_latex(" ".join(person.prelast_names + person.last_names)) for person in _people(entry)
    ]
    last = [str(name) for name in people]
    authors = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
    return authors, str(entry.fields.get("year", "n.d."))


def _people(entry: Entry) -> list[Any]:
    return list(entry.persons.get("author") or entry.persons.get("editor") or [])


class Plain(Backend):  # type: ignore[misc]
    """Markdown with an escape where one is needed, and nowhere else: `\\(` would begin math on Colab."""

    def format_str(self, text: str) -> str:
        return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)


def reference_list(papers: BibliographyData, keys: set[str]) -> list[str]:
    """A line of Markdown for each cited paper, in the order of authors and year."""
    style = find_plugin("pybtex.style.formatting", "plain")()
    chosen = sorted((papers.entries[key] for key in keys), key=lambda e: (*map(str.lower, cited(e)), e.key))
    backend = Plain()
    return [str(entry.text.render(backend)).replace("\n", " ") for entry in style.format_entries(chosen)]


def definition_of(names: Names, term: str) -> tuple[str, str]:
    """``term`` as the glossary spells it, and its definition. Raises MystError if it has none."""
    try:
        return names.terms[term.lower()]
    except KeyError:
        raise MystError(f"the glossary does not define {term!r}") from None
