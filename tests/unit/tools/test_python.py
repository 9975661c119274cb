"""Which Python makes ``.venv``: tools/python.sh among interpreters of every age."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def fake_python(folder: Path, name: str, version: tuple[int, int], *, works: bool = True) -> None:
    """A program that answers as Python ``version`` would, and otherwise says its name."""
    older = f"import sys; sys.version_info = {version}; " if works else "sys.exit(1)"
    script = f"""#!/bin/sh
case "$1" in
    -c) exec {sys.executable} -c "{older}$2" ;;
    --version) echo "Python {version[0]}.{version[1]}.0" ;;
    *) echo "{name} $*" ;;
esac
"""
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)


def run_python_sh(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ROOT / "tools" / "python.sh", "program", "word"],
        cwd=folder,
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )


FOUND = {  # the programs that there are, by version; the reader's choice; what runs
    "the everyday one": ({"python3": (3, 12), "python3.14": (3, 14)}, "", "python3"),
    "newer than the everyday one": ({"python3": (3, 9), "python3.11": (3, 11)}, "", "python3.11"),
    "the reader's choice": ({"python3": (3, 12), "mine": (3, 13)}, "mine", "mine"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_first_that_is_new_enough_is_taken(name: str, tmp_path: Path) -> None:
    programs, choice, taken = FOUND[name]
    for program, version in programs.items():
        fake_python(tmp_path, program, version)
    fake_python(tmp_path, "python3.13", (3, 13), works=False)
    assert run_python_sh(tmp_path, PYTHON=choice).stdout == f"{taken} program word\n"


@pytest.mark.parametrize(("choice", "named"), [("", "python3"), ("old", "old")])
def test_an_old_python_is_told_its_version(choice: str, named: str, tmp_path: Path) -> None:
    fake_python(tmp_path, named, (3, 9))
    ended = run_python_sh(tmp_path, PYTHON=choice)
    assert ended.returncode == 2
    assert re.search(rf"3\.11\b.*\b{named}\b.*3\.9\.0", ended.stderr)
    assert ended.stderr.count("\n") == 1
