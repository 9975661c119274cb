"""What both servers do around the imports that spare every process they fork the same."""

import contextlib
import ctypes
import gc
import importlib
import sys
from collections.abc import Iterator, Sequence

from multigpu.ranks.lean import spare_the_compiler

LATE = (  # what torch imports in the middle of a run, as of 2.13
    "torch._subclasses.schema_check_mode",  # at the first message
    "torch.profiler._cupti_monitor",  # at an optimizer's first step
)
COSTLY = (  # half a second each; they start no thread and touch no GPU
    "multigpu.training.trainer",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",  # torch.load, too
    "torch._dynamo.config",  # the compiler's front end, not the stand-in: see lean.py
)
BY_NAME = COSTLY[:-1]  # a caller's functions name what is in these; the compiler comes unasked
LARGE = 2**21  # bytes of a large page
COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1


@contextlib.contextmanager
def warming_up() -> Iterator[None]:
    """Around the imports of a server that will fork: no thread, and no page written twice."""
    gc.disable()  # importing leaves no garbage, and looking for it takes a tenth of the time
    yield
    import torch

    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    torch.manual_seed(0)  # it reads torch's own files, to tell from where it was called
    torch.set_num_threads(1)
    spare_the_compiler()
    gc.collect()
    gc.freeze()  # the garbage collection of a forked process then copies none of these pages
    gc.enable()
    use_large_pages()


def costly_imports(names: Sequence[str] = COSTLY) -> int:
    """Which of COSTLY, or of its first `names`, this process has imported, one bit each."""
    return sum(1 << bit for bit, name in enumerate(names) if name in sys.modules)


def import_costly(wanted: int) -> None:
    """Import those of COSTLY whose bits are set, unless they are here already."""
    lacking = wanted & ~costly_imports()
    if not lacking:
        return
    with warming_up():
        for bit, name in enumerate(COSTLY):
            if lacking >> bit & 1:
                with contextlib.suppress(Exception):  # a rank that needs it will say why
                    importlib.import_module(name)


def use_large_pages() -> None:
    """Lay this process's memory into large pages, where the system does so (Linux 6.1 and later).

    A fork copies the table of all pages, and the end of the process takes that down again. With
    pages of 2 MiB both take a third of the time. A page that somebody writes to is split.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in own_memory():
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if start < end:
            madvise(start, end - start, COLLAPSE)  # an older system says no: then it stays slow


def own_memory() -> list[tuple[int, int]]:
    """First and last address of every part of memory that is of no file."""
    parts = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, access, _, _, inode, *name = line.split()
            if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                start, end = addresses.split("-")
                parts.append((int(start, 16), int(end, 16)))
    return parts
