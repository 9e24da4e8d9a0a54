"""The built pages, as a browser without a network sees them."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# In each page: links and sources as the browser resolves them, images, ids, and what MathJax made.
SURVEY = """() => ({
  links: [...document.querySelectorAll("a[href], link[href]")].map(e => e.href),
  ids: [...document.querySelectorAll("[id], a[name]")].map(e => e.id || e.name),
  images: [...document.querySelectorAll("main img")].map(e => ({
    src: e.getAttribute("src"), alt: e.getAttribute("alt") || "", shown: e.naturalWidth > 0,
    caption: (e.closest("figure")?.querySelector("figcaption")?.innerText || "").replace(/#$/, "").trim()})),
  formulas: document.querySelectorAll("main span.math, main div.math").length,
  rendered: document.querySelectorAll("main .math mjx-container").length,
  wrong: [...document.querySelectorAll("mjx-merror")].map(e => e.innerText),
})"""
FILE_NAME = re.compile(r"\S+\.(png|svg|jpe?g|gif|webp)|[\w./-]*[0-9a-f]{16,}[\w./-]*")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def survey(site: Path, address: str, browser: Browser) -> dict[str, dict]:
    """What each page holds and what went wrong while it loaded, by its path; other hosts are out of reach."""
    found: dict[str, dict] = {}
    for file in sorted(site.rglob("*.html")):
        path = file.relative_to(site).as_posix()
        if (
            not path.startswith("_static/") and path != "index.html"
        ):  # index.html only leads to the first page
            page = browser.new_page()
            found[path] = look_at(page, address, path)
            page.close()
    return found


def look_at(page: Page, address: str, path: str) -> dict:
    errors: list[str] = []
    foreign: list[str] = []

    def only_here(route: Route) -> None:
        if route.request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    page.route("**/*", only_here)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda response: response.ok or errors.append(f"{response.status} {response.url}"))
    page.goto(address + path, wait_until="load")
    if page.query_selector("main .math"):
        page.wait_for_function("window.MathJax?.startup?.promise !== undefined")
        if complaint := page.evaluate("() => MathJax.startup.promise.then(() => '', error => String(error))"):
            errors.append(complaint)
        page.evaluate("() => document.fonts.ready.then(() => true)")
    return {**page.evaluate(SURVEY), "errors": errors, "foreign": foreign}


def test_pages_load_without_errors_and_without_other_hosts(survey: dict[str, dict]) -> None:
    assert {path: seen["errors"] for path, seen in survey.items() if seen["errors"]} == {}
    assert {path: seen["foreign"] for path, seen in survey.items() if seen["foreign"]} == {}


def test_every_formula_is_rendered(survey: dict[str, dict]) -> None:
    assert sum(seen["formulas"] for seen in survey.values()) > 0
    assert {path: seen["wrong"] for path, seen in survey.items() if seen["wrong"]} == {}
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
