"""Assignments: what the build refuses, what students get, and that each course has its own.

Assignment 1 is small enough to be built here; a slow test builds all four and grades every wrong answer.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import build_assignments as building
from tools.build_assignments import BuildError, build_one, filled, leaks_in, needles, wrong_answers
from tools.grading.assignment import read_notebook
from unseen_lib.logic import closure

MASTERS = sorted(path.parent for path in building.MASTERS.glob("*/master.md"))
FIRST = MASTERS[0]
SECRET = b"a secret for these tests only"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Assignment 1 for two courses, and for one of them with another secret."""
    folders = {}
    for name, course, secret in [
        ("fall", "fall26", SECRET),
        ("spring", "spring27", SECRET),
        ("other", "fall26", b"x" * 20),
    ]:
        folders[name] = tmp_path_factory.mktemp(name)
        build_one(FIRST, course, secret, folders[name])
    return folders


def student(folder: Path) -> Path:
    return folder / "student" / FIRST.name


def text_of(notebook: Path) -> str:
    return "\n".join(cell["source"] for cell in read_notebook(notebook)["cells"])


def hidden_tests(folder: Path) -> str:
    with zipfile.ZipFile(folder / "teacher" / FIRST.name / "autograder.zip") as archive:
        return "\n".join(archive.read(n).decode() for n in archive.namelist() if n.startswith("tests/"))


def test_a_student_gets_the_notebook_and_nothing_else(built: dict[str, Path]) -> None:
    assert [file.name for file in student(built["fall"]).iterdir()] == ["1-chaining.ipynb"]


def test_the_notebook_is_a_valid_one_without_outputs(built: dict[str, Path]) -> None:
    import nbformat

    notebook = nbformat.read(student(built["fall"]) / "1-chaining.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_it_never_says_that_all_tests_passed(built: dict[str, Path]) -> None:
    text = text_of(student(built["fall"]) / "1-chaining.ipynb")
    assert "public checks passed" in text and not re.search(
        "all (tests|test cases|checks) passed", text, re.I
    )


def test_nothing_secret_is_in_what_students_get(built: dict[str, Path]) -> None:
    """Independently of the build's own search: no seed, no line of a hidden test, no solution."""
    data = (student(built["fall"]) / "1-chaining.ipynb").read_bytes()
    _, secret, _ = building.values_of(FIRST, "fall26", SECRET)
    for value in secret.values():
        for part in value if isinstance(value, list) else [value]:
            assert str(part).encode() not in data
    for name in re.findall(r"hidden=True.*?\ndef (\w+)", hidden_tests(built["fall"]), re.DOTALL):
        assert name.encode() not in data
    assert b"failure_message" not in data and SECRET not in data
    assert b"waiting[number] -= 1" not in data and b"BEGIN SOLUTION" not in data


def test_the_search_finds_what_is_planted(built: dict[str, Path], tmp_path: Path) -> None:
    import jupytext

    public, secret, _ = building.values_of(FIRST, "fall26", SECRET)
    text = filled((FIRST / "master.md").read_text(encoding="utf-8"), {"course": "fall26", **public, **secret})
    assignment = building.load_assignment(built["fall"] / "teacher" / FIRST.name)
    texts = needles(jupytext.reads(text, fmt="md:myst"), assignment, secret)
    assert len(texts) > 50

    folder = tmp_path / "student"
    shutil.copytree(student(built["fall"]), folder)
    assert list(leaks_in(folder, texts)) == []
    with zipfile.ZipFile(
        folder / "extra.zip", "w", zipfile.ZIP_DEFLATED
    ) as archive:  # a whole autograder, inside another file
        archive.writestr("notes.txt", f"the seed is the seed is the seed is {secret['secret_levels']}")
    assert list(leaks_in(folder, texts)) == ["extra.zip/notes.txt has the secret value secret_levels"]
    shutil.copy(built["fall"] / "teacher" / FIRST.name / "solution.ipynb", folder)
    assert any("a line of the solution" in leak for leak in leaks_in(folder, texts))


def test_another_course_has_another_problem_and_another_secret_other_tests(built: dict[str, Path]) -> None:
    fall, spring, other = (
        text_of(student(built[n]) / "1-chaining.ipynb") for n in ("fall", "spring", "other")
    )
    assert fall.replace("fall26", "") != spring.replace("spring27", "")
    assert fall == other  # what students get follows from the course alone
    assert hidden_tests(built["fall"]) != hidden_tests(built["other"])


def test_the_same_course_and_secret_build_the_same(built: dict[str, Path], tmp_path: Path) -> None:
    build_one(FIRST, "fall26", SECRET, tmp_path)
    name = "1-chaining.ipynb"
    assert (student(tmp_path) / name).read_bytes() == (student(built["fall"]) / name).read_bytes()
    assert hidden_tests(tmp_path) == hidden_tests(built["fall"])


@pytest.mark.parametrize("seed", range(20))
def test_the_problem_to_do_by_hand_is_one_that_can_be_done(seed: int) -> None:
    """Its rounds, as variant.py counts them, add up to what follows by the library's own closure."""
    from unseen_lib.logic import Problem, Rule

    variant = building.values_of(FIRST, "any", SECRET)[2]
    values = variant.public(random.Random(seed))
    problem = eval(values["problem"], {"Problem": Problem, "Rule": Rule})
    rounds = values["rounds"]
    assert set(problem.facts).union(*rounds) == closure(problem) and 3 <= len(rounds) <= 6
    assert sum(map(len, rounds)) == len(set().union(*rounds))


@pytest.mark.parametrize("folder", MASTERS, ids=lambda folder: folder.name)
def test_each_master_keeps_the_rules(folder: Path) -> None:
    """Points add up to 30, hours are given, three wrong answers for each question that tests judge but q1."""
    import jupytext

    text = (folder / "master.md").read_text(encoding="utf-8")
    public, secret, _ = building.values_of(folder, "fall26", SECRET)
    master = jupytext.reads(filled(text, {"course": "fall26", **public, **secret}), fmt="md:myst")
    questions = building.questions_of(master)
    assert sum(q.points for q in questions) == 30
    assert re.search(r"\*\*fall26 · 30 points · about \d hours\.\*\*", master.cells[0].source)
    wrong = wrong_answers((folder / "wrong.py").read_text(encoding="utf-8"))
    for question in questions:
        if question.by_hand:
            numbers = [float(row.split("|")[1]) for row in question.rubric.splitlines()[2:]]
            assert sum(numbers) == question.points, f"the rubric of {question.name} does not add up"
        else:
            assert sum(name == question.name for name, _, _ in wrong) >= 2
    assert len(wrong) >= 6


# ---- bad input ----


def test_a_missing_secret_is_a_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSEEN_SECRET", raising=False)
    with pytest.raises(BuildError, match="make secret COURSE=nowhere99"):
        building.secret_of("nowhere99")


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["nowhere99"], "has no secret"),
        (["../escape"], "lower-case letters, digits and hyphens"),
        (["fall26", "7-unknown"], "ASSIGNMENT='7-unknown' is unknown"),
    ],
)
def test_bad_input_is_one_sentence_and_a_status(
    arguments: list[str], phrase: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["build_assignments", *arguments])
    if arguments[0] == "fall26":
        monkeypatch.setenv("UNSEEN_SECRET", SECRET.decode())
    else:
        monkeypatch.delenv("UNSEEN_SECRET", raising=False)
    assert building.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and phrase in error


def test_a_place_without_a_value_is_named() -> None:
    with pytest.raises(BuildError, match="<<nothing>> stands in the master"):
        filled("a <<nothing>>", {})


def test_git_ignores_secrets() -> None:
    root = building.ROOT
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(
        ["git", "check-ignore", "assignments/.secret-fall26"], cwd=root, capture_output=True
    )
    assert done.returncode == 0


def test_a_build_with_a_fault_leaves_what_was_there(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "BUILT", tmp_path)
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setenv("UNSEEN_SECRET", SECRET.decode())
    before = tmp_path / "fall26" / "student" / FIRST.name / "kept.txt"
    before.parent.mkdir(parents=True)
    before.write_text("handed out")

    def fails(*_: object) -> None:
        raise BuildError("the empty notebook gets 3 points")

    monkeypatch.setattr(building, "prove", fails)
    with pytest.raises(BuildError, match="empty notebook"):
        building.build("fall26", [FIRST.name])
    assert before.read_text() == "handed out"


# ---- that the proof of a build can fail ----


def test_a_stub_with_points_and_a_wrong_answer_with_full_marks_are_refused(
    monkeypatch, built, tmp_path
) -> None:
    """`prove` on outcomes as they would be, without running anything."""
    from tools.grading.assignment import Case, Graded

    assignment = building.load_assignment(built["fall"] / "teacher" / FIRST.name)
    full = {q.name: [Case(q.points, q.points, True, "")] for q in assignment.questions if not q.by_hand}
    monkeypatch.setattr(building, "judge", lambda *_: Graded(full, [], {}))
    with pytest.raises(BuildError) as raised:
        building.prove(FIRST, assignment, built["fall"])
    assert "the empty notebook gets 25 points" in str(raised.value)
    assert "the wrong answer to q2 (right, and quadratic) gets full marks" in str(raised.value)
    none = {name: [Case(0, case[0].possible, True, "")] for name, case in full.items()}
    monkeypatch.setattr(building, "judge", lambda *_: Graded(none, [], {}))
    with pytest.raises(BuildError, match="the solution loses 6 points in q2"):
        building.prove(FIRST, assignment, built["fall"])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [folder.name for folder in MASTERS])
def test_the_whole_build_of(name: str, monkeypatch, tmp_path: Path) -> None:
    """Solution, empty notebook and every wrong answer, for a course that no one has seen."""
    monkeypatch.setattr(building, "BUILT", tmp_path)
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setenv("UNSEEN_SECRET", "of the slow test, nowhere else")
    building.build("test-course", [name])
    about = json.loads((tmp_path / "test-course" / "teacher" / name / "assignment.json").read_text())
    assert about["course"] == "test-course"
