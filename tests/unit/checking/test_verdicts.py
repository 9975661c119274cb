"""From checks to verdicts: what is counted, what stops, whose fault it is, and its words."""

import textwrap

import pytest

from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.running import perform_programs
from multigpu.checking.session import check_with
from multigpu.checking.verdicts import Verdict, exit_code
from multigpu.commands.showing import console, show_verdicts

HEAD = """
import pytest
from multigpu.checking.declaration import case, exercise

double = exercise("data_parallel.double", expects="twice the number")

@double.cases
def cases():
    for number in (1, 2, 3):
        yield case(f"the number {number}", gpus=number, number=number)

@double.arguments
def arguments(case, devices):
    return (case.number,)
"""
CHECKS = """
@double.expected
def expected(case):
    return 2 * case.number
"""
RIGHT = "def double(x):\n    return 2 * x\n"


@pytest.fixture
def check(server, tmp_path):
    """``check(source, checks)``: the verdict on a learner's text in a course of one exercise.

    Its cases are on 1, 2 and 3 GPUs, which makes three checks.
    """

    def check(source=RIGHT, checks=CHECKS, **options):
        course = Course(tmp_path)
        for folder in (course.solutions, course.checks / "data_parallel", course.exercises):
            folder.mkdir(parents=True, exist_ok=True)
        (course.solutions / "data_parallel.py").write_text(RIGHT)
        if source is not None:
            (course.exercises / "data_parallel.py").write_text(source)
        if checks is not None:
            text = HEAD + textwrap.dedent(checks)
            course.check_file("data_parallel", "double").write_text(text)
        exercises = Catalog(course).exercises
        (verdict,) = check_with(server, exercises, course, submission=course.exercises, **options)
        return verdict

    return check


def test_a_right_answer_passes_all_checks(check):
    verdict = check()
    assert verdict.seconds > 0
    assert verdict == Verdict("data_parallel.double", "pass", None, {}, 3, 3, verdict.seconds)


NOTES = """
@double.expected
def expected(case):
    return 2 * case.number

@double.remark
def remark(run, case):
    return f"{case.number} is enough"
"""


def test_a_pass_may_carry_a_remark_and_only_the_first_one_is_told(check, capsys):
    verdict = check(checks=NOTES)
    assert (verdict.status, verdict.message_id) == ("pass", None)
    assert verdict.message == "note: 1 is enough"
    show_verdicts([verdict], console())
    shown = capsys.readouterr().out
    assert "1 is enough" in shown
    assert "message" not in shown


def test_a_learners_own_words_are_not_taken_for_a_label(check, capsys):
    verdict = check("def double(x):\n    raise ValueError('bad\\nexpected: 3')\n")
    assert "came: ValueError: bad\nexpected: 3\n" in verdict.message
    show_verdicts([verdict], console())
    assert "\n            expected: 3\n" in capsys.readouterr().out


def test_after_a_wrong_answer_the_other_checks_still_count(check):
    verdict = check("def double(x):\n    print('hm')\n    return x * x\n")
    assert (verdict.status, verdict.message_id) == ("wrong", "wrong_value")
    assert (verdict.passed, verdict.total) == (1, 3)  # 2 * 2 is 2 ** 2
    expected, came, where = verdict.message.splitlines()
    assert expected.startswith("expected: ")
    assert "1" in came
    assert where == "where: data_parallel.py:3"


SQUARED = """
@double.mistake("squared", "it is squared.", fix="Add.")
def squares(x):
    return x * x
"""


def test_only_the_check_that_is_shown_is_explained(check, monkeypatch):
    runs = []

    def counting(*given):
        runs.append(given)
        return perform_programs(*given)

    monkeypatch.setattr("multigpu.checking.judging.perform_programs", counting)
    verdict = check("def double(x):\n    return x * x\n", CHECKS + SQUARED)
    assert (verdict.message_id, verdict.passed) == ("double.squared", 1)
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def double(x):\n    if x > 1: raise ValueError\n    return 2 * x\n", "crash"),
        # a check has passed, so the function was started
        ("def double(x):\n    if x > 1: raise NotImplementedError\n    return 2\n", "crash"),
    ],
)
def test_anything_else_ends_the_exercise(check, source, status):
    verdict = check(source)
    assert (verdict.status, verdict.passed, verdict.total) == (status, 1, 3)


def test_what_was_printed_before_a_crash_is_kept(check):
    assert check("def double(x):\n    print('x is', x)\n    return 1 / 0\n").output == "x is 1\n"


HALVES = """
import torch
from multigpu.checking.declaration import on

double = exercise("data_parallel.double", expects="both halves", parts="half", fresh=True)

@double.cases
def cases():
    for number in (1, 2):
        yield case(f"the number {number}", gpus=1, rows=number * torch.arange(4.0))

@double.arguments
def arguments(case, devices):
    return (case.rows.to(devices[0]),)

@double.expected
def expected(case):
    return [on("cuda:0", half) for half in case.rows.chunk(2)]
"""
ONE_BUFFER = """
KEPT = []
def double(x):
    KEPT.extend([half.clone() for half in x.chunk(2)] if not KEPT else [])
    for kept, half in zip(KEPT, x.chunk(2)):
        kept.copy_(half)
    return KEPT
"""


@pytest.mark.parametrize(
    ("source", "message_id"),
    [
        ("def double(x):\n    return [half.clone() for half in x.chunk(2)]\n", None),
        ("def double(x):\n    return list(x.chunk(2))\n", "shares_memory"),
        (ONE_BUFFER, "result_overwritten"),
    ],
)
def test_the_entries_of_a_list_can_need_memory_of_their_own(check, source, message_id):
    assert check(source, HALVES).message_id == message_id


FAULTS = {
    "it stumbles": (
        """
        @double.expected
        def expected(case):
            return case.nothing
        """,
        "AttributeError",
    ),
    "it runs nothing": (
        """
        @double.cases
        def cases():
            return []
        """,
        "data_parallel.double",
    ),
    "it is skipped": (
        """
        @double.expected
        def expected(case):
            pytest.skip("not here")
        """,
        "data_parallel.double",
    ),
    "its arguments fail": (
        """
        @double.expected
        def expected(case):
            return 2 * case.number

        @double.arguments
        def arguments(case, devices):
            return 1 / 0
        """,
        "ZeroDivisionError",
    ),
    "it declares nothing": ("del double", "declares 0 exercises"),
    "a mistake breaks what is not declared": (
        """
        @double.holds("quick", "it is quick", "it waits", fix="Do not wait.")
        def quick(run, case):
            return None

        @double.breaks("quik")
        def waits(x):
            return 2 * x
        """,
        "waits breaks double.quik, which is not a property of data_parallel.double. It has"
        " double.quick.",
    ),
    "it cannot be imported": ("import nothing_of_this_name", "nothing_of_this_name"),
    "it names no exercise": (
        """
        double = exercise("data_parallel.treble", expects="three times the number")
        double.cases(cases)
        """,
        "data_parallel.treble",
    ),
    "its file is missing": (None, "data_parallel.double"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_check_is_not_the_learners(check, fault):
    checks, text = FAULTS[fault]
    verdict = check(checks=checks)
    assert (verdict.status, verdict.message_id) == ("checker_fault", "checker_fault")
    assert text in verdict.message
    assert exit_code([verdict]) == 3


def test_neither_is_a_fault_of_the_checker(check, monkeypatch):
    monkeypatch.setattr("multigpu.checking.session.Learner", None)
    verdict = check()
    assert (verdict.status, verdict.message_id) == ("checker_fault", "checker_fault")
    assert "Traceback" in verdict.message


def test_an_object_that_is_equal_to_everything_never_passes(check):
    verdict = check("class Odd:\n    __eq__ = lambda s, o: True\ndouble = lambda x: Odd()\n")
    assert verdict.status == "wrong"


@pytest.mark.slow
def test_pytest_itself_gives_the_same_verdict(check, pytester, tmp_path):
    check()
    (tmp_path / "exercises" / "data_parallel.py").write_text("def double(x):\n    return x\n")
    options = ("-p", "multigpu.checking.plugin", "--import-mode=importlib", "--rootdir", tmp_path)
    arguments = (*options, "--submission", tmp_path / "exercises", tmp_path / "tests")
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["came: *", "data_parallel.double * wrong * 0/3 * wrong_value"])
    result = pytester.runpytest_inprocess(*options, tmp_path / "tests")  # the solutions
    assert result.ret == 0
    result.stdout.fnmatch_lines(["data_parallel.double * pass * 3/3"])


def test_pytest_says_what_is_wrong_with_the_settings_of_a_course(pytester, tmp_path):
    course = Course(tmp_path)
    for folder in (course.solutions, course.checks / "data_parallel"):
        folder.mkdir(parents=True)
    course.check_file("data_parallel", "double").write_text(HEAD)
    course.settings.write_text("[sorting\n")
    options = ("-p", "multigpu.checking.plugin", "--rootdir", tmp_path)
    result = pytester.runpytest_inprocess(*options, tmp_path / "tests")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"{course.settings} is not TOML: *line 1*"])


def verdict(status):
    return Verdict("data_parallel.double", status, None, {}, 0, 1, 0.0)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "wrong"], 1),
        (["hang"], 1),
        (["not_started", "checker_fault"], 3),
    ],
)
def test_exit_codes(statuses, code):
    assert exit_code([verdict(status) for status in statuses]) == code
