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

DYNAMO, SHAPES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
SIGNALS = "scipy.signal"
PACKAGES = (DYNAMO, SIGNALS)


class StandIn(types.ModuleType):
    """Stands in for a module; whatever it does not know itself loads the real one."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        # Someone looks through all modules, or wants to know whether this is a package.
        if name.startswith("__") and (name != "__path__" or self.__name__ not in PACKAGES):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> types.ModuleType:
        """The module itself, in the place of the stand-in from now on."""
        if sys.modules.get(self.__name__) is self:
            package, _, name = self.__name__.rpartition(".")
            del sys.modules[self.__name__]
            vars(sys.modules.get(package, self)).pop(name, None)
        return importlib.import_module(self.__name__)


class Part:
    """Something in a module that a stand-in knows in part."""

    def __init__(self, module: str, part: str, **known: Any) -> None:
        vars(self).update(known, _of=(module, part))

    def _real(self) -> Any:
        module, part = self._of
        standin = sys.modules[module]
        return getattr(standin.real() if isinstance(standin, StandIn) else standin, part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)


def spare_the_compiler() -> None:
    """Put the stand-ins where torch looks, unless the compiler is loaded already."""
    import torch

    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = torch._dynamo = StandIn(
            DYNAMO,
            graph_break=lambda msg="": None,  # outside torch.compile there is no graph to break
            disable=lambda fn, recursive=True, **_: fn,  # and nothing has to be switched off
            trace_rules=Part(DYNAMO, "trace_rules", clear_lru_cache=lambda: None),
            # The next two answer as where nobody has changed the compiler's settings.
            utils=Part(DYNAMO, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
            config=Part(DYNAMO, "config", error_on_nested_fx_trace=True),
        )
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = StandIn(
            SHAPES,
            sym_eq=lambda one, other: one == other,  # of two shapes whose sizes are numbers
            expect_true=lambda answer, skip=0: answer,  # it is known already
        )


@contextlib.contextmanager
def sparing_scipy() -> Iterator[None]:
    """Around the import of torchmetrics: what asks for scipy.signal later gets the real one."""
    # It has what torchmetrics would add to the real one, so it adds nothing.
    standin = sys.modules.setdefault(SIGNALS, StandIn(SIGNALS, hamming=None))
    try:
        yield
    finally:
        if isinstance(standin, StandIn) and sys.modules.get(SIGNALS) is standin:
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
    with open("/proc/self/maps") as file:
        maps = [line.split() for line in file]
    for addresses, access, _, _, inode, *name in maps:
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):  # of no file
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
            if start < end:
                madvise(start, end - start, COLLAPSE)  # an older system says no: it stays slow
