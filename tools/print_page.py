"""One page of the site, made fit for a document that holds all pages, and for paper."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote, urldefrag, urlsplit

from bs4 import BeautifulSoup, Tag
from bs4.element import PageElement

# What is of no use on paper. `.screen-only` is for authors: see CONTRIBUTING.md.
DEAD = (
    "a.headerlink, .toctree-wrapper, .screen-only, script, noscript, template, dialog, iframe, video, audio, "
    "button, select, input, textarea, canvas, progress"
)
UNDONE = "not done yet"  # what the check of an exercise prints under its stub
SHORT = 6  # lines
REFERRING = ("for", "headers", "aria-labelledby", "aria-describedby", "aria-controls", "aria-details")
URL_OF_ID = re.compile(r"url\((['\"]?)#([^)'\"]+)\1\)")


@dataclass(frozen=True)
class Chapter:
    """A page of the site: its name without suffix, the part it opens (or nothing), its article."""

    name: str
    part: str
    article: Tag

    @property
    def anchor(self) -> str:
        """The id of the whole page in the document."""
        return anchor_of(self.name)

    @property
    def title(self) -> str:
        """The heading of the page."""
        return title_of(self.article) or self.name


def anchor_of(name: str) -> str:
    """The id under which a page stands in the document."""
    return name.replace("/", "-")


def title_of(article: Tag) -> str:
    """The text of the first heading."""
    heading = article.find("h1")
    return text_of(heading) if isinstance(heading, Tag) else ""


def text_of(tag: Tag) -> str:
    """What a tag says, on one line."""
    return re.sub(r"\s+", " ", tag.get_text()).strip()


def element(soup: BeautifulSoup, name: str, text: str, **attributes: str) -> Tag:
    """A tag that holds a text."""
    tag = soup.new_tag(name, attrs=attributes)
    tag.string = text
    return tag


def page_number(soup: BeautifulSoup, anchor: str) -> Tag:
    """Where the number of the page of `anchor` will stand, once it is known."""
    return element(soup, "span", "000", **{"class": "page-number", "data-anchor": anchor})


# ---- addresses ----


def place(address: str, page: str) -> str:
    """An address on a page, as seen from the root of the site; another host's address as it is."""
    if urlsplit(address).scheme or address.startswith("#"):
        return address
    return "/" + posixpath.normpath(posixpath.join(posixpath.dirname(page), address))


def join(chapter: Chapter, pages: set[str]) -> None:
    """Give all places of a page ids of their own, and let links and pictures lead to where things are now."""
    for tag in chapter.article.find_all(True):
        _rename(tag, chapter.anchor)
        if tag.has_attr("src"):
            tag["src"] = place(str(tag["src"]), chapter.name)
            del tag["loading"]  # a picture far down the document would never come
    for link in chapter.article.select("a[href]"):
        address = str(link["href"])
        if urlsplit(address).scheme:
            _show_address(link, address)
        elif (inside := _target(address, chapter.name, pages)) is not None:
            link["href"] = f"#{inside}"
        else:  # a file beside the pages, which a PDF does not have
            link.unwrap()


def _rename(tag: Tag, prefix: str) -> None:
    """Put `prefix` before each id that a tag has or refers to, the target of a link left out."""
    if tag.has_attr("id"):
        tag["id"] = f"{prefix}--{tag['id']}"
    for attribute in REFERRING:
        if tag.has_attr(attribute):
            names = " ".join(map(str, tag.get_attribute_list(attribute))).split()
            tag[attribute] = " ".join(f"{prefix}--{name}" for name in names)
    for attribute, value in list(tag.attrs.items()):
        if not isinstance(value, str):
            continue
        if attribute in ("href", "xlink:href") and tag.name != "a" and value.startswith("#"):  # in an SVG
            tag[attribute] = f"#{prefix}--{value[1:]}"
        elif "url(" in value:
            tag[attribute] = URL_OF_ID.sub(rf"url(#{prefix}--\2)", value)


def _target(address: str, page: str, pages: set[str]) -> str | None:
    """Where a link on a page leads in the document; nothing if it leads out of the book's pages."""
    path, fragment = urldefrag(address)
    if path:
        page = place(unquote(path), page).strip("/").removesuffix(".html")
    if page not in pages:
        return None
    return f"{anchor_of(page)}--{unquote(fragment)}" if fragment else anchor_of(page)


def _show_address(link: Tag, address: str) -> None:
    """Print where a link to another host leads, unless its text says so."""
    if address.startswith("http") and address.rstrip("/") != text_of(link).rstrip("/"):
        classes = [*map(str, link.get_attribute_list("class")), "print-address"]
        link["class"] = " ".join(classes)


# ---- what needs a hand ----


def drop_dead(article: Tag) -> None:
    """Drop what is of no use on paper."""
    for tag in article.select(DEAD):
        tag.decompose()
    for output in article.select("div.exercise div.cell_output"):
        if UNDONE in output.get_text():
            output.decompose()


def unfold(soup: BeautifulSoup, article: Tag) -> None:
    """Open what is folded."""
    for folded in article.select("details.hide"):  # code or output of a cell
        summary_of(folded)
        folded.unwrap()
    for tag in article.select("div.pst-scrollable-table-container"):
        tag.unwrap()
    for folded in article.select("details"):
        folded.replace_with(opened(soup, folded))


def mark_short(article: Tag) -> None:
    """Mark code and outputs of a few lines: a page does not end within them."""
    for block in article.select("pre:not(.proof)"):
        if len(block.get_text().strip().splitlines()) <= SHORT:
            block["class"] = "short"


def opened(soup: BeautifulSoup, folded: Tag) -> Tag:
    """What a <details> holds, as a block with its summary as heading."""
    block = soup.new_tag("div", attrs={"class": "opened"})
    if folded.has_attr("id"):
        block["id"] = str(folded["id"])
    heading = soup.new_tag("p", attrs={"class": "opened-title"})
    heading.extend(summary_of(folded))
    block.append(heading)
    block.extend(list(folded.children))
    return block


def summary_of(folded: Tag) -> list[PageElement]:
    """Take the summary off a <details>, and return what it says, without its arrow."""
    summary = folded.find("summary", recursive=False)
    if not isinstance(summary, Tag):
        return []
    summary.extract()
    for arrow in summary.select("svg, .sd-summary-state-marker"):
        arrow.decompose()
    return list((summary.select_one(".sd-summary-text") or summary).children)
