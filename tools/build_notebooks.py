"""Write each page that holds code as a notebook for Jupyter and Colab; the MyST page stays the one source.

    python tools/build_notebooks.py                    the .ipynb beside each page (`make notebooks`)
    python tools/build_notebooks.py --check            fail if one of them is not what its page gives
    python tools/build_notebooks.py --colab FOLDER     notebooks that carry the library (`make colab`)
    python tools/build_notebooks.py --retarget URL     say where the repository lives (`make retarget`)

QuantEcon's builder of notebooks, sphinx-tojupyter 0.6, was tried first. With the myst-nb of this book it
turns code cells into Markdown, loses citations and glued values, and breaks tables and exercises; and a build
by Sphinx can number figures only after it has run the chapters.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml

from tools.build_book import imports_of, notebooks_of
from tools.notebook_markdown import Block, Page, caption, described, fold, translate
from tools.notebook_references import Names, read_names, reference_list
from tools.notebook_setup import Needs, Repository, Wheel, build_wheel, opening, setup_cell
from tools.notebook_syntax import MystError, page_cells
from unseen_lib import __version__
from unseen_lib.checkpoint import replace_file
from unseen_lib.errors import CheckpointError

METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": [], "toc_visible": True},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
EXTRAS = {"unseen_lib.pretrained": "pretrained"}  # optional dependencies, by what needs them
HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
NUMBERS = "# @title The numbers of the next paragraphs"
TEXT = "# @title The text, with the numbers that your run computed"
TELL = 'unseen_lib.notebook.tell(r"""\n{}\n""")'


# ---- cells ----
def code_cell(source: str, tags: set[str], *, hidden: bool = False) -> dict[str, Any]:
    """A code cell without outputs; ``hidden`` folds its source in JupyterLab and on Colab."""
    metadata: dict[str, Any] = {"tags": sorted(tags)} if tags else {}
    if hidden:
        metadata |= {"cellView": "form", "jupyter": {"source_hidden": True}}
    if "hide-output" in tags:
        metadata["jupyter"] = metadata.get("jupyter", {}) | {"outputs_hidden": True}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }


def markdown_cell(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def cells_of_text(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    """Markdown cells, a new one at each heading, and code cells for what states computed numbers."""
    waiting: list[Block] = []
    for block in [*blocks, Block("", heading=1)]:
        parted = block.heading or block.figure or (waiting and waiting[-1].values != block.values)
        if waiting and parted:
            text = "\n\n".join(part.text for part in waiting)
            yield told(text) if waiting[-1].values else markdown_cell(text)
            waiting = []
        if block.figure:
            yield code_cell(f'unseen_lib.notebook.show("{block.figure}")', set())
        if block.text:
            waiting.append(block)


def told(text: str) -> dict[str, Any]:
    """A cell that shows ``text`` with the numbers of the run in it."""
    if '"""' in text:
        raise MystError('a paragraph with a {glue} value cannot hold """')
    return code_cell(f"{TEXT}\n{TELL.format(text)}", {"hide-input"}, hidden=True)


def away_from_the_book(source: str) -> str:
    """``source`` with the library's ``glue`` in place of the one of myst_nb, which Colab does not have."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic or a shell line
        return source
    lines = source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "myst_nb":
            names = ", ".join(alias.name for alias in node.names)
            if names != "glue":
                raise MystError(f"a notebook away from the book cannot import {names} from myst_nb")
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace("myst_nb", "unseen_lib.notebook")
        elif isinstance(node, ast.Import) and any(alias.name.startswith("myst_nb") for alias in node.names):
            raise MystError("a notebook away from the book cannot import myst_nb")
    return "\n".join(lines)


def cells_of_code(cell: Any, page: Page) -> Iterator[dict[str, Any]]:
    """A code cell of the page, and the caption of its figure below it."""
    tags = set(cell.metadata.get("tags", []))
    source = away_from_the_book(cell.source)
    if "remove-cell" in tags:
        source = f"{NUMBERS}\n{source}"
    yield code_cell(source, tags, hidden=bool(tags & HIDDEN))
    options = cell.metadata.get("mystnb", {})
    figure = options.get("figure", {})
    if figure.get("caption"):
        text = caption(figure["caption"], page, "figure", figure.get("name"))
        words = described(options.get("image", {}).get("alt", ""))
        yield from cells_of_text([Block(text, values="⟦" in text), Block(words)])


def joined(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells, where a hidden one that computes numbers and the text below that states them become one."""
    found: list[dict[str, Any]] = []
    for cell in cells:
        before = found[-1]["source"] if found else ""
        if before.startswith(NUMBERS) and cell["source"].startswith(TEXT):
            found[-1] = cell | {
                "source": f"{before.replace(NUMBERS, TEXT)}\n\n{cell['source'].partition(chr(10))[2]}"
            }
        else:
            found.append(cell)
    return found


def with_ids(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells, each with an id made from its source: an edit elsewhere in the page does not change it."""
    seen: Counter[str] = Counter()
    named = []
    for cell in cells:
        digest = hashlib.sha256(f"{cell['cell_type']}\0{cell['source']}".encode()).hexdigest()[:12]
        seen[digest] += 1
        again = f"-{seen[digest]}" if seen[digest] > 1 else ""
        named.append({**cell, "id": digest + again, "source": cell["source"].splitlines(keepends=True)})
    return named


# ---- notebooks ----
def notebook_of(
    book: Path, page_file: str, names: Names, repository: Repository, wheel: Wheel | None = None
) -> str:
    """The text of the notebook that ``page_file`` gives.

    Raises
    ------
    MystError
        If the page holds a construct that a notebook cannot show; the message names the page and the place.
    """
    page = Page(names, page_file, (book / page_file).parent, repository.book)
    cells: list[dict[str, Any]] = []
    try:
        source = page_cells((book / page_file).read_text(encoding="utf-8"))
        for cell in source:
            if cell.cell_type == "code":
                cells += cells_of_code(cell, page)
            else:
                cells += cells_of_text(translate(cell.source, page))
        cells = [*joined(cells), *closing(page)]
    except MystError as error:
        raise MystError(f"{page_file}: {error}") from None
    code = [cell.source for cell in source if cell.cell_type == "code"]
    setup = setup_cell(needs_of(code, book), __version__, Path(page_file).stem, repository, wheel)
    first = [
        markdown_cell(opening(names.titles[page_file], page_file, repository, wheel)),
        code_cell(setup, {"hide-input"}, hidden=True),
    ]
    content = {"cells": with_ids(first + cells), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    nbformat.validate(content)
    return json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def closing(page: Page) -> Iterator[dict[str, Any]]:
    """What the chapter cites, and what its terms mean."""
    if page.terms:
        lines = (
            f"- **{term}**: {text}"
            for term, text in sorted(definitions(page).items(), key=lambda item: item[0].lower())
        )
        yield markdown_cell(fold("The terms of this page, in words", "\n".join(lines)))
    if page.cited:
        references = reference_list(page.names.papers, page.cited)
        yield markdown_cell("## References\n\n" + "\n".join(f"- {line}" for line in references))


def definitions(page: Page) -> dict[str, str]:
    """The terms of the page with their definitions, in which other terms are plain words."""
    inner = Page(page.names, "glossary.md", page.folder)
    return {
        term: " ".join(block.text for block in translate(text, inner)) for term, text in page.terms.items()
    }


def needs_of(code: list[str], book: Path) -> Needs:
    """The optional dependencies whose modules a page imports, and the models that it names."""
    imported = {f"{name}." for source in code for name in imports_of(source, "")}
    extras = {extra for name in imported for module, extra in EXTRAS.items() if name.startswith(f"{module}.")}
    listed = (book / "models.txt").read_text(encoding="utf-8") if (book / "models.txt").is_file() else ""
    models = [line for line in listed.splitlines() if line and not line.startswith("#")]
    text = "\n".join(code)
    named = [line for line in models if line.partition("==")[0].replace("-", "_") in text]
    return Needs(tuple(sorted(extras)), tuple(named))


def all_notebooks(book: Path, wheel: Wheel | None = None) -> dict[str, str]:
    """The text of every notebook of the book, by its path."""
    settings = yaml.safe_load((book / "_config.yml").read_text(encoding="utf-8")).get("repository", {})
    repository = Repository(settings.get("url") or "", settings.get("branch") or "main")
    names = read_names(book)
    return {
        page.removesuffix(".md") + ".ipynb": notebook_of(book, page, names, repository, wheel)
        for page in notebooks_of(book)
    }


# ---- commands ----
def write(book: Path) -> None:
    """Write the .ipynb beside each page, and remove those whose page is gone."""
    notebooks = all_notebooks(book)
    for name, text in notebooks.items():
        replace(book / name, text)
    for name in orphans(book, notebooks):
        (book / name).unlink()
    print(f"{len(notebooks)} notebooks beside their pages")


def orphans(book: Path, notebooks: dict[str, str]) -> list[str]:
    """Notebooks in the folders of the book that no page gives."""
    folders = {(book / name).parent for name in notebooks}
    found = {file.relative_to(book).as_posix() for folder in folders for file in folder.glob("*.ipynb")}
    return sorted(found - set(notebooks))


def drift(book: Path, notebooks: dict[str, str]) -> list[str]:
    """Which of the files are not these ``notebooks``, missing ones and others included."""
    changed = [
        name
        for name, text in notebooks.items()
        if not (book / name).is_file() or (book / name).read_text(encoding="utf-8") != text
    ]
    return changed + orphans(book, notebooks)


def write_alone(book: Path, folder: Path) -> None:
    """Write notebooks that carry the library, to be uploaded as they are."""
    notebooks = all_notebooks(book, build_wheel(book))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in notebooks.items():
        replace(folder / Path(name).name, text)
        print(f"{folder / Path(name).name}: {len(text.encode()) / 1e6:.1f} MB")


def retarget(book: Path, url: str) -> None:
    """Say in _config.yml that the repository lives at ``url``; nothing else in the file changes."""
    if not url:
        raise ValueError("the URL is missing: make retarget URL=https://github.com/OWNER/NAME")
    Repository(url)  # complains if it cannot be one
    file = book / "_config.yml"
    text = file.read_text(encoding="utf-8")
    for key, section in yaml.compose(text, Loader=yaml.SafeLoader).value:
        if key.value == "repository":
            value = next(value for name, value in section.value if name.value == "url")
            new = text[: value.start_mark.index] + json.dumps(url) + text[value.end_mark.index :]
            replace(file, new)


def replace(file: Path, text: str) -> None:
    """Write it whole or not at all."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    replace_file(file, lambda unfinished: unfinished.write_text(text, encoding="utf-8"), what="file")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the book's pages as notebooks.")
    parser.add_argument("--book", type=Path, default=Path(__file__).parents[1])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail if a notebook is not what its page gives")
    what.add_argument("--colab", type=Path, metavar="FOLDER", help="write notebooks that carry the library")
    what.add_argument("--retarget", metavar="URL", help="say where the repository lives, and write all anew")
    options = parser.parse_args(arguments)
    book = options.book.resolve()
    try:
        if options.check:
            if changed := drift(book, all_notebooks(book)):
                print(f"not what their pages give: {', '.join(changed)}: run make notebooks", file=sys.stderr)
                return 1
            return 0
        if options.colab:
            write_alone(book, options.colab)
            return 0
        if options.retarget is not None:
            retarget(book, options.retarget)
        write(book)
    except (ValueError, OSError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
