"""The reader of pages, and the runner, on small pages of their own."""

import pytest

from .blocks import commands_in
from .reading import Unreadable, read
from .running import Failed, run_all

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


@pytest.mark.parametrize(
    "command",
    [
        "multigpu train --data digits --epoch-s 3",
        "torchrun --nproc_per_node 2 -m multigpu train --data digits --moode ddp",
        "make tset",
        "python docs/no_such_file.py",
    ],
)
def test_an_option_or_a_file_that_is_not_there_is_seen_without_running(command):
    with pytest.raises(Unreadable):
        read(command)
