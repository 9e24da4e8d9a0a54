"""Grade a folder of submissions, offline and without Docker.

`make grade COURSE=fall26 SUBMISSIONS=folder` calls this. Each notebook runs in a process and a working copy
of its own, under limits (`tools.grading`). It writes a table ``grades.csv`` with a row a student, and a page
of feedback for each. Points for written answers go into the table by hand: grading again keeps them, and
puts them on the pages.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tqdm import tqdm

from tools.build_assignments import BUILT, MASTERS
from tools.grading.assignment import (
    Assignment,
    Graded,
    NoNotebook,
    Question,
    judge,
    load_assignment,
    read_notebook,
)
from tools.grading.sandbox import landlock_version
from tools.grading.submission import ROOT
from unseen_lib.checkpoint import replace_file
from unseen_lib.errors import CheckpointError

GRADES = ROOT / "_build" / "grades"
NOISE = {"Thumbs.db", "desktop.ini", "__MACOSX"}


class GradeError(Exception):
    """Nothing was graded: the message says why, and what to do."""


@dataclass(frozen=True)
class Row:
    """One student: ``graded`` is None where there was nothing to run, and ``problems`` says why."""

    name: str
    file: Path
    graded: Graded | None
    problems: Sequence[str]


# ---- what there is to grade ----


def find_submissions(folder: Path) -> dict[str, Path]:
    """The file of each student, by name: ``anna.ipynb``, or the one notebook in the folder ``anna``."""
    if not folder.is_dir():
        raise GradeError(f"SUBMISSIONS={folder} is no folder")
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in NOISE:
            continue
        files = sorted(f for f in entry.rglob("*") if _counts(f, entry)) if entry.is_dir() else [entry]
        notebooks = [f for f in files if f.suffix == ".ipynb"]
        name = entry.name if entry.is_dir() else entry.stem
        # Names that only differ in case, or in how an accent is stored, would overwrite each other's page.
        same = unicodedata.normalize("NFC", name).casefold()
        found.setdefault(same, []).extend(notebooks or [entry])
    if not found:
        raise GradeError(f"SUBMISSIONS={folder} is empty: put one notebook a student into it")
    for files in found.values():
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(folder)) for file in files[:3])
            raise GradeError(f"{names} belong to one name: keep the one that counts, and grade again")
    return {unicodedata.normalize("NFC", _name(file, folder)): file for (file,) in found.values()}


def _counts(file: Path, entry: Path) -> bool:
    parts = file.relative_to(entry).parts
    return file.is_file() and not any(part.startswith(".") or part in NOISE for part in parts)


def _name(file: Path, folder: Path) -> str:
    first = file.relative_to(folder).parts[0]
    return first if (folder / first).is_dir() else Path(first).stem


def choose_assignment(submissions: Mapping[str, Path], course: str, name: str | None) -> Assignment:
    """The assignment named, or the only one that the notebooks say they are."""
    teacher = BUILT / course / "teacher"
    built = sorted(folder.name for folder in teacher.iterdir()) if teacher.is_dir() else []
    if not built:
        raise GradeError(
            f"course {course!r} has no assignments yet: `make assignments COURSE={course}` first"
        )
    if name is None:
        said = set()
        for file in submissions.values():
            try:
                said.add(read_notebook(file)["metadata"].get("unseen", {}).get("assignment"))
            except (NoNotebook, OSError, AttributeError):
                continue
        said.discard(None)
        if len(said) != 1:
            what = " and ".join(sorted(map(str, said))) or "none that is known"
            raise GradeError(f"the notebooks are of {what}: say which with ASSIGNMENT={' or '.join(built)}")
        name = str(said.pop())
    if name not in built:
        raise GradeError(f"ASSIGNMENT={name!r} is not one of those built for {course!r}: {', '.join(built)}")
    return load_assignment(teacher / name)


# ---- grading ----


def grade_one(name: str, file: Path, assignment: Assignment, hidden: Sequence[Path]) -> Row:
    """Run and judge one submission, whatever it is."""
    try:
        notebook = read_notebook(file)
    except (NoNotebook, OSError) as error:
        return Row(name, file, None, [str(error)])
    problems = []
    made_for = notebook["metadata"].get("unseen")
    if isinstance(made_for, dict) and made_for != {
        "assignment": assignment.name,
        "course": assignment.course,
    }:
        problems.append(f"was made for {made_for.get('assignment')} of {made_for.get('course')}")
    try:
        graded = judge(assignment, notebook, hidden)
    except Exception as error:  # one submission may not stop the others
        return Row(name, file, None, [f"could not be graded ({type(error).__name__}: {error})"])
    return Row(name, file, graded, [*problems, *graded.problems])


def grade_all(
    submissions: Mapping[str, Path], assignment: Assignment, hidden: Sequence[Path], workers: int
) -> list[Row]:
    """All rows, in the order of the names; several submissions run at a time."""
    with ThreadPoolExecutor(workers) as pool:
        waiting = [
            pool.submit(grade_one, name, file, assignment, hidden) for name, file in submissions.items()
        ]
        for _ in tqdm(as_completed(waiting), total=len(waiting), desc=assignment.name, unit="submission"):
            pass
    return sorted((future.result() for future in waiting), key=lambda row: row.name.casefold())


# ---- what comes out ----


def columns(assignment: Assignment) -> list[str]:
    """The header of the table."""
    return [
        "name",
        *(_column(question) for question in assignment.questions),
        "total by tests",
        "errors",
        "file",
    ]


def _column(question: Question) -> str:
    return f"{question.name} (by hand, of {question.points:g})" if question.by_hand else question.name


def read_marks(table: Path, assignment: Assignment) -> dict[str, dict[str, str]]:
    """What a teacher has written into the columns of an earlier table that are filled in by hand."""
    if not table.exists():
        return {}
    with open(table, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    by_hand = [question for question in assignment.questions if question.by_hand]
    return {
        row["name"].removeprefix("'"): {q.name: row[_column(q)] for q in by_hand if row.get(_column(q))}
        for row in rows
        if row.get("name")
    }


def write_table(
    table: Path, rows: Sequence[Row], assignment: Assignment, marks: Mapping[str, Mapping[str, str]]
) -> None:
    """The table, with marks kept; written whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns(assignment))
    for row in rows:
        points = [
            marks.get(row.name, {}).get(q.name, "")
            if q.by_hand
            else f"{row.graded.points(q.name) if row.graded else 0:g}"
            for q in assignment.questions
        ]
        total = f"{row.graded.total if row.graded else 0:g}"
        writer.writerow(map(_harmless, [row.name, *points, total, "; ".join(row.problems), row.file.name]))
    write_whole(table, text.getvalue().encode("utf-8-sig"))  # so that spreadsheets read accents right


def write_whole(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    replace_file(file, lambda unfinished: unfinished.write_bytes(data), what="file")


def _harmless(cell: str) -> str:
    """A cell that a spreadsheet does not take for a formula."""
    return f"'{cell}" if cell[:1] in {"=", "+", "-", "@", "\t"} else cell


def feedback(row: Row, assignment: Assignment, marks: Mapping[str, str]) -> str:
    """The page for a student: points, what failed, and for written answers rubric and text."""
    parts = [f"<h1>{escape(assignment.name)}: {escape(row.name)}</h1>"]
    if row.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in row.problems)
        parts.append(f"<h2>While it ran</h2><ul>{items}</ul>")
    for question in assignment.questions:
        parts.append(f"<h2>{escape(question.title)}</h2>")
        if question.by_hand:
            given = marks.get(question.name)
            said = f"{escape(given)} of {question.points:g} points" if given else "not graded yet"
            text = row.graded.written.get(question.name, "") if row.graded else ""
            parts.append(f"<p><strong>{said}</strong></p>{_rubric(question.rubric)}<pre>{escape(text)}</pre>")
        else:
            parts.append(_outcome(question, row.graded))
    total = row.graded.total if row.graded else 0
    parts.insert(1, f"<p>{total:g} of {assignment.possible:g} points by tests.</p>")
    style = "body{max-width:46rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 sans-serif}"
    style += "pre{white-space:pre-wrap}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(row.name)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _outcome(question: Question, graded: Graded | None) -> str:
    cases = graded.cases[question.name] if graded else ()
    points = graded.points(question.name) if graded else 0
    lines = [f"<p><strong>{points:g} of {question.points:g} points</strong></p>"]
    failed = [case for case in cases if case.message]
    public = [case for case in cases if not case.hidden]
    if public and not any(case.message for case in public):
        lines.append("<p>Public checks passed.</p>")
    if failed:
        kinds = {True: "Hidden check", False: "Public check"}
        items = "".join(f"<li>{kinds[case.hidden]}: {escape(case.message)}</li>" for case in failed)
        lines.append(f"<ul>{items}</ul>")
    return "".join(lines)


def _rubric(table: str) -> str:
    """The rows of a Markdown table."""
    rows = [row.strip("|").split("|") for row in table.splitlines() if not re.fullmatch(r"[|\-: ]+", row)]
    cells = "".join("<tr>" + "".join(f"<td>{escape(c.strip())}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><caption>Rubric</caption>{cells}</table>"


def page_name(name: str) -> str:
    """A file name for a student: the name itself, without what a file system refuses."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]', "_", name)[:100] + ".html"


def grade(folder: Path, course: str, name: str | None, workers: int) -> Path:
    """Grade ``folder`` and return the table that was written."""
    submissions = find_submissions(folder)
    assignment = choose_assignment(submissions, course, name)
    hidden = [MASTERS, *(BUILT / each / "teacher" for each in os.listdir(BUILT)), GRADES, folder]
    out = GRADES / course / assignment.name
    table = out / "grades.csv"
    marks = read_marks(table, assignment)
    if not landlock_version():
        print("This system has no Landlock: files are guarded by Python alone (see the teaching guide).")
    rows = grade_all(submissions, assignment, hidden, workers)
    gone = sorted(name for name in set(marks) - {row.name for row in rows} if marks[name])
    if gone:
        before = table.with_name("grades-before.csv")
        write_whole(before, table.read_bytes())
        print(f"{', '.join(gone)}: marked by hand, and not in the folder now; their marks are in {before}")
    write_table(table, rows, assignment, marks)
    for row in rows:
        page = feedback(row, assignment, marks.get(row.name, {}))
        write_whole(out / "feedback" / page_name(row.name), page.encode())
    troubled = sum(bool(row.problems) for row in rows)
    print(f"{len(rows)} submissions of {assignment.name}, {troubled} with errors (see the column `errors`)")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("submissions", help="folder with one notebook, or one folder, a student")
    parser.add_argument("--course", required=True)
    parser.add_argument("--assignment", help="found from the notebooks if left out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="submissions at a time")
    options = parser.parse_args()
    try:
        if not options.submissions:
            raise GradeError("SUBMISSIONS is missing: `make grade COURSE=name SUBMISSIONS=folder`")
        table = grade(
            Path(options.submissions).resolve(), options.course, options.assignment, options.workers
        )
    except (GradeError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"grades:    {table}\nfeedback:  {table.parent / 'feedback'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
