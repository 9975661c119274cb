"""A course of somebody's own: solutions and declarations in a folder, and all commands take it."""

import contextlib
import re

import pytest

from multigpu.checking.worker import forbidden_code
from multigpu.cli import main
from multigpu.commands import author as author_command
from multigpu.commands import check as check_command

SOLUTION = '''"""Numbers over ranks."""

import torch
import torch.distributed as dist
from torch import Tensor


def largest(tensor: Tensor) -> Tensor:
    """Give every rank the largest number that any rank holds."""
    found = tensor.max()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found
'''
DECLARATION = '''"""``numbers.largest``."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case, exercise

largest = exercise("ranks_of_numbers.largest", expects="the largest number of all ranks")


@largest.cases
def cases():
    for world in (2, 3, 1):
        yield case(f"{world} ranks", world=world)


@largest.arguments
def arguments(case, rank):
    return (torch.tensor([1.0, 10.0 * rank, 2.0]),)


@largest.expected
def expected(case):
    return [torch.tensor(max(2.0, 10.0 * (case.world - 1)))] * case.world


@largest.right
def with_gather(tensor):
    everyone = [torch.empty(()) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor.max())
    return torch.stack(everyone).max()


@largest.mistake("own", "rank {n} - 1 alone has it.", fix="Compare with the others.")
def keeps_its_own(tensor):
    return tensor.max()


@largest.mistake(
    "waits_alone", "rank 0 receives what nobody sends.", fix="Send first.", status="hang"
)
def receives_from_nobody(tensor):
    if dist.get_world_size() > 1:
        dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    return tensor.max()
'''
NO_MISTAKE = """
@largest.mistake("x", "y", fix="z")
def solved(tensor):
    found = tensor.max()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found
"""
REFUSED = '[ranks_of_numbers]\nrefused = ["torch.distributed.nn"]\n'


@pytest.fixture
def course(tmp_path, monkeypatch, server):
    """One exercise in a folder of its own; the commands work in the warm server."""
    folder = tmp_path / "my_course"
    (folder / "tests" / "exercises" / "ranks_of_numbers").mkdir(parents=True)
    (folder / "solutions").mkdir()
    (folder / "solutions" / "ranks_of_numbers.py").write_text(SOLUTION)
    declaration = folder / "tests" / "exercises" / "ranks_of_numbers" / "largest.py"
    declaration.write_text(DECLARATION)
    monkeypatch.chdir(tmp_path)
    for command in (author_command, check_command):
        monkeypatch.setattr(command, "WarmServer", lambda: contextlib.nullcontext(server))
    assert main(["author", "starter", "ranks_of_numbers", "--course", str(folder)]) == 0
    return folder


def check(course, capsys):
    capsys.readouterr()
    code = main(["check", "largest", "--course", str(course)])
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_the_declaration_is_tried_whole(course, capsys):
    path = course / "tests" / "exercises" / "ranks_of_numbers" / "largest.py"
    path.write_text(f"{DECLARATION}\n\n{NO_MISTAKE}")
    assert main(["author", "check", "largest", "--course", str(course)]) == 1
    out = capsys.readouterr().out
    assert "must be largest.x" in out
    for line in (
        "the starter .* not_started",
        "keeps_its_own .* largest.own",
        "largest.waits_alone",
    ):
        assert re.search(line, out)
    assert "no mistake shows in these cases:\n  1 ranks" in out
    assert "largest.own: rank 2 - 1 alone has it. Compare with the others." in out


def test_one_program_is_tried_alone_and_shown_as_to_a_learner(course, capsys):
    only = ["author", "check", "largest", "--course", str(course), "--only"]
    assert main([*only, "keeps_its_own"]) == 0
    out = capsys.readouterr().out
    assert "waits_alone" not in out
    assert re.search(r"✗ ranks_of_numbers\.largest +wrong +1 of 3 checks passed", out)
    assert re.search(r"usually +rank 2 - 1 alone has it\. Compare with the others\.", out)
    assert main([*only, "keeps_all"]) == 2
    assert "keeps_its_own, receives_from_nobody" in capsys.readouterr().out


def test_a_declaration_that_is_not_there_yet_is_named(course, capsys):
    path = course / "tests" / "exercises" / "ranks_of_numbers" / "largest.py"
    path.unlink()
    assert main(["author", "check", "largest", "--course", str(course)]) == 2
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("declaration", "cause"),
    [
        (None, "has no declaration: there is no {path}"),
        ("import torch", "{path} declares 0 exercises"),
        ("import torch\nimport nothing", '"{path}", line 2, in <module>'),
        ("import torch\ndef largest(:", '"{path}", line 2\n'),
    ],
)
def test_a_broken_declaration_is_named_to_author_and_learner(course, capsys, declaration, cause):
    path = course / "tests" / "exercises" / "ranks_of_numbers" / "largest.py"
    path.unlink() if declaration is None else path.write_text(declaration)
    code, learner = check(course, capsys)
    assert code == 3
    assert main(["author", "check", "largest", "--course", str(course)]) == 2
    author = capsys.readouterr().out
    for told in (learner, author):
        assert cause.format(path=path) in told
        assert "importlib" not in told
    assert "multigpu author check ranks_of_numbers.largest --course my_course" in learner


def test_a_learner_s_way_through_it(course, capsys):
    starter = course / "exercises" / "ranks_of_numbers.py"
    assert "not_started" in check(course, capsys)[1]
    text = starter.read_text()
    starter.write_text(text.replace("raise NotImplementedError", "return tensor.max()"))
    code, out = check(course, capsys)
    assert code == 1
    assert "largest.own" in out
    assert "rank 2 - 1 alone has it." in out
    assert main(["author", "starter", "ranks_of_numbers", "--course", str(course)]) == 2  # written
    declaration = course / "tests" / "exercises" / "ranks_of_numbers" / "largest.py"
    declaration.write_text(DECLARATION.replace("Compare with", "Ask"))
    assert "Ask the others." in check(course, capsys)[1]  # read again
    starter.write_text(SOLUTION)
    assert check(course, capsys)[0] == 0


def test_every_command_about_exercises_takes_it_and_says_so(course, capsys):
    where = "ranks_of_numbers.largest --course my_course"
    assert f"multigpu next {where}" in check(course, capsys)[1]
    (course / "exercises" / "hints").mkdir()
    hints = course / "exercises" / "hints" / "ranks_of_numbers.toml"
    hints.write_text('[largest]\nhints = ["Ask.", "Ask again."]\n')
    for command, shown in {
        "next": f"multigpu hint {where}",
        "hint": "multigpu hint ranks_of_numbers.largest --more --course my_course",
        "solution": f"multigpu check {where}",
        "list": "0 of 1 done",
    }.items():
        names = [] if command == "list" else ["largest"]
        main([command, *names, "--course", "my_course"])
        assert shown in capsys.readouterr().out
    assert main(["reset", "largst", "--yes", "--course", "my_course"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert main(["reset", "largest", "--yes", "--course", "my_course"]) == 0


@pytest.mark.parametrize("text", [None, "x = 1\n"])
def test_a_starter_that_is_gone_is_restored_from_anywhere(course, capsys, text):
    file = course / "exercises" / "ranks_of_numbers.py"
    file.unlink() if text is None else file.write_text(text)
    reset = "multigpu reset ranks_of_numbers.largest --course my_course"
    assert reset in check(course, capsys)[1]
    assert main([*reset.split()[1:], "--yes"]) == 0
    assert "not_started" in check(course, capsys)[1]
    file.unlink() if text is None else file.write_text(text)
    handed_in = ["--course", str(course), "--submission", str(course / "solutions" / "nobody")]
    (course / "solutions" / "nobody").mkdir()
    assert main(["check", "largest", *handed_in]) == 1
    assert "multigpu reset" not in capsys.readouterr().out  # it would change the learner's own file


def test_hints_that_are_not_toml_are_named(course, capsys):
    hints = course / "exercises" / "hints" / "ranks_of_numbers.toml"
    hints.parent.mkdir()
    hints.write_text("[largest]\nhints = [Ask.]\n")
    assert main(["hint", "largest", "--course", str(course)]) == 2
    assert re.search(rf"{hints} is not TOML: .*line 2", capsys.readouterr().err)


@pytest.mark.parametrize("folder", ["nowhere", "my_course/exercises"])
def test_a_folder_that_is_no_course_is_not_taken_for_the_one_around_it(course, capsys, folder):
    assert main(["list", "--course", folder]) == 2
    assert f"--course {folder}" in capsys.readouterr().err


def test_a_module_s_name_resets_a_file_with_one_exercise_that_cannot_be_read(course, capsys):
    (course / "exercises" / "ranks_of_numbers.py").write_text("def largest(\n")
    assert main(["reset", "largest", "--yes", "--course", str(course)]) == 1
    assert main(["reset", "ranks_of_numbers", "--yes", "--course", str(course)]) == 0


def test_settings_that_are_not_toml_are_named(course, capsys):
    (course / "course.toml").write_text("[sorting")
    assert main(["list", "--course", str(course)]) == 2
    assert "course.toml is not TOML" in capsys.readouterr().err


def test_a_table_that_is_not_of_a_chapter_is_named(course, capsys):
    (course / "course.toml").write_text(REFUSED.replace("ranks_of_numbers", "rank_of_numbers"))
    assert main(["author", "check", "largest", "--course", str(course)]) == 2
    assert "course.toml: [rank_of_numbers] is not a chapter" in capsys.readouterr().out


def test_its_own_folder_needs_no_option(course, capsys, monkeypatch):
    monkeypatch.chdir(course / "solutions")
    assert main(["next"]) == 0
    assert "--course" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["torch.distributed.all_reduce", "torch.nn.paralel", "torh.nn"])
def test_a_refused_name_that_is_not_a_module_is_refused_itself(course, capsys, name):
    (course / "course.toml").write_text(REFUSED.replace("torch.distributed.nn", name))
    assert main(["author", "check", "largest", "--course", str(course)]) == 2
    assert f"course.toml: [ranks_of_numbers] refuses {name}," in capsys.readouterr().out


@pytest.mark.parametrize("name", ["os", "torch", "torch.amp.grad_scaler", "torch.nn.parallel"])
def test_a_module_of_any_kind_can_be_refused(name):
    assert forbidden_code([name])


@pytest.mark.slow
def test_a_chapter_says_what_it_refuses(course, capsys):
    (course / "course.toml").write_text(REFUSED)
    ready_made = "from torch.distributed.nn.functional import all_reduce"
    call = "return all_reduce(tensor.max(), op=dist.ReduceOp.MAX)"
    text = SOLUTION.replace("found = tensor.max()", call)
    (course / "exercises" / "ranks_of_numbers.py").write_text(f"{text}\n\n{ready_made}\n")
    assert "refused_name" in check(course, capsys)[1]
