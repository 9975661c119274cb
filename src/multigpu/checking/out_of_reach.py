"""Keeps a learner's code from reading the reference answers and those of others.

What it may not call in a chapter is another matter: the Tracer in ``worker.py`` finds that.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # the folder src
INSTALLED = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
READING = {"open", "os.listdir", "os.scandir"}
PROGRAMS = {"subprocess.Popen", "os.exec", "os.posix_spawn"}
REACHING = READING | PROGRAMS | {"os.system"}


class OutOfReach(PermissionError):
    """The learner's code tried to read what it must not see while it is checked."""


def put_out_of_reach(folders: Iterable[str], own: str) -> None:
    """Refuse to open what is in these folders, but for the learner's ``own``.

    The reference answers are in one of them.  An audit hook sees every file that Python opens, and
    every program that it starts, and cannot be removed.  The memory of other processes is refused
    too, because the server has read the files.  This is not a sandbox: compiled code, and a program
    that finds a file by itself, can still read it.
    """
    places = (own, os.getcwd(), PACKAGE, *INSTALLED)
    allowed = tuple(os.path.realpath(place) + os.sep for place in places)
    refused = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    own_process = f"/proc/{os.getpid()}/"

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in REACHING:  # nearly always: a look at a frame is an event, too
            return
        names: Iterable[Any] = arguments[:1]
        if event in PROGRAMS:
            names = arguments[1] if isinstance(arguments[1], list | tuple) else arguments[1:2]
        texts = [os.fsdecode(n) for n in names if isinstance(n, str | bytes | os.PathLike)]
        if event not in READING:  # what a shell is given has the names of files in it
            texts += [word for text in texts for word in text.split()]
        for text in texts:
            path = os.path.realpath(text) + os.sep
            memory = path.startswith("/proc/") and path.endswith("/mem/")
            if (memory and not path.startswith(own_process)) or (
                path.startswith(refused) and not path.startswith(allowed)
            ):
                raise OutOfReach(f"{path[:-1]} is out of reach while an answer is checked")

    sys.addaudithook(look)
