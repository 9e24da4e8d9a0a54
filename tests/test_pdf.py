"""The book in print: the document made of the built pages, and the PDF that Chromium makes of it."""

import contextlib
import io
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from tests.conftest import ROOT
from tools import build_pdf
from tools.build_pdf import Unprintable, build
from tools.print_document import Front, assemble, pages_of

FRONT = Front("Small", "A book of two pages", "Somebody", "Version 1", ("Free to use.",))
TOC = """format: jb-book
root: intro
parts:
  - caption: The only part
    chapters:
      - file: chapters/one.md
"""
PAGE = """<!DOCTYPE html><html><head><link rel="stylesheet" href="{up}_static/look.css"></head><body>
<nav><a href="{up}gone.html">a menu</a></nav><main><article class="bd-article">{body}</article></main></body>
</html>"""
INTRO = """<section id="start"><h1>Start<a class="headerlink" href="#start">#</a></h1>
<p>On to <a href="chapters/one.html">one</a>, to <a id="id1" href="chapters/one.html#task">its task</a>, back
to <a href="#start">the start</a>, out to <a class="external" href="https://example.org/x">an example</a> and
to <a href="_sources/intro.md">a file</a>.</p></section>"""
CHAPTER = """<section id="one"><h1>One</h1><p id="id1">See <a href="../intro.html#id1">the start</a>.</p>
<img src="../_images/dot.svg" alt="A dot" loading="lazy">
<div class="explore"><button>Play</button><input type="range"><div class="screen-only">Drag it.</div>
<div class="print-only">Frame 1, frame 2.</div></div>
<details class="admonition hide above-input"><summary><p>Show code cell source</p></summary>
<pre>x = 1</pre></details>
<details class="sd-dropdown"><summary><b class="sd-summary-text">Aside</b></summary>
<p>Worth it.</p></details>
<section id="tasks"><h2>Tasks</h2>
<div class="exercise admonition" id="task"><p class="admonition-title">Exercise 1.1 (Count)</p><p>Count.</p>
<div class="cell_output"><pre>Exercise 1.1 (Count): not done yet.</pre></div>
<details class="sd-dropdown"><summary><b class="sd-summary-text">Hint 1</b></summary>
<p>Fingers.</p></details>
<details class="sd-dropdown"><summary><b class="sd-summary-text">Common errors</b></summary>
<p>Zero.</p></details>
</div>
<div class="solution dropdown admonition" id="sol"><p class="admonition-title">Solution to<a href="#task">
Exercise 1.1 (Count)</a></p><p>Ten.</p></div></section>
<section id="quiz"><h2>Quiz</h2><p><strong>1. Is it ten?</strong></p>
<details class="sd-dropdown"><summary><b class="sd-summary-text">Yes.</b></summary>
<p>Right.</p></details>
<details class="sd-dropdown"><summary><b class="sd-summary-text">No.</b></summary>
<p>Count again.</p></details>
</section></section>"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A book of two pages as the build leaves it."""
    site = tmp_path / "_build" / "html"
    for folder in ("chapters", "_static", "_images"):
        (site / folder).mkdir(parents=True)
    (site / "_static" / "look.css").write_text((ROOT / "assets" / "print.css").read_text(encoding="utf-8"))
    (site / "_images" / "dot.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
    )
    (site / "intro.html").write_text(PAGE.format(up="", body=INTRO))
    (site / "chapters" / "one.html").write_text(PAGE.format(up="../", body=CHAPTER))
    (site / "index.html").write_text("")
    (tmp_path / "_toc.yml").write_text(TOC)
    (tmp_path / "_config.yml").write_text('repository:\n  url: ""\n')
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    return tmp_path


def document_of(book: Path) -> Tag:
    text = assemble(book / "_build" / "html", book / "_toc.yml", FRONT, "A4")
    found = BeautifulSoup(text, "html.parser").find("main")
    assert isinstance(found, Tag)
    return found


def said(tag: Tag | None) -> str:
    assert tag is not None
    return " ".join(tag.get_text(" ").split())


# ---- the document ----


def test_links_between_pages_become_links_within_the_document(small: Path) -> None:
    start = document_of(small).find(id="intro")
    assert isinstance(start, Tag)
    assert [link["href"] for link in start.select("a")] == [
        "#chapters-one",
        "#chapters-one--task",
        "#intro--start",
        "https://example.org/x",
    ]
    assert "a file" in said(start)  # its text stays, there is nothing to lead to


def test_ids_stay_apart_and_every_link_has_a_target(small: Path) -> None:
    document = document_of(small)
    ids = [str(tag["id"]) for tag in document.select("[id]")]
    assert len(ids) == len(set(ids))  # both pages have an id1
    assert {str(link["href"])[1:] for link in document.select('a[href^="#"]')} <= set(ids)


def test_a_link_that_leads_nowhere_is_refused(small: Path) -> None:
    page = small / "_build" / "html" / "intro.html"
    page.write_text(page.read_text().replace("#task", "#lost"))
    with pytest.raises(ValueError, match="chapters-one--lost"):
        document_of(small)


def test_nothing_in_print_waits_for_a_click(small: Path) -> None:
    document = document_of(small)
    assert document.select("button, input, summary, details, .headerlink, .screen-only, nav:not([id])") == []
    text = said(document)
    for dead in ("Drag it", "Show code", "a menu", "not done yet"):
        assert dead not in text
    for kept in ("Frame 1, frame 2.", "x = 1", "Aside Worth it."):
        assert kept in text


def test_hints_and_solutions_move_to_the_end(small: Path) -> None:
    document = document_of(small)
    exercise = said(document.find(id="chapters-one--task"))
    assert "Fingers" not in exercise and "Ten" not in exercise
    assert "Hints, page" in exercise and "Solutions and answers, page" in exercise
    assert "Exercise 1.1 (Count) page 000 Hint 1 Fingers." in said(document.find(id="appendix-hints"))
    solutions = said(document.find(id="appendix-solutions"))
    assert "Common errors Zero. Solution Ten." in solutions
    order = [article["id"] for article in document.select("article")]
    assert order == ["intro", "chapters-one", "appendix-hints", "appendix-solutions"]


def test_a_quiz_keeps_its_choices_and_its_answers_move(small: Path) -> None:
    document = document_of(small)
    assert [said(item) for item in document.select("#chapters-one .choices li")] == ["Yes.", "No."]
    answers = [said(item) for item in document.select("#appendix-solutions .choices li")]
    assert answers == ["Right.", "Count again."]


# ---- the PDF of a small book ----


@pytest.mark.parametrize(("paper", "width"), [("A4", 595), ("letter", 612)])  # points
def test_contents_and_pointers_give_the_pages(small: Path, chromium: str, paper: str, width: int) -> None:
    from pypdf import PdfReader

    pdf = small / "small.pdf"
    build(small, pdf, paper)
    reader = PdfReader(pdf)
    assert {round(float(page.mediabox.width)) for page in reader.pages} == {width}
    pages = [" ".join(page.extract_text().split()) for page in reader.pages]
    (chapter,) = [n for n, text in enumerate(pages, 1) if "Exercise 1.1 (Count) Count." in text]
    (solution,) = [n for n, text in enumerate(pages, 1) if "Ten." in text]
    assert re.search(rf"\bOne ?{chapter}\b", pages[1])
    assert re.search(rf"Solutions and answers ?{solution}\b", pages[1])
    assert f"Solutions and answers, page {solution}" in pages[chapter - 1]
    assert list(small.glob("*.unfinished")) == []


def test_without_chromium_there_is_no_pdf_and_a_way_out(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    earlier = small / "_build" / "unseen.pdf"
    earlier.write_bytes(b"of another time")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.chdir(small)
    assert build_pdf.main([]) == 1
    assert "apt-get install chromium" in capsys.readouterr().err
    assert not earlier.exists()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ('<img alt="x" src="_images/lost.png">', "_images/lost.png"),
        ('<img alt="x" src="https://example.org/x.png">', "another host: https://example.org/x.png"),
        ('<span class="math">\\(x\\)</span>', "a formula is not drawn"),
    ],
)
def test_a_page_that_is_not_whole_is_not_printed(
    small: Path, chromium: str, broken: str, complaint: str
) -> None:
    page = small / "_build" / "html" / "intro.html"
    page.write_text(page.read_text().replace("<p>On", f"{broken}<p>On"))
    with pytest.raises(Unprintable, match=re.escape(complaint)):
        build(small, small / "small.pdf")
    assert list(small.glob("small.*")) == []


def test_a_book_that_is_not_built_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(Unprintable, match="make book"):
        build(tmp_path, tmp_path / "small.pdf")


# ---- the PDF of the book ----


@pytest.fixture(scope="module")
def printed(site: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book as PDF; whatever the printing complained about is a failure."""
    folder = tmp_path_factory.mktemp("pdf")
    with contextlib.redirect_stderr(io.StringIO()) as complaints:
        build(ROOT, folder / "book.pdf")
    assert complaints.getvalue() == ""
    return folder / "book.pdf"


@pytest.fixture(scope="module")
def sheets(printed: Path) -> list[str]:
    """What each page of the PDF says."""
    from pypdf import PdfReader

    return [bare(page.extract_text()) for page in PdfReader(printed).pages]


@pytest.fixture(scope="module")
def articles(site: Path) -> dict[str, Tag]:
    """The pages of the site, by name."""
    found = {}
    for name, _ in pages_of(ROOT / "_toc.yml"):
        article = BeautifulSoup((site / f"{name}.html").read_bytes(), "html.parser").find("article")
        assert isinstance(article, Tag)
        for link in article.select("a.headerlink"):
            link.decompose()
        found[name] = article
    return found


def bare(text: str) -> str:
    """Text without what print changes: white space, ligatures, and the hyphens at the end of a line."""
    return re.sub(r"[\s\u00ad\u2010-]+", "", unicodedata.normalize("NFKC", text))


@pytest.fixture(scope="module")
def outline(printed: Path) -> dict[str, list[int]]:
    """The numbers of the pages that the outline of the PDF gives for each title."""
    from pypdf import PdfReader

    reader = PdfReader(printed)
    found: dict[str, list[int]] = {}

    def walk(entries: list) -> None:
        for entry in entries:
            if isinstance(entry, list):
                walk(entry)
            else:
                number = reader.get_destination_page_number(entry)
                found.setdefault(bare(entry.title), []).append(number + 1)

    walk(reader.outline)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first one waits for the printing
def test_every_heading_is_in_the_outline_and_on_its_page(
    outline: dict[str, list[int]], sheets: list[str], articles: dict[str, Tag]
) -> None:
    for name, article in articles.items():
        for heading in article.select("h1, section > h2"):  # the letters of the index are no sections
            title = bare(heading.get_text())
            assert any(title in sheets[number - 1] for number in outline.get(title, [])), (name, title)


@pytest.mark.slow
def test_contents_give_the_page_that_a_chapter_begins_on(sheets: list[str], articles: dict[str, Tag]) -> None:
    contents = "".join(text for text in sheets if text.startswith("Contents"))
    for name, article in articles.items():
        title = bare(article.h1.get_text())
        # The name of the chapter stands at the head of its pages, and on the first one again as the heading.
        begins = [
            n for n, text in enumerate(sheets, 1) if n > 2 and text[: 3 * len(title) + 40].count(title) > 1
        ]
        assert any(f"{title}{number}" in contents for number in begins), (
            name,
            begins,
        )


@pytest.mark.slow
def test_all_that_a_page_says_is_in_print(sheets: list[str], articles: dict[str, Tag]) -> None:
    """Captions and their numbers, equations, exercises; hints, solutions, answers."""
    everything = "".join(sheets)
    missing = [
        (name, str(text))
        for name, article in articles.items()
        for tag in article.select(
            "figcaption, .eqno, .exercise > .admonition-title, .sd-summary-text, .sd-card-text, .solution pre"
        )
        for text in tag.find_all(string=True)
        if tag.select_one(".math") is None or text.find_parent(class_="math") is None
        if bare(text) not in everything
    ]
    assert missing == []


@pytest.mark.slow
def test_nothing_in_print_is_raw_or_dead(sheets: list[str]) -> None:
    everything = "".join(sheets)
    for raw in (
        r"\frac",
        r"\mathrm",
        r"\(",
        r"\begin{",
        "??",
        "{cite}",
        "{ref}",
        "{glue}",
        "page000",
        "page?",
    ):
        assert raw not in everything, raw
    for dead in (
        "Showcodecell",
        "Hidecodecell",
        "Clicktoshow",
        "Clicktohide",
        "LaunchBinder",
        "Searchthisbook",
        "notdoneyet.",
        "Skiptomaincontent",
    ):
        assert dead not in everything, dead


@pytest.mark.slow
def test_fonts_are_embedded_and_the_file_is_light(printed: Path) -> None:
    from pypdf import PdfReader

    reader = PdfReader(printed)
    fonts: dict[str, bool] = {}
    for page in reader.pages:
        for font in page["/Resources"].get_object().get("/Font", {}).get_object().values():
            font = font.get_object()
            if font["/Subtype"] == "/Type3":  # drawn in the file itself
                continue
            inner = font["/DescendantFonts"][0].get_object() if "/DescendantFonts" in font else font
            holder = inner["/FontDescriptor"].get_object()
            fonts[font["/BaseFont"]] = any(f"/FontFile{kind}" in holder for kind in ("", "2", "3"))
    assert fonts and all(fonts.values()), fonts
    names = " ".join(fonts)
    assert "STIX" in names and "DejaVu" in names  # those that the book brings along
    assert 100 <= len(reader.pages) <= 400
    assert printed.stat().st_size < 30e6


@pytest.mark.slow
def test_no_page_is_empty(sheets: list[str]) -> None:
    assert [number for number, text in enumerate(sheets, 1) if len(text) < 60] == []
