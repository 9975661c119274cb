"""A process group that records each request and passes it to a real one.

All of PyTorch's communication goes through a ``ProcessGroup``: ``dist.all_reduce`` and its
relatives, functional collectives, DistributedDataParallel's reducer in C++, ``fully_shard``.  So
one group in between sees everything.  Source of the idea: the Python process groups of
torch/testing/_internal/distributed/multi_threaded_pg.py.

Real communication writes into a tensor at some moment between start and ``wait()``.  Code that
reads too early is then right by luck in most runs. Here an async call works on copies, and the
result is written into the caller's tensors at ``wait()``, so code without a wait sees old values
every time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partialmethod, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._mode_utils import no_dispatch

from multigpu.devices import dispatch
from multigpu.devices.gpu import running
from multigpu.devices.machine import current_machine
from multigpu.devices.tensor import VirtualTensor
from multigpu.ranks.call_site import Origin, origin
from multigpu.ranks.calls import REDUCTIONS, ROOTED
from multigpu.ranks.frames import Write
from multigpu.ranks.recorder import Current, Group, Recorder, record_threads
from multigpu.ranks.torchrun import set_backend_name


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def replaced(value: Any, by: Mapping[int, torch.Tensor]) -> Any:
    """``value`` with other tensors in place of those with these ids, in lists of tensors, too.

    In place of a tensor on a virtual GPU there are its data.
    """
    if isinstance(value, torch.Tensor):
        return by[id(value)] if id(value) in by else dispatch.data_of(value)
    if isinstance(value, list | tuple):
        return type(value)(replaced(item, by) for item in value)
    return value


def not_intercepted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that may call functions of torch without a look of the virtual GPUs at each."""

    @wraps(method)
    def run(*args: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **named)

    return run


@contextmanager
def unseen() -> Iterator[None]:
    """Operators of ours: autograd does not record them, no mode counts them as the rank's."""
    with torch._C.DisableTorchFunction(), no_dispatch(), torch.no_grad():
        yield


class Copies:
    """Stand-ins for the data of an async call's tensors, by the ids of these.

    ``before`` holds the values at the start, to find out at the end whether the caller has written
    into a tensor during the call.
    """

    def __init__(self, data: Mapping[int, torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self._outputs = {id(tensor): tensor for tensor in outputs}
        self._fillings: list[dispatch.Filling] = []
        with unseen():
            self._data = {name: tensor.detach() for name, tensor in data.items()}
            self._before = {name: tensor.clone() for name, tensor in data.items()}
            self.stand_ins = {name: tensor.clone() for name, tensor in self._before.items()}

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when an operator takes a result on a virtual GPU before it is there."""
        for tensor in self._outputs.values():
            if isinstance(tensor, VirtualTensor):
                self._fillings.append(dispatch.Filling(tensor, tell))

    def publish(self) -> bool:
        """Copy the results into the caller's tensors; return whether these had been changed."""
        for filling in self._fillings:
            filling.over()
        with unseen():
            changed = any(
                not same_bits(self._data[name], self._before[name]) for name in self._data
            )
            for name in self._outputs:
                self._data[name].copy_(self.stand_ins[name])
        return changed


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in every bit, so that nan equals nan."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(one.element_size(), torch.int64)
    return torch.equal(one.reshape(-1).view(integers), other.reshape(-1).view(integers))


class TracedWork(dist.Work):
    """A ``Work`` that reports when it is waited for and when it is done."""

    def __init__(
        self,
        inner: dist.Work,
        recorder: Recorder,
        number: int,
        *,
        tensors: Sequence[torch.Tensor],
        copies: Copies | None,
        is_message: bool,
        is_async: bool,
        for_reducer: bool = False,
        sources: Sequence[int] = (),
    ) -> None:
        """``sources``: for a receive from any rank, the global ranks of the group's members."""
        super().__init__()
        self._inner, self._recorder, self._number = inner, recorder, number
        self._tensors, self._copies = list(tensors), copies
        self._is_message, self._is_async, self._sources = is_message, is_async, sources
        self._for_reducer = for_reducer
        self._lock, self._over = threading.Lock(), False

    def __del__(self) -> None:
        """Keep a message that was never waited for."""
        if self._is_message and not self._over:
            self._recorder.keep(self._inner)

    def wait(self, timeout: Any = None) -> bool:
        """Block until the result is available."""
        if self._over:
            return True
        seconds = timeout.total_seconds() if timeout is not None else 0
        # C++ asks for no time limit with zero seconds.
        if self._is_async:  # otherwise it waits since it has begun
            self._recorder.waits(self._number, limit=seconds or None)
        with self._recorder.failing(self._number):
            self._inner.wait(*([timeout] if seconds else []))
        self._publish()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether the result is available; if so, it is visible from now on."""
        if self._inner.is_completed():
            self._publish()
        return self._over

    def get_future(self) -> torch.futures.Future[Any]:
        """Completes with the list of tensors, which hold the result then."""
        if self._for_reducer:  # its buckets hold it anyway
            return self._inner.get_future()

        def publish(_: object) -> list[torch.Tensor]:
            self._publish()
            return self._tensors

        future: torch.futures.Future[Any] = self._inner.get_future().then(publish)
        self._recorder.futures[future] = (self._number, lambda: self._over)
        return future

    def result(self) -> list[torch.Tensor]:
        """The tensors, once ``wait`` is over."""
        return self._tensors

    def source_rank(self) -> int:
        """The rank that a message came from."""
        return self._inner.source_rank()

    _source_rank = source_rank

    def _publish(self) -> None:
        with self._lock:
            if self._over:
                return
            changed = self._copies.publish() if self._copies is not None else False
            self._over = True
        source = self._sources[self._inner.source_rank()] if self._sources else None
        self._recorder.done(self._number, changed=changed, source=source)


def record_futures(recorder: Recorder) -> None:
    """From now on a wait for a future of ``recorder.futures`` is recorded."""
    kind: Any = torch.futures.Future.__base__  # which the futures of C++ have
    wait, then, wait_all = kind.wait, kind.then, torch.futures.wait_all
    known = recorder.futures

    def seen_wait(future: Any) -> Any:
        number, is_over = known.get(future, (0, lambda: True))
        if is_over():
            return wait(future)
        recorder.waits(number)
        try:
            return wait(future)
        except Exception as error:
            if not is_over():  # else the call went well, and a callback did not
                recorder.failed(number, error)
            raise

    def seen_then(future: Any, callback: Callable[[Any], Any]) -> Any:
        following = then(future, callback)
        if future in known:
            known[following] = known[future]
        return following

    def seen_wait_all(futures: Sequence[Any]) -> list[Any]:
        for future in futures:
            if future in known:
                future.wait()
        return wait_all(list(futures))

    kind.wait, kind.then, torch.futures.wait_all = seen_wait, seen_then, seen_wait_all


SYNCHRONOUS = ("send", "recv", "send_object_list", "recv_object_list")

# What a call is named in a trace -> the methods of ProcessGroup.  Torch 2.13 has new names for
# some; 2.11 knows the old.
COLLECTIVES = {
    "all_reduce": ("allreduce", "allreduce_coalesced"),
    "broadcast": ("broadcast",),
    "reduce": ("reduce",),
    "all_gather": (
        *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced"),
        *("_allgather_base", "all_gather_single", "all_gather_single_coalesced"),
    ),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "reduce_scatter": (
        *("reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base"),
        *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    ),
    "all_to_all": ("alltoall", "alltoall_base", "all_to_all_single"),
    "barrier": ("barrier", "monitored_barrier"),
}
# NCCL counts the elements of the one large tensor, gloo cuts it along its first dimension.
SINGLE = ("_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single")
MESSAGES = {"send": ("send",), "recv": ("recv", "recv_anysource")}
# The first argument is what is filled. These bring something else, which is the second.
BRING_ANOTHER = ("all_gather", "gather", "reduce_scatter", "all_to_all")
PASSED_ON = (
    *("_start_coalescing", "_end_coalescing", "_wait_for_pending_works", "_has_hooks"),
    *("set_timeout", "shutdown", "abort", "get_group_store", "_enable_collectives_timing"),
)


class TracedGroup(dist.ProcessGroup):
    """Records each call and passes it on to the real group.

    The real group's name has two underscores, because calls through it are not recorded.
    """

    def __init__(
        self,
        inner: dist.ProcessGroup,
        group: Group,
        recorder: Recorder,
        *,
        on_virtual: bool = False,
        only_gpus: bool = False,
    ) -> None:
        """``on_virtual``: gloo works for virtual GPUs.

        ``only_gpus``: it does so in the place of NCCL, which takes nothing from the CPU.
        """
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.group, self.recorder, self.__inner = group, recorder, inner
        self._on_virtual, self._only_gpus = on_virtual, only_gpus

    # The names under which Python and C++ ask a group who it is.

    def getBackendName(self) -> str:
        """For C++, which would expect more of the group if it read "gloo" here."""
        return "traced"

    def getGroupName(self) -> str:
        return self.__inner.group_name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self.__inner.group_name

    @property
    def _device_types(self) -> Any:
        return [torch.device("cuda")] if self._only_gpus else self.__inner._device_types

    @property  # type: ignore[misc]
    def use_pg_for_symm_mem_rendezvous(self) -> Any:
        """C++ would look for a backend that this group does not have."""
        return self.__inner.use_pg_for_symm_mem_rendezvous

    def _get_backend(self, device: torch.device) -> Any:
        """The real one for torch's own code, which asks what it can do; else this group."""
        asks = str(sys._getframe(1).f_globals.get("__name__"))
        return self.__inner._get_backend(device) if asks.startswith("torch.") else self

    # What every call comes down to.

    def collective(self, op: str, method: str, *arguments: Any, **named: Any) -> Any:
        values = (*arguments, *named.values())
        options = next((v for v in values if type(v).__name__.endswith("Options")), None)
        if self._on_virtual and op == "barrier" and options is not None:
            options.device = torch.device("cpu")  # where gloo can make a tensor
        if self._only_gpus and method in SINGLE:
            whole = [t.view(-1) if t.is_contiguous() else t for t in arguments[:2]]
            arguments = (*whole, *arguments[2:])
        from_where = origin()
        root = getattr(options, "rootRank", None) if op in ROOTED else None
        filled: Any = arguments[0] if op != "barrier" else ()
        return self._call(
            method,
            arguments,
            named,
            op=op,
            origin=from_where,
            is_async=bool(getattr(options, "asyncOp", True)) and method != "monitored_barrier",
            outputs=tensors_in(filled),
            inputs=tensors_in(arguments[1] if op in BRING_ANOTHER else filled),
            reduce=_reduction_of(options) if op in REDUCTIONS else None,
            root=self._member(root) if root is not None else None,
        )

    def message(self, op: str, method: str, *arguments: Any, **named: Any) -> Any:
        from_where = origin()
        tensors, *numbers = (*arguments, *named.values())
        peer = None if method == "recv_anysource" else self._member(numbers.pop(0))
        return self._call(
            method,
            (tensors, *arguments[1:]),
            named,
            op=op,
            origin=from_where,
            is_async=from_where.via not in SYNCHRONOUS,
            outputs=tensors_in(tensors) if op == "recv" else [],
            inputs=tensors_in(tensors),
            peer=peer,
            tag=int(numbers.pop(0)) if numbers else 0,
        )

    def passed_on(self, _: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method that does not communicate."""
        return getattr(self.__inner, method)(*arguments, **named)

    @not_intercepted
    def _call(
        self,
        method: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        *,
        op: str,
        origin: Origin,
        is_async: bool,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        **details: Any,
    ) -> Any:
        touched = {id(tensor): tensor for tensor in (*outputs, *inputs)}
        # (Below an operator, of DTensor for example, there are the data inside virtual tensors.)
        from_gpu = running.in_core or all(tensor.is_cuda for tensor in touched.values())
        if self._only_gpus and not from_gpu:
            raise RuntimeError(
                "No backend type associated with device type cpu: NCCL, the default where there "
                "are GPUs, takes tensors on GPUs only. Move the tensor with .to('cuda'), or make "
                "the group with init_process_group('cpu:gloo,cuda:nccl')."
            )
        number = self.recorder.begin(
            op, self.group, inputs, origin=origin, is_async=is_async, **details
        )
        for_join = is_async and origin.via == "join"
        # With NCCL a wait belongs to a stream, so a copy after it would come too early.
        has_nccl = "nccl" in str(self.__inner.name()).lower()
        data = {name: dispatch.data_of(tensor) for name, tensor in touched.items()}
        may_copy = all(
            tensor.is_contiguous() and not tensor.is_sparse and not (has_nccl and tensor.is_cuda)
            for tensor in data.values()
        )
        # DistributedDataParallel's reducer waits for its own buckets before anybody reads them.
        for_reducer = is_async and origin.called_by_cpp
        may_copy = may_copy and is_async and not for_join and not for_reducer
        copies = Copies(data, outputs) if may_copy else None
        if copies is None and dispatch.in_flight:
            dispatch.note_uses(arguments, named)
        stand_ins = {} if copies is None else copies.stand_ins
        arguments = replaced(arguments, stand_ins)
        named = {name: replaced(value, stand_ins) for name, value in named.items()}
        if method == "monitored_barrier":  # the one that blocks inside the call
            given = (v for v in (*arguments, *named.values()) if isinstance(v, timedelta))
            timeout = next(given, c10d.default_pg_timeout)
            self.recorder.waits(number, limit=timeout.total_seconds())
            with self.recorder.failing(number):
                getattr(self.__inner, method)(*arguments, **named)
            return self.recorder.done(number)
        with self.recorder.failing(number):
            work = getattr(self.__inner, method)(*arguments, **named)
        if work is None:  # NCCL's synchronous calls have no handle: the stream is in order
            return self.recorder.done(number)
        if for_join:  # DDP's reducer in C++ asks this handle for a future: only the real one has it
            work.get_future().then(lambda _: self.recorder.done(number))
            return work
        if copies is not None:
            copies.watch(lambda: self.recorder.used(number))
        if is_async:
            with suppress(RuntimeError):  # gloo has no future for messages, and for some others
                work.get_future().then(lambda _: self.recorder.tell("completed", id=number))
        traced = TracedWork(
            work,
            self.recorder,
            number,
            tensors=outputs or inputs,
            copies=copies,
            is_message=op in MESSAGES,
            is_async=is_async,
            for_reducer=for_reducer,
            sources=self.group.members if method == "recv_anysource" else (),
        )
        if for_reducer:
            # Where it waits in C++, wait before it, so that it is seen; outside of backward nothing
            # can be queued.
            with suppress(RuntimeError):
                torch.autograd.Variable._execution_engine.queue_callback(traced.synchronize)
        return traced

    def _member(self, number: int) -> int:
        """The global rank of a member.  Raises ValueError: a backend would wait forever."""
        size = len(self.group.members)
        if not 0 <= number < size:
            raise ValueError(f"there is no rank {number} in a group of {size}: 0 to {size - 1}")
        return self.group.members[number]


def _reduction_of(options: Any) -> str:
    """ "sum", "max", …; without options it is a sum, as in torch."""
    if options is None:
        return "sum"
    kind = getattr(options.reduceOp, "op", options.reduceOp)  # ReduceOp itself has no readable text
    return str(kind).rpartition(".")[2].partition(":")[0].strip("<> ").lower()


for _kind, _methods in (
    (TracedGroup.collective, COLLECTIVES),
    (TracedGroup.message, MESSAGES),
    (TracedGroup.passed_on, {"": PASSED_ON}),
):
    for _op, _names in _methods.items():
        for _name in _names:
            if hasattr(dist.ProcessGroup, _name):  # torch 2.11 and 2.13 differ
                setattr(TracedGroup, _name, partialmethod(_kind, _op, _name))


BACKEND = "traced"
# For each name of a backend, the kinds of devices and what carries their tensors.
CARRIERS = {
    "gloo": {"cpu": "gloo", "cuda": "gloo"},
    "nccl": {"cuda": "nccl"},
    "undefined": {"cuda": "nccl"},  # torch's default where there are GPUs
    "cpu:gloo,cuda:nccl": {"cpu": "gloo", "cuda": "nccl"},
    "cuda:nccl,cpu:gloo": {"cpu": "gloo", "cuda": "nccl"},
}


def start_recording(write: Write) -> Recorder:
    """Record this process's communication; ``write`` takes one frame at a time.

    Call it before ``init_process_group``.  Call that and ``new_group`` as usual, with "gloo" or
    "nccl"; ``dist.get_backend()`` also answers as usual.
    """
    recorder = Current.recorder = Recorder(write)
    virtual = current_machine().is_virtual
    make_group = c10d._new_process_group_helper
    real: list[str] = []  # backends of the groups that are being made
    worlds = 0  # torch counts its groups from the start again when the first one is made again

    def make(options: Any, of_backend: Any = None) -> dist.ProcessGroup:
        nonlocal worlds
        worlds += not dist.is_initialized()
        name = f"{options.group_id} of world {worlds}" if worlds > 1 else str(options.group_id)
        members = options.global_ranks_in_group or range(options.group_size)
        group = Group(name, tuple(int(rank) for rank in members))
        return TracedGroup(
            inner_group(CARRIERS["gloo" if virtual else real[-1]], options, of_backend),
            group,
            recorder,
            on_virtual=virtual,
            only_gpus=virtual and "cpu" not in CARRIERS[real[-1]],
        )

    def make_traced(
        size: int, rank: int, members: list[int], backend: Any, store: Any, *args: Any, **named: Any
    ) -> Any:
        if str(backend) not in CARRIERS:  # it stays as it is
            return make_group(size, rank, members, backend, store, *args, **named)
        if virtual:
            named.pop("device_id", None)  # no backend could connect to it
        on_cpu = str(backend) != "nccl" and not torch.cuda.is_available()
        real.append("gloo" if on_cpu else str(backend))
        try:
            group, prefix = make_group(
                size, rank, members, c10d.Backend(BACKEND), store, *args, **named
            )
        finally:
            name = real.pop()
        if isinstance(group, TracedGroup):
            set_backend_name(group, name, prefix)
        return group, prefix

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    c10d._new_process_group_helper = make_traced  # type: ignore[assignment]
    record_new_groups(recorder)
    record_threads(recorder)
    record_futures(recorder)
    return recorder


def inner_group(
    carriers: Mapping[str, str], options: Any, of_backend: Any = None
) -> dist.ProcessGroup:
    """A process group of torch's own that does the work: for each kind of device its backend.

    ``of_backend``: the program's ``pg_options``, which NCCL takes.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    timeout: timedelta = options.timeout
    group = dist.ProcessGroup(store, rank, size)
    workers: dict[str, Any] = {}
    for device, backend in carriers.items():
        if backend not in workers:
            if backend == "gloo":
                workers[backend] = dist.ProcessGroupGloo(store, rank, size, timeout)
            else:
                if not (dist.is_nccl_available() and torch.cuda.is_available()):
                    raise RuntimeError(
                        "the program asks for NCCL, and there are no GPUs here. `multigpu run "
                        "--nproc N program.py` runs it on virtual GPUs, and reports a hang as well."
                    )
                nccl = of_backend or dist.ProcessGroupNCCL.Options()
                nccl._timeout = timeout
                workers[backend] = dist.ProcessGroupNCCL(store, rank, size, nccl)
            workers[backend]._set_sequence_number_for_group()
        backend_type = getattr(dist.ProcessGroup.BackendType, backend.upper())
        group._set_default_backend(backend_type)  # that of GPUs comes last
        group._register_backend(torch.device(device), backend_type, workers[backend])
    group._set_group_name(options.group_id)
    return group


def record_new_groups(recorder: Recorder) -> None:
    """``new_group`` blocks until all ranks have called it: a collective of the whole world."""
    make = c10d._new_group_with_tag

    def make_recorded(*args: Any, **named: Any) -> Any:
        world = dist.group.WORLD
        if not isinstance(world, TracedGroup) or named.get("use_local_synchronization"):
            return make(*args, **named)
        ranks = args[0] if args else named.get("ranks")
        number = recorder.begin(
            "new_group",
            world.group,
            [],
            origin=origin(),
            is_async=False,
            wanted=world.group.members if ranks is None else sorted(ranks),
        )
        with recorder.failing(number):
            group = make(*args, **named)
        recorder.done(number)
        return group

    c10d._new_group_with_tag = make_recorded
