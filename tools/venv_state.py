"""Is ``.venv`` as it should be? What was installed is kept in a stamp inside it."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
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


def must_be_made(root: Path) -> bool:
    """Whether ``.venv`` is missing, cannot run, or was made where the repository no longer is."""
    python = root / ".venv" / "bin" / "python"
    if not _runs(python):
        return True
    made_at = _read_stamp(root).get("root", str(root))
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
    )
    return made_at != str(root) or version.stdout.split() != [str(n) for n in sys.version_info[:2]]


def is_complete(root: Path, extras: Iterable[str]) -> bool:
    """Whether everything for ``extras`` was installed by today's files, and is still there."""
    stamp = _read_stamp(root)
    if stamp.get("key") != key(root) or not set(extras) <= set(stamp.get("extras", [])):
        return False
    probe = subprocess.run(
        [root / ".venv" / "bin" / "python", "-c", PROBE, *_requirements(root, extras)],
        capture_output=True,
        text=True,
    )
    if probe.returncode != 0:
        return False
    found = json.loads(probe.stdout)
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


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0
    except OSError:
        return False


def _stamp(root: Path) -> Path:
    return root / ".venv" / "multigpu-installed.json"


def _read_stamp(root: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_stamp(root).read_text()))
    except (OSError, ValueError):
        return {}
