"""What the cells of a page or a notebook gave, kept in ``docs/records/`` for every build after.

A record is a notebook file with the code cells alone, their outputs, and where and when they ran.
A build pastes the outputs into the fresh page, cell by cell, as long as the sources are the same.
From the first cell that has changed on, the page shows a new run: a cell depends on those before
it. So does a page that names a file which has changed. What a page shows, from its record or from a
new run, is kept in ``docs/_build/shown/``; ``make record`` writes the records themselves.
"""

import hashlib
import os
import platform
import re
import time
from datetime import date
from functools import partial
from html import escape
from importlib.metadata import version
from pathlib import Path

import nbformat
import psutil
from sphinx.errors import SphinxError

from course import execution
from multigpu.scaling.comparison import Machine, load_here

VALUE = "value"  # the tag of a cell that prints one ``:run:``
DECISIVE = frozenset({VALUE, execution.HIDDEN, execution.QUIET, "raises-exception"})
BUSY = 0.25  # cores at work on something else: more than that makes times doubtful
DATA = ("docs/reference", "docs/scripts")  # folders with files that pages read or run
PLACE = Path("docs", "records")
SHOWN = Path("docs", "_build", "shown")


class MachineIsBusy(SphinxError):
    """Times that are measured now would be those of a busy machine."""


def path_of(root, name, place=PLACE):
    """Where the record of the page or notebook ``name`` is."""
    return root / place / f"{name.replace('/', '--')}.ipynb"


def load(path):
    return nbformat.read(path, as_version=4) if path.exists() else None


def outputs(app, notebook, name, folder):
    """Put outputs into the code cells of ``notebook``: from a record that fits, or from a new run.

    Args:
        app: Sphinx; with ``course_record`` everything runs, and the record is written.
        notebook: the page's cells, without outputs.
        name: ``lessons/one_gpu`` or ``notebooks/ddp``.
        folder: where the kernel works.

    Returns:
        What the page says in its foot: the record's ``metadata.course``.

    Raises:
        CellFailed: a cell raised or hung.
        MachineIsBusy: with ``course_record = "quiet"``.
    """
    root = Path(app.srcdir).parent
    run = partial(
        execution.run, root=root, folder=folder, seconds_per_cell=app.config.course_seconds_per_cell
    )
    if app.config.course_record:
        return record_now(notebook, name, root, run, anyway=app.config.course_record == "anyway")
    shown = path_of(root, name, SHOWN)
    record = load(path_of(root, name))
    for known in (record, load(shown)):
        if known is not None and not missing(notebook, known, root):
            paste(notebook, known, range(len(code_of(notebook))))
            return save(notebook, known.metadata.course, shown)
    return save(notebook, run_again(notebook, name, root, run, record), shown)


def run_again(notebook, name, root, run, record):
    """Run the page, and keep of the record what stands before the first change."""
    cells = range(len(code_of(notebook)))
    new = missing(notebook, record, root) if record is not None else list(cells)
    before = load_here()
    print(f"{name}: running it for {len(new)} of its {len(cells)} cells", flush=True)
    run(notebook)
    said = {} if record is None else dict(record.metadata.course)
    paste(notebook, record, [i for i in cells if i not in new])
    said["reads"] = digests(root, named_in(notebook, root))
    return said | {"again": {**here(before), "cells": len(new), "of": len(cells)}}


def record_now(notebook, name, root, run, *, anyway):
    """Run the page on this quiet machine and write its record."""
    load = refuse_busy(anyway)
    began = time.monotonic()
    run(notebook, quiet=load <= BUSY)
    said = {"reads": digests(root, named_in(notebook, root))}
    said["seconds"] = round(time.monotonic() - began, 1)
    load = max(load, refuse_busy(anyway))  # something else may have begun meanwhile
    said |= here(load) | ({"busy": True} if load > BUSY else {})
    return save(notebook, said, path_of(root, name))


def refuse_busy(anyway):
    """The load of this machine; a moment's work of something else is waited for."""
    for _ in range(5):
        if (load := load_here(2.0)) <= BUSY or anyway:
            return load
    raise MachineIsBusy(
        f"{load:.1f} of {psutil.cpu_count()} cores are at work on something else, so times would "
        "be wrong. End it and try again, or add --anyway (make record: ARGS=--anyway). Then the "
        "page says that the machine was busy."
    )


def here(load):
    machine = Machine.here()
    return {
        "date": date.today().isoformat(),
        "processor": machine.processor,
        "cores": machine.cores,
        "gpus": machine.named(len(machine.gpus)),
        "load": load,
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def missing(notebook, record, root):
    """Which code cells of ``notebook`` the record cannot fill, as indices."""
    cells = code_of(notebook)
    if digests(root, record.metadata.course.reads) != dict(record.metadata.course.reads):
        return list(range(len(cells)))
    known = {identity(cell) for cell in record.cells if is_value(cell)}
    same = 0
    for cell, old in zip(cells, record.cells, strict=False):
        if identity(cell) != identity(old):
            break
        same += 1
    # Values are asked for when all cells have run, so they do not depend on one another.
    whole = all(map(is_value, cells[same:])) and all(map(is_value, record.cells[same:]))
    return [i for i in range(same, len(cells)) if not (whole and identity(cells[i]) in known)]


def paste(notebook, record, indices):
    """Copy the record's outputs into the code cells at these places."""
    cells = code_of(notebook)
    values = {cell.source: cell for cell in record.cells if is_value(cell)} if indices else {}
    for i in indices:
        old = values[cells[i].source] if is_value(cells[i]) else record.cells[i]
        cells[i].outputs = old.outputs


def save(notebook, said, path):
    """Write the code cells with their outputs; returns ``said`` as it can be read back."""
    kept = nbformat.v4.new_notebook(metadata={"course": said})
    for number, cell in enumerate(code_of(notebook)):
        kept.cells.append(
            nbformat.v4.new_code_cell(
                cell.source,
                id=f"cell-{number}",
                metadata={"tags": tags_of(cell)} if tags_of(cell) else {},
                outputs=cell.outputs,
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name first: a build that is stopped leaves no half record behind.
    unfinished = path.with_suffix(f".{os.getpid()}")
    nbformat.write(kept, unfinished)
    unfinished.replace(path)
    return kept.metadata.course


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags_of(cell):
    return list(cell.metadata.get("tags", []))


def is_value(cell):
    return VALUE in tags_of(cell)


def identity(cell):
    """What a cell's outputs are made of: its source, and the tags that decide what is kept."""
    return cell.source, DECISIVE.intersection(tags_of(cell))


def named_in(notebook, root):
    """The files of ``DATA`` whose name is in a code cell, as sorted relative paths.

    Code is not among them: it decides whether a record is right, not whether it is stale, and `make
    test-all` compares.
    """
    sources = "\n".join(cell.source for cell in code_of(notebook))
    return sorted(
        str(path.relative_to(root))
        for folder in DATA
        for path in (root / folder).rglob("*")
        if path.is_file() and re.search(rf"(?<![\w.-]){re.escape(path.name)}\b", sources)
    )


def digests(root, paths):
    """What the files hold, as hashes by path."""
    return {
        path: hashlib.sha256((root / path).read_bytes()).hexdigest()[:16]
        if (root / path).is_file()
        else "missing"
        for path in paths
    }


def foot(said):
    """The last line of a page: what its outputs come from."""
    sentences, again = [], said.get("again")
    all_again = again is not None and again["cells"] == again["of"]
    if "date" in said and not all_again:
        sentences += [f"Outputs recorded on {day(said)} ({machine_of(said)}).", warning(said)]
    if again is not None:
        part = "All cells" if all_again else f"The last {again['cells']} cells"
        why = "because their source or a file that they read has changed"
        sentences += [f"{part} ran again on {day(again)} ({machine_of(again)}), {why}."]
        sentences += [warning(again)]
    return f'<p class="course-recorded">{escape(" ".join(filter(None, sentences)))}</p>'


def warning(said):
    return "That machine was busy: its times are too long." if said["load"] > BUSY else ""


def day(said):
    return f"{date.fromisoformat(said['date']):%-d %B %Y}"


def machine_of(said):
    gpus = said["gpus"] or "no GPU, so virtual ones"
    processor, cores = said["processor"], said["cores"]
    versions = f"Python {said['python']}, torch {said['torch']}"
    load = f"other programs kept {said['load']:.1f} cores busy"
    return f"{processor}, {cores} cores, {gpus}; {versions}, {load}"
