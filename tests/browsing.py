"""Look at the built pages as a browser does that reaches this machine and no other host."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, sync_playwright

from tools.chromium import FLAGS

CHROMIUM_FLAGS = [*FLAGS, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve `folder` on loopback while the context lasts; the value is its address, ending in a slash."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browsing(chromium: str) -> Iterator[Browser]:
    """A browser that finds no host but 127.0.0.1, while the context lasts."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@dataclass
class Complaints:
    """What went wrong on a page, and what it asked of other hosts, from when it is watched."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def watch(page: Page, address: str) -> Complaints:
    """Collect errors, warnings, failed requests and requests to other hosts from now on."""
    seen = Complaints()

    def asked(url: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            seen.foreign.append(url)

    page.on("request", lambda request: asked(request.url))

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page that is left lets go of what it was loading
            seen.errors.append(f"{request.failure} {request.url}")

    page.on("requestfailed", failed)
    page.on(
        "response",
        lambda response: response.status < 400 or seen.errors.append(f"{response.status} {response.url}"),
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on(
        "console",
        lambda said: said.type in ("error", "warning") and seen.errors.append(f"{said.type}: {said.text}"),
    )
    return seen


def weigh(page: Page) -> Callable[[], float]:
    """Ask what is returned for the bytes that the page has fetched from now on."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    inside: set[str] = set()  # pictures that are written into the page, and are counted with it
    sizes: list[float] = []

    def asked(event: dict[str, Any]) -> None:
        if event["request"]["url"].startswith("data:"):
            inside.add(event["requestId"])

    def finished(event: dict[str, Any]) -> None:
        if event["requestId"] not in inside:
            sizes.append(event["encodedDataLength"])

    session.on("Network.requestWillBeSent", asked)
    session.on("Network.loadingFinished", finished)
    return lambda: sum(sizes)


def open_page(page: Page, url: str) -> None:
    """Go to `url` and wait until its scripts have run and its fonts are there."""
    page.goto(url, wait_until="load")
    page.evaluate("() => document.fonts.ready.then(() => true)")


def show_images(page: Page) -> None:
    """Load the images that wait for a reader to come near; `data-loading` keeps how each was to load."""
    page.evaluate("""() => Promise.all([...document.images].map(image => {
      image.dataset.loading = image.loading;
      image.loading = "eager";
      return image.decode().catch(() => null);
    }))""")


def pages_of(site: Path) -> list[str]:
    """Paths of the built pages, below `site`; index.html only leads to the first of them."""
    paths = (file.relative_to(site).as_posix() for file in sorted(site.rglob("*.html")))
    return [path for path in paths if not path.startswith("_static/") and path != "index.html"]
