"""What the pages tell people to type works: every command is run once, in a fresh clone.

Those that a page marks (``blocks.py`` says how) are only read.
"""

import re
from pathlib import Path

import pytest
import yaml

from .blocks import commands_in, inline_in, inserts_in, text_of
from .reading import Unreadable, read
from .running import ROOT, fresh_clone, handed_out, insert, run_all

DOCS = [
    path
    for path in sorted((ROOT / "docs").rglob("*"))
    if path.suffix in (".rst", ".inc") and not path.relative_to(ROOT).parts[1].startswith("_")
]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *DOCS,
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
OURS = re.compile(r"(multigpu|torchrun|make|pytest) [\w-]")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


COMMANDS = {page: commands_in(text_of(page), name_of(page)) for page in PAGES}


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """The course as git hands it out."""
    return handed_out(tmp_path_factory.mktemp("course"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS[page]], ids=name_of)
def test_every_command_of_a_page_works(page, course, tmp_path):
    to_run = [command for command in COMMANDS[page] if command.kind is None]
    for command in COMMANDS[page]:
        if command not in to_run:
            read(command.text)
    if not to_run:
        return
    clone = fresh_clone(course, tmp_path / "multigpu")
    for piece in inserts_in(text_of(page), name_of(page)):
        insert(piece, clone)
    run_all(to_run, clone)


def test_every_command_in_a_sentence_has_options_that_exist():
    wrong = []
    for page in PAGES:
        for command in inline_in(text_of(page)):
            try:
                read(command)
            except Unreadable as problem:
                wrong.append(f"{name_of(page)}: {problem}")
    assert wrong == []


def test_the_workflow_that_instructors_copy_has_commands_that_exist():
    page = ROOT / "docs" / "teaching.rst"
    pieces = inserts_in(text_of(page), name_of(page))
    (workflow,) = [yaml.safe_load(p.text) for p in pieces if p.path.endswith(".yml")]
    steps = workflow["jobs"]["check"]["steps"]
    typed = [step["run"] for step in steps if "run" in step]
    assert typed
    assert all(read(command) for command in typed)


@pytest.mark.parametrize("path", sorted((ROOT / "exercises").glob("*.py")), ids=name_of)
def test_the_commands_on_top_of_an_exercise_file_exist(path):
    typed = re.findall(r"^ {4}((?:multigpu|python) \S.*?)(?: {2,}.*)?$", path.read_text(), re.M)
    assert typed
    assert all(read(command) for command in typed)


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_no_command_stands_in_a_block_that_is_not_run(page):
    """One without a language, or with another, would escape the tests above."""
    known = {line for each in COMMANDS[page] for line in each.text.splitlines()}
    typed = {
        line.strip()
        for line in page.read_text().splitlines()
        if line.startswith("   ") and OURS.match(line.strip().removeprefix("$ "))
    }
    assert {line.removeprefix("$ ") for line in typed} - {line.strip() for line in known} == set()
