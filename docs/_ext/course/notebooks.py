"""Stage the notebooks: execute each of ``notebooks/`` and put it where Sphinx finds it.

The notebooks are stored without outputs, outside ``docs/``. Before Sphinx looks for files, each is
executed (:mod:`course.execution`) and written, with outputs, to ``docs/_notebooks/``.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from sphinx.util import logging
from sphinx.util.display import progress_message

from course import execution

logger = logging.getLogger(__name__)
SIDE_BY_SIDE = 2  # as many as Sphinx reads pages (commands/site.py)


def stage_all(app):
    docs = Path(app.srcdir)
    sources = sorted((docs.parent / "notebooks").glob("*.ipynb"))
    staged = {docs / "_notebooks" / source.name: source for source in sources}
    said = f"executing {len(staged)} notebooks (or taking them from the record)"
    with progress_message(said), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(partial(stage, app), sources, staged))  # waits, and passes errors on
    for leftover in set((docs / "_notebooks").glob("*.ipynb")) - set(staged):
        leftover.unlink()


def stage(app, source, target):
    notebook = nbformat.read(source, as_version=4)
    try:
        notebook = execution.executed(
            notebook,
            record=execution.record_of(app, f"notebooks/{source.stem}"),
            folder=source.parent,
            seconds_per_cell=app.config.course_seconds_per_cell,
        )
    except execution.CellFailed as failure:
        first_line = notebook.cells[failure.index].source.partition("\n")[0]
        logger.warning("%s: cell %d (%r) failed: %s", source, failure.index, first_line, failure)
    written = nbformat.writes(notebook)
    target.parent.mkdir(exist_ok=True)
    # Sphinx goes by the time of change: leave the file alone where nothing is new.
    if not target.exists() or target.read_text(encoding="utf-8") != written:
        target.write_text(written, encoding="utf-8")


def setup(app):
    app.connect("builder-inited", stage_all)
