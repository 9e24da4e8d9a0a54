"""Build the assignments of a course: what students get, what teachers keep, and a proof that grading works.

`make assignments COURSE=fall26` calls this. A master is a page of MyST text with Otter's markers in raw
cells; ``<<name>>`` stands for a value of ``variant.py`` beside it. Public values come from the name of the
course, the seeds of hidden tests from its secret. Nothing is put in place unless the solution gets full
marks, the empty notebook gets none, each wrong answer of ``wrong.py`` loses points, and no secret is in what
students get.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import importlib.util
import json
import logging
import os
import random
import re
import secrets
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
import nbformat
import yaml
from otter.assign import main as otter_assign

from tools.grading.assignment import Assignment, Graded, Question, judge, load_assignment, read_notebook
from tools.grading.submission import ROOT, Limits

MASTERS = ROOT / "assignments"
BUILT = ROOT / "_build" / "assignments"
PLACE = re.compile(r"<<(\w+)>>")
CONFIG = {
    "init_cell": False,
    "export_cell": False,
    "run_tests": False,  # they run below, as they will for a submission
    "tests": {"ok_format": False},
    "generate": {"show_hidden": False, "show_stdout": False},
}
CHECK = '''\
# Run this cell first: it defines what the cells with public checks use.
import inspect


def check(question, *tests):
    """Run the public checks of a question. The hidden ones, which decide its points, are not here."""
    for test in tests:
        names = inspect.signature(test).parameters
        try:
            test(**{name: globals().get(name) for name in names})
        except NotImplementedError:
            print(f"{question}: not done yet.")
            return
        except Exception as error:
            print(f"{question}: {test.__name__} fails. {type(error).__name__}: {error}")
            return
    print(f"{question}: public checks passed. Hidden checks decide its points.")
'''


class BuildError(Exception):
    """The assignments were not built: the message says why, and what to do."""


# ---- what differs from course to course ----


def secret_of(course: str) -> bytes:
    """The secret of a course, from its file or from ``UNSEEN_SECRET``."""
    file = MASTERS / f".secret-{course}"
    text = os.environ.get("UNSEEN_SECRET") or (file.read_text(encoding="utf-8") if file.exists() else "")
    if len(text.strip()) < 16:
        raise BuildError(
            f"course {course!r} has no secret, from which its hidden tests are drawn: make one with "
            f"`make secret COURSE={course}`, which writes {file.relative_to(ROOT)} (git ignores it; keep a "
            "copy), or set UNSEEN_SECRET to 16 characters or more"
        )
    return text.strip().encode()


def new_secret(course: str) -> None:
    """Write a secret for a course that has none."""
    file = MASTERS / f".secret-{course}"
    if file.exists():
        raise BuildError(f"{file.relative_to(ROOT)} is there already; it is left as it is")
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(16) + "\n", encoding="utf-8")
    print(f"wrote {file.relative_to(ROOT)}: keep a copy, and do not commit it")


def values_of(folder: Path, course: str, secret: bytes) -> tuple[dict[str, Any], dict[str, Any], ModuleType]:
    """Public and secret values of an assignment, and the module that drew them."""
    spec = importlib.util.spec_from_file_location("variant", folder / "variant.py")
    assert spec is not None and spec.loader is not None
    variant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(variant)
    label = f"{course}/{folder.name}"
    seed = hmac.new(secret, label.encode(), hashlib.sha256).hexdigest()
    return variant.public(random.Random(label)), variant.secret(random.Random(seed)), variant


def filled(text: str, values: dict[str, Any]) -> str:
    """The master with each ``<<name>>`` replaced; a string as it is, anything else as code."""

    def value(place: re.Match[str]) -> str:
        if place[1] not in values:
            raise BuildError(f"<<{place[1]}>> stands in the master, but variant.py has no such value")
        found = values[place[1]]
        return found if isinstance(found, str) else repr(found)

    return PLACE.sub(value, text)


# ---- from a master to what students and teachers get ----


def build_one(folder: Path, course: str, secret: bytes, out: Path) -> Assignment:
    """Build the assignment in ``folder`` into ``out/student`` and ``out/teacher``."""
    public, hidden, variant = values_of(folder, course, secret)
    text = (folder / "master.md").read_text(encoding="utf-8")
    master = jupytext.reads(filled(text, {"course": course, **public, **hidden}), fmt="md:myst")
    questions = questions_of(master)
    name, student, teacher = folder.name, out / "student" / folder.name, out / "teacher" / folder.name
    (teacher / "files").mkdir(parents=True)
    files: dict[str, bytes] = {}
    if hasattr(variant, "files"):
        files = variant.files(public, hidden, BUILT / ".models")
    for file, data in files.items():
        (teacher / "files" / file).write_bytes(data)

    with tempfile.TemporaryDirectory() as work:
        assign(master, name, sorted(files), teacher / "files", Path(work))
        made = Path(work) / "made"
        (archive,) = (made / "autograder").glob("*.zip")
        shutil.move(archive, teacher / "autograder.zip")
        shutil.move(made / "autograder" / f"{name}.ipynb", teacher / "solution.ipynb")
        shutil.move(made / "student", student)
    limits = Limits(**getattr(variant, "LIMITS", {}))
    about: dict[str, Any] = {"name": name, "course": course, "questions": [asdict(q) for q in questions]}
    about |= {"files": sorted(files), "limits": asdict(limits)}
    (teacher / "assignment.json").write_text(json.dumps(about, indent=1), encoding="utf-8")

    assignment = load_assignment(teacher)
    for notebook in (student / f"{name}.ipynb", teacher / "solution.ipynb"):
        finish(notebook, assignment)
    leaks = list(leaks_in(student, needles(master, assignment, hidden)))
    if leaks:
        raise BuildError(f"{name}: students would get what should stay hidden: {'; '.join(leaks)}")
    return assignment


def assign(master: Any, name: str, files: list[str], data: Path, work: Path) -> None:
    """Let Otter split the master into a student's and a teacher's notebook and an archive."""
    config = "# ASSIGNMENT CONFIG\n" + yaml.safe_dump(CONFIG | {"name": name, "files": files})
    with_config = [nbformat.v4.new_raw_cell(config), *master.cells]
    for file in files:
        shutil.copy2(data / file, work / file)
    nbformat.write(
        nbformat.v4.new_notebook(cells=with_config, metadata=master.metadata), work / f"{name}.ipynb"
    )
    here = Path.cwd()
    logging.disable(logging.WARNING)
    try:
        otter_assign(str(work / f"{name}.ipynb"), str(work / "made"), no_pdfs=True, no_run_tests=True)
    finally:
        logging.disable(logging.NOTSET)
        os.chdir(here)


def questions_of(master: Any) -> tuple[Question, ...]:
    """Name, title, points and rubric of each question of a master."""
    questions = []
    for cell, following in zip(master.cells, master.cells[1:], strict=False):
        if cell.cell_type == "raw" and cell.source.startswith("# BEGIN QUESTION"):
            said = yaml.safe_load(cell.source)
            heading = re.match(r"## (Question (\d+): .+) \((\d+) points", following.source)
            if heading is None or f"q{heading[2]}" != said["name"] or int(heading[3]) != said["points"]:
                raise BuildError(f"the heading of {said['name']} should be `## Question N: title (P points)`")
            by_hand = bool(said.get("manual"))
            rubric = "\n".join(re.findall(r"^\|.*\|$", following.source, re.MULTILINE)) if by_hand else ""
            questions.append(Question(said["name"], heading[1], said["points"], by_hand, rubric))
    return tuple(questions)


def finish(notebook: Path, assignment: Assignment) -> None:
    """Put the public tests where Otter's check cells stand, in plain sight, and say what the notebook is."""
    content = nbformat.read(notebook, as_version=4)
    first = next(i for i, cell in enumerate(content.cells) if cell.cell_type == "code")
    content.cells.insert(first, nbformat.v4.new_code_cell(CHECK))
    for cell in content.cells:
        cell.source = re.sub(r"<!-- (BEGIN|END) QUESTION -->\s*", "", cell.source)
        if called := re.match(r'grader\.check\("(\w+)"\)', cell.source):
            cell.source = check_cell(called[1], assignment.tests[called[1]])
    content.cells = [cell for cell in content.cells if cell.source.strip()]
    for number, cell in enumerate(content.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    content.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "otter": {"assignment_name": assignment.name},  # for Otter's own graders
        "unseen": {"assignment": assignment.name, "course": assignment.course},
    }
    nbformat.write(content, notebook)


def check_cell(question: str, tests: str) -> str:
    """The public tests of a question, and the line that runs them."""
    public = [body for hidden, body in test_bodies(tests) if not hidden]
    names = [re.match(r"def (\w+)", body)[1] for body in public]  # type: ignore[index]
    return "\n\n\n".join([*public, f"check({', '.join([repr(question), *names])})"])


def test_bodies(tests: str) -> list[tuple[bool, str]]:
    """Of a test file of Otter's: whether each test is hidden, and its function."""
    parts = re.findall(r"^@test_case\(.*?hidden=(True|False).*?\)\n(def .*?)(?=^@|\Z)", tests, re.M | re.S)
    return [(hidden == "True", body.strip()) for hidden, body in parts]


# ---- what students must not get ----


def needles(master: Any, assignment: Assignment, hidden: dict[str, Any]) -> dict[str, str]:
    """Texts that may not be in anything a student gets, and what each is.

    They are secret values, and lines of solutions and hidden tests, unless the same line stands in the open
    part of the master, too. Lines of less than 24 characters say too little to count.
    """
    opened, closed = parts_of(master)
    for name, tests in assignment.tests.items():  # as Otter writes them, without comments
        for is_hidden, body in test_bodies(tests):
            (closed.setdefault(f"a hidden test of {name}", []) if is_hidden else opened).extend(
                body.splitlines()
            )
    given = "\n".join(opened)
    found = {str(value): f"the secret value {name}" for name, value in hidden.items() if len(str(value)) >= 8}
    for what, lines in closed.items():
        for line in map(str.strip, lines):
            if len(line) >= 24 and line not in given and not line.startswith(("from ", "import ")):
                found[line] = f"a line of {what}"
    return found


def parts_of(master: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Lines of a master that students may read, and those they may not, by what they are."""
    opened, closed, block = [], {"the solution": [], "a test": []}, ""  # type: ignore[var-annotated]
    for cell in master.cells:
        if cell.cell_type == "raw":
            block = re.sub(r"(?s).*(BEGIN|END) (SOLUTION|TESTS).*", r"\1 \2", cell.source)
        elif block == "BEGIN TESTS":
            closed["a test"].extend(cell.source.splitlines() if "hidden: true" in cell.source else [])
        elif block != "BEGIN SOLUTION":
            opened.extend(cell.source.splitlines())
        elif cell.cell_type == "markdown":
            closed["the solution"].extend(cell.source.splitlines())
        else:
            inside = False
            for line in cell.source.splitlines():
                inside = (inside or "# BEGIN SOLUTION" in line) and "# END SOLUTION" not in line
                (closed["the solution"] if inside else opened).append(line)
    return [*opened, *CHECK.splitlines()], closed


def leaks_in(folder: Path, texts: dict[str, str]) -> Iterator[str]:
    """Search all files, byte by byte; a text may be written as it is or as JSON writes it."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            for member, data in contents(file):
                for text, what in texts.items():
                    if text.encode() in data or json.dumps(text)[1:-1].encode() in data:
                        yield f"{member} has {what}"


def contents(file: Path) -> Iterator[tuple[str, bytes]]:
    """A file, and what is in it if it is an archive."""
    yield file.name, file.read_bytes()
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for member in archive.namelist():
                yield f"{file.name}/{member}", archive.read(member)


# ---- that grading works ----


def prove(folder: Path, assignment: Assignment, out: Path) -> None:
    """Grade solution, empty notebook and wrong answers; raise BuildError if one is not as it must be."""
    teacher = out / "teacher" / assignment.name
    solution = read_notebook(teacher / "solution.ipynb")
    began = time.monotonic()
    faults = judged(assignment, solution, teacher, "the solution", full=True)
    seconds = time.monotonic() - began
    empty = read_notebook(out / "student" / assignment.name / f"{assignment.name}.ipynb")
    got = judge(assignment, empty, [teacher])
    faults += [f"the empty notebook gets {got.total:g} points"] if got.total else []
    wrong = wrong_answers((folder / "wrong.py").read_text(encoding="utf-8"))

    def one(answer: tuple[str, str, str]) -> list[str]:
        question, about, code = answer
        changed = {"cells": [*solution["cells"], {"cell_type": "code", "source": code}]}
        return judged(
            assignment, changed, teacher, f"the wrong answer to {question} ({about})", question=question
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults += [fault for found in pool.map(one, wrong) for fault in found]
    if faults:
        raise BuildError(f"{assignment.name}: " + "; ".join(faults))
    hand = sum(question.points for question in assignment.questions if question.by_hand)
    print(
        f"{assignment.name}: {assignment.possible:g} points by tests and {hand:g} by hand; "
        f"the solution takes {seconds:.0f} s; {len(wrong)} wrong answers lose points"
    )


def judged(
    assignment: Assignment,
    notebook: dict[str, Any],
    teacher: Path,
    what: str,
    *,
    full: bool = False,
    question: str = "",
) -> list[str]:
    """What is not as it must be: full marks and no errors, or marks lost in one question and no other."""
    graded: Graded = judge(assignment, notebook, [teacher])
    faults = [f"{what}: {problem}" for problem in graded.problems]
    for asked in assignment.questions:
        if not asked.by_hand:
            lost = asked.points - graded.points(asked.name)
            if full and lost:
                faults.append(f"{what} loses {lost:g} points in {asked.name}")
            if question == asked.name and not lost:
                faults.append(f"{what} gets full marks")
    return faults


def wrong_answers(text: str) -> list[tuple[str, str, str]]:
    """Question, what is wrong, and code of each ``# %% q2: what is wrong`` of a file."""
    parts = re.split(r"^# %% (q\d+): (.+)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))


def build(course: str, chosen: Iterable[str]) -> None:
    """Build the chosen assignments of a course, all of them if none is chosen."""
    secret = secret_of(course)
    folders = sorted(folder for folder in MASTERS.iterdir() if (folder / "master.md").exists())
    names = [folder.name for folder in folders]
    for name in (chosen := list(chosen)):
        if name not in names:
            raise BuildError(f"ASSIGNMENT={name!r} is unknown: use one of {', '.join(names)}")
    for folder in folders:
        if chosen and folder.name not in chosen:
            continue
        new = BUILT / f".unfinished-{course}"
        shutil.rmtree(new, ignore_errors=True)
        prove(folder, build_one(folder, course, secret, new), new)
        for side in ("student", "teacher"):
            there = BUILT / course / side / folder.name
            shutil.rmtree(there, ignore_errors=True)
            there.parent.mkdir(parents=True, exist_ok=True)
            (new / side / folder.name).rename(there)
        shutil.rmtree(new)
    print(f"hand out:  {(BUILT / course / 'student').relative_to(ROOT)}")
    print(f"keep:      {(BUILT / course / 'teacher').relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("course")
    parser.add_argument("assignments", nargs="*", help="only these")
    parser.add_argument("--new-secret", action="store_true", help="make the secret of the course")
    options = parser.parse_args()
    try:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.course):
            raise BuildError(f"COURSE={options.course!r} should be lower-case letters, digits and hyphens")
        if options.new_secret:
            new_secret(options.course)
        else:
            build(options.course, options.assignments)
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
