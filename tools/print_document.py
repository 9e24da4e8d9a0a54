"""The built pages as one HTML document for print.

The pages are taken as the book's build left them in `_build/html`. So every number of a figure, an equation
or an exercise, every citation and every output is the one on the site. What differs is the form: pages follow
one another in one document, and links between them lead to places in it. What needs a click is gone or open.
Hints, solutions and the answers of quizzes move to the end, where they do not spoil an exercise.
"""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from sphinx_external_toc.parsing import parse_toc_yaml

from tools.print_appendices import Appendix, move_answers, move_exercise_help
from tools.print_page import (
    Chapter,
    drop_dead,
    element,
    join,
    mark_short,
    page_number,
    place,
    text_of,
    title_of,
    unfold,
)

# The same letters on every machine: matplotlib, which draws the figures, carries these fonts with it.
FONTS = {
    "STIXGeneral.ttf": ("Course Serif", "normal", "400"),
    "STIXGeneralItalic.ttf": ("Course Serif", "italic", "400"),
    "STIXGeneralBol.ttf": ("Course Serif", "normal", "700"),
    "STIXGeneralBolIta.ttf": ("Course Serif", "italic", "700"),
    "DejaVuSansMono.ttf": ("Course Mono", "normal", "400"),
    "DejaVuSansMono-Oblique.ttf": ("Course Mono", "italic", "400"),
    "DejaVuSansMono-Bold.ttf": ("Course Mono", "normal", "700"),
    "DejaVuSansMono-BoldOblique.ttf": ("Course Mono", "italic", "700"),
}
FORMULAS = ("katex.min.js", "formulas.js")  # the scripts that print needs


@dataclass(frozen=True)
class Front:
    """What the title page says."""

    title: str
    subtitle: str
    authors: str
    edition: str  # version, date and commit, one line
    notes: tuple[str, ...]  # license, address: a line each


# ---- reading the site ----


def pages_of(toc: Path) -> Iterator[tuple[str, str]]:
    """Each page of the table of contents in its order, with the caption of the part that it opens."""
    site_map = parse_toc_yaml(toc)

    def below(name: str) -> Iterator[tuple[str, str]]:
        for subtree in site_map[name].subtrees:
            caption = subtree.caption or ""
            for item in subtree.items:
                if str(item) in site_map:
                    yield str(item).removesuffix(".md"), caption
                    caption = ""
                    yield from below(str(item))

    root = site_map.root.docname
    yield root.removesuffix(".md"), ""
    yield from below(root)


def read_pages(site: Path, toc: Path) -> tuple[list[Chapter], list[str]]:
    """The articles of all pages, and the lines of their heads that fetch style sheets and set formulas."""
    chapters = []
    head: dict[str, None] = {}  # a set that keeps its order
    for name, part in pages_of(toc):
        soup = BeautifulSoup((site / f"{name}.html").read_bytes(), "html.parser")
        article = soup.select_one("article.bd-article")
        if article is None:
            raise ValueError(f"{name}.html has no article: `make book` builds the pages anew")
        for tag in soup.select("link[rel=stylesheet], script"):
            address = str(tag.get("href") or tag.get("src") or "")
            if tag.name == "script" and not address.partition("?")[0].endswith(FORMULAS):
                continue
            for attribute in ("href", "src"):
                if tag.has_attr(attribute):
                    tag[attribute] = place(address, name)
            head.setdefault(str(tag))
        for image in article.select("img[loading]"):
            del image["loading"]  # in print nobody comes near it
        chapters.append(Chapter(name, part, article.extract()))
    return chapters, list(head)


# ---- what only the document has ----


def cover(soup: BeautifulSoup, front: Front) -> Tag:
    """The title page."""
    page = soup.new_tag("header", attrs={"class": "cover"})
    lines = [
        ("title", front.title),
        ("subtitle", front.subtitle),
        ("authors", front.authors),
        ("edition", front.edition),
        *(("note", note) for note in front.notes),
    ]
    page.extend([element(soup, "p", text, **{"class": f"cover-{kind}"}) for kind, text in lines])
    return page


def contents(soup: BeautifulSoup, chapters: list[Chapter], appendices: list[Appendix]) -> Tag:
    """The table of contents: parts, pages and their sections, with the pages they begin on."""
    listing = soup.new_tag("nav", attrs={"class": "book-contents", "id": "contents"})
    listing.append(element(soup, "h1", "Contents"))

    def line(anchor: str, text: str, level: int) -> None:
        entry = soup.new_tag("a", attrs={"href": f"#{anchor}", "class": f"internal level-{level}"})
        entry.append(element(soup, "span", text))
        entry.append(page_number(soup, anchor))
        listing.append(entry)

    def sections(article: Tag) -> None:
        for heading in article.select("section[id] > h2"):
            assert heading.parent is not None
            line(str(heading.parent["id"]), text_of(heading), 2)

    for chapter in chapters:
        if chapter.part:
            listing.append(element(soup, "p", chapter.part, **{"class": "part"}))
        line(chapter.anchor, chapter.title, 1)
        sections(chapter.article)
    if appendices:
        listing.append(element(soup, "p", "At the end", **{"class": "part"}))
    for appendix in appendices:
        line(appendix.anchor, title_of(appendix.article), 1)
        sections(appendix.article)
    return listing


def font_faces() -> str:
    """CSS that names the fonts."""
    return "\n".join(
        f'@font-face {{ font-family: "{family}"; font-style: {style}; font-weight: {weight}; '
        f'src: url("/fonts/{file}"); }}'
        for file, (family, style, weight) in FONTS.items()
    )


def running_heads(titles: dict[str, str], paper: str) -> str:
    """CSS that prints the name of the chapter on each page."""
    rules = [f"@page {{ size: {paper}; }}"]
    for number, (anchor, title) in enumerate(titles.items()):
        text = title.replace("\\", "\\\\").replace('"', '\\"')
        rules.append(f'@page article-{number} {{ @top-left {{ content: "{text}"; }} }}')
        rules.append(f'[id="{anchor}"] {{ page: article-{number}; }}')
    return "\n".join(rules)


# ---- the whole ----


def assemble(site: Path, toc: Path, front: Front, paper: str) -> str:
    """The whole document. Addresses in it start at the root of the site, and fonts are in `/fonts`.

    Raises ValueError where a link between pages leads nowhere, FileNotFoundError where a page was not built.
    """
    soup = BeautifulSoup("", "html.parser")
    chapters, head = read_pages(site, toc)
    pages = {chapter.name for chapter in chapters}
    hints = Appendix.named(soup, "Hints", "Try an exercise first, and then take one hint at a time.")
    solutions = Appendix.named(
        soup,
        "Solutions and answers",
        "For each exercise, errors that are often made, and a solution. For each question, what there is to "
        "say about every choice.",
    )
    for chapter in chapters:
        join(chapter, pages)
        drop_dead(chapter.article)
        move_exercise_help(chapter, hints, solutions)
        move_answers(chapter, solutions)
        chapter.article["id"] = chapter.anchor
        if chapter.part:
            chapter.article.insert(0, element(soup, "p", chapter.part, **{"class": "part"}))
    appendices = [appendix for appendix in (hints, solutions) if appendix.article.find("section")]
    articles = [chapter.article for chapter in chapters] + [appendix.article for appendix in appendices]
    for article in articles:
        unfold(soup, article)
        mark_short(article)

    book = soup.new_tag("main", attrs={"class": "print-book"})
    book.extend([cover(soup, front), contents(soup, chapters, appendices), *articles])
    check_links(book)
    titles = {"contents": "Contents"} | {str(article["id"]): title_of(article) for article in articles}
    return (
        '<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>{html.escape(front.title)}: {html.escape(front.subtitle)}</title>"
        f"{''.join(head)}<style>{font_faces()}\n{running_heads(titles, paper)}</style>"
        f'</head><body data-default-mode="light">{book}</body></html>'
    )


def check_links(book: Tag) -> None:
    """Every link within the document has a place to lead to."""
    places = {str(tag["id"]) for tag in book.select("[id]")}
    wanted = {str(link["href"])[1:] for link in book.select('a[href^="#"]')}
    if lost := sorted(wanted - places):
        raise ValueError(f"links of the book lead nowhere in print: {', '.join(lost)}")
