"""Looks on while a rank writes a checkpoint, and slows it down."""

import os
import sys
import time
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from multigpu.checking.declaration import Broken

PAUSE = 0.1  # seconds: long enough for another rank to return, if nothing makes it wait
NAP = 0.01  # seconds: as long as time.sleep takes on a rank other than 0, at most
WATCHING = []  # the lookout of this process: Python cannot take a hook off again


class Lookout:
    """Sees each file that this process opens, renames or removes.

    A rank other than 0 that writes into the folder of the checkpoint is stopped there.  On rank
    0, ``gap`` tells whether there was a moment in which the old file at the path was gone and the
    new one not there, and ``from_afar`` which file of another folder was renamed to the path.
    """

    def __init__(self, rank):
        self.rank, self.path, self.gap, self.from_afar = rank, None, False, None
        sys.addaudithook(self.see)

    @contextmanager
    def watching(self, path):
        self.path, self.gap, self.had = os.path.abspath(path), False, os.path.exists(path)
        self.from_afar = None
        with replaced(torch, "save", self.before_save):
            yield
        self.path = None

    def see(self, event, arguments):
        if self.path is None:
            return
        if self.rank == 0:
            self.gap = self.gap or (self.had and not os.path.exists(self.path))
            self.from_afar = self.from_afar or moved_from_afar(event, arguments, self.path)
            return
        target = written_by(event, arguments)
        if target is not None and os.path.dirname(target) == os.path.dirname(self.path):
            self.path = None
            name = os.path.basename(target)
            raise Broken("every_rank_writes", f"rank {self.rank} writes {name}")

    def before_save(self, save, *arguments, **options):
        """torch.save opens a file by its name without Python's noticing."""
        files = [options["f"]] if "f" in options else arguments[1:2]
        for file in files:
            self.see("open", (file, "w", 0))
        return save(*arguments, **options)


def lookout_of(rank):
    """The lookout of this process."""
    if not WATCHING:
        WATCHING.append(Lookout(rank))
    return WATCHING[0]


def moved_from_afar(event, arguments, path):
    """The file that is renamed to ``path``, if it lies neither in its folder nor below; or None."""
    if event != "os.rename":
        return None
    source, target = (os.path.realpath(os.fsdecode(name)) for name in arguments[:2])
    folder = os.path.dirname(os.path.realpath(path))
    if target != os.path.realpath(path) or source.startswith(f"{folder}{os.sep}"):
        return None
    return source


def written_by(event, arguments):
    """The path that an audit event (see sys.addaudithook) writes to, None if it only reads."""
    if event == "open":
        path, mode, flags = arguments
        writes = set(mode or "") & set("wax+") or (
            mode is None and flags & (os.O_WRONLY | os.O_RDWR)
        )
    else:
        path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else None
        writes = path is not None
    if not writes or not isinstance(path, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(path))


@contextmanager
def slow():
    """What writing needs takes its time: reading the model, saving, renaming."""

    def wait_first(function, *arguments, **options):
        time.sleep(PAUSE)
        return function(*arguments, **options)

    waited = []

    def wait_once(function, *arguments, **options):
        """A model of many modules reads its state many times."""
        if not waited:
            waited.append(function)
            time.sleep(PAUSE)
        return function(*arguments, **options)

    with (
        replaced(nn.Module, "state_dict", wait_once),
        replaced(torch, "save", wait_first),
        replaced(os, "replace", wait_first),
        replaced(os, "rename", wait_first),
    ):
        yield


@contextmanager
def short_sleeps(module):
    """Sleeping does not wait for rank 0: a second of it is over before rank 0 has finished.

    Who looks again and again, and sleeps in between, only looks more often.
    """
    own = [name for name, value in vars(module).items() if value is time.sleep]

    def nap(sleep, seconds):
        sleep(min(seconds, NAP))

    with ExitStack() as stack:
        for owner, name in [*((module, name) for name in own), (time, "sleep")]:
            stack.enter_context(replaced(owner, name, nap))
        yield


@contextmanager
def replaced(owner, name, wrapper):
    """``wrapper(original, ...)`` is called where ``owner.name(...)`` would be."""
    original = getattr(owner, name)

    def instead(*arguments, **options):
        return wrapper(original, *arguments, **options)

    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, original)


def content(path):
    """The bytes of a file, None where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
