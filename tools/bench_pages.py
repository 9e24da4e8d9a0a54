"""How much a page of the book loads, and how soon its first figure shows, as a slow machine sees it.

Needs the built book and Chromium. Run it as ``python -m tools.bench_pages``.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from playwright.sync_api import Browser

from tests.browsing import browsing, open_page, pages_of, serving, show_images, weigh
from tools.chromium import find

SITE = Path(__file__).parents[1] / "_build" / "html"
SLOWER = 4  # how many times slower than this machine's processor
TRIES = 3
# Seconds from when the page was asked for until its first figure is decoded and has its place.
FIRST_FIGURE = """window.firstFigure = new Promise(shown => requestAnimationFrame(function look() {
  const image = document.querySelector("article figure img");
  const there = image?.complete && image.naturalWidth && image.getBoundingClientRect().height;
  if (!there) requestAnimationFrame(look);
  else image.decode().then(() => requestAnimationFrame(() => shown(performance.now() / 1000)));
}));"""


def measure(browser: Browser, url: str) -> tuple[float, float, float | None]:
    """Bytes on load, bytes with every figure, and seconds until the first figure shows (None without one)."""
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    fetched = weigh(page)
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    page.add_init_script(FIRST_FIGURE)
    open_page(page, url)
    page.wait_for_timeout(200)
    on_load = fetched()
    seconds = None
    if page.query_selector("article figure img"):
        seconds = page.evaluate("() => window.firstFigure")
    show_images(page)
    page.wait_for_timeout(200)
    with_figures = fetched()
    page.close()
    return on_load, with_figures, seconds


def main() -> None:
    """Print a line for each page: the median of some tries."""
    chromium = find()
    assert chromium and (SITE / "index.html").exists(), "this needs Chromium and the built book (`make book`)"
    print(f"{'page':<34}{'on load, MB':>12}{'with figures':>14}{f'first figure, s at 1/{SLOWER} speed':>32}")
    with serving(SITE) as address, browsing(chromium) as browser:
        for path in pages_of(SITE):
            tries = [measure(browser, address + path) for _ in range(TRIES)]
            times = [seconds for _, _, seconds in tries if seconds is not None]
            first = f"{statistics.median(times):.2f}" if times else ""
            print(f"{path:<34}{tries[0][0] / 1e6:>12.2f}{tries[0][1] / 1e6:>14.2f}{first:>32}")


if __name__ == "__main__":
    main()
