"""axe-core finds nothing on the built pages that would shut a reader out, in both themes and both widths."""

from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser

from tests.browsing import open_page, pages_of

# A page has thousands of words of code and signatures in a dozen colors, and of letters of formulas that are
# hidden from a screen reader and have the color of the text around. axe takes a second for every thousand, so
# it gets one word of each color on each ground, and the formulas as a screen reader does.
THIN_OUT = """() => {
  const seen = new Set(), doubles = [];
  for (const word of document.querySelectorAll("pre *, .sig span")) {
    const style = getComputedStyle(word), around = getComputedStyle(word.closest("pre, .sig"));
    const look = [style.color, style.backgroundColor, style.fontWeight, around.backgroundColor].join();
    if (seen.has(look)) doubles.push(word);
    seen.add(look);
  }
  for (const word of doubles) word.replaceWith(...word.childNodes);
  for (const drawn of document.querySelectorAll(".math .katex-html")) drawn.remove();
}"""
LOOK = """() => axe.run({resultTypes: ["violations"]}).then(
  found => found.violations.flatMap(broken => broken.nodes.map(
    node => [broken.impact, broken.id, node.html.slice(0, 200), node.failureSummary])))"""


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1300),
        ("dark", 360),
        pytest.param("light", 360, marks=pytest.mark.slow),  # half a minute each
        pytest.param("dark", 1300, marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_serious(
    theme: str, width: int, site: Path, address: str, browser: Browser
) -> None:
    found = []
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 1000})
    page = context.new_page()
    for path in pages_of(site):
        open_page(page, address + path)
        page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
        page.evaluate(THIN_OUT)
        found += [(path, *broken) for broken in page.evaluate(LOOK) if broken[0] != "minor"]
    context.close()
    assert found == []


def test_axe_would_find_something(site: Path, browser: Browser) -> None:
    """What the test above leaves out does not hide a word of code that nobody can read."""
    page = browser.new_page()
    page.set_content("<main><pre><span>good</span> <span style='color: #eee'>pale</span></pre></main>")
    page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    page.evaluate(THIN_OUT)
    assert ["serious", "color-contrast"] in [broken[:2] for broken in page.evaluate(LOOK)]
    page.close()
