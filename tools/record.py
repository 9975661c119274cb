"""Record what the cells of pages and notebooks give on this machine, for every build after.

    make record                                        all pages and notebooks
    make record lessons/one_gpu notebooks/ddp          these
    make record lessons/one_gpu ARGS=--anyway          on a busy machine, too; the page then says so

Times on pages come from these runs, so a machine that is busy with something else is refused.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))


def main() -> int:
    """Record the pages that were asked for, one after the other."""
    from course import notebooks, records
    from sphinx.application import Sphinx

    options = parsed()
    with tempfile.TemporaryDirectory() as made:
        app = Sphinx(
            *(str(DOCS), str(DOCS), made, made, "dummy"),
            confoverrides={"course_record": "anyway" if options.anyway else "quiet"},
            status=None,
            warningiserror=True,
        )
        chosen = options.pages or every_page()
        if unknown := [name for name in chosen if not source_of(name).is_file()]:
            print(f"There is no page {', '.join(unknown)}. Pages are named like lessons/one_gpu or "
                  "notebooks/ddp.", file=sys.stderr)  # fmt: skip
            return 2
        app.env.find_files(app.config, app.builder)
        print("Before and after each page: up to 10 s to see that the machine is quiet.")
        for number, name in enumerate(chosen, start=1):
            path = records.path_of(ROOT, name)
            before = path.stat().st_mtime_ns if path.is_file() else 0
            warnings = app._warncount
            print(f"{number:3} of {len(chosen)}  {name:42}", end="", flush=True)
            try:
                if name.startswith("notebooks/"):
                    notebooks.stage(app, source_of(name))
                else:
                    app.builder.read_doc(name)
            except records.MachineIsBusy as busy:
                print(f"\n{busy}", file=sys.stderr)
                return 1
            if path.is_file() and path.stat().st_mtime_ns != before:
                said = records.load(path).metadata.course
                print(f"{said.seconds:6.1f} s, load {said.load:.2f}")
            else:
                print("  failed" if app._warncount > warnings else "  has no cells")
    return 1 if app._warncount else 0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record what the cells of pages give.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as lessons/one_gpu")
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    return parser.parse_args()


def every_page() -> list[str]:
    """The notebooks, and the pages that have cells."""
    found = [f"notebooks/{path.stem}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    for path in sorted(DOCS.rglob("*.rst")):
        name = path.relative_to(DOCS).with_suffix("")
        if not name.parts[0].startswith("_") and has_cells(path.read_text(encoding="utf-8")):
            found.append(str(name))
    return found


def has_cells(text: str) -> bool:
    """Whether something on a page is run."""
    marks = (".. run::", ":run:`", ".. explorer::")
    return any(mark in text for mark in marks)


def source_of(name: str) -> Path:
    """The file of a page or a notebook."""
    if name.startswith("notebooks/"):
        return ROOT / f"{name}.ipynb"
    return DOCS / f"{name}.rst"


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
