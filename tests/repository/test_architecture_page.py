"""docs/reference/architecture.rst: the ways it lists lead through files that are there."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import package  # noqa: E402 (found through sys.path)

PAGE = (ROOT / "docs" / "reference" / "architecture.rst").read_text(encoding="utf-8")
WAYS = tomllib.loads((ROOT / "docs" / "reference" / "ways.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WAYS)
def test_every_station_names_files_that_exist(name: str) -> None:
    for station in WAYS[name]:
        missing = [file for file in station["files"] if not (ROOT / file).is_file()]
        assert not missing, f"{station['name']} names {missing}"


def test_the_page_has_every_layer_in_its_order() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    cli, *layers = settings["importlinter"]["contracts"][0]["layers"]  # the last comes first
    assert cli == "cli"  # the entry to commands
    assert re.findall(r"^\.\. _layer-(\w+):", PAGE, flags=re.MULTILINE) == layers[::-1]


def test_a_file_that_the_page_names_is_in_its_layer() -> None:
    parts = re.split(r"^\.\. _layer-(\w+):\n\n", PAGE, flags=re.MULTILINE)[1:]
    for layer, said in zip(parts[::2], parts[1::2], strict=True):
        for file in re.findall(r"``(\w+\.py)``", said.partition("\n\n")[0]):
            inside = ROOT / "src" / "multigpu" / layer / file
            assert inside.is_file() or file == "cli.py", f"{layer}: {file}"


def test_the_training_package_can_be_read_in_two_evenings() -> None:
    evenings = re.findall(r"^\.\. package-reading:: .+\n\n((?:   .+\n)+)", PAGE, flags=re.MULTILINE)
    assert len(evenings) == 2
    for listed in evenings:
        files = [package.PACKAGE / line.strip().partition(":")[0] for line in listed.splitlines()]
        assert package.minutes_of(files) <= 4 * 60


def test_functions_are_in_the_files_that_the_page_names() -> None:
    places = re.findall(r"``(\w+)`` in ``([\w/]+\.py)``", PAGE)
    assert places
    for function, file in places:
        text = (ROOT / "src" / "multigpu" / file).read_text(encoding="utf-8")
        assert re.search(rf"\bdef {function}\(", text), f"{file}: {function}"
