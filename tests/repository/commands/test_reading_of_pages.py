"""The reader of pages, and the runner, on small pages of their own."""

import pytest

from .blocks import commands_in, inline_in, inserts_in
from .reading import Unreadable, read
from .running import Failed, insert, run_all

RST = """
Words, and ``make test`` in them.

.. commands: exits 3: (exit

.. commands: server: sleep

.. code-block:: console

   $ echo one \\
         two
   one two
   $ (exit 3)
   $ sleep 1000

.. code-block:: shell

   for i in 1 2; do
       echo $i
   done
   greeting=hello

.. code-block:: console

   $ echo $greeting, $PWD
   hello, …
"""
MARKDOWN = """
<!-- commands: long: sleep -->
```
sleep 1000   # a long one
true
```

```python
false
```
"""


def texts(page, name="page.rst"):
    return [(command.text, command.kind, command.code) for command in commands_in(page, name)]


def test_prompts_outputs_loops_and_remarks_are_told_apart():
    assert texts(RST) == [
        ("echo one \\\n      two", None, 0),
        ("(exit 3)", None, 3),
        ("sleep 1000", "server", 0),
        ("for i in 1 2; do\n    echo $i\ndone", None, 0),
        ("greeting=hello", None, 0),
        ("echo $greeting, $PWD", None, 0),
    ]
    first = commands_in(RST, "page.rst")[0]
    assert (first.place, first.prints) == ("page.rst:10", ("one two",))


def test_a_fence_with_a_language_is_no_block_of_commands():
    assert texts(MARKDOWN) == [("sleep 1000   # a long one", "long", 0), ("true", None, 0)]


def test_a_page_whose_commands_do_what_it_says_passes(tmp_path):
    (tmp_path / "src").mkdir()
    run_all([command for command in commands_in(RST, "page.rst") if not command.kind], tmp_path)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("$ true\n   $ echo out; (exit 4)\n   $ touch later", r"page\.rst:6: .*\n.*4.*0.*\nout"),
        ("$ echo other\n   words", r"page\.rst:5: .*\n.*\nwords\n.*\nother"),
        ("$ sleep 60", r"page\.rst:5: sleep 60\n.*0\.5 s"),
    ],
)
def test_a_command_that_does_something_else_is_named(block, problem, tmp_path):
    commands = commands_in(f"\n\n.. code-block:: console\n\n   {block}\n", "page.rst")
    with pytest.raises(Failed, match=problem):
        run_all(commands, tmp_path, seconds=0.5 if "sleep" in block else 60)
    assert not (tmp_path / "later").exists()


def test_what_a_page_tells_to_write_lands_in_its_place(tmp_path):
    (tmp_path / "old.py").write_text("one = 1\n\n\nlast = 9\n")
    page = """
.. code-block:: python
   :caption: old.py, above ``last``

   two = 2

.. code-block:: python
   :caption: folder/new.py, a new file

   three = 3

.. code-block:: python
   :caption: Nothing to write

   four = 4
"""
    for piece in inserts_in(page, "page.rst"):
        insert(piece, tmp_path)
    assert (tmp_path / "old.py").read_text() == "one = 1\n\n\ntwo = 2\n\n\nlast = 9\n"
    assert (tmp_path / "folder" / "new.py").read_text() == "three = 3\n"


@pytest.mark.parametrize(
    "command",
    [
        "multigpu train --data digits --epoch-s 3",
        "multigpu chekc all",
        "torchrun --nproc_per_node 2 -m multigpu train --data digits --moode ddp",
        "make tset",
        "python docs/no_such_file.py",
    ],
)
def test_an_option_or_a_file_that_is_not_there_is_seen_without_running(command):
    with pytest.raises(Unreadable):
        read(command)


def test_in_sentences_only_whole_commands_count():
    text = (
        "Type ``make test`` or `multigpu hint split`; not ``multigpu train`` or ``make start X=…``."
    )
    assert inline_in(text) == ["make test", "multigpu hint split"]
