"""``multigpu grade``: a class is checked, whatever one learner's answers do."""

import csv
import os
import shutil
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from multigpu.checking.catalog import Catalog, find_course
from multigpu.checking.verdicts import Verdict
from multigpu.cli import main
from multigpu.commands import grade

COURSE = find_course(grade.Path(__file__).resolve().parent)
ANSWERS = {
    "ada": (COURSE.solutions / "data_parallel.py").read_text(),
    "ben": None,
    "cleo": "def split(batch, devices):\n    return [batch.to(d) for d in devices]\n",
    "dora": "import os\n\ndef split(batch, devices):\n    os._exit(0)\n",
    "eve": "def split(batch, devices):\n    return '<script>alert(1)</script>'\n",
    "fay": "def split(\n",
}
STATUS = {
    "ada": "pass",
    "ben": "missing_file",
    "cleo": "wrong",
    "dora": "crash",
    "eve": "wrong",
    "fay": "crash",
}


def class_of_six(folder):
    for name, text in ANSWERS.items():
        learner = folder / "class" / name
        learner.mkdir(parents=True)
        if text is not None:
            (learner / "data_parallel.py").write_text(text)
    return folder / "class"


@pytest.fixture
def classroom(tmp_path, monkeypatch):
    """A class of six, in a folder of its own; the command runs in the course's folder."""
    monkeypatch.chdir(COURSE.root)
    return class_of_six(tmp_path)


@pytest.fixture(scope="module")
def graded_before(tmp_path_factory):
    """A folder with the class and its grades."""
    folder = tmp_path_factory.mktemp("graded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(COURSE.root)
        graded(class_of_six(folder))
    return folder


@pytest.fixture
def again(graded_before, tmp_path, monkeypatch):
    """A copy of the class that has been graded, to be graded again."""
    monkeypatch.chdir(COURSE.root)
    shutil.copytree(graded_before, tmp_path / "again")
    return tmp_path / "again" / "class"


def graded(classroom, *more):
    out = classroom.parent / "grades"
    assert main(["grade", str(classroom), "split", "--out", str(out), *more]) == 0
    return out


def rows(out):
    return {row["learner"]: row for row in csv.DictReader((out / "grades.csv").open())}


@pytest.mark.slow
def test_a_class_is_checked_whole(graded_before):
    out = graded_before / "grades"
    assert {name: row["status"] for name, row in rows(out).items()} == STATUS
    assert rows(out)["ada"]["points"] == "1"
    suites = ElementTree.parse(out / "junit.xml").getroot()
    assert {suite.get("name"): suite.get("failures") for suite in suites} == {
        name: "0" if status == "pass" else "1" for name, status in STATUS.items()
    }
    page = (out / "index.html").read_text()
    assert all(f">{name}</h2>" in page for name in ANSWERS)
    assert "whole_batch_everywhere" in page
    assert "<script>" not in page


@pytest.mark.slow
def test_a_second_run_checks_only_what_has_changed(again, capsys):
    out = again.parent / "grades"
    (again / "ben" / "data_parallel.py").write_text(ANSWERS["ada"])
    (out / "learners" / "cleo.json").write_text("{")  # as if it had been stopped there
    graded(again)
    assert rows(out)["ben"]["status"] == "pass"
    assert "4 of 6 answers have been checked before" in capsys.readouterr().out


@pytest.fixture
def checked(classroom, monkeypatch):
    """``checked("split")``: whose answers a call checks, each of which passes."""

    def judged(server, exercises, course, *, submission, **options):
        if names == ["ada"] and interrupted:
            raise KeyboardInterrupt
        names.append(submission.name)
        return [Verdict(exercises[0].name, "pass", None, {}, 1, 1, 0.1)]

    def checked(*exercises, stop=False):
        names.clear()
        interrupted[:] = [True] if stop else []
        main(["grade", str(classroom), *exercises, "--out", str(classroom.parent / "grades")])
        return names

    names, interrupted = [], []
    monkeypatch.setattr("multigpu.checking.session.check_with", judged)
    monkeypatch.setattr(grade, "WarmServer", lambda: SimpleNamespace(close=lambda: None))
    return checked


def test_verdicts_are_kept_by_exercise(checked, classroom):
    assert checked("split", stop=True) == ["ada"]
    assert checked("split") == sorted(ANSWERS)[1:]
    assert checked("step_time") == sorted(ANSWERS)
    assert checked("split") == []
    (classroom / "ada" / "costs.py").write_text("x = 1")
    assert checked("split", "step_time") == ["ada"]
    (classroom / "ada" / "help.py").write_text("x = 1")  # either may read it, in whatever way
    assert checked("split", "step_time") == ["ada", "ada"]
    (classroom / "ada" / "data_parallel.py").write_text("import costs")
    assert checked("split", "step_time") == ["ada"]
    (classroom / "ada" / "costs.py").write_text("x = 2")
    assert checked("split", "step_time") == ["ada", "ada"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take only names in UTF-8")
def test_names_that_are_not_utf_8_are_graded(checked, classroom):
    """As an archive from another system unpacks them."""
    learner = classroom / os.fsdecode(b"m\xfcller")
    learner.mkdir()
    (learner / "data_parallel.py").write_text(ANSWERS["ada"])
    (learner / os.fsdecode(b"\xfcbung.py")).write_text("")
    assert checked("split")[-1] == learner.name
    assert rows(classroom.parent / "grades")["m\\udcfcller"]["status"] == "pass"


def test_one_learner_and_one_exercise_are_counted_in_the_singular(checked, classroom, capsys):
    for name in [*ANSWERS][1:]:
        shutil.rmtree(classroom / name)
    checked("split")
    assert capsys.readouterr().out.startswith("1 learner: ")
    assert "1 learner, 1 exercise." in (classroom.parent / "grades" / "index.html").read_text()


def test_names_may_follow_an_option(checked, classroom):
    out = classroom.parent / "grades"
    assert main(["grade", str(classroom), "--out", str(out), "split", "gather"]) == 0
    assert {row["exercise"] for row in csv.DictReader((out / "grades.csv").open())} == {
        "data_parallel.split",
        "data_parallel.gather",
    }


def test_outside_of_a_course_a_class_is_graded_by_the_one_that_is_installed(
    checked, classroom, monkeypatch
):
    monkeypatch.chdir(classroom)
    assert checked("split") == sorted(ANSWERS)


def test_results_of_an_older_version_are_made_again(checked, classroom):
    kept = classroom.parent / "grades" / "learners" / "ada.json"
    checked("split")
    kept.write_text('{"digest": "1", "verdicts": [{"exercise": "data_parallel.split"}]}')
    assert checked("split") == ["ada"]
    assert checked("split") == []


@pytest.mark.slow
def test_a_fault_of_ours_stops_nobody_and_is_tried_again(again, monkeypatch):
    def broken(*_arguments, **_options):
        raise OSError("no space left")

    for name in ("ada", "ben"):
        (again / name / "data_parallel.py").write_text(ANSWERS["cleo"])
    monkeypatch.setattr("multigpu.checking.judging.check", broken)
    found = rows(graded(again))
    assert [found[name]["status"] for name in ("ada", "ben")] == ["checker_fault"] * 2
    monkeypatch.undo()
    monkeypatch.chdir(COURSE.root)
    found = rows(graded(again))
    assert [found[name]["status"] for name in ("ada", "ben")] == ["wrong"] * 2


@pytest.mark.parametrize(
    ("text", "points"),
    [("[data_parallel]\nsplit = 2.5\n", 2.5), ('"data_parallel.split" = 3\n', 3.0)],
)
def test_points_come_from_a_file(text, points, tmp_path):
    path = tmp_path / "points.toml"
    path.write_text(text)
    found = grade.points_in(path, Catalog(COURSE).exercises)
    assert (found["data_parallel.split"], found["data_parallel.gather"]) == (points, 1.0)


@pytest.mark.parametrize(
    ("text", "word"), [("[data_parallel]\nsplt = 2\n", "splt"), ("data_parallel = -1\n", "-1")]
)
def test_points_that_mean_nothing_are_named(text, word, classroom, capsys):
    path = classroom.parent / "points.toml"
    path.write_text(text)
    assert main(["grade", str(classroom), "split", "--points", str(path)]) == 2
    assert word in capsys.readouterr().err


def test_the_folder_of_one_learner_is_no_class(classroom, capsys):
    assert main(["grade", str(classroom / "ada"), "split"]) == 2
    assert "parent folder" in capsys.readouterr().err
