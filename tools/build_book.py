"""Build the book: run the chapters that could have changed, and never call a failed chapter done.

`make book` calls this. Jupyter Book keeps the outputs of a chapter until its code cells change, and knows
nothing of the library those cells import. So each chapter gets a key: a hash of everything its outputs depend
on apart from its own cells. Where the key differs from the one of the last successful run, the kept outputs
are dropped, and Jupyter Book runs the chapter again. All pages are read again in every build (`--all`), since
a warning in a page that is skipped would not fail the build a second time.
"""

import ast
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from jupyter_cache import get_cache
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from sphinx_external_toc.parsing import parse_toc_yaml

LIBRARY = "unseen_lib"
# A shell line such as `!unseen train` imports whatever the command line does.
SHELL_CALL = re.compile(r"^\s*((\w+\s*=\s*)?[!%].*\bunseen|%%(ba)?sh)", re.MULTILINE)
CELL_MAGICS = re.compile(r"\A(\s*%%.*\n)+")
NOISE = "Kernel is running over TCP without encryption"  # true of every kernel, on loopback
COLORS = re.compile(r"\x1b\[[0-9;]*m")
FAILURE = re.compile(r"^(?P<chapter>.+): WARNING: Executing notebook failed: (?P<error>\w+)", re.MULTILINE)


# ---- what a chapter depends on ----


def notebooks_of(book: Path) -> dict[str, Any]:
    """The pages of the table of contents that hold code cells, in its order, each read as a notebook."""
    notebooks = {}
    for page in parse_toc_yaml(book / "_toc.yml"):
        name = page if page.endswith(".md") else f"{page}.md"
        text = (book / name).read_text(encoding="utf-8")
        if is_myst_markdown_notebook(text):
            notebooks[name] = read_myst_markdown_notebook(
                text, MdParserConfig(enable_extensions={"colon_fence"})
            )
    return notebooks


def imports_of(source: str, package: str) -> Iterator[str]:
    """Dotted names that `source`, a module directly inside `package`, may import."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # it imports nothing, and says so itself when it runs
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def library_closure(names: set[str], book: Path) -> set[Path]:
    """Files of the library that importing `names` runs, directly or through other files of it."""
    files: set[Path] = set()
    waiting = list(names)
    while waiting:
        parts = waiting.pop().split(".")
        if parts[0] != LIBRARY:
            continue
        # Importing a.b.c runs a, a.b and a.b.c; a last part that is a function has no file of its own.
        for depth in range(1, len(parts) + 1):
            stem = book.joinpath(*parts[:depth])
            for file in (stem.with_suffix(".py"), stem / "__init__.py"):
                if file.is_file() and file not in files:
                    files.add(file)
                    package = ".".join(file.relative_to(book).parent.parts)
                    waiting.extend(imports_of(file.read_text(encoding="utf-8"), package))
    return files


def chapter_key(notebook: Any, book: Path) -> str:
    """Hash of all that a chapter's outputs depend on, its own code cells left out."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    names = {f"{LIBRARY}.__main__"} if SHELL_CALL.search("\n".join(code)) else set()
    for source in code:
        names.update(imports_of(TransformerManager().transform_cell(CELL_MAGICS.sub("", source)), ""))
    files = library_closure(names, book)
    if book / LIBRARY / "records.py" in files:  # what reads the recorded runs
        files.update(file for file in (book / LIBRARY / "recorded").rglob("*.json*") if file.is_file())

    return environment_key(files, book)


def environment_key(files: Iterable[Path], book: Path) -> str:
    """Hash of files, of the pinned versions, of the scale, and of the Python, torch and numpy in use."""
    digest = hashlib.sha256()
    digest.update(f"{platform.python_version()} {os.environ.get('UNSEEN_SCALE', 'cpu')}".encode())
    for package in ("torch", "numpy"):  # which need not be those of constraints.txt
        with suppress(PackageNotFoundError):
            digest.update(version(package).encode())
    for file in (book / "constraints.txt", *sorted(files)):
        digest.update(f"\0{os.path.relpath(file, book)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


# ---- running them ----


def drop_other_runs(cache: Any, kept: Iterable[str]) -> None:
    """Forget every run but those of the chapters in `kept` (a book that was moved keeps its runs)."""
    endings = tuple(f"/{name}" for name in kept)
    for record in cache.list_cache_records():
        if not record.uri.endswith(endings):
            cache.remove_cache(record.pk)


def environment_with_tools() -> dict[str, str]:
    """The environment of a program that finds `tools`, such as our Sphinx extensions."""
    # Behind whatever is there: a page imports the library of its own book.
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_jupyter_book(book: Path) -> tuple[int, str]:
    """Run Jupyter Book, echo what it prints, and return its exit status and its output."""
    program = str(Path(sys.executable).with_name("jupyter-book"))
    command = [program, "build", str(book), "--all", "-W", "-n", "--keep-going"]
    environment = environment_with_tools() | {"PYTHONUNBUFFERED": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    environment["UNSEEN_PROGRESS"] = "off"  # a bar that moves in a notebook is a hundred lines on a page
    environment["UNSEEN_EXPLORE"] = "frames"  # a page has no kernel that could answer a slider
    output = ""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output += COLORS.sub("", line)
            # After the traceback of a chapter comes Sphinx's own, twice: it tells the reader nothing.
            after_failure = "Exception occurred:" in output and FAILURE.search(output)
            if not after_failure and NOISE not in line:
                print(line, end="", flush=True)
    return process.returncode, output


def add_playground(book: Path) -> bool:
    """Put the models of the playground into the pages, if the book has one. Whether that went well."""
    if not any(Path(page).stem == "playground" for page in parse_toc_yaml(book / "_toc.yml")):
        return True
    command = [sys.executable, "-m", "tools.build_playground", str(book)]
    if subprocess.run(command, env=environment_with_tools()).returncode != 0:
        return False
    target = book / "_build" / "html" / "_static" / "playground" / "models"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(book / "_build" / "playground", target)
    return True


def why_it_failed(output: str) -> str:
    """One sentence that names the chapter, where a chapter is to blame."""
    failure = FAILURE.search(output)
    if failure is None:
        return "the book was not built: the warnings or errors above say why"
    reason = "a cell ran out of time" if failure["error"] == "CellTimeoutError" else "a cell raised an error"
    chapter = Path(failure["chapter"]).name
    return f"the book was not built: {chapter} failed while it ran ({reason}; see above)"


def read_state(file: Path) -> dict[str, Any]:
    """Keys and times of the last successful runs; nothing if the file is missing or was cut off."""
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return state


def write_state(file: Path, state: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(state, indent=1), encoding="utf-8")
    unfinished.replace(file)


def build(book: Path) -> int:
    """Build the book in folder `book`; the return value is an exit status."""
    state_file = book / "_build" / "chapters.json"
    state_file.parent.mkdir(exist_ok=True)
    state = read_state(state_file)
    cache = get_cache(book / "_build" / ".jupyter_cache")
    notebooks = notebooks_of(book)
    keys = {name: chapter_key(notebook, book) for name, notebook in notebooks.items()}

    state = {name: entry for name, entry in state.items() if entry["key"] == keys.get(name)}
    drop_other_runs(cache, state)
    # Written before anything runs: a build that is killed must not leave a key beside outputs of another.
    write_state(state_file, state)
    earlier = {record.pk for record in cache.list_cache_records()}

    status, output = run_jupyter_book(book)

    print()
    for name, notebook in notebooks.items():
        with suppress(KeyError):  # there is no record of a chapter that failed
            record = cache.match_cache_notebook(notebook)
            state[name] = {"key": keys[name], "seconds": round(record.data["execution_seconds"], 1)}
            print(f"{name}: {state[name]['seconds']} s" + (" (kept)" if record.pk in earlier else ""))
    write_state(state_file, state)
    if status != 0:
        print(why_it_failed(output), file=sys.stderr, flush=True)
        return 1
    if not add_playground(book):
        print("the models of the playground were not made: see above", file=sys.stderr, flush=True)
        return 1
    page = book / "_build" / "html" / "index.html"
    print(f"\nThe book is ready: {page}\n  open it as   {page.resolve().as_uri()}")
    print(f"  or serve it  {sys.executable} -m http.server --bind 127.0.0.1 --directory {page.parent}")
    return 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
