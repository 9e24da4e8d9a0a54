"""What `make book` runs again, and that a failed chapter fails the build every time.

On a small book with chapters and a library of its own, built by the real tools/build_book.py under the real
settings of _config.yml. Each chapter appends its name to a file when it runs, so that runs can be counted.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tools.build_book import chapter_key, library_closure, notebooks_of, why_it_failed

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(600)  # each build starts Sphinx and kernels, on a machine that may be busy

CHAPTER = """\
---
file_format: mystnb
kernelspec:
  name: python3
---
# Chapter {name}

Some prose.

```{{code-cell}} ipython3
{code}
with open("../runs.txt", "a") as runs:
    print("{name}", file=runs)
```
"""
LIBRARY = {
    "__init__.py": "",
    "one.py": "ONE = 1",
    "two.py": "from .deep import THREE",
    "deep.py": "THREE = 3",
    "records.py": "from pathlib import Path\nDATA = Path(__file__).parent / 'recorded' / 'run.json'",
    "recorded/run.json": "{}",
}


class Book:
    """A small book in a folder of its own."""

    def __init__(self, folder: Path, chapters: dict[str, str], timeout: int = 120) -> None:
        self.folder = folder
        config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
        config["execute"]["timeout"] = timeout
        toc: dict[str, object] = {"format": "jb-book", "root": "intro"}
        if chapters:
            toc["chapters"] = [{"file": f"chapters/{name}.md"} for name in chapters]
        files = {"_config.yml": yaml.safe_dump(config), "_toc.yml": yaml.safe_dump(toc)}
        files |= {"constraints.txt": "torch==1", "references.bib": "", "assets/course.css": ""}
        files |= {
            f"assets/{name}.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>" for name in ("logo", "favicon")
        }
        files |= {"intro.md": "# A book\n\n```{nb-exec-table}\n```\n"}
        files |= {f"unseen_lib/{name}": text for name, text in LIBRARY.items()}
        for name, text in files.items():
            self.write(name, text)
        for name, code in chapters.items():
            self.write_chapter(name, code)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def write_chapter(self, name: str, code: str) -> None:
        self.write(f"chapters/{name}.md", CHAPTER.format(name=name, code=code))

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def build(self) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "UNSEEN_SCALE"}
        return subprocess.run(
            [sys.executable, ROOT / "tools" / "build_book.py", self.folder],
            env=environment | {"PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def runs_of_build(self) -> Counter[str]:
        """Build, and count how often that ran each chapter."""
        (self.folder / "runs.txt").unlink(missing_ok=True)
        result = self.build()
        assert result.returncode == 0, result.stdout
        runs = self.folder / "runs.txt"
        return Counter(runs.read_text(encoding="utf-8").split()) if runs.exists() else Counter()


def assert_fails_naming(book: Book, chapter: str, reason: str) -> None:
    result = book.build()
    assert result.returncode == 1, result.stdout
    assert f"{chapter}.md failed while it ran ({reason}" in result.stdout.splitlines()[-1]


def test_only_what_could_change_runs_again(tmp_path: Path) -> None:
    code = {
        "plain": "from unseen_lib.one import ONE",
        "transitive": "from unseen_lib import two",
        "recorded": "import unseen_lib.records",
    }
    book = Book(tmp_path, code)
    assert book.runs_of_build() == dict.fromkeys(code, 1)
    page = (tmp_path / "_build" / "html" / "intro.html").read_text(encoding="utf-8")
    assert all(f"chapters/{name}" in page for name in code), "the table of run times lacks a chapter"

    book.edit("chapters/plain.md", "Some prose.", "Other prose, and $x^2$.")
    assert book.runs_of_build() == {}
    kept = (tmp_path / "_build" / "html" / "intro.html").read_text(encoding="utf-8")
    assert all(f"chapters/{name}" in kept for name in code), "a kept run lost its time"

    book.edit("unseen_lib/deep.py", "3", "4")
    book.edit("unseen_lib/recorded/run.json", "{}", "[]")
    assert book.runs_of_build() == {"transitive": 1, "recorded": 1}
    book.edit("constraints.txt", "torch==1", "torch==2")
    assert book.runs_of_build() == dict.fromkeys(code, 1)


def test_a_chapter_that_raises_fails_the_build_every_time(tmp_path: Path) -> None:
    """Also when it ran well before and an edit of the library broke it."""
    book = Book(tmp_path, {"good": "from unseen_lib import two", "user": "from unseen_lib.one import ONE"})
    assert book.runs_of_build() == {"good": 1, "user": 1}
    book.edit("unseen_lib/one.py", "ONE", "OTHER")
    assert_fails_naming(book, "user", "a cell raised an error")
    assert_fails_naming(book, "user", "a cell raised an error")
    book.edit("unseen_lib/one.py", "OTHER", "ONE")
    assert book.runs_of_build() == {"user": 1}


def test_a_chapter_that_times_out_fails_the_build_every_time(tmp_path: Path) -> None:
    book = Book(tmp_path, {"slow": "import time; time.sleep(60)"}, timeout=3)
    assert_fails_naming(book, "slow", "a cell ran out of time")
    assert_fails_naming(book, "slow", "a cell ran out of time")


def test_a_warning_in_a_page_fails_the_build_every_time(tmp_path: Path) -> None:
    book = Book(tmp_path, {})
    book.edit("intro.md", "# A book", "# A book\n\nSee {doc}`nowhere`.")
    assert book.build().returncode == 1
    assert book.build().returncode == 1


@pytest.mark.parametrize(
    ("imported", "files"),
    [
        ("unseen_lib", {"__init__"}),
        ("unseen_lib.two", {"__init__", "two", "deep"}),
        ("unseen_lib.two.THREE", {"__init__", "two", "deep"}),
        ("numpy.linalg", set()),
    ],
)
def test_closure_of_imports(tmp_path: Path, imported: str, files: set[str]) -> None:
    book = Book(tmp_path, {})
    assert {file.stem for file in library_closure({imported}, book.folder)} == files


@pytest.mark.parametrize(
    "line", ["!unseen doctor", "%time from unseen_lib.one import ONE", "%%time\nimport unseen_lib.one"]
)
def test_imports_are_seen_through_magics(tmp_path: Path, line: str) -> None:
    book = Book(tmp_path, {"magic": line})
    book.write("unseen_lib/__main__.py", "from . import one")
    notebook = notebooks_of(book.folder)["chapters/magic.md"]
    before = chapter_key(notebook, book.folder)
    book.edit("unseen_lib/two.py", "deep", "shallow")
    assert chapter_key(notebook, book.folder) == before
    book.edit("unseen_lib/one.py", "1", "2")
    assert chapter_key(notebook, book.folder) != before


def test_a_failure_without_a_chapter_is_not_blamed_on_one() -> None:
    output = "reading sources... [ 50%] chapters/x\nintro.md:3: WARNING: unknown document: 'nowhere'\n"
    assert "chapters/x" not in why_it_failed(output)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, "README.md", "exec"), {})
    assert "all_unseen" in capsys.readouterr().out
