"""Grading a folder of submissions, among them some that mean harm.

On an assignment of two questions, made here in the form that the build writes. Each submission starts a
process that imports torch, so there are few of them, with short limits.
"""

import csv
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from tools import grade as grading
from tools.grade import GradeError, find_submissions, grade
from tools.grading import wire
from tools.grading.assignment import NoNotebook, load_assignment, read_notebook
from tools.grading.sandbox import landlock_version
from tools.grading.submission import MARK
from unseen_lib.logic import Problem, Rule

TESTS = """\
from otter.test_files import test_case

OK_FORMAT = False
name = "q1"
points = None

@test_case(points=1, hidden=False)
def test_one(double):
    found = double(1)
    assert found == 2, f"double(1) is 2, and you return {found}"

@test_case(points=3, hidden=True, failure_message="A large number goes wrong.")
def test_large(double):
    assert double(7654321) == 15308642, "hidden words"
"""
QUESTIONS = [
    {"name": "q1", "title": "Question 1: double", "points": 4, "by_hand": False, "rubric": ""},
    {"name": "q2", "title": "Question 2: why", "points": 3, "by_hand": True, "rubric": "| 3 | a reason |"},
]
LIMITS = {"seconds": 40.0, "cell_seconds": 4.0, "call_seconds": 4.0, "memory": 4 << 30, "disk": 1 << 20}
RIGHT = "def double(x):\n    return 2 * x"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built assignment, with grades going into a folder of the test."""
    built, teacher = tmp_path / "built", tmp_path / "built" / "fall26" / "teacher" / "1-double"
    (teacher / "files").mkdir(parents=True)
    (teacher / "files" / "data.txt").write_text("data")
    about = {
        "name": "1-double",
        "course": "fall26",
        "questions": QUESTIONS,
        "files": ["data.txt"],
        "limits": LIMITS,
    }
    (teacher / "assignment.json").write_text(json.dumps(about))
    with zipfile.ZipFile(teacher / "autograder.zip", "w") as archive:
        archive.writestr("tests/q1.py", TESTS)
    monkeypatch.setattr(grading, "BUILT", built)
    monkeypatch.setattr(grading, "GRADES", tmp_path / "grades")
    (tmp_path / "submissions").mkdir()
    return tmp_path


def notebook(*code: str, written: str = "", assignment: str = "1-double") -> str:
    cells = [{"cell_type": "code", "source": source} for source in code]
    cells += [{"cell_type": "markdown", "source": "## Question 2: why (3 points, graded by hand)"}]
    cells += [{"cell_type": "markdown", "source": written}]
    return json.dumps(
        {"cells": cells, "metadata": {"unseen": {"assignment": assignment, "course": "fall26"}}}
    )


def hand_in(course: Path, **files: str) -> Path:
    for name, text in files.items():
        (course / "submissions" / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return course / "submissions"


def rows_of(table: Path) -> dict[str, dict[str, str]]:
    with open(table, newline="", encoding="utf-8-sig") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def page(table: Path, name: str) -> str:
    return (table.parent / "feedback" / f"{name}.html").read_text(encoding="utf-8")


# ---- what is graded, and how ----


def test_points_feedback_and_marks_by_hand(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = "def double(x):\n    return 2 if x == 1 else 0"
    folder = hand_in(
        course,
        right=notebook(RIGHT, written="Because <b>so</b>."),
        **{"Zoë Łukasz": notebook(half)},
        stub=notebook("def double(x):\n    raise NotImplementedError"),
        wrong=notebook("def double(x):\n    return x"),
    )
    table = grade(folder, "fall26", None, 2)
    rows = rows_of(table)
    assert {name: row["q1"] for name, row in rows.items()} == {
        "right": "4",
        "Zoë Łukasz": "1",
        "stub": "0",
        "wrong": "0",
    }
    assert not any(row["errors"] for row in rows.values())
    captured = capsys.readouterr()
    assert "4/4" in captured.err  # the bar

    # Public checks say what they saw; hidden ones only what their author chose to say.
    assert "double(1) is 2, and you return 1" in page(table, "wrong")
    zoe = page(table, "Zoë Łukasz")
    assert "Public checks passed." in zoe and "Hidden check: A large number goes wrong." in zoe
    for name in rows:
        assert "7654321" not in page(table, name) and "hidden words" not in page(table, name)
        assert "tests passed" not in page(table, name).lower()
    assert "Because &lt;b&gt;so&lt;/b&gt;." in page(table, "right") and "a reason" in page(table, "right")
    assert "not graded yet" in page(table, "right")

    # A teacher fills in a mark, and grades again after one more came in and another was taken away.
    column = "q2 (by hand, of 3)"
    text = (
        table.read_text(encoding="utf-8-sig")
        .replace("right,4,,", "right,4,2.5,")
        .replace("wrong,0,,", "wrong,0,1,")
    )
    table.write_text(text, encoding="utf-8-sig")
    (folder / "wrong.ipynb").unlink()
    again = rows_of(grade(hand_in(course, late=notebook(RIGHT)), "fall26", "1-double", 2))
    assert again["right"][column] == "2.5" and again["late"]["q1"] == "4"
    assert "2.5 of 3 points" in page(table, "right")
    assert rows_of(table.with_name("grades-before.csv"))["wrong"][column] == "1"
    assert "wrong: marked by hand" in capsys.readouterr().out


def test_hostile_submissions_each_get_a_row_that_says_what_happened(course: Path) -> None:
    teacher = course / "built" / "fall26" / "teacher" / "1-double"
    outside = course / "outside.txt"
    outside.write_text("keep me")
    where = json.dumps(str(teacher / "autograder.zip"))
    far = [  # what only Landlock refuses
        f"import shutil\nshutil.rmtree({str(course)!r}, ignore_errors=True)",
        f"import subprocess\nsubprocess.run(['rm', '-rf', {str(outside)!r}, {str(teacher)!r}])",
    ]
    folder = hand_in(
        course,
        loop=notebook("while True:\n    pass", RIGHT),
        stubborn=notebook(
            "x = 0\nwhile True:\n  try:\n    while True:\n      x += 1\n  except BaseException: pass"
        ),
        memory=notebook(RIGHT, "x = bytearray(1 << 36)"),
        sysexit=notebook("import sys\nsys.exit(0)", RIGHT),
        osexit=notebook(RIGHT, "import os\nos._exit(0)"),
        deletes=notebook(RIGHT, "import os\nos.remove('data.txt')", *(far if landlock_version() else [])),
        prints=notebook(RIGHT, "for _ in range(100_000):\n    print('spam' * 20)"),
        reads=notebook(RIGHT, f"open({where}, 'rb').read()"),
        peeks=notebook(
            "import subprocess\n"
            f"seen = subprocess.run(['cat', {where}, {str(outside)!r}], capture_output=True).stdout",
            "def double(x):\n    return len(seen)",
        ),
        floods=notebook(
            "import os\nfor fd in range(3, 30):\n  try: os.write(fd, b'nonsense\\n')\n  except OSError: pass",
            RIGHT,
        ),
        forges=notebook(
            "import os\nfor fd in range(3, 30):\n"
            '    try:\n        os.write(fd, b\'{"is": "dict", "of": [["errors", []]]}\\n\' * 3)\n'
            "    except OSError: pass",
        ),
        hangs=notebook("def double(x):\n    while x > 1: pass\n    return 2"),
        delays=notebook(  # says again and again that it has only begun
            "import os\nwhile True:\n  for fd in range(3, 30):\n"
            '    try: os.write(fd, b\'{"is": "dict", "of": [["ready", true]]}\\n\')\n'
            "    except BaseException: pass",
        ),
        leaves=notebook(
            RIGHT, "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)"
        ),
        object=notebook("def double(x):\n    return object()"),
    )
    (folder / "empty.ipynb").touch()
    (folder / "text.ipynb").write_text("hello")
    (folder / "list.ipynb").write_text("[]")
    (folder / "report.pdf").write_bytes(b"%PDF")
    (folder / ".DS_Store").touch()
    limits = LIMITS | {"seconds": 14.0}
    about = json.loads((teacher / "assignment.json").read_text())
    (teacher / "assignment.json").write_text(json.dumps(about | {"limits": limits}))
    began = time.monotonic()
    rows = rows_of(grade(folder, "fall26", "1-double", 2))
    print(f"{len(rows)} rows in {time.monotonic() - began:.0f} s")

    for name, points, phrase in [
        ("loop", "4", "code cell 1 of 2: TooLong: took longer than 4 s"),
        ("stubborn", "0", "stopped after 14 s, in code cell 1 of 1"),
        ("memory", "4", "code cell 2 of 2: MemoryError"),
        ("sysexit", "4", "code cell 1 of 2: SystemExit: 0"),
        ("osexit", "0", "ended its own process with exit status 0, in code cell 2 of 2"),
        ("deletes", "4", ""),
        ("prints", "4", ""),
        ("reads", "4", "which is not for submissions"),
        ("floods", "0", "cannot be read"),
        ("forges", "0", ""),
        ("hangs", "1", ""),
        ("delays", "0", "sent something that is no reply"),
        ("leaves", "4", ""),
        ("object", "0", ""),
        ("empty", "0", "empty.ipynb is empty"),
        ("text", "0", "text.ipynb cannot be read as a notebook"),
        ("list", "0", "list.ipynb cannot be read as a notebook"),
        ("report", "0", "report.pdf is no notebook: hand in the .ipynb file itself"),
    ]:
        assert rows[name]["q1"] == points, rows[name]
        assert phrase in rows[name]["errors"], rows[name]
        assert bool(phrase) or not rows[name]["errors"], rows[name]
    assert len(rows) == 19  # and no row for .DS_Store
    assert (teacher / "files" / "data.txt").read_text() == "data"
    if landlock_version():
        assert outside.read_text() == "keep me" and (teacher / "autograder.zip").exists()
        assert rows["peeks"]["q1"] == "0"
    until = time.monotonic() + 30  # a killed process is there until the system has cleared it away
    while left := [p for p in Path("/proc").glob("[0-9]*/environ") if MARK.encode() in _environment(p)]:
        assert time.monotonic() < until, f"processes outlived their submission: {left}"
        time.sleep(0.2)


def _environment(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_a_submission_reads_neither_the_secret_nor_the_others(course: Path) -> None:
    """By a program, which Python's own guard does not see: only what the working copy holds is there."""
    other = hand_in(course, other=notebook(RIGHT)) / "other.ipynb"
    paths = [str(grading.MASTERS), str(grading.BUILT / "fall26" / "teacher"), str(other.parent)]
    code = (
        "import subprocess\n"
        f"listed = [subprocess.run(['ls', path], capture_output=True).stdout for path in {paths!r}]\n"
        f"read = subprocess.run(['cat', {str(other)!r}], capture_output=True).stdout\n"
        "own = open('data.txt').read()\n"
        "import os\n"
        "for name in ('environ', 'mem', 'maps'):\n"  # the grader itself, which knows the tests
        "    try:\n"
        "        open(f'/proc/{os.getppid()}/{name}', 'rb').read(1)\n"
        "        read = name\n"
        "    except OSError:\n"
        "        pass\n"
        "def double(x):\n    return 2 * x if own == 'data' and not read and not any(listed) else 0"
    )
    assert rows_of(grade(hand_in(course, nosy=notebook(code)), "fall26", None, 2))["nosy"]["q1"] == "4"


def test_a_notebook_of_another_course_is_graded_and_noted(course: Path) -> None:
    text = notebook(RIGHT).replace("fall26", "fall25")
    rows = rows_of(grade(hand_in(course, old=text), "fall26", "1-double", 1))
    assert rows["old"]["q1"] == "4" and rows["old"]["errors"] == "was made for 1-double of fall25"


# ---- a folder that cannot be graded ----


def test_two_files_of_one_name_are_refused_before_anything_runs(course: Path) -> None:
    folder = hand_in(course, anna=notebook(RIGHT))
    (folder / "Anna").mkdir()
    (folder / "Anna" / "final.ipynb").write_text(notebook(RIGHT))
    with pytest.raises(GradeError, match="belong to one name: keep the one that counts"):
        grade(folder, "fall26", None, 1)
    assert not (course / "grades").exists()


def test_names_that_differ_only_in_how_accents_are_stored_are_one(tmp_path: Path) -> None:
    for name in ("Zo\u00eb.ipynb", "Zoe\u0308.ipynb"):
        (tmp_path / name).write_text(notebook(RIGHT))
    if len(list(tmp_path.iterdir())) == 2:  # some file systems make them one already
        with pytest.raises(GradeError, match="belong to one name"):
            find_submissions(tmp_path)


def test_a_folder_a_student_is_a_submission_too(tmp_path: Path) -> None:
    (tmp_path / "anna" / "__MACOSX").mkdir(parents=True)
    (tmp_path / "anna" / "1-double.ipynb").write_text("{}")
    (tmp_path / "anna" / "notes.txt").touch()
    (tmp_path / "ben").mkdir()
    found = find_submissions(tmp_path)
    assert {name: file.name for name, file in found.items()} == {"anna": "1-double.ipynb", "ben": "ben"}


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["", "--course", "fall26"], "SUBMISSIONS is missing"),
        (["missing", "--course", "fall26"], "is no folder"),
        (["submissions", "--course", "fall26"], "is empty: put one notebook a student into it"),
        (["full", "--course", "spring27"], "`make assignments COURSE=spring27` first"),
        (["full", "--course", "fall26", "--assignment", "9"], "ASSIGNMENT='9' is not one of those built"),
        (["mixed", "--course", "fall26"], "1-double and 2-other: say which with ASSIGNMENT="),
    ],
)
def test_bad_input_is_one_sentence_and_a_status(course, arguments, phrase, monkeypatch, capsys) -> None:
    for name, files in {"full": ["1-double"], "mixed": ["1-double", "2-other"]}.items():
        (course / name).mkdir()
        for i, assignment in enumerate(files):
            (course / name / f"{i}.ipynb").write_text(notebook(RIGHT, assignment=assignment))
    monkeypatch.setattr(sys, "argv", ["grade", arguments[0] and str(course / arguments[0]), *arguments[1:]])
    assert grading.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and phrase in error and error.count("\n") == 1


def test_a_name_cannot_be_a_formula_of_a_spreadsheet(course: Path) -> None:
    table = grade(hand_in(course, **{"=1+1": "no notebook"}), "fall26", "1-double", 1)
    assert list(rows_of(table)) == ["'=1+1"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [{}]}', "[" * 100_000])
def test_what_is_no_notebook_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text(text)
    with pytest.raises(NoNotebook, match=r"a\.ipynb"):
        read_notebook(file)


# ---- the line between the processes ----


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(10**30),
        1.5,
        "Zoë\n",
        [1, [2.0, "x"]],
        (1, (2,)),
        {"a", "b"},
        {1: "a", ("b", 2): [None]},
        Problem((Rule(("a", "b"), "c"),), ("a",), "c"),
    ],
)
def test_values_come_back_equal_and_of_the_same_kind(value: object) -> None:
    line = wire.to_line(value)
    back = wire.from_line(line)
    assert back == value and type(back) is type(value) and line.count(b"\n") == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_come_back_to_the_last_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    back = wire.from_line(wire.to_line(tensor.requires_grad_() if tensor.is_floating_point() else tensor))
    assert back.dtype == dtype and torch.equal(back, tensor.detach())


@pytest.mark.parametrize("value", [object(), lambda: 1, os, [object()]])
def test_what_is_not_data_is_refused(value: object) -> None:
    with pytest.raises(wire.NotData):
        wire.to_line(value)


@pytest.mark.parametrize(
    "line",
    [b"", b"nonsense", b'{"is": "os.system", "of": []}', b'{"value": 1}',
     b'{"is": "tensor", "of": ["x", [9], ""]}', b'{"is": "Rule", "of": ["a"]}', b"[" * 100_000,
     b'{"is": "set", "of": [[]]}', b"\xff"],
)  # fmt: skip
def test_a_line_that_is_none_of_ours_raises_one_kind_of_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        wire.from_line(line)


# ---- a whole class ----


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_submissions_of_assignment_1_within_ten_minutes(tmp_path: Path, monkeypatch) -> None:
    """The solution thirty times, on as many cores as there are; the limit is for two, not busy otherwise."""
    from tools import build_assignments as building

    folder = tmp_path / "built" / "fall26"
    building.build_one(building.MASTERS / "1-chaining", "fall26", b"of the slow test only", folder)
    monkeypatch.setattr(grading, "BUILT", tmp_path / "built")
    monkeypatch.setattr(grading, "GRADES", tmp_path / "grades")
    (tmp_path / "submissions").mkdir()
    solution = (folder / "teacher" / "1-chaining" / "solution.ipynb").read_text(encoding="utf-8")
    for i in range(30):
        (tmp_path / "submissions" / f"student {i}.ipynb").write_text(solution, encoding="utf-8")
    began = time.monotonic()
    rows = rows_of(grade(tmp_path / "submissions", "fall26", None, 2))
    seconds = time.monotonic() - began
    print(f"30 submissions in {seconds:.0f} s")
    assert len(rows) == 30 and {row["total by tests"] for row in rows.values()} == {"25"}
    assert seconds < 600


@pytest.mark.long
def test_otters_own_grader_agrees(tmp_path: Path) -> None:
    """The archive that the build writes is one that Otter itself grades with full marks."""
    from tools import build_assignments as building

    building.build_one(building.MASTERS / "1-chaining", "fall26", b"of the slow test only", tmp_path)
    teacher = tmp_path / "teacher" / "1-chaining"
    command = [str(Path(sys.executable).with_name("otter")), "run", "solution.ipynb", "-a", "autograder.zip"]
    environment = os.environ | {"PYTHONPATH": str(building.ROOT)}
    done = subprocess.run(command, cwd=teacher, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((teacher / "results.json").read_text())["tests"]
    assert sum(test.get("score", 0) for test in results) == load_assignment(teacher).possible
