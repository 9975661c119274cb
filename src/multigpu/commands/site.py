"""Build the course's pages into ``docs/_build/html``, and only when something has changed.

Run it with ``make site`` or ``python -m multigpu.commands.site``. Whether the pages are stale is
decided by the *content* of what they are made from, so a fresh checkout or a touched file costs
nothing. The learner's ``exercises/`` are not a source: the tasks come from ``solutions/``, which
carry the same docstrings, and a half-written answer must not cause a build at every start.
"""

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock
from rich.console import Console
from rich.text import Text

from multigpu.checking.catalog import Course, CourseNotFound, this_course
from multigpu.checking.lessons import LESSONS
from multigpu.ranks.process_tree import leaving_no_process

SOURCES = (
    *("docs", "notebooks", "src", "solutions", "exercises/hints", "constraints.txt", "course.toml"),
    "tests/exercises",  # the troubleshooting page lists their mistakes
    "tests/unit/devices/differences.toml",  # the tables of the page on virtual GPUs
)
INSTALL = "pip install -e '.[course]' -c constraints.txt in the repository, or make start"
BUILT_WITH = ("sphinx", "nbsphinx", "pydata_sphinx_theme", "nbclient", "latex2mathml", "pypandoc")
FAILED = "failed: "  # before the digest in the stamp
MADE = {"_build", "_notebooks", "__pycache__", ".ipynb_checkpoints"}
LESSONS_AS_NOTEBOOKS = ("notebooks", "lessons")  # made by the build, run and changed by readers


class CannotBuild(Exception):
    """A tool that the build needs is missing; the message says how to get it."""


def is_stale(root: Path) -> bool:
    """Whether the built pages are missing, or were built from older sources."""
    notebooks = root.joinpath(*LESSONS_AS_NOTEBOOKS)
    made = [notebooks / f"{each.page}.ipynb" for each in LESSONS]
    made += [Course(root).pages / "index.html", _stamp(root)]
    if not all(file.is_file() for file in made):
        return True
    return _stamp(root).read_text() != sources_digest(root)


def sources_digest(root: Path) -> str:
    """A hash over name and content of everything the pages are made from."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for file in [root / name, *sorted((root / name).rglob("*"))]:
            parts = file.relative_to(root).parts
            made = MADE.intersection(parts) or parts[:2] == LESSONS_AS_NOTEBOOKS
            if file.is_file() and not made and ".egg-info" not in str(file):
                content = _content(file)
                digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()


def _content(file: Path) -> bytes:
    """The content that affects the build; of a notebook only cells and tags, not outputs."""
    content = file.read_bytes()
    if file.suffix == ".ipynb":
        with suppress(ValueError, KeyError, TypeError):  # not a notebook; the build will report it
            cells = json.loads(content)["cells"]
            kept = [(c["cell_type"], c["source"], c.get("metadata", {}).get("tags")) for c in cells]
            return json.dumps(kept).encode()
    return content


def _stamp(root: Path) -> Path:
    return root / "docs" / "_build" / "built_from.sha256"


def failed_before(root: Path) -> bool:
    """Whether the last build used the current sources and failed."""
    return _stamp(root).is_file() and _stamp(root).read_text() == FAILED + sources_digest(root)


def build(root: Path) -> bool:
    """Build what has changed, with warnings as errors; whether that went well.

    Two builds at once would overwrite each other's files, so the second waits and then finds
    nothing to do. Raises :class:`CannotBuild` when Sphinx or pandoc is missing.
    """
    missing = [name for name in BUILT_WITH if find_spec(name) is None]
    missing += ["pandoc"] if find_pandoc() is None else []
    if missing:
        raise CannotBuild(f"The site needs {', '.join(missing)}: {INSTALL}")
    _stamp(root).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_stamp(root).with_name(".lock")):
        if not is_stale(root):
            return True
        _stamp(root).unlink(missing_ok=True)
        digest = sources_digest(root)
        succeeded = _run_sphinx(root)
        _stamp(root).write_text(digest if succeeded else FAILED + digest)
    return succeeded


def find_pandoc() -> str | None:
    """The path of the pandoc that the build uses, which it asks pypandoc for."""
    try:
        import pypandoc

        return str(pypandoc.get_pandoc_path())
    except (ImportError, OSError):  # OSError is how pypandoc says that it has no pandoc
        return None


def _run_sphinx(root: Path) -> bool:
    """Run Sphinx: one moving line in a terminal, every line elsewhere, its warnings at the end."""
    docs, pages, console = root / "docs", Course(root).pages, Console(highlight=False)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-j", "2", "-b", "html",
               "-d", str(docs / "_build" / "doctrees"), str(docs), str(pages)]  # fmt: skip
    with TemporaryFile("w+") as warnings:
        with console.status("Starting Sphinx") as status, subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=warnings
        ) as sphinx:  # fmt: skip
            assert sphinx.stdout is not None
            # Not by lines: "executing the notebook... " ends its line only when that is done.
            while words := os.read(sphinx.stdout.fileno(), 4096).decode(errors="replace"):
                if not console.is_terminal:
                    print(words, end="", flush=True)
                elif step := words.strip().rpartition("\n")[2]:
                    # Two processes read the pages and run their code; Sphinx is silent meanwhile.
                    step = "running the code of the pages" if " added, " in step else step
                    status.update(Text(step[: console.width - 4]))
        warnings.seek(0)
        sys.stderr.write(warnings.read())
    return sphinx.returncode == 0


def main() -> int:
    """Build the site if it is stale and say where it is."""
    try:
        root = this_course().root
        with leaving_no_process():
            built = build(root)
        if not built:
            print("The site did not build: the warnings above say why.", file=sys.stderr)
            return 1
    except (CannotBuild, CourseNotFound) as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"The site is in {os.path.relpath(Course(root).pages)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
