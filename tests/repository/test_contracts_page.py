"""The contracts page says what the code keeps: names, parameters, rooms, columns of the runs."""

import ast
import csv
import re
from datetime import date
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog, Course, Exercise, Signature
from multigpu.checking.verdicts import Verdict
from multigpu.cli import COMMANDS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
EXERCISES = Catalog(Course(ROOT)).exercises


def chapter_of(module: str) -> str:
    """The section of the contracts that bears the module's name."""
    page = (REFERENCE / "contracts_exercises.inc").read_text()
    return re.split(r"\n\w+\n~+\n", page.partition(f"\n{module}\n~~~")[2])[0]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_parameters_of_an_exercise_are_those_of_its_contract(exercise: Exercise) -> None:
    written = re.search(
        rf"^``{exercise.function}\((.*?)\)(?:``| -> )", chapter_of(exercise.chapter.module), re.M
    )
    assert written, f"no contract for {exercise.name}"
    promised = ast.parse(f"def f({written[1]}): ...").body[0]
    assert isinstance(promised, ast.FunctionDef)
    assert Signature.of(promised).positional == exercise.signature.positional
    assert Signature.of(promised).keyword_only == exercise.signature.keyword_only


def test_a_module_with_exercises_exists_for_the_contracts() -> None:
    for module in {exercise.chapter.module for exercise in EXERCISES}:
        assert "**Exists.**" in chapter_of(module)


def test_the_page_names_every_room_and_nothing_else_as_existing() -> None:
    table = (REFERENCE / "contracts.rst").read_text().partition("_contract-layers:")[2]
    rooms = re.findall(r"^``(\w+)`` +(exists|planned)", table, re.MULTILINE)
    package = ROOT / "src" / "multigpu"
    there = {p.stem for p in package.iterdir() if (p / "__init__.py").is_file() or p.stem == "cli"}
    assert {name for name, state in rooms if state == "exists"} == there - {"commands"}


def test_the_fields_of_json_are_those_of_the_contract() -> None:
    page = " ".join((REFERENCE / "contracts.rst").read_text().split())
    fields = page.partition("Each item has ")[2].partition(". *")[0]
    record = Verdict("data_parallel.split", "pass", None, {}, 1, 1, 0.5).record()
    assert re.findall(r"``(\w+)``", fields) == list(record)


def test_troubleshooting_names_only_commands_that_are_there() -> None:
    pages = [ROOT / "docs" / "troubleshooting.rst", *(ROOT / "docs" / "messages").glob("*.inc")]
    named = {n for page in pages for n in re.findall(r"``multigpu (\w+)", page.read_text())}
    assert named
    assert named <= set(COMMANDS)


def test_every_run_on_the_hardware_page_is_complete_and_newest_come_first() -> None:
    with (REFERENCE / "hardware.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert all(len(run) == 6 and all(run.values()) for run in runs)
    days = [date.fromisoformat(run["Date"]) for run in runs]
    assert days == sorted(days, reverse=True)
