"""Print the built book as one PDF: `make pdf` calls this after `make book`.

The pages that stand in `_build/html` become one document (`tools/print_document.py`), and Chromium prints it.
Nothing runs again and nothing in `_build` changes but the PDF, which is written whole or not at all.
"""

import io
import mimetypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import yaml

from tools import chromium
from tools.print_document import Front, assemble

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ORIGIN = "http://book.invalid"  # a name that no network knows: every request is answered from the disk
OLDEST = 131  # the first Chromium that prints running heads from CSS
PAPERS = ("A4", "letter")
READY = """async () => {
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  await document.fonts.ready;
  return {
    math: [...document.querySelectorAll(".katex-error")].map(e => "a formula fails: " + e.textContent),
    raw: [...document.querySelectorAll(".math")].filter(e => !e.querySelector(".katex"))
      .map(e => "a formula is not drawn: " + e.textContent),
    images: [...document.images].filter(e => !e.naturalWidth).map(e => "a picture is missing: " + e.src),
    fonts: [...document.fonts].filter(f => f.status === "error").map(f => "a font fails: " + f.family),
  };
}"""
TEXT_WIDTH = 612  # CSS pixels: A4 without the margins of assets/print.css; on letter there is a little more
# What sticks out of the page at that width. (Formulas have a hidden copy in MathML, of any width.)
WIDE = """() => [...document.querySelectorAll("article *:not(.katex-mathml, .katex-mathml *, .katex svg *)")]
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(e => [e.closest("article").id, e.tagName.toLowerCase(), e.textContent.trim().slice(0, 60)])"""
# Chromium's own outline says the title twice where a heading begins a page, so it is made from the contents.
OUTLINE = """() => [...document.querySelectorAll(".book-contents > :is(h1, .part, a)")].map(e => [
  e.matches(".part") ? 0 : e.matches(".level-2") ? 2 : 1,
  e.matches("a") ? e.firstChild.textContent : e.textContent,
  e.matches("a") ? e.getAttribute("href").slice(1) : null])"""
NUMBERS = """pages => { for (const place of document.querySelectorAll(".page-number"))
  place.textContent = pages[place.dataset.anchor] ?? "?"; }"""


@dataclass(frozen=True)
class Place:
    """A page of the PDF, counted from 1, and a height on it in points from its lower edge."""

    page: int
    top: float


CONTENTS = Place(2, 10_000.0)  # behind the title page; as high as the paper goes


class Unprintable(Exception):
    """Why there is no PDF, in words for whoever asked for it."""


def front_of(book: Path) -> Front:
    """What the title page says, from `CITATION.cff` and the history."""
    cited = yaml.safe_load((book / "CITATION.cff").read_text(encoding="utf-8"))
    title, _, subtitle = cited["title"].partition(": ")
    paper = cited["references"][0]
    *others, last_author = _names(paper["authors"])
    about = f"“{paper['title']}” by {', '.join(others)} and {last_author}, {paper['year']}, {paper['url']}"
    edition = f"Version {cited['version']}"
    if last := _git(book, "log", "-1", "--format=%cs %h"):
        date, commit = last.split()
        changed = ", changed since" if _git(book, "status", "--short", "--untracked-files=no") else ""
        edition += f" of {date} (commit {commit}{changed})"
    repository = yaml.safe_load((book / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    notes = [
        f"Built around {about}.",
        "Prose and figures are under the license CC BY 4.0, code under the MIT license.",
    ]
    if repository:
        notes.append(f"The course, its code and its notebooks: {repository}")
    authors = ", ".join(_names(cited["authors"]))
    return Front(title, subtitle[:1].upper() + subtitle[1:], authors, edition, tuple(notes))


def _names(authors: list[dict[str, str]]) -> list[str]:
    """How `CITATION.cff` calls people and groups, as one string each."""
    return [one.get("name") or f"{one['given-names']} {one['family-names']}" for one in authors]


def _git(book: Path, *arguments: str) -> str:
    """What git says about the book; nothing where there is no git or no history."""
    try:
        command = ["git", "-C", str(book), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


@contextmanager
def browser_page() -> Iterator["Page"]:
    """An empty page in the system's Chromium."""
    try:
        import pypdf  # noqa: F401  (needed only after minutes of printing: better to miss it now)
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError as missing:
        reason = f"{missing.name} is not installed: run `make pdf`, or `pip install -e '.[pdf]'`"
        raise Unprintable(reason) from None
    program = chromium.find()
    if program is None:
        raise Unprintable(
            "Chromium is not installed (Debian and Ubuntu: `apt-get install chromium`; elsewhere, put "
            "`chromium` or `google-chrome` on the PATH)"
        )
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=chromium.FLAGS)
        except Error as error:
            raise Unprintable(f"{program} does not start: {error.message}") from None
        if int(browser.version.split(".")[0]) < OLDEST:
            raise Unprintable(f"{program} is version {browser.version}; printing needs {OLDEST} or newer")
        try:
            yield browser.new_page(viewport={"width": TEXT_WIDTH, "height": 900})
        finally:
            browser.close()


def serve(page: "Page", site: Path, document: str) -> list[str]:
    """Answer what the page asks for from the disk, and nothing else; the list fills with what goes wrong."""
    import matplotlib

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    problems: list[str] = []

    def answer(route: "Route") -> None:
        address = urlsplit(route.request.url)
        path = unquote(address.path).lstrip("/")
        if route.request.url.startswith("data:"):
            route.continue_()
            return
        if f"{address.scheme}://{address.netloc}" != ORIGIN:
            problems.append(f"the book asks another host: {route.request.url}")
            route.abort()
            return
        if not path:
            route.fulfill(body=document, content_type="text/html; charset=utf-8")
            return
        file = fonts / path.removeprefix("fonts/") if path.startswith("fonts/") else site / path
        if not file.is_file():
            problems.append(f"a file is missing: {path}")
            route.abort()
            return
        route.fulfill(
            body=file.read_bytes(),
            content_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        )

    page.route("**/*", answer)
    page.on("pageerror", lambda error: problems.append(f"a script fails: {error}"))
    return problems


def print_document(site: Path, document: str, title: str, authors: str) -> bytes:
    """The document as PDF. It is printed until the page numbers in it are those of its pages."""
    with browser_page() as page:
        problems = serve(page, site, document)
        page.emulate_media(media="print", color_scheme="light")
        places: dict[str, Place] = {}
        for _ in range(4):
            load(page, problems)  # afresh: of what was laid out for other numbers Chromium would keep a part
            page.evaluate(NUMBERS, {anchor: place.page for anchor, place in places.items()})
            data = page.pdf(prefer_css_page_size=True, print_background=True, tagged=True)
            assumed, places = places, places_in(data)
            if places == assumed:
                for article, tag, text in page.evaluate(WIDE):
                    what = f"in {article}, a <{tag}> is wider than the page: {text!r}"
                    print(f"warning: {what}", file=sys.stderr)
                return finished(data, page.evaluate(OUTLINE), places, title, authors)
    raise Unprintable("the page numbers do not settle: a number that is put in moves what comes after it")


def load(page: "Page", problems: list[str]) -> None:
    """Load the document with all that it shows, and refuse it if something is missing."""
    page.goto(f"{ORIGIN}/", wait_until="load")
    for found in page.evaluate(READY).values():
        problems.extend(found)
    if problems:
        raise Unprintable("\n  ".join(["the pages cannot be printed as they are:", *problems]))


def places_in(data: bytes) -> dict[str, Place]:
    """Where each id of the document that something links to stands in the PDF."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    places = {}
    for name, destination in reader.named_destinations.items():
        number = reader.get_destination_page_number(destination)
        if number is not None:
            places[unquote(name).lstrip("/")] = Place(number + 1, float(destination.top or 0))
    return places


def finished(
    data: bytes,
    outline: list[tuple[int, str, str | None]],
    places: dict[str, Place],
    title: str,
    authors: str,
) -> bytes:
    """The same PDF with an outline, and with the names of those who wrote it.

    Each line of `outline` is a level (0 for a part), a title and the id of its place. A part is where its
    first chapter is.
    """
    from pypdf import PdfWriter
    from pypdf.generic import Fit

    writer = PdfWriter(io.BytesIO(data), incremental=True)
    parents: dict[int, Any] = {}
    for number, (level, text, anchor) in enumerate(outline):
        if anchor is None and level == 0:
            anchor = next((where for _, _, where in outline[number:] if where), None)
        place = places[anchor] if anchor else CONTENTS
        above = [parents[upper] for upper in range(level) if upper in parents]
        parents = {upper: item for upper, item in parents.items() if upper < level}
        parents[level] = writer.add_outline_item(
            title=text,
            page_number=place.page - 1,
            parent=above[-1] if above else None,
            is_open=False,
            fit=Fit.xyz(top=place.top),
        )
    writer.add_metadata({"/Title": title, "/Author": authors})
    writer.page_mode = "/UseOutlines"
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def build(book: Path, pdf: Path, paper: str = "A4") -> None:
    """Write `pdf` from the built pages of the book in folder `book`.

    Raises Unprintable where that cannot be; then there is no file `pdf`, not even one of an earlier time.
    """
    pdf.unlink(missing_ok=True)
    site = book / "_build" / "html"
    if paper not in PAPERS:
        raise Unprintable(f"PAPER is {paper!r}; known are {' and '.join(PAPERS)}")
    if not (site / "index.html").is_file():
        raise Unprintable(f"the book is not built ({site} has no index.html): run `make book` first")
    front = front_of(book)
    try:
        document = assemble(site, book / "_toc.yml", front, paper)
    except (FileNotFoundError, ValueError) as error:
        raise Unprintable(str(error)) from None
    unfinished = pdf.with_suffix(".unfinished")
    unfinished.write_bytes(print_document(site, document, f"{front.title}: {front.subtitle}", front.authors))
    unfinished.replace(pdf)


def main(arguments: list[str]) -> int:
    """`build_pdf [A4|letter]`, called in the folder of the book; the return value is an exit status."""
    pdf = Path("_build") / "unseen.pdf"
    try:
        build(Path.cwd(), pdf, *arguments[:1])
    except Unprintable as reason:
        print(f"there is no PDF: {reason}", file=sys.stderr)
        return 1
    print(f"\nThe PDF is ready: {pdf.resolve()} ({pdf.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
