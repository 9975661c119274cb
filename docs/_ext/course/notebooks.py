"""Stage the notebooks: execute each of ``notebooks/`` and put it where Sphinx finds it.

The notebooks are stored without outputs, outside ``docs/``. Before Sphinx looks for files, each is
executed (:mod:`course.execution`) and written, with outputs, to ``docs/_notebooks/``.
"""

import nbformat
from sphinx.util import logging
from sphinx.util.display import progress_message

from course import execution

logger = logging.getLogger(__name__)
NOTEBOOKS = execution.ROOT / "notebooks"
STAGED = execution.ROOT / "docs" / "_notebooks"


def stage_all(app):
    STAGED.mkdir(exist_ok=True)
    sources = sorted(NOTEBOOKS.glob("*.ipynb"))
    for source in sources:
        with progress_message(f"executing {source.name} (or taking it from the record)"):
            stage(source, app.config.course_seconds_per_cell)
    for leftover in {path.name for path in STAGED.glob("*.ipynb")} - {s.name for s in sources}:
        (STAGED / leftover).unlink()


def stage(source, seconds_per_cell):
    notebook = nbformat.read(source, as_version=4)
    try:
        notebook = execution.executed(
            notebook, name=f"notebooks/{source.stem}", folder=NOTEBOOKS,
            seconds_per_cell=seconds_per_cell,
        )
    except execution.CellFailed as failure:
        first_line = notebook.cells[failure.index].source.partition("\n")[0]
        logger.warning("%s: cell %d (%r) failed: %s", source, failure.index, first_line, failure)
    written = nbformat.writes(notebook)
    target = STAGED / source.name
    # Sphinx goes by the time of change: leave the file alone where nothing is new.
    if not target.exists() or target.read_text(encoding="utf-8") != written:
        target.write_text(written, encoding="utf-8")


def setup(app):
    app.connect("builder-inited", stage_all)
