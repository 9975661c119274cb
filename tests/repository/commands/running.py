"""Runs the commands of a page in a fresh clone of the course, one after the other in one shell."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .blocks import Command, Insert

ROOT = Path(__file__).parents[3]
PERSON = {f"GIT_{r}_{w}": "reader" for r in ("AUTHOR", "COMMITTER") for w in ("NAME", "EMAIL")}
SIGN = "\x1e"  # no command prints it
OF_THIS_RUN = ("PYTEST_", "PYTHONPATH", "VIRTUAL_ENV", "MAKE", "MFLAGS", "GIT_")


class Failed(Exception):
    """A command did not end as its page says."""


def handed_out(folder: Path) -> Path:
    """A repository with the course as it is here now, without what git ignores."""
    here = (f"--git-dir={folder}/.git", f"--work-tree={ROOT}")
    git("init", "-q", "--initial-branch=main", str(folder))
    git(*here, "add", "--all", "--", ".")
    git(*here, "commit", "-q", "--message=The course")
    return folder


def fresh_clone(source: Path, folder: Path) -> Path:
    """What somebody has who has just cloned the course, with the environment of these tests."""
    git("clone", "-q", "--shared", str(source), str(folder))
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def git(*arguments: str) -> None:
    """Run git as a person who has a name."""
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, env=os.environ | PERSON)


def environment(clone: Path) -> dict[str, str]:
    """As in a terminal where the environment of these tests is active, with the clone's code."""
    own = {name: v for name, v in os.environ.items() if not name.startswith(OF_THIS_RUN)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return own | PERSON | {"PATH": path, "PYTHONPATH": str(clone / "src"), "NO_COLOR": "1"}


def insert(piece: Insert, clone: Path) -> None:
    """Write what a page tells its reader to write into a file."""
    path = clone / piece.path
    if piece.new:
        assert not path.exists(), f"{piece.place}: {piece.path} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(piece.text, encoding="utf-8")
        return
    before, after = path.read_text(encoding="utf-8"), "\n"
    gap = "\n\n\n" if path.suffix == ".py" else "\n\n"
    if piece.above is not None:
        found = re.findall(rf"^ *{re.escape(piece.above)}", before, re.MULTILINE)
        assert len(found) == 1, f"{piece.place}: {piece.above} is there once"
        before, line, rest = before.partition(found[0])
        after = f"{gap}{line}{rest}"
    path.write_text(f"{before.rstrip()}{gap}{piece.text.rstrip()}{after}", encoding="utf-8")


def run_all(commands: Sequence[Command], clone: Path, *, seconds: float = 400) -> None:
    """Run the commands in one shell.  Raises Failed, naming page, line and command."""
    shell = subprocess.Popen(
        ["bash", "--norc", "-c", script(commands)],
        cwd=clone,
        env=environment(clone),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    too_long = ""
    try:
        output, _ = shell.communicate(timeout=seconds)
    except BaseException as end:  # Ctrl-C, too: it does not reach another session
        os.killpg(shell.pid, signal.SIGKILL)
        output, _ = shell.communicate()
        if not isinstance(end, subprocess.TimeoutExpired):
            raise
        too_long = f"not done after {seconds:g} s\n"
    examine(commands, output, too_long)


def script(commands: Sequence[Command]) -> str:
    """Each command between two signs, the second with its exit code; the first to fail is last."""
    lines = ["set -o pipefail"]
    for command in commands:
        lines += [f"printf '{SIGN}'", command.text, f"code=$?; printf '{SIGN}%s' $code"]
        lines += [f"[ $code = {command.code} ] || exit"]
    return "\n".join(lines)


def examine(commands: Sequence[Command], output: str, why: str) -> None:
    """Each command has ended with its code, and printed what its page shows."""
    parts = output.split(SIGN)[1:]  # output and exit code in turn
    for index, command in enumerate(commands):
        printed = parts[2 * index] if 2 * index < len(parts) else ""
        code = parts[2 * index + 1] if 2 * index + 1 < len(parts) else "no code"
        about = f"{command.place}: {command.text}\n"
        if code != str(command.code):
            wanted = f"ended with {code}, and not with {command.code}\n"
            raise Failed(f"{about}{why or wanted}{printed}")
        if not fits(command.prints, printed):
            shown = "\n".join(command.prints)
            raise Failed(f"{about}the page shows\n{shown}\nand it printed\n{printed}")


def fits(shown: Sequence[str], printed: str) -> bool:
    """Whether the lines that a page shows come in this order in what was printed."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    return all(any(_like(" ".join(one.split()), line) for line in lines) for one in shown)


def _like(shown: str, line: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), line) is not None
