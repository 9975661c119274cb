"""Which Python makes ``.venv``: tools/python.sh among interpreters of every age."""

import re
import subprocess
import sys
from pathlib import Path

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


def test_the_everyday_python_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", (3, 12))
    fake_python(tmp_path, "python3.14", (3, 14))
    assert run_python_sh(tmp_path).stdout == "python3 program word\n"


def test_an_old_everyday_python_is_passed_over_and_so_is_a_broken_name(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", (3, 9))
    fake_python(tmp_path, "python3.13", (3, 13), works=False)
    fake_python(tmp_path, "python3.11", (3, 11))
    assert run_python_sh(tmp_path).stdout == "python3.11 program word\n"


def test_only_old_pythons_end_in_one_line_and_exit_code_2(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", (3, 9))
    ended = run_python_sh(tmp_path)
    assert ended.returncode == 2
    assert re.search(r"3\.11\b.*\bpython3\b.*3\.9\.0", ended.stderr)
    assert ended.stderr.count("\n") == 1


def test_the_readers_choice_goes_before_everything_and_is_checked(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", (3, 12))
    fake_python(tmp_path, "mine", (3, 13))
    fake_python(tmp_path, "old", (3, 10))
    assert run_python_sh(tmp_path, PYTHON="mine").stdout == "mine program word\n"


def test_a_reader_who_chooses_an_old_python_is_told_its_version(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", (3, 12))
    fake_python(tmp_path, "old", (3, 10))
    ended = run_python_sh(tmp_path, PYTHON="old")
    assert ended.returncode == 2
    assert re.search(r"\bold\b.*3\.10\.0", ended.stderr)
