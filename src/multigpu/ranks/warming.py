"""The imports that a server does before it forks, so that no rank has to do them."""

import contextlib
import ctypes
import gc
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence

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
    # An optimizer's first step imports the front end of the compiler, and what runs backward from
    # a gradient its symbolic algebra. (Both may be stand-ins in a check: checking/stand_ins.py.)
    "torch._dynamo.config",
    "torch.fx.experimental.symbolic_shapes",
)
NAMED = COSTLY[:-2]  # a caller's functions name what is in these; the compiler comes unasked
OPTIMIZING = "torch._dynamo.config"
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
    torch.manual_seed(0)  # it reads torch's own files to find its caller
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the garbage collection of a forked process then copies none of these pages
    gc.enable()
    use_large_pages()


def costly_imports(names: Sequence[str] = COSTLY) -> list[str]:
    """Which of COSTLY, or of these, this process has imported."""
    return [name for name in names if name in sys.modules]


def import_costly(wanted: Iterable[str]) -> None:
    """Import those of COSTLY that are wanted, unless they are here already."""
    lacking = [name for name in COSTLY if name in wanted and name not in sys.modules]
    if lacking:
        with warming_up():
            for name in lacking:
                with contextlib.suppress(Exception):  # a rank that needs it will say why
                    importlib.import_module(name)


def use_large_pages() -> None:
    """Put this process's memory into large pages, if the system supports it (Linux 6.1 and later).

    A fork copies the table of all pages, and the end of the process frees it again. With pages of 2
    MiB both take a third of the time. A page that is written to is split.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    for addresses, access, _, _, inode, *name in maps:
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):  # of no file
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
            if start < end:
                madvise(start, end - start, COLLAPSE)  # an older system says no: it stays slow
