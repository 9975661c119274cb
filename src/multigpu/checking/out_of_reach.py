"""Keeps a learner's code from reading the reference answers and those of others.

What it may not call in a chapter is another matter: the Tracer in ``worker.py`` finds that.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # the folder src
INSTALLED = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
READING = {"open", "os.listdir", "os.scandir"}  # of their first argument; of others two count
PROGRAMS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}
REACHING = READING | PROGRAMS | {"os.link", "os.symlink", "os.rename"}
BETWEEN_WORDS = re.compile(r"""[\s'"<>|;&()`$=]+""")  # in what a shell is given


class OutOfReach(PermissionError):
    """The learner's code tried to read what it must not see while it is checked."""


def put_out_of_reach(folders: Iterable[str], own: str) -> None:
    """Refuse to open what is in these folders, but for the learner's ``own``.

    The reference answers are in one of them.  An audit hook sees every file that Python opens, and
    every program that it starts, and cannot be removed.  The memory of other processes is refused
    too, because the server has read the files.  This is not a sandbox: compiled code, a program
    that finds a file by itself, and an open folder's ``dir_fd`` can still reach it.
    """
    places = (own, os.getcwd(), PACKAGE, *INSTALLED)
    allowed = tuple(os.path.realpath(place) + os.sep for place in places)
    refused = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    own_process = f"/proc/{os.getpid()}/"

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in REACHING:  # nearly always: a look at a frame is an event, too
            return
        names: list[Any] = []
        for argument in arguments[: 1 if event in READING else 2]:
            names += argument if isinstance(argument, list | tuple) else [argument]
        texts = [os.fsdecode(n) for n in names if isinstance(n, str | bytes | os.PathLike)]
        folder = ""  # in which the program starts
        if event in PROGRAMS:
            texts += ["", *(word for text in texts for word in BETWEEN_WORDS.split(text))]
            folder = os.fsdecode(arguments[2] or "") if event == "subprocess.Popen" else ""
        for text in texts:
            path = os.path.realpath(os.path.join(folder, text)) + os.sep
            memory = path.startswith("/proc/") and path.endswith("/mem/")
            if (memory and not path.startswith(own_process)) or (
                path.startswith(refused) and not path.startswith(allowed)
            ):
                raise OutOfReach(f"{path[:-1]} is out of reach while an answer is checked")

    sys.addaudithook(look)
