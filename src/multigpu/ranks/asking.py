"""From the arguments of ``run_ranks`` to a job that can travel."""

import contextlib
import functools
import importlib.machinery
import inspect
import linecache
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from multigpu.gpus.memory import parse_bytes
from multigpu.ranks.backend import NAMES
from multigpu.ranks.family import MARK
from multigpu.ranks.rank import Job, pickled


def checked_job(
    fn: Callable[..., Any],
    world_size: int,
    *,
    timeout: float | None,
    backend: str | None,
    memory: int | str | None,
    threads: int,
    trace: bool,
) -> Job:
    """The job.  Raises ValueError with the value and the next thing to try."""
    if sys.platform == "win32":
        raise RuntimeError(
            "run_ranks needs Linux or macOS. On Windows work in WSL2: https://aka.ms/wsl"
        )
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r}: give the function itself, without calling it: run_ranks(train, 4)"
        )
    refuse_what_only_begins(fn)
    refuse_ranks_without_end()
    require_whole("world_size", world_size, "how many ranks to start")
    require_whole("threads", threads, "how many threads each rank may use")
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout={timeout!r}: give seconds, more than 0, or None for no limit")
    if backend is not None and backend not in NAMES:
        raise ValueError(f'backend={backend!r}: "gloo" and "nccl" are possible, or leave it out')
    return Job(
        world_size=world_size,
        timeout=timeout,
        backend=backend,
        memory=None if memory is None else parse_bytes(memory),
        threads=threads,
        trace=bool(trace),
        folder=working_folder(),
        path=[os.path.abspath(folder) for folder in sys.path],
        environment=dict(os.environ),
        cells=code_without_a_file(),
    )


DEEPEST = 3  # runs inside each other


def refuse_ranks_without_end() -> None:
    """Raises ValueError where each rank starts ranks of its own, and so on."""
    depth = len(os.environ.get(MARK, "").split(".")) if MARK in os.environ else 0
    if depth >= DEEPEST:
        raise ValueError(
            f"this is a run_ranks inside {depth} others: a module that calls run_ranks outside of "
            "every function is imported by each rank, which then calls it again. Put the call "
            'under `if __name__ == "__main__":`'
        )


def refuse_what_only_begins(fn: Callable[..., Any]) -> None:
    """Raises ValueError for generators and async functions: a call of them runs nothing."""
    for function in (fn, type(fn).__call__):
        for kind, is_kind in ONLY_BEGIN.items():
            if is_kind(function):
                raise ValueError(
                    f"fn={getattr(fn, '__qualname__', fn)!r} is {kind}: calling it only makes an "
                    "object and runs none of its lines. Give a function that does the work and "
                    "returns its result: run_ranks(lambda: list(steps()), 4), for example, or "
                    "run_ranks(lambda: asyncio.run(main()), 4)"
                )


ONLY_BEGIN: dict[str, Callable[[Any], bool]] = {
    "a generator function (it has a yield)": inspect.isgeneratorfunction,
    "an async generator function": inspect.isasyncgenfunction,
    "an async function": inspect.iscoroutinefunction,
}


def working_folder() -> str:
    """Where the caller is.  Raises ValueError where that folder is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError(
            "the working folder of this program was deleted, and the ranks cannot start there. "
            'Go to a folder that exists first: os.chdir("..."), or cd in the shell'
        ) from None


def require_whole(name: str, value: object, meaning: str) -> None:
    """Raises ValueError unless ``value`` is a whole number above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}: give {meaning}, a whole number from 1, like {name}=4")


def is_number(value: object) -> bool:
    """Whether ``value`` is a number that can be seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool)


BY_VALUE = threading.Lock()  # cloudpickle's list of such modules belongs to the whole process


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Function and arguments as bytes.  Raises ValueError for what cannot travel."""
    with BY_VALUE, sent_by_value(module for module in own_modules() if not importable(module)):
        try:
            return pickled(
                (fn, args),
                what=f"fn={getattr(fn, '__qualname__', fn)!r} or one of its arguments",
                hint="Make such things (locks, open files, generators) inside the function.",
            )
        except TypeError as error:
            raise ValueError(str(error)) from None


@contextlib.contextmanager
def sent_by_value(modules: Iterable[types.ModuleType]) -> Iterator[None]:
    """Let cloudpickle copy what these modules define, as it does for a notebook."""
    import cloudpickle  # type: ignore[import-untyped]

    with contextlib.ExitStack() as stack:
        for module in modules:
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def own_modules() -> list[types.ModuleType]:
    """The modules of the reader: neither Python's, nor installed, nor this package's."""
    installed = tuple(
        os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")
    )
    found = []
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        ours = name == "__main__" or name.partition(".")[0] == "multigpu"
        if isinstance(file, str) and not ours and not file.startswith(installed):
            found.append(module)
    return found


def importable(module: types.ModuleType) -> bool:
    """Whether another process with the same ``sys.path`` finds this module by its name."""
    return _found(module.__name__, tuple(sys.path)) == module.__file__


@functools.cache
def _found(name: str, path: tuple[str, ...]) -> str | None:
    """The file of the module ``name``, without looking at those that are imported already."""
    places: Sequence[str] | None = path
    *packages, _ = accumulate(name.split("."), "{}.{}".format)
    for package in packages:
        spec = importlib.machinery.PathFinder.find_spec(package, places)
        if spec is None or spec.submodule_search_locations is None:
            return None
        places = spec.submodule_search_locations
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    return spec.origin if spec else None


def code_without_a_file() -> dict[str, list[Any]]:
    """The source of notebook cells, as linecache keeps it."""
    return {
        name: list(entry)
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None
    }
