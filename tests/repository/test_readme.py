"""What README.md and CONTRIBUTING.md tell people to type and to open exists."""

import re
from pathlib import Path

import pytest

from multigpu.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")


def text(page: str) -> str:
    return (ROOT / page).read_text()


def code(page: str) -> str:
    """Everything that stands as code: between backticks or in a fenced block."""
    fenced = re.findall(r"```\n(.*?)```", text(page), re.S)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", text(page))])


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_and_every_command_exists(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make ([\w-]+)", code(page), re.M)) <= targets
    assert set(re.findall(r"^multigpu ([\w-]+)", code(page), re.M)) <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    named = re.findall(r"\]\(([\w./-]+)\)|src=\"([\w./-]+)\"", text(page))
    paths = {path for pair in named for path in pair if path}
    folders = "docs|exercises|notebooks|solutions|src|tests|tools"
    paths |= set(re.findall(rf"(?<![\w/.])(?:{folders})/[\w./-]*", code(page)))
    built = {"docs/_build/html", "notebooks/lessons/"}
    assert [path for path in sorted(paths - built) if not (ROOT / path).exists()] == []
    assert paths


def test_the_readme_tells_of_every_target_a_person_types() -> None:
    documented = set(re.findall(r"make ([\w-]+)", text("README.md")))
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    assert set(phony[1].split()) - {"help", "course", "tools", "lint-and-site"} <= documented
