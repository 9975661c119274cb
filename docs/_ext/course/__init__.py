"""The course's own Sphinx extension. Cheat sheet for whoever writes a lesson:

.. code-block:: rst

    .. overview::                     opens every lesson; the body lists the objectives; times and
                                      what it needs are the build's (multigpu.checking.lessons)

       * say how many rows each GPU gets

    .. run::                          one cell; all cells of a page share one fresh kernel
       :hide-code:                    show only what it printed or drew
       :hide-output:                  show only the code
       :raises: RuntimeError          the cell must end in this error; its message is shown
       :varies:                       what it shows depends on time or on the machine
       :quiet:                        an assertion about times: only `make record` runs it

       import torch                   the last expression's value is shown, as in a notebook

    The loss fell to :run:`f"{loss:.2f}"`.      a value, taken after the page's last cell

    .. predict:: How many copies does one step make?

       The answer, folded away until the reader opens it.

    .. surprise:: Three GPUs, slower than one
                                      a box that opens a lesson; any body
    .. quiz:: Who holds the summed gradients?

       - [x] GPU 0 | Yes: `reduce_add` leaves the sum there.
       - [ ] every GPU | That is what DDP does.
                                      one ` | ` per choice; what follows is the answer to it.
                                      Single or double backticks both mean code here.

    .. keypoints::                    closes every lesson; the body is a list

    .. exercise:: data_parallel.split           card: task, check command, hint command
    .. exercise-module:: data_parallel          all exercises of a module in full
    .. script-diff:: ../scripts/one_gpu.py ../scripts/ddp.py   a script, and what is new in it
    .. open-notebook:: multi_GPU.ipynb          the "open the notebook" button
    .. package-layers::, -reading::, -way::     the package, counted by the build (package.py)
    .. differences:: refused                    what virtual GPUs do, from the entries of a test
    .. explorer:: sharded-memory                choose, and see: also pipeline-bubble,
                                      server-traffic, planned-run and mesh-groups; steppers are
                                      dp-step, ring, ring-attention and tensor-pair; explorers
                                      says how to add one
    .. course-path::                            the lessons with their times (landing page)
    .. course-map::                             lessons, notebooks and exercises as a picture

    The :term:`ranks <rank>` wait.              a word of the glossary: its meaning shows on hover.
                                      The first use on a page of an unmistakable word, such as
                                      all-reduce, is linked by itself (words.py)
    See :message:`split.shuffled`.              an entry of the troubleshooting page, by its id

Rules the build holds: Python in a lesson stands in ``.. run::`` (or is ``literalinclude``d from a
file that a test runs), so every line shown was run. Console blocks and other languages are free.
A failing cell is a warning with the lesson's file and line, and ``sphinx-build -W`` fails on it.
Formulas: ``:math:`` and ``.. math::``, MathML at build time. The notebook's page is
``/_notebooks/multi_GPU``, that of the exercises is ``/exercises/data_parallel``, and each exercise
there has a label: ``:ref:`split <exercise-data_parallel-split>```.
"""

from hashlib import sha256
from pathlib import Path

from course import (
    asked,
    boxes,
    cells,
    differences,
    element,
    exercises,
    explorers,
    head,
    lesson_notebooks,
    messages,
    notebooks,
    package,
    quiz,
    way,
    words,
)


def setup(app):
    for part in (
        *(element, notebooks, way, boxes, quiz, cells, package, differences, exercises),
        *(explorers, words, messages, asked, head, lesson_notebooks),
    ):
        part.setup(app)
    return {
        "version": "1",
        "env_version": state_of_the_extension(),  # another one: all pages are read again
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }


def state_of_the_extension():
    """A number that changes with these files; Sphinx sees changes of pages only."""
    files = sorted(p for p in Path(__file__).parent.rglob("*") if p.suffix in {".py", ".toml"})
    return int(sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12], 16)
