"""The imports that a server does before it forks, and those that nobody needs to do.

Optimizers import ``torch._dynamo``, the front end of torch.compile, only to tell it to stay away
from them; ``init_process_group`` tells it to forget what it knew, and DistributedDataParallel asks
how it would treat it.  Where nothing is compiled a stand-in can hear and answer that.

``backward(gradient)`` imports the compiler's symbolic algebra, and sympy with it, to compare two
shapes.  Where shapes are numbers, another stand-in can do that.

torchmetrics imports scipy.signal only to give it back an old name; a third one has that name.
"""

import contextlib
import ctypes
import gc
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

NAME = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SIGNALS = "scipy.signal"


class Rules:
    """What the compiler would know about torch's functions: nothing yet."""

    @staticmethod
    def clear_lru_cache() -> None:
        """There is nothing to forget."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real().trace_rules, name)


class Utils:
    """What DistributedDataParallel asks when it is made: how the compiler would treat it."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        """As it is where nobody has changed the compiler's settings."""
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(real().utils, name)


class Config:
    """What activation checkpointing asks: a setting that only the compiler's own traces heed."""

    error_on_nested_fx_trace = True  # as it is where nobody has changed it

    def __getattr__(self, name: str) -> Any:
        return getattr(real().config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(real().config, name, value)


class Standin(types.ModuleType):
    """Has the functions that are called anyway; whatever else is asked for loads the real one."""

    trace_rules = Rules()
    utils = Utils()
    config = Config()

    def __init__(self) -> None:
        super().__init__(NAME)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Outside torch.compile there is no graph to break."""

    @staticmethod
    def disable(fn: Any, recursive: bool = True, **_: Any) -> Any:
        """Outside torch.compile nothing has to be switched off."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # someone looks through all modules
        return getattr(real(), name)


def real() -> types.ModuleType:
    """Torch's own module, in the place of the stand-in from now on."""
    if isinstance(sys.modules.get(NAME), Standin):
        del sys.modules[NAME]
        del vars(sys.modules["torch"])["_dynamo"]
    return importlib.import_module(NAME)


class InPlace(types.ModuleType):
    """Stands in for a module; whatever it does not have itself loads the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # someone looks through all modules
        return getattr(self._real(), name)

    def _real(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class Shapes(InPlace):
    """Compares shapes whose sizes are numbers."""

    @staticmethod
    def sym_eq(one: Any, other: Any) -> Any:
        """Whether two shapes, or two sizes, are equal."""
        return one == other

    @staticmethod
    def expect_true(answer: Any, skip: int = 0) -> Any:
        """The answer: it is known already."""
        return answer


class Signals(InPlace):
    """Has what torchmetrics would add to the real one, so it adds nothing."""

    hamming = None

    @property
    def __path__(self) -> Any:  # type: ignore[override]
        """Where a module in it is looked for that somebody imports meanwhile."""
        return self._real().__path__


def spare_the_compiler() -> None:
    """Put the stand-ins where torch looks, unless the compiler is loaded already."""
    import torch

    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Standin()
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = Shapes(SHAPES)


@contextlib.contextmanager
def sparing_scipy() -> Iterator[None]:
    """Around the import of torchmetrics: what asks for scipy.signal later gets the real one."""
    standin = sys.modules.setdefault(SIGNALS, Signals(SIGNALS))
    try:
        yield
    finally:
        if isinstance(standin, Signals) and sys.modules.get(SIGNALS) is standin:
            del sys.modules[SIGNALS]


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
