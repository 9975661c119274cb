"""Is ``.venv`` as it should be? What was installed is kept in a stamp inside it."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

PROBE = """
import importlib.metadata as packages, importlib.util, json, sys
print(json.dumps({
    "missing": [name for name in sys.argv[1:] if not list(packages.distributions(name=name))],
    "package": importlib.util.find_spec("multigpu").origin,
}))
"""


def key(root: Path) -> str:
    """A hash of what decides which packages belong in ``.venv``; settings of tools do not."""
    metadata = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = json.dumps([metadata["project"], metadata["build-system"]], sort_keys=True)
    return hashlib.sha256(f"{wanted}{(root / 'constraints.txt').read_text()}".encode()).hexdigest()


def pinned(root: Path, package: str) -> str:
    """The version of ``package`` in constraints.txt."""
    for line in (root / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition(";")[0].partition("==")
        if name.strip() == package:
            return version.strip()
    raise LookupError(f"constraints.txt does not pin {package}")


class Venv(Enum):
    """What ``.venv`` is."""

    USABLE = "has a Python and pip, of this repository as far as one can see"
    UNFINISHED = "missing, or making it was interrupted"
    WORN_OUT = "lost its Python, was made elsewhere or with another Python: to be emptied"
    FOREIGN = "made by somebody else with another Python: theirs to keep"


def look(root: Path) -> Venv:
    """What the ``.venv`` of the repository ``root`` is, for the Python that runs this program."""
    venv = root / ".venv"
    if not venv.exists():
        return Venv.UNFINISHED
    stamp = _read_stamp(root)
    version = _run(root, "import sys; print(*sys.version_info[:2])")
    if version is None or stamp.get("root", str(root)) != str(root):
        return Venv.WORN_OUT
    if version.split() != [str(part) for part in sys.version_info[:2]]:
        return Venv.WORN_OUT if stamp else Venv.FOREIGN
    return Venv.UNFINISHED if _run(root, "import pip") is None else Venv.USABLE


def is_complete(root: Path, extras: Iterable[str]) -> bool:
    """Whether everything for ``extras`` was installed by today's files, and is still there."""
    stamp = _read_stamp(root)
    if stamp.get("key") != key(root) or not set(extras) <= set(stamp.get("extras", [])):
        return False
    answer = _run(root, PROBE, *_requirements(root, extras))
    if answer is None:
        return False
    found = json.loads(answer)
    return not found["missing"] and Path(found["package"]).is_relative_to(root)


def write_stamp(root: Path, extras: Sequence[str]) -> None:
    """Note that ``extras`` are installed; those of before stay so."""
    known = _read_stamp(root)
    before = known.get("extras", []) if known.get("key") == key(root) else []
    note = {"key": key(root), "root": str(root), "extras": sorted({*before, *extras})}
    _stamp(root).write_text(json.dumps(note))


def _requirements(root: Path, extras: Iterable[str]) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [re.split(r"[<>=!~;\[ ]", line)[0] for line in lines]


def _run(root: Path, code: str, *arguments: str) -> str | None:
    """What ``code`` prints when the Python of ``.venv`` runs it; ``None`` when that fails.

    It runs alone (-I): a PYTHONPATH could show packages that are not in ``.venv``.
    """
    command = [str(root / ".venv" / "bin" / "python"), "-I", "-c", code, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return ran.stdout if ran.returncode == 0 else None


def _stamp(root: Path) -> Path:
    return root / ".venv" / "multigpu-installed.json"


def _read_stamp(root: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_stamp(root).read_text()))
    except (OSError, ValueError):
        return {}
