"""What a reader does with the built pages, with a mouse or by keyboard alone, without a network."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from sphinx_external_toc.parsing import parse_toc_yaml

from tests.browsing import open_page, pages_of, watch
from tests.conftest import ROOT

CHAPTERS = sorted(file.stem for file in (ROOT / "chapters").glob("*.md"))
CHAPTER = "chapters/04-why.html"  # it has all kinds of things: equations, figures, tables, exercises
WIDE, PHONE = {"width": 1300, "height": 900}, {"width": 360, "height": 740}
# Whether an element's upper edge is in the window, with nothing in front of it.
IN_SIGHT = """e => {
  const box = e.getBoundingClientRect(), y = box.top + Math.min(12, box.height / 2);
  const front = document.elementFromPoint(box.left + Math.min(12, box.width / 2), y);
  return y >= 0 && y < innerHeight && front !== null && (e.contains(front) || front.contains(e));
}"""
IS_MARKED = """() => {
  const style = getComputedStyle(document.activeElement);
  return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
}"""

QUIZ = """parts => parts.map(e => ({
  question: e.matches("p") && /^\\d+\\. /.test(e.textContent),
  choice: e.matches("details") ? e.querySelector("summary").textContent : null,
  answer: e.matches("details") ? [...e.querySelectorAll("p")].map(p => p.textContent).join(" ") : null}))"""


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport=WIDE, color_scheme="light") as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def reading_order() -> list[str]:
    return [f"{page.removesuffix('.md')}.html" for page in parse_toc_yaml(ROOT / "_toc.yml")]


def theme_of(page: Page) -> str:
    return page.evaluate("() => document.documentElement.dataset.theme")


# ---- finding the way ----


def test_next_and_previous_lead_through_the_whole_book(page: Page, address: str) -> None:
    page.goto(f"{address}index.html", wait_until="commit")
    page.wait_for_url("**/intro.html")
    order = reading_order()
    for path in order:
        assert page.url.removeprefix(address) == path
        if path != order[-1]:
            page.click("a.right-next", no_wait_after=True)
            page.wait_for_url(lambda url, here=page.url: url != here, wait_until="domcontentloaded")
    assert page.query_selector("a.right-next") is None
    for path in reversed(order):
        assert page.url.removeprefix(address) == path
        if path != order[0]:
            page.click("a.left-prev", no_wait_after=True)
            page.wait_for_url(lambda url, here=page.url: url != here, wait_until="domcontentloaded")


def test_search_finds_a_word_and_leads_to_it(page: Page, address: str) -> None:
    complaints = watch(page, address)
    open_page(page, address + CHAPTER)
    page.keyboard.press("Control+k")
    page.keyboard.type("unembedding")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=unembedding*")
    results = page.locator("#search-results ul.search li a")
    expect(results.first).to_be_visible()
    results.first.click()
    page.wait_for_url(re.compile(r"^(?!.*search\.html)"))
    assert "unembedding" in page.inner_text("article").lower()
    assert complaints.errors == []
    assert complaints.foreign == []


def test_search_quotes_the_text_of_pages_and_knows_commands_by_name(page: Page, address: str) -> None:
    page.goto(f"{address}search.html?q=collapse")
    quotes = page.locator("#search-results .context")
    expect(quotes.nth(5)).to_be_visible()
    assert [quote for quote in quotes.all_inner_texts() if "Contents" in quote] == []
    page.goto(f"{address}search.html?q=finetune")
    expect(
        page.locator("#search-results").get_by_role("link", name="unseen finetune", exact=True)
    ).to_be_visible()


def test_search_says_when_there_is_nothing(page: Page, address: str) -> None:
    page.goto(f"{address}search.html?q=hippopotamus")
    expect(page.locator("#search-results")).to_contain_text("did not match any documents")


@pytest.mark.parametrize("kind", ["figure", "equation", "exercise", "term", "reference"])
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_a_deep_link_lands_where_it_points(kind: str, viewport: dict, browser: Browser, address: str) -> None:
    where, target = {
        "figure": (CHAPTER, "article figure[id]"),
        "equation": (CHAPTER, "article div.math[id]"),
        "exercise": (CHAPTER, "article .exercise[id]"),
        "term": ("glossary.html", "article dt[id]"),
        "reference": ("references.html", "article .citation[id]"),
    }[kind]
    page = browser.new_page(viewport=viewport)
    open_page(page, address + where)
    anchor = page.eval_on_selector_all(target, "all => all.at(-1).id")  # what lies above may still grow
    page.goto("about:blank")
    open_page(page, f"{address}{where}#{anchor}")
    page.wait_for_timeout(300)
    assert page.eval_on_selector(f"[id='{anchor}']", IN_SIGHT), anchor
    page.close()


# ---- light and dark ----


def test_the_theme_follows_the_system_until_the_reader_chooses(browser: Browser, address: str) -> None:
    with browser.new_context(viewport=WIDE, color_scheme="dark") as context:
        page = context.new_page()
        open_page(page, address + "intro.html")
        assert theme_of(page) == "dark"
        button = page.locator("button.theme-switch-button:visible")
        seen = set()
        for _ in range(3):  # light, dark, as the system is
            button.focus()
            page.keyboard.press("Enter")
            seen.add((page.evaluate("() => document.documentElement.dataset.mode"), theme_of(page)))
        assert seen == {("light", "light"), ("dark", "dark"), ("auto", "dark")}
        for _ in range(3):
            if theme_of(page) != "light":
                button.focus()
                page.keyboard.press("Enter")
        page.click("a.right-next")
        assert theme_of(page) == "light"  # on the next page too
        page.reload()
        assert theme_of(page) == "light"


# ---- by keyboard ----


def test_the_first_key_skips_to_the_text_and_focus_is_always_seen(page: Page, address: str) -> None:
    open_page(page, address + CHAPTER)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.innerText") == "Skip to main content"
    assert page.evaluate(IS_MARKED)
    for _ in range(60):
        page.keyboard.press("Tab")
        assert page.evaluate(IS_MARKED), page.evaluate("() => document.activeElement.outerHTML.slice(0, 200)")

    open_page(page, address + CHAPTER)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.querySelector('main').contains(document.activeElement)")


def test_the_contents_open_and_close_by_keyboard_on_a_phone(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport=PHONE)
    open_page(page, address + CHAPTER)
    contents = page.locator("nav[aria-label='Main'], nav.bd-links").first
    expect(contents).not_to_be_in_viewport()
    page.locator("button.primary-toggle:visible").focus()
    page.keyboard.press("Enter")
    expect(contents).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(contents).not_to_be_in_viewport()
    page.locator("button.primary-toggle:visible").focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="5. Copy attention", exact=True).click()
    page.wait_for_url("**/05-copy-attention.html")
    page.close()


def test_hints_and_solutions_unfold_by_keyboard(page: Page, address: str) -> None:
    open_page(page, address + CHAPTER)
    hint = page.locator(".exercise details").first
    expect(hint.locator("p").first).not_to_be_visible()
    hint.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(hint.locator("p").first).to_be_visible()

    solution = page.locator(".solution.dropdown").first
    expect(solution.locator("pre").first).not_to_be_visible()
    solution.locator("button").first.focus()
    page.keyboard.press("Enter")
    expect(solution.locator("pre").first).to_be_visible()


def test_code_is_copied_as_it_stands(context: BrowserContext, page: Page, address: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, address + CHAPTER)
    cell = page.locator(".cell_input .highlight").first
    cell.locator("button.copybtn").focus()
    page.keyboard.press("Enter")
    assert (
        page.evaluate("() => navigator.clipboard.readText()").strip()
        == cell.locator("pre").inner_text().strip()
    )


# ---- with less than a browser has ----


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_quiz_and_three_exercises_are_readable_without_scripts(
    chapter: str, browser: Browser, address: str
) -> None:
    """Each choice of each question unfolds to what there is to say about it."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{address}chapters/{chapter}.html")
        parts = page.eval_on_selector_all("#check-yourself > *", QUIZ)
        choices: list[list[str]] = []
        for part in parts:
            if part["question"]:
                choices.append([])
            elif part["choice"] is not None:
                choices[-1].append(part["answer"].strip())
        assert len(choices) >= 3
        for answers in choices:
            assert len(answers) >= 3
            assert all(len(answer.split()) >= 3 for answer in answers), answers
            assert sum(answer.startswith("Right") for answer in answers) == 1, answers

        first = page.locator("#check-yourself details").first
        first.locator("summary").click()
        expect(first.locator("p").first).to_be_visible()
        assert page.locator("article .exercise").count() >= 3
        context.close()


def test_a_chapter_opens_from_the_disk(page: Page, site: Path) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_page(page, (site / CHAPTER).as_uri())
    assert page.locator(".katex").count() > 0
    assert page.eval_on_selector("figure img", "e => e.decode().then(() => e.naturalWidth > 0)")
    assert errors == []


def test_on_a_phone_a_figure_that_goes_on_beyond_the_edge_says_so(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800})
    open_page(page, address + CHAPTER)
    says = "figure => getComputedStyle(figure.querySelector('figcaption'), '::before').content"
    goes_on = "figure => figure.scrollWidth > figure.clientWidth"
    found = [
        (figure.evaluate(goes_on), "sideways" in figure.evaluate(says))
        for figure in page.locator("figure").all()
    ]
    assert (True, True) in found
    assert all(beyond == said for beyond, said in found), found
    page.close()


def test_nothing_moves_for_who_asked_for_less_motion(page: Page, address: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    longest = """() => Math.max(...[...document.querySelectorAll("*")].flatMap(element => {
      const { animationDuration, transitionDuration } = getComputedStyle(element);
      return `${animationDuration}, ${transitionDuration}`.split(", ").map(parseFloat);
    }))"""
    for path in (CHAPTER, "playground.html"):
        open_page(page, address + path)
        assert page.evaluate(longest) < 0.001  # seconds


def test_a_page_prints_without_what_only_a_screen_needs(page: Page, address: str) -> None:
    open_page(page, address + CHAPTER)
    page.emulate_media(media="print")
    for useless in (".bd-sidebar-primary", ".prev-next-footer", "button.copybtn"):
        for part in page.locator(useless).all():
            expect(part).not_to_be_visible()
    expect(page.locator("article figure img").first).to_be_visible()


def test_there_are_as_many_pages_as_the_book_has(site: Path) -> None:
    assert set(reading_order()) <= set(pages_of(site))
