"""The ``multigpu`` command from a learner's chair."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from multigpu.checking import session, source
from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.progress import Progress
from multigpu.checking.source import definitions, is_written, starter_of
from multigpu.checking.verdicts import Verdict
from multigpu.cli import main
from multigpu.commands import check, exercises
from multigpu.commands.exercises import code_of

from .conftest import COURSE

FILE = "data_parallel.py"
SPLIT = """
def split(batch, devices):
    print("looking at", len(batch), "rows")
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]
"""
WRONG_SPLIT = SPLIT.replace("chunk.to(device)", "chunk.to(devices[0])")


@pytest.fixture
def course(tmp_path, monkeypatch, server):
    """A copy of the course with fresh starters; the command runs in it, in the warm server."""
    for name in ("tests", "course.toml"):
        (tmp_path / name).symlink_to(COURSE.root / name)
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
    shutil.copy(COURSE.solutions / FILE, tmp_path / "solutions")  # one chapter is enough
    (tmp_path / "exercises" / "hints").symlink_to(COURSE.hints)
    starter = starter_of((COURSE.solutions / FILE).read_text(encoding="utf-8"))
    (tmp_path / "exercises" / FILE).write_text(starter, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "exercises")
    monkeypatch.setattr(check, "WarmServer", lambda: contextlib.nullcontext(server))
    return Course(tmp_path)


@pytest.fixture
def command(course, capsys):
    """``command("check", "split")``: the exit code and what was printed."""

    def command(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return command


def write(course, source):
    """Put a learner's answer into the file, below the starters that it replaces."""
    path = course.exercises / FILE
    starter = starter_of((COURSE.solutions / FILE).read_text(encoding="utf-8"))
    path.write_text(f"{starter}\n{source}", encoding="utf-8")


def test_without_a_name_the_first_exercise_that_does_not_pass_is_checked(command, course):
    code, out = command("check")
    assert code == 1
    assert "data_parallel.split  not_started" in out
    assert "replicate" not in out
    write(course, SPLIT)
    code, out = command("check", "--submission", "../exercises")  # one's own, however it is named
    assert code == 0  # what was asked for passes, and the next one is no mistake
    assert "data_parallel.split  pass" in out
    assert "not_started" not in out
    assert "data_parallel.replicate (multigpu next)" in out
    code, out = command("check")
    assert code == 1
    assert "data_parallel.split" not in out
    assert "data_parallel.replicate  not_started" in out


def test_a_wrong_answer_is_explained(command, course, monkeypatch):
    write(course, WRONG_SPLIT)
    monkeypatch.chdir(course.root)
    code, out = command("check", "split")
    assert code == 1
    for label in ("expected", "came", "usually", "where", "message   split.", "printed   looking"):
        assert re.search(rf"^  {label}", out, re.MULTILINE), out
    assert f"where     exercises/{FILE}:" in out  # as seen from the current folder
    assert "multigpu hint data_parallel.split" in out
    assert "\x1b" not in out


def test_json_is_all_that_is_printed(command, course):
    write(course, WRONG_SPLIT)
    code, out = command("check", "split", "gather", "--json")
    assert code == 1
    records = json.loads(out)
    keys = ["exercise", "status", "message_id", "message", "passed", "total", "seconds"]
    assert [list(record) for record in records] == [keys, keys]
    assert [record["exercise"] for record in records] == [
        "data_parallel.split",
        "data_parallel.gather",
    ]
    assert [record["status"] for record in records] == ["wrong", "not_started"]


def test_another_folder_can_be_checked_and_is_not_remembered(command, course):
    assert command("check", "split", "--submission", str(course.solutions))[0] == 0
    assert "0 of 7" in command("list")[1]


def test_what_others_hand_in_is_to_be_whole(command, course):
    write(course, SPLIT)
    handed_in = course.root / "ada"
    shutil.copytree(course.exercises, handed_in, ignore=shutil.ignore_patterns("hints"))
    code, out = command("check", "--submission", str(handed_in))
    assert code == 1
    assert "data_parallel.split  pass" in out
    assert "data_parallel.replicate  not_started" in out


@pytest.mark.parametrize("arguments", [("check", "splt"), ("hint", "splt"), ("reset", "splt")])
def test_a_wrong_name_gets_a_suggestion(command, arguments):
    code, out = command(*arguments)
    assert (code, out.count("\n")) == (2, 1)
    assert "splt" in out
    assert "data_parallel.split" in out


def test_outside_the_course(command, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    code, out = command("check")
    assert code == 2
    assert str(elsewhere) in out


def test_names_may_follow_an_option(command):
    _, out = command("check", "split", "--json", "gather")
    checked = [record["exercise"] for record in json.loads(out)]
    assert checked == ["data_parallel.split", "data_parallel.gather"]


@pytest.mark.parametrize(
    "arguments",
    [("chek",), ("check", "--fast"), ("check", "split", "--fast", "gather"), ("list", "split")],
)
def test_wrong_usage(command, arguments):
    with pytest.raises(SystemExit) as exit_:
        command(*arguments)
    assert exit_.value.code == 2


def test_a_pass_holds_until_the_code_changes(command, course):
    write(course, SPLIT)
    assert command("check", "split")[0] == 0
    assert "✓ split" in command("list")[1]
    write(course, SPLIT + "# a comment, and a new function\ndef other(): ...\n")
    assert "1 of 7" in command("list")[1]
    write(course, SPLIT.replace("rows", "row"))
    out = command("list")[1]
    assert "0 of 7" in out
    assert f"○ split           {exercises.WORDS['unchecked']}: " in out
    assert out.endswith("multigpu check NAME\n")


def test_a_pass_does_not_outlive_a_stricter_check(command, course):
    (course.root / "tests").unlink()  # a link to the checks as they are
    shutil.copytree(COURSE.checks / "data_parallel", course.checks / "data_parallel")
    write(course, SPLIT)
    assert command("check", "split")[0] == 0
    assert "1 of 7" in command("list")[1]
    check_file = course.check_file("data_parallel", "split")
    check_file.write_text(check_file.read_text() + "\n# one more case\n")
    out = command("list")[1]
    assert "0 of 7" in out
    assert f"○ split           {exercises.WORDS['unchecked']}: " in out


@pytest.mark.parametrize("binds", ["split = _own", "split: Callable = _own", "if 1: split = _own"])
def test_an_answer_may_be_bound_by_an_assignment(command, course, binds):
    own = SPLIT.replace("def split", "def _own")
    write(course, f"from collections.abc import Callable\n{own}\n\n{binds}\n")
    assert command("check", "split")[0] == 0
    assert "✓ split" in command("list")[1]
    assert Progress(course).state(Catalog(course).one("split")) == "pass"


def test_a_verdict_that_cannot_be_remembered_is_shown(command, course):
    write(course, SPLIT)
    (course.root / ".multigpu").write_text("not a folder")
    status, out = command("check", "split")
    assert status == 0
    assert "✓ data_parallel.split" in out
    assert "cannot be remembered" in out


def test_nor_an_update_of_what_compares(command, course, monkeypatch, tmp_path):
    package = shutil.copytree(Path(source.__file__).parent, tmp_path / "checking")
    monkeypatch.setattr(source, "__file__", str(package / "source.py"))
    source.digest_of_package.cache_clear()  # of this process
    write(course, SPLIT)
    assert command("check", "split")[0] == 0
    assert "1 of 7" in command("list")[1]
    (package / "comparing.py").write_text("# stricter\n")
    source.digest_of_package.cache_clear()
    assert "0 of 7" in command("list")[1]
    source.digest_of_package.cache_clear()


def test_what_is_saved_during_a_check_is_not_checked_yet(command, course, monkeypatch):
    def saves_meanwhile(*arguments, **named):
        verdicts = check_with(*arguments, **named)
        write(course, WRONG_SPLIT)
        return verdicts

    check_with = session.check_with
    monkeypatch.setattr(session, "check_with", saves_meanwhile)
    write(course, SPLIT)
    assert command("check", "split")[0] == 0
    assert f"○ split           {exercises.WORDS['unchecked']}: " in command("list")[1]


def test_next_shows_the_task_and_what_is_open_in_a_file(command, course):
    out = command("next")[1]
    task = Catalog(course).one("split").summary
    for text in ("split(batch, devices)", task, FILE, "multigpu check data_parallel.split"):
        assert text in out
    assert "multigpu start opens it" in out
    page = course.pages / "lessons" / "data_parallel_by_hand.html"
    page.parent.mkdir(parents=True)
    page.touch()
    assert f"../{page.relative_to(course.root)}" in command("next")[1]
    assert not {"``", "::"} & set(re.findall(r"``|::", out))
    shutil.copy(course.solutions / FILE, course.exercises / FILE)
    passed(course, "data_parallel.split")
    assert command("next")[1].startswith("data_parallel.replicate")
    assert command("next", "data_parallel")[1].startswith("data_parallel.replicate")
    passed(course, *(each.name for each in Catalog(course).exercises))
    code, out = command("next", "data_parallel")
    assert (code, out.count("\n")) == (0, 1)  # no task
    assert command("check") == (0, f"{check.ALL_DONE}\n")  # nothing is left to be checked
    (course.root / "notebooks").mkdir()
    assert "Run the notebooks again" in command("check")[1]


def passed(course, *names):
    """As if these had passed their checks."""
    progress = Progress(course)
    progress.note([Verdict(n, "pass", None, {}, 1, 1, 1.0) for n in names], progress.sources())


def test_a_whole_file_unwritten_is_a_line_each(command):
    out = command("check", "data_parallel")[1]
    assert out.count("not_started") == 7
    assert "where" not in out  # no explanations


def test_after_a_pass_the_same_file_goes_on(course):
    for module in ("collectives", "model_server"):
        shutil.copy(COURSE.solutions / f"{module}.py", course.solutions)
    verdict = Verdict("collectives.shift", "pass", None, {}, 5, 5, 1.0)
    (said,) = check.what_next(verdict, Progress(course))
    assert said.endswith("(multigpu next collectives.shift)")


def test_the_task_to_read_is_that_of_the_function_that_is_missing(course):
    for module in ("collectives", "model_server"):
        shutil.copy(COURSE.solutions / f"{module}.py", course.solutions)
    for name, unwritten, task in (
        ("model_server.worker_step", "server_step", "model_server.server_step"),
        ("collectives.all_reduce", "broadcast", "collectives.broadcast"),  # not data_parallel's
        ("data_parallel.split", "split", "data_parallel.split"),
        ("data_parallel.split", "_helper", "data_parallel.split"),
    ):
        words = "not_started"
        verdict = Verdict(name, words, words, {}, 0, 5, 1.0, unwritten=unwritten)
        assert check.not_begun(verdict, Progress(course)) == task


@pytest.mark.parametrize(
    ("message_id", "hint"),
    [("server_step.no_step", "server_step"), ("exception", "worker_step"), (None, "worker_step")],
)
def test_the_hint_is_that_of_the_function_at_fault(course, message_id, hint):
    shutil.copy(COURSE.solutions / "model_server.py", course.solutions)
    verdict = Verdict("model_server.worker_step", "wrong", message_id, {}, 0, 5, 1.0)
    assert check.at_fault(verdict, Progress(course)) == f"model_server.{hint}"


def test_hints_come_one_by_one_and_are_remembered(command):
    first = command("hint", "split")[1]
    second = command("hint", "split", "--more")[1]
    third = command("hint", "split", "--more")[1]
    everything = command("hint", "split")[1]
    shown = [re.findall(r"(\d) of 3", out) for out in (first, second, third, everything)]
    assert shown == [["1"], ["2"], ["3"], ["1", "2", "3"]]
    assert "--peek" in third
    assert command("hint", "split", "--more")[1] == third  # there is no fourth


def test_a_command_keeps_what_another_one_notes_meanwhile(command, course):
    watching = Progress(course)
    split = watching.catalog.one("split")
    assert watching.hints_shown(split) == 0
    command("hint", "split")
    watching.note([Verdict(split.name, "pass", None, {}, 1, 1, 0.1)], watching.sources())
    for progress in (watching, Progress(course)):
        assert progress.hints_shown(split) == 1
        assert progress.status(split) == "pass"


def test_commands_may_note_something_at_the_same_time(course):
    exercises = Catalog(course).exercises[:3]

    def note(exercise):
        for number in range(60):
            Progress(course).note_hints(exercise, number)

    with ThreadPoolExecutor() as pool:
        list(pool.map(note, exercises))  # raises what a thread raises
    assert [Progress(course).hints_shown(each) for each in exercises] == [59] * 3


@pytest.mark.parametrize("lock", ["held", "impossible"])
def test_a_lock_that_cannot_be_taken_does_not_keep_a_verdict_back(course, monkeypatch, lock):
    monkeypatch.setattr("multigpu.checking.progress.WAIT", 0.1)
    path = course.state / "progress.lock"
    path.parent.mkdir()
    if lock == "impossible":  # as on a drive that has no locks
        path.mkdir()
    with FileLock(path) if lock == "held" else contextlib.nullcontext():
        passed(course, "data_parallel.split")
    assert Progress(course).status(Catalog(course).one("split")) == "pass"


def test_the_solution_is_shown_after_a_pass_or_a_peek(command, course):
    code, out = command("solution", "split")
    assert code == 1
    assert "multigpu check data_parallel.split" in out
    assert "rows_per_chunk" not in out
    assert "rows_per_chunk" in command("solution", "split", "--peek")[1]
    write(course, SPLIT)
    command("check", "split")
    code, out = command("solution", "split")
    assert code == 0
    assert "rows_per_chunk" in out


def test_the_solution_is_shown_with_what_it_uses_and_without_the_task():
    code = code_of(SOLVED, "Bucketed")
    assert code == SHOWN
    assert code_of(SOLVED, "other").startswith("def other(x):\n    return Bucketed(x)")


SOLVED = '''
import torch

LIMIT = 3

def other(x):
    """Task."""
    return Bucketed(x)

class Bucketed(torch.nn.Module):
    """The task.

    Long.
    """

    def __init__(self, x):
        """Take x."""
        self.size = _size(x)

    def _put(self): ...

@torch.no_grad()
def _size(x):
    """How many, up to the limit."""
    return min(len(x), LIMIT)

def _unused(): ...
'''
SHOWN = '''
LIMIT = 3


class Bucketed(torch.nn.Module):
    def __init__(self, x):
        """Take x."""
        self.size = _size(x)

    def _put(self): ...


@torch.no_grad()
def _size(x):
    """How many, up to the limit."""
    return min(len(x), LIMIT)
'''.strip()


def test_reset_asks_first_keeps_a_copy_and_leaves_the_others(command, course, monkeypatch):
    path = course.exercises / FILE
    starter = path.read_text()
    mine = starter.replace("    raise NotImplementedError", "    return None")
    path.write_text(mine)
    monkeypatch.setattr("builtins.input", lambda question: "")
    assert command("reset", "gather")[0] == 1
    assert path.read_text() == mine
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert command("reset", "gather")[0] == 0
    assert [kept.read_text() for kept in (course.state / "kept").glob("*.py")] == [mine]
    written = {name: is_written(node) for name, node in definitions(path.read_text()).items()}
    assert [name for name, is_mine in written.items() if not is_mine] == ["gather"]
    assert command("reset", "data_parallel", "--yes")[0] == 0
    assert path.read_text() == starter


def test_reset_of_a_file_that_cannot_be_read_says_what_to_do(command, course):
    path = course.exercises / FILE
    for text, words in ((b"def split(:\n", "line 1"), (b"\n\n# caf\xe9\n", "utf-8")):
        path.write_bytes(text)
        code, out = command("reset", "split", "--yes")
        assert (code, out.count("\n")) == (1, 1)
        assert words in out
        assert "multigpu reset data_parallel" in out
    assert command("reset", "data_parallel", "--yes")[0] == 0


def test_watch_checks_again_after_a_save_and_ends_with_ctrl_c(course, command, monkeypatch):
    saves, wait_for_change = iter([SPLIT, None]), check.wait_for_change

    def wait(folder, seen):
        source = next(saves)
        if source is None:
            raise KeyboardInterrupt
        write(course, source)
        wait_for_change(folder, seen)

    monkeypatch.setattr(check, "wait_for_change", wait)
    code, out = command("watch", "split")
    assert code == 130
    assert out.index("split  not_started") < out.index("split  pass") < out.index("stopped")


def test_the_installed_command_needs_neither_torch_nor_pytest_to_start(tmp_path):
    code = (
        "import sys; from multigpu.cli import main; main(['list']);"
        "assert not {'torch', 'pytest', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=COURSE.root, capture_output=True)


@pytest.mark.slow
def test_a_learner_s_own_files_and_settings_do_not_disturb_the_judge(course):
    """One true run from outside, where modules and settings lie about that would break pytest."""
    write(course, SPLIT)
    for name in ("torch", "random", "pytest", "ast"):
        (course.exercises / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    wrong = dict.fromkeys(("PYTEST_ADDOPTS", "PYTEST_PLUGINS"), "nothing_of_this_name --nonsense")
    done = subprocess.run(
        [sys.executable, "-m", "multigpu", "check", "split", "--json"],
        env=os.environ | wrong,
        cwd=course.exercises,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["status"] == "pass"


def test_text_that_a_terminal_cannot_show_is_spelled_out(command, course):
    write(
        course,
        "def split(batch, devices):\n    print('\\x1b[2Jclear')\n    raise ValueError('\\ud800')\n",
    )
    code, printed = command("check", "split")
    assert code == 1
    assert "ValueError: \\ud800" in printed
    assert "\\x1b[2Jclear" in printed
    assert "\x1b" not in printed
    printed.encode("utf-8")


@pytest.mark.slow
def test_broken_code_to_mend_is_checked_and_shown_as_it_is(command, course):
    (course.solutions / "broken").mkdir()
    for folder in (course.solutions, course.solutions / "broken"):
        shutil.copy(COURSE.solutions / folder.relative_to(course.solutions) / "hangs.py", folder)
    assert command("reset", "hangs", "--yes")[0] == 0
    words = exercises.WORDS
    assert "    rank_zero_metric     Return" in command("list")[1]
    code, out = command("check", "rank_zero_metric")
    assert (code, "rank_zero_metric  hang" in out) == (1, True)
    assert f"✗ rank_zero_metric     {words['failed']}: " in command("list")[1]
    shutil.copy(course.solutions / "hangs.py", course.exercises)
    assert f"rank_zero_metric     {words['unchecked']}: " in command("list")[1]
    assert command("check", "rank_zero_metric")[0] == 0
    assert f"✓ rank_zero_metric     {words['pass']}: " in command("list")[1]
    assert command("reset", "rank_zero_metric", "--yes")[0] == 0
    assert "    rank_zero_metric     Return" in command("list")[1]
