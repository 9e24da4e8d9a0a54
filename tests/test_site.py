"""The built pages, as a browser without a network loads them: what is there, its weight, where it leads."""

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page
from sphinx_external_toc.parsing import parse_toc_yaml

from tests.browsing import open_page, pages_of, show_images, watch, weigh
from tests.conftest import ROOT

MOST_BYTES = 1_500_000  # a page and all its figures, without what starts only when the reader says so
# In each page: links and sources as the browser resolves them, images, ids, and what KaTeX made.
SURVEY = """() => ({
  heading: document.querySelector("main h1")?.innerText.replace(/#$/, "").trim() || "",
  links: [...document.querySelectorAll("a[href], link[href]")].map(e => e.href),
  ids: [...document.querySelectorAll("[id], a[name]")].map(e => e.id || e.name),
  images: [...document.querySelectorAll("main img")].map(e => ({
    src: e.getAttribute("src"), alt: e.getAttribute("alt") || "", shown: e.naturalWidth > 0,
    waits: e.dataset.loading === "lazy", sized: e.hasAttribute("width") && e.hasAttribute("height"),
    caption: (e.closest("figure")?.querySelector("figcaption")?.innerText || "").replace(/#$/, "").trim()})),
  formulas: document.querySelectorAll("main span.math, main div.math").length,
  rendered: document.querySelectorAll("main .math .katex").length,
  wrong: [...document.querySelectorAll(".katex-error")].map(e => e.title),
  outputs: [...document.querySelectorAll(".cell_output > *")].map(e => ({
    html: e.outerHTML.slice(0, 200),
    empty: !e.textContent.trim() && !e.querySelector("img, svg, canvas, table, video, input, button")})),
})"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
FILE_NAME = re.compile(r"\S+\.(png|svg|jpe?g|gif|webp)|[\w./-]*[0-9a-f]{16,}[\w./-]*")


@pytest.fixture(scope="module")
def survey(site: Path, address: str, browser: Browser) -> dict[str, dict]:
    """What each page holds, what it weighs and what went wrong while it loaded, by its path."""
    found = {}
    for path in pages_of(site):
        page = browser.new_page(viewport={"width": 1300, "height": 1000})  # with a cache of its own
        found[path] = look_at(page, address, path)
        page.close()
    return found


def look_at(page: Page, address: str, path: str) -> dict:
    complaints = watch(page, address)
    fetched = weigh(page)
    open_page(page, address + path)
    show_images(page)
    page.evaluate("() => new Promise(done => setTimeout(done, 100))")  # for what begins when all is loaded
    seen = page.evaluate(SURVEY) | {"weight": fetched(), "too_wide": {1300: page.evaluate(TOO_WIDE)}}
    page.set_viewport_size({"width": 360, "height": 1000})
    seen["too_wide"][360] = page.evaluate(TOO_WIDE)
    return {**seen, "errors": complaints.errors, "foreign": complaints.foreign}


def of_each(survey: dict[str, dict], what: str) -> dict:
    """The pages where `what` is not empty, and what it is there."""
    return {path: seen[what] for path, seen in survey.items() if seen[what]}


def test_pages_load_without_a_word_on_the_console_and_without_other_hosts(survey: dict[str, dict]) -> None:
    assert of_each(survey, "errors") == {}
    assert of_each(survey, "foreign") == {}


def test_every_page_of_the_book_is_there_and_has_a_heading(survey: dict[str, dict]) -> None:
    for page in parse_toc_yaml(ROOT / "_toc.yml"):
        path = f"{page.removesuffix('.md')}.html"
        assert path in survey, path
        assert survey[path]["heading"], path


def test_every_formula_is_set(survey: dict[str, dict]) -> None:
    assert sum(seen["formulas"] for seen in survey.values()) > 0
    assert of_each(survey, "wrong") == {}
    for path, seen in survey.items():
        assert seen["rendered"] >= seen["formulas"], path


def test_every_internal_link_leads_somewhere(survey: dict[str, dict], site: Path, address: str) -> None:
    broken = []
    for path, seen in survey.items():
        for link in seen["links"]:
            target, anchor = urldefrag(urljoin(address + path, link))
            if not target.startswith(address):
                continue
            name = unquote(urlsplit(target).path).lstrip("/") or "index.html"
            missing_anchor = anchor and name in survey and unquote(anchor) not in survey[name]["ids"]
            if missing_anchor or not (site / name).is_file():
                broken.append(f"{path} -> {link}")
    assert broken == []


def test_no_two_parts_of_a_page_have_one_id(survey: dict[str, dict]) -> None:
    repeated = {
        path: [name for name, times in Counter(seen["ids"]).items() if times > 1]
        for path, seen in survey.items()
    }
    assert {path: names for path, names in repeated.items() if names} == {}


def test_every_image_is_shown_and_described(survey: dict[str, dict]) -> None:
    """Alt text says what the picture shows: not its file name, and not the caption, which stands below it."""
    poor = [
        (path, image)
        for path, seen in survey.items()
        for image in seen["images"]
        if not image["shown"]
        or len(image["alt"].split()) < 4
        or FILE_NAME.fullmatch(image["alt"])
        or (image["caption"] and image["alt"] in image["caption"])
    ]
    assert poor == []


def test_figures_further_down_wait_and_have_their_place(survey: dict[str, dict]) -> None:
    assert any(len(seen["images"]) > 1 for seen in survey.values())
    for path, seen in survey.items():
        for number, image in enumerate(seen["images"]):
            assert image["sized"], (path, image)
            assert image["waits"] == (number > 0), (path, image)


def test_no_output_of_a_cell_is_empty(survey: dict[str, dict]) -> None:
    assert sum(len(seen["outputs"]) for seen in survey.values()) > 0
    assert [(path, one) for path, seen in survey.items() for one in seen["outputs"] if one["empty"]] == []


def test_no_page_is_heavy(survey: dict[str, dict]) -> None:
    weights = {path: seen["weight"] for path, seen in survey.items()}
    assert min(weights.values()) > 100_000  # the measurement saw the page
    assert {path: weight for path, weight in weights.items() if weight > MOST_BYTES} == {}


def test_no_page_is_wider_than_the_window(survey: dict[str, dict]) -> None:
    """Wide code, tables, formulas and outputs scroll inside their own boxes."""
    wide = {path: seen["too_wide"] for path, seen in survey.items() if max(seen["too_wide"].values()) > 0}
    assert wide == {}
