"""An assignment as its grader sees it: questions, points, tests and the files that lie beside the notebook.

The build writes one folder an assignment, for teachers alone: ``assignment.json``, and ``autograder.zip`` as
Otter makes it, with the hidden tests in it. This module reads both, and judges one notebook.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otter.test_files import ExceptionTestFile

from tools.grading.submission import Limits, Submission


@dataclass(frozen=True)
class Question:
    """One question; ``rubric`` is there for those that are graded by hand."""

    name: str
    title: str
    points: float
    by_hand: bool = False
    rubric: str = ""


@dataclass(frozen=True)
class Assignment:
    """What it takes to grade an assignment."""

    name: str
    course: str
    questions: tuple[Question, ...]
    tests: Mapping[str, str] = field(repr=False)
    files: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def possible(self) -> float:
        """Points that the tests give; those given by hand come on top."""
        return sum(question.points for question in self.questions if not question.by_hand)


@dataclass(frozen=True)
class Case:
    """The outcome of one test. ``message`` of a hidden one is the hint that its author wrote, or nothing."""

    points: float
    possible: float
    hidden: bool
    message: str


@dataclass(frozen=True)
class Graded:
    """A submission's cases by question, what went wrong while it ran, and its written answers."""

    cases: Mapping[str, Sequence[Case]]
    problems: Sequence[str]
    written: Mapping[str, str]

    def points(self, question: str) -> float:
        """Points of a question that tests judge."""
        return sum(case.points for case in self.cases.get(question, ()))

    @property
    def total(self) -> float:
        """Points without those given by hand."""
        return sum(self.points(question) for question in self.cases)


def load_assignment(folder: Path) -> Assignment:
    """Read what the build wrote for teachers."""
    data = json.loads((folder / "assignment.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        tests = {
            Path(name).stem: archive.read(name).decode()
            for name in archive.namelist()
            if name.startswith("tests/") and name.endswith(".py")
        }
    return Assignment(
        name=data["name"],
        course=data["course"],
        questions=tuple(Question(**question) for question in data["questions"]),
        tests=tests,
        files=tuple(folder / "files" / name for name in data["files"]),
        limits=Limits(**data["limits"]),
    )


class NoNotebook(ValueError):
    """A file that is not a notebook: the message says why."""


def read_notebook(file: Path) -> dict[str, Any]:
    """The notebook in a file, checked as far as grading needs it."""
    if file.suffix != ".ipynb":
        raise NoNotebook(f"{file.name} is no notebook: hand in the .ipynb file itself")
    if file.stat().st_size == 0:
        raise NoNotebook(f"{file.name} is empty")
    if file.stat().st_size > 50_000_000:
        raise NoNotebook(f"{file.name} has more than 50 MB: clear its outputs")
    try:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        cells = [
            {"cell_type": str(c["cell_type"]), "source": "".join(c["source"])} for c in notebook["cells"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoNotebook(f"{file.name} cannot be read as a notebook ({type(error).__name__})") from None
    metadata = notebook.get("metadata")
    return {"cells": cells, "metadata": metadata if isinstance(metadata, dict) else {}}


def judge(assignment: Assignment, notebook: Mapping[str, Any], hidden: Iterable[Path]) -> Graded:
    """Run a notebook in its own process, apart from the ``hidden`` folders, and test what it defines."""
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cases: dict[str, list[Case]] = {name: [] for name in assignment.tests}
    with Submission(code, assignment.files, hidden, assignment.limits) as submission:
        submission.run()
        # Public tests first: their messages show what was returned, and by then no hidden input was sent.
        for is_hidden in (False, True):
            for name, source in assignment.tests.items():
                cases[name] += _run_tests(source, submission, is_hidden)
    return Graded(cases, submission.problems, _written(assignment, notebook["cells"]))


def _run_tests(source: str, submission: Submission, is_hidden: bool) -> list[Case]:
    """Public or hidden tests of one of Otter's files, run here, on the submission's functions and values."""
    file = ExceptionTestFile.from_string(source)
    file.test_cases = [case for case in file.test_cases if case.hidden == is_hidden]
    file.run(submission)
    cases = []
    for result in file.test_case_results:
        case = result.test_case
        message = ""
        if not result.passed:
            message = case.failure_message or ("" if case.hidden else _last_line(result.message))
        cases.append(Case(case.points * result.passed, case.points, case.hidden, message))
    return cases


def _last_line(message: str) -> str:
    """What a public test says, without the frame that Otter puts around it."""
    return message.strip().splitlines()[-1].removeprefix("AssertionError: ")[:500]


def _written(assignment: Assignment, cells: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The text below the heading of each question that is graded by hand, up to the next question."""
    found: dict[str, list[str]] = {}
    current = ""
    for cell in cells:
        heading = re.match(r"## Question (\d+)", cell["source"])
        if heading:
            current = f"q{heading[1]}"
        elif current and cell["cell_type"] == "markdown":
            found.setdefault(current, []).append(cell["source"])
    return {q.name: "\n\n".join(found.get(q.name, [])) for q in assignment.questions if q.by_hand}
