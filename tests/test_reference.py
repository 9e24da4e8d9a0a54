"""What readers look up: the library's pages, glossary, index, bibliography, and how to cite."""

import doctest
import importlib
import inspect
import pkgutil
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from pybtex.database import Entry, parse_file, parse_string
from sphinx.util.inventory import InventoryFile

import unseen_lib
from tools.notebook_references import read_names

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "api").glob("*.md"))
AUTOMODULE = re.compile(r"^\.\. automodule:: (\S+)$", re.MULTILINE)
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(
    r"^(Parameters|Attributes|Returns|Raises)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", re.MULTILINE | re.DOTALL
)


# ---- the library's pages ----
def modules() -> Iterator[ModuleType]:
    """Every module that a user may import: all but the command line, which has a page of another kind."""
    for found in pkgutil.walk_packages(unseen_lib.__path__, "unseen_lib."):
        if not found.name.rpartition(".")[2].startswith("_"):
            yield importlib.import_module(found.name)


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Classes and functions of a module without an underscore, and what such classes define."""
    for name, thing in vars(module).items():
        own = getattr(thing, "__module__", None) == module.__name__ and not name.startswith("_")
        if own and (inspect.isclass(thing) or inspect.isfunction(thing)):
            yield f"{module.__name__}.{name}", thing
        if own and inspect.isclass(thing):
            for inner, value in vars(thing).items():
                code = getattr(value, "fget", None) or getattr(value, "func", None) or value
                code = getattr(code, "__func__", code)
                if inspect.isfunction(code) and not inner.startswith("_"):
                    yield f"{module.__name__}.{name}.{inner}", code


PUBLIC = {name: thing for module in modules() for name, thing in public(module)}


def documented() -> list[str]:
    return [name for page in PAGES for name in AUTOMODULE.findall(page.read_text(encoding="utf-8"))]


def test_every_module_is_on_one_page() -> None:
    listed = documented()
    packages = {"unseen_lib.pretrained"}  # holds nothing itself
    assert sorted(listed) == sorted({module.__name__ for module in modules()} - packages)


def test_every_public_thing_is_described() -> None:
    """Sphinx leaves out, without a word, what has no docstring."""
    assert [name for name, thing in PUBLIC.items() if not (thing.__doc__ or "").strip()] == []


def described(thing: object, section: str) -> set[str]:
    """Names that a section of a docstring describes: ``low, high : float`` are two."""
    found = dict(SECTION.findall(inspect.getdoc(thing) or "")).get(section, "")
    lines = [line for line in found.splitlines() if line and not line.startswith(" ")]
    return {name.strip(" *") for line in lines for name in line.partition(" : ")[0].split(",")}


def test_every_public_thing_is_on_a_page(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", posixpath.join)
    there = {name for kind, things in inventory.items() if kind.startswith("py:") for name in things}
    assert sorted(PUBLIC.keys() - there) == []


def test_docstrings_name_what_is_there() -> None:
    """No parameter is described that a function does not take, no attribute that a class lacks."""
    wrong = []
    for name, thing in PUBLIC.items():
        code = thing.__init__ if inspect.isclass(thing) else thing
        has = set(inspect.signature(code).parameters)
        if inspect.isclass(thing):
            has |= set(vars(thing)) | set(inspect.get_annotations(thing))
            has |= set(re.findall(r"self\.(\w+) =", inspect.getsource(thing)))
        named = described(thing, "Parameters") | described(thing, "Attributes")
        wrong += [f"{name}: {what}" for what in named - has]
    assert wrong == []


def test_what_a_function_raises_itself_is_said() -> None:
    """An error of the library that stands in a function's own code is named in its docstring."""
    errors = {name for name, thing in vars(unseen_lib.errors).items() if inspect.isclass(thing)}
    silent = []
    for name, thing in PUBLIC.items():
        if inspect.isclass(thing):  # its methods are on the list themselves
            continue
        raised = set(re.findall(r"\braise (\w+)\(", inspect.getsource(thing))) & errors
        said = inspect.getdoc(thing) or ""
        silent += [f"{name}: {error}" for error in raised if error not in said and "Raises as" not in said]
    assert silent == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "command-line"], ids=lambda page: page.stem
)
def test_the_example_of_a_page_is_true(page: Path, request: pytest.FixtureRequest) -> None:
    """What the examples print is what the page says they print."""
    if page.stem == "published":
        request.getfixturevalue("minilm")
    examples = "\n".join(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    assert examples
    parsed = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    report: list[str] = []
    assert doctest.DocTestRunner().run(parsed, out=report.append).failed == 0, "".join(report)


# ---- the book's own pages ----
TERM = re.compile(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`")
INDEX = re.compile(r"^```\{index\} (.+)$", re.MULTILINE)
NAMES = read_names(ROOT)
SOURCES = {page: (ROOT / page).read_text(encoding="utf-8") for page in NAMES.chapters}
CHAPTERS = {page: text for page, text in SOURCES.items() if page.startswith("chapters/")}


def test_every_term_of_the_glossary_is_linked_from_a_chapter() -> None:
    """That a link leads to a term the build checks; here, that a term has a link."""
    linked = {" ".join(term.split()).lower() for text in CHAPTERS.values() for term in TERM.findall(text)}
    assert sorted(NAMES.terms.keys() - linked) == []


def test_the_index_has_the_terms_and_what_chapters_define(site: Path) -> None:
    page = re.sub(r"<[^>]*>", "\n", (site / "genindex.html").read_text(encoding="utf-8"))
    lines = {unescape(line).strip() for line in page.splitlines()}
    entries = [
        entry for text in CHAPTERS.values() for line in INDEX.findall(text) for entry in line.split(",")
    ]
    wanted = {part.strip() for entry in entries for part in entry.split(";")}
    wanted |= {term for term, _ in NAMES.terms.values()}
    assert sorted(wanted - lines) == []
    assert all(INDEX.search(text) for text in CHAPTERS.values())


def described_in_head(text: str) -> str:
    head = yaml.safe_load(text.split("---\n")[1]) if text.startswith("---\n") else {}
    return head.get("myst", {}).get("html_meta", {}).get("description", "")


def test_every_page_says_in_a_sentence_what_it_is() -> None:
    """For search engines; the index is made by Sphinx, which gives it none."""
    said = {page: described_in_head(text) for page, text in SOURCES.items() if page != "genindex.md"}
    assert [page for page, text in said.items() if not 50 <= len(text) <= 160] == []
    assert len(set(said.values())) == len(said)


# ---- citing ----
def link_of(entry: Entry) -> str:
    return entry.fields.get("url") or f"https://doi.org/{entry.fields['doi']}"


def test_every_paper_is_linked(site: Path) -> None:
    page = unescape((site / "references.html").read_text(encoding="utf-8"))
    papers = parse_file(str(ROOT / "references.bib")).entries
    assert [key for key, entry in papers.items() if f'href="{link_of(entry)}"' not in page] == []


def test_every_paper_is_cited() -> None:
    cited = {
        key.strip()
        for text in SOURCES.values()
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)
        for key in keys.split(",")
    }
    assert sorted(set(parse_file(str(ROOT / "references.bib")).entries) - cited) == []


def words(text: str) -> str:
    return " ".join(text.replace("{", "").replace("}", "").split())


def test_the_ways_to_cite_agree() -> None:
    """The BibTeX of the landing page, CITATION.cff, references.bib and the library's version."""
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    bibtex = SOURCES["intro.md"].split("```bibtex\n")[1].split("```")[0]
    (ours,) = parse_string(bibtex, "bibtex").entries.values()
    assert words(ours.fields["title"]) == about["title"]
    assert [words(str(person)) for person in ours.persons["author"]] == [
        who["name"] for who in about["authors"]
    ]
    assert ours.fields["version"] == about["version"] == unseen_lib.__version__
    book = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert ours.fields["year"] == book["copyright"]

    (cited,) = about["references"]
    paper = parse_file(str(ROOT / "references.bib")).entries["lazic2026unseen"]
    assert (words(paper.fields["title"]), paper.fields["url"]) == (cited["title"], cited["url"])
    assert paper.fields["year"] == str(cited["year"])
    people = [f"{who['family-names']}, {who['given-names']}" for who in cited["authors"]]
    assert [str(person) for person in paper.persons["author"]] == people
