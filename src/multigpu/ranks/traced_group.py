"""A process group that says what it is asked to do, and then has a real one do it.

All of PyTorch's communication goes through a ``ProcessGroup``: ``dist.all_reduce`` and its
relatives, functional collectives, DistributedDataParallel's reducer in C++, ``fully_shard``.  So
one group in the middle sees everything.  Source of the idea: the Python process groups of
torch/testing/_internal/distributed/multi_threaded_pg.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from multigpu.ranks.call_arguments import options_in, reduction_of, replaced, tensors_in
from multigpu.ranks.origin import Origin, origin
from multigpu.ranks.recorder import Group, Recorder
from multigpu.ranks.work import Copies, TracedWork

SYNCHRONOUS = ("send", "recv", "send_object_list", "recv_object_list")

# Method of ProcessGroup -> what it is called in a trace, where the tensors are that it fills, and
# where those are that this rank brings.  Torch 2.13 has new names for some; 2.11 knows the old.
COLLECTIVES = {
    "allreduce": ("all_reduce", 0, 0),
    "allreduce_coalesced": ("all_reduce", 0, 0),
    "broadcast": ("broadcast", 0, 0),
    "reduce": ("reduce", 0, 0),
    "allgather": ("all_gather", 0, 1),
    "allgather_coalesced": ("all_gather", 0, 1),
    "allgather_into_tensor_coalesced": ("all_gather", 0, 1),
    "_allgather_base": ("all_gather", 0, 1),
    "all_gather_single": ("all_gather", 0, 1),
    "all_gather_single_coalesced": ("all_gather", 0, 1),
    "gather": ("gather", 0, 1),
    "scatter": ("scatter", 0, 0),
    "reduce_scatter": ("reduce_scatter", 0, 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0, 1),
    "_reduce_scatter_base": ("reduce_scatter", 0, 1),
    "reduce_scatter_single": ("reduce_scatter", 0, 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 0, 1),
    "alltoall": ("all_to_all", 0, 1),
    "alltoall_base": ("all_to_all", 0, 1),
    "all_to_all_single": ("all_to_all", 0, 1),
    "barrier": ("barrier", None, None),
    "monitored_barrier": ("barrier", None, None),
}
MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
PASSED_ON = (
    *("_start_coalescing", "_end_coalescing", "_wait_for_pending_works", "_has_hooks"),
    *("set_timeout", "shutdown", "abort", "get_group_store", "_enable_collectives_timing"),
)


class TracedGroup(dist.ProcessGroup):
    """Says each call to the recorder, and passes it on to the real group.

    That one has a name with two underscores, for whoever gets hold of it calls it unseen.
    """

    def __init__(self, inner: dist.ProcessGroup, group: Group, recorder: Recorder) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.group, self.recorder, self.__inner = group, recorder, inner

    # The names under which Python and C++ ask a group who it is.

    def getBackendName(self) -> str:
        """For C++, which would look for more in the group if it read "gloo" here."""
        return "traced"

    def getGroupName(self) -> str:
        """For C++."""
        return self.group.name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """For Python."""
        return self.group.name

    @property
    def _device_types(self) -> Any:
        return self.__inner._device_types

    @property  # type: ignore[misc]
    def use_pg_for_symm_mem_rendezvous(self) -> Any:
        """C++ would look for a backend that this group has not."""
        return self.__inner.use_pg_for_symm_mem_rendezvous

    def _get_backend(self, device: torch.device) -> Any:
        """The real one for torch's own code, which asks it what it can; this group for others."""
        asks = str(sys._getframe(1).f_globals.get("__name__"))
        return self.__inner._get_backend(device) if asks.startswith("torch.") else self

    @staticmethod
    def _passed_on(method: str) -> Callable[..., Any]:
        def call(self: TracedGroup, *arguments: Any, **named: Any) -> Any:
            return getattr(self.__inner, method)(*arguments, **named)

        return call

    # What every call comes down to.

    def collective(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """One collective of any kind."""
        op, filled, brought = COLLECTIVES[method]
        options = options_in((*arguments, *named.values()))
        from_where = origin()
        root = getattr(options, "rootRank", None) if op in ROOTED else None
        return self._call(
            method,
            arguments,
            named,
            op=op,
            origin=from_where,
            is_async=bool(getattr(options, "asyncOp", True)) and op != "barrier",
            outputs=tensors_in(arguments[filled]) if filled is not None else [],
            inputs=tensors_in(arguments[brought]) if brought is not None else [],
            reduce=reduction_of(options) if op in REDUCING else None,
            root=self._member(root) if root is not None else None,
        )

    def message(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """One send or receive."""
        op, from_where = MESSAGES[method], origin()
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
        number = self.recorder.begin(
            op, self.group, inputs, origin=origin, is_async=is_async, **details
        )
        touched = list({id(tensor): tensor for tensor in (*outputs, *inputs)}.values())
        for_join = is_async and origin.via == "join"
        may_copy = is_async and not for_join and self._can_copy(touched)
        copies = Copies(touched, outputs) if may_copy else None
        if copies is not None:
            arguments = replaced(arguments, copies)
            named = {name: replaced(value, copies) for name, value in named.items()}
        if method == "monitored_barrier":  # the one that blocks inside the call
            with self.recorder.waiting(number):
                getattr(self.__inner, method)(*arguments, **named)
            return self.recorder.done(number)
        try:
            work = getattr(self.__inner, method)(*arguments, **named)
        except Exception as error:
            self.recorder.tell("failed", id=number, text=str(error)[:500])
            raise
        if for_join:  # DDP's reducer in C++ asks this handle for a future: only the real one has it
            work.get_future().then(lambda _: self.recorder.done(number))
            return work
        if is_async:
            with suppress(RuntimeError):  # gloo has no future for messages, and for some others
                work.get_future().then(lambda _: self.recorder.tell("completed", id=number))
        traced = TracedWork(
            work,
            self.recorder,
            number,
            tensors=outputs or inputs,
            copies=copies,
            sources=self.group.members if method == "recv_anysource" else (),
        )
        if origin.called_by_cpp:
            _wait_when_backward_ends(traced)
        return traced

    def _member(self, number: int) -> int:
        """The global rank of a member.  Raises ValueError: a backend would wait for nobody."""
        size = len(self.group.members)
        if not 0 <= number < size:
            raise ValueError(f"there is no rank {number} in a group of {size}: 0 to {size - 1}")
        return self.group.members[number]

    def _can_copy(self, tensors: Sequence[torch.Tensor]) -> bool:
        """With NCCL a wait belongs to a stream, and the copy would come too early."""
        return "nccl" not in str(self.__inner.name()).lower() and all(
            tensor.is_contiguous() and not tensor.is_sparse for tensor in tensors
        )


def _wait_when_backward_ends(work: TracedWork) -> None:
    """Where DistributedDataParallel's reducer waits in C++, wait before it, so that it is seen."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(work.synchronize)


def _collective(method: str) -> Callable[..., Any]:
    def call(self: TracedGroup, *arguments: Any, **named: Any) -> Any:
        return self.collective(method, arguments, named)

    return call


def _message(method: str) -> Callable[..., Any]:
    def call(self: TracedGroup, *arguments: Any, **named: Any) -> Any:
        return self.message(method, arguments, named)

    return call


for _makers, _methods in (
    (_collective, COLLECTIVES),
    (_message, MESSAGES),
    (TracedGroup._passed_on, PASSED_ON),
):
    for _method in _methods:
        if hasattr(dist.ProcessGroup, _method):  # torch 2.11 and 2.13 differ
            setattr(TracedGroup, _method, _makers(_method))
