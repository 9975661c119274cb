"""Stage the notebooks: put each of ``notebooks/``, with its outputs, where Sphinx finds it.

They are stored without outputs, outside ``docs/``. Before Sphinx looks for files, each gets its
outputs from its record (:mod:`course.records`) and is written to ``docs/_notebooks/``.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from sphinx.util import logging
from sphinx.util.display import progress_message

from course import execution, records

logger = logging.getLogger(__name__)
SIDE_BY_SIDE = 2  # as many as Sphinx reads pages (commands/site.py)


def stage_all(app):
    if app.config.course_record:  # tools/record.py asks for those that it wants
        return
    docs = Path(app.srcdir)
    sources = sorted((docs.parent / "notebooks").glob("*.ipynb"))
    said = f"reading {len(sources)} notebooks (and running those without a record)"
    with progress_message(said), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(partial(stage, app), sources))  # waits, and passes errors on
    for leftover in {path.name for path in (docs / "_notebooks").glob("*.ipynb")} - {
        source.name for source in sources
    }:
        (docs / "_notebooks" / leftover).unlink()


def stage(app, source):
    notebook = nbformat.read(source, as_version=4)
    try:
        said = records.outputs(app, notebook, f"notebooks/{source.stem}", source.parent)
        notebook.metadata["course"] = said
    except execution.CellFailed as failure:
        first_line = notebook.cells[failure.index].source.partition("\n")[0]
        logger.warning("%s: cell %d (%r) failed: %s", source, failure.index, first_line, failure)
    for number, cell in enumerate(records.code_of(notebook), start=1):
        cell.execution_count = number
    written = nbformat.writes(notebook)
    target = Path(app.srcdir) / "_notebooks" / source.name
    target.parent.mkdir(exist_ok=True)
    # Sphinx goes by the time of change: leave the file alone where nothing is new.
    if not target.exists() or target.read_text(encoding="utf-8") != written:
        target.write_text(written, encoding="utf-8")


def note_record(app, docname, source):
    """The staged notebook says what its record is; the page's foot shows it."""
    if docname.startswith("_notebooks/"):
        staged = nbformat.read(app.env.doc2path(docname), as_version=4)
        app.env.metadata[docname]["course_record"] = staged.metadata.get("course")


def setup(app):
    app.connect("builder-inited", stage_all)
    app.connect("source-read", note_record)
