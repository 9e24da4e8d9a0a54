"""Figures on the built pages: one can read them on a phone, and reach by keyboard what scrolls."""

from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser

from tests.browsing import show_images

# Of each picture in a figure: its scale on the page, and whether the figure scrolls and takes the focus.
SURVEY = """() => [...document.querySelectorAll("main figure img:not(.explore img)")].map(image => {
  const figure = image.closest("figure");
  return {
    name: figure.id,
    scale: (image.getBoundingClientRect().width - 2 * parseFloat(getComputedStyle(image).paddingLeft))
      / image.naturalWidth,
    scrolls: figure.scrollWidth > figure.clientWidth,
    focusable: figure.tabIndex === 0,
  };
})"""


def figures(browser: Browser, site: Path, width: int) -> Iterator[tuple[str, dict]]:
    """Every figure of the chapters, on a screen of that width; no page is wider than the screen."""
    page = browser.new_context(offline=True, viewport={"width": width, "height": 800}).new_page()
    for file in sorted((site / "chapters").glob("*.html")):
        page.goto(file.as_uri(), wait_until="load")
        show_images(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file.name
        for figure in page.evaluate(SURVEY):
            yield f"{file.stem}#{figure['name']}", figure


def test_on_a_phone_text_in_figures_keeps_its_size_and_what_scrolls_takes_the_focus(browser, site):
    found = dict(figures(browser, site, 360))
    assert len(found) > 20
    # Labels are 11 points, or 14.7 pixels: at this scale they have more than 11.
    assert {name: figure["scale"] for name, figure in found.items() if figure["scale"] < 0.75} == {}
    assert sum(figure["scrolls"] for figure in found.values()) > 20
    assert [name for name, figure in found.items() if figure["scrolls"] != figure["focusable"]] == []


def test_on_a_wide_screen_every_figure_fits_and_is_no_stop_for_the_keyboard(browser, site):
    found = dict(figures(browser, site, 1300))
    assert [name for name, figure in found.items() if figure["scrolls"] or figure["focusable"]] == []
