"""The reducer of DistributedDataParallel in Python: PyTorch's own, in C++, needs a real GPU.

DistributedDataParallel itself stays PyTorch's.  Only what it has in C++ is replaced while virtual
GPUs are on, and only for models on one: dist.Reducer, which averages the gradients in buckets
during backward, and the two steps of the constructor that compare and send the parameters.
Buckets, calls and their order are those of torch/csrc/distributed/c10d/reducer.cpp (torch 2.13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from multigpu.devices.comm import chunks_of
from multigpu.devices.tensor import VirtualTensor

_dist: Any = dist  # its type hints leave out what DistributedDataParallel uses

Hook = Callable[[Any, "GradBucket"], Any]  # gets its state and a bucket, returns a future

UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used in producing loss. You can "
    "enable unused parameter detection by passing the keyword argument "
    "`find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \nmaking "
    "sure all `forward` function outputs participate in calculating loss. \nIf you already have "
    "done the above, then the distributed data parallel module wasn't able to locate the output "
    "tensors in the return value of your module's `forward` function.\nParameter indices which did "
    "not receive grad for rank {rank}: {missing}"
)
TWICE = (
    "Expected to mark a variable ready only once. This error is caused by one of the following "
    "reasons: 1) Use of a module parameter outside the `forward` function. Please make sure model "
    "parameters are not shared across multiple concurrent forward-backward passes. or try to use "
    "_set_static_graph() as a workaround if this module graph does not change during training "
    "loop.2) Reused parameters in multiple reentrant backward passes. For example, if you use "
    "multiple `checkpoint` functions to wrap the same part of your model, it would result in the "
    "same set of parameters been used by different reentrant backward passes multiple times, and "
    "hence marking a variable ready multiple times. DDP does not support such use cases in "
    "default. You can try to use _set_static_graph() as a workaround if your module graph does not "
    "change over iterations.\nParameter at index {index} has been marked as ready twice. This "
    "means that multiple autograd engine hooks have fired for this particular parameter during "
    "this iteration."
)


class GradBucket:
    """What a communication hook gets: the gradients of a few parameters, in one flat tensor."""

    def __init__(self, bucket: Bucket, number: int, *, is_last: bool) -> None:
        self._bucket, self._number, self._is_last = bucket, number, is_last
        self._buffer = bucket.buffer

    def index(self) -> int:
        """Its place in the order in which buckets are sent."""
        return self._number

    def buffer(self) -> Tensor:
        return self._buffer

    def set_buffer(self, tensor: Tensor) -> None:
        self._buffer = tensor

    def gradients(self) -> list[Tensor]:
        return self._bucket.views(self._buffer)

    def parameters(self) -> list[Tensor]:
        return self._bucket.parameters

    def is_last(self) -> bool:
        return self._is_last


class Bucket:
    """Parameters whose gradients are sent together, and the memory for them."""

    def __init__(self, indices: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.indices, self.parameters = list(indices), list(parameters)
        first, size = parameters[0], sum(p.numel() for p in parameters)
        self.buffer = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.places = dict(zip(indices, self.views(self.buffer), strict=True))
        self.pending = len(self.indices)
        self.future: Any = None

    def views(self, flat: Tensor) -> list[Tensor]:
        """Parts of a flat tensor as gradients, with the strides of the parameters."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [
            part.as_strided(p.shape, p.stride(), part.storage_offset())
            if dense(p)
            else part.view(p.shape)
            for part, p in zip(parts, self.parameters, strict=True)
        ]


def dense(tensor: Tensor) -> bool:
    """Whether its elements lie without gaps, in whatever order of dimensions."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    return tensor.permute(order).is_contiguous()


class Reducer:
    """Averages gradients over ranks while backward runs.

    Its methods are those that torch.nn.parallel.distributed calls, with the same names.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 * 2**20,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: dict[int, str] | None = None,
        first_bucket_bytes_cap: int = 2**20,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Sequence[int] = (),
        *_: Any,
    ) -> None:
        if any(expect_sparse_gradients):
            raise RuntimeError(
                "DistributedDataParallel on virtual GPUs does not send sparse gradients. Make the "
                "embedding with sparse=False, or leave the model on the CPU."
            )
        self.params, self.group = list(params), process_group
        self.caps = list(bucket_bytes_cap_list) or [first_bucket_bytes_cap, bucket_bytes_cap]
        self.finds_unused, self.gives_views = find_unused_parameters, gradient_as_bucket_view
        self.skips_unused = skip_all_reduce_unused_params
        self.is_static = False
        self.hook: tuple[Hook | None, Any] = None, None
        self.backwards = 0  # that have synchronized
        self.expects_hooks = False  # backward is to synchronize: not inside no_sync()
        self.unfinished = False  # gradients have come in, and not all of them
        self.has_rebuilt, self.order = False, list[int]()  # in which gradients became ready
        self.triggers: Counter[int] = Counter()  # a static graph: how often a hook runs in backward
        self.left: Counter[int] = Counter()  # the same, for the backward that runs now
        self.unused: list[int] = []
        self.joined_work: tuple[Any, bool] | None = None  # of model.join()
        self.futures: list[Any] = []  # to wait for at the end of backward
        self.frees_gradients = False  # the optimizer runs in backward
        device = self.params[0].device
        self.used = torch.zeros(len(self.params), dtype=torch.int32, device=device)
        self.used_anywhere, self.used_work = self.used, None
        self._make_buckets(bucket_indices)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, index=index: self._autograd_hook(index)
            )
            for index, parameter in enumerate(self.params)
        ]

    def _make_buckets(self, bucket_indices: Iterable[Sequence[int]]) -> None:
        self.buckets = [
            Bucket(indices, [self.params[i] for i in indices]) for indices in bucket_indices
        ]
        self.bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}
        self._reset_state()

    def _reset_state(self) -> None:
        self.next_bucket, self.ready, self.marked_unused = 0, set[int](), False
        for bucket in self.buckets:
            bucket.pending = len(bucket.indices)
        self.left = Counter(self.triggers)

    # Before and after forward

    def prepare_for_forward(self) -> None:
        """PyTorch counts here; we do so at the end of backward."""

    def _rebuild_buckets(self) -> bool:
        """After the first backward: buckets in the order in which gradients really come.

        Rank 0's order counts for all.  Raises RuntimeError if some gradient never came.
        """
        self._check_reducer_finalized()
        rebuilds = (self.is_static or not self.finds_unused) and not self.has_rebuilt
        if not rebuilds or not self.order:
            return False
        # In a static graph those come last whose gradient never does.
        order = [*dict.fromkeys([*self.order, *range(len(self.params))])]
        indices, _ = _dist._compute_bucket_assignment_by_size(
            [self.params[index] for index in order],
            self.caps,
            [False] * len(order),
            order,
        )
        device = self.params[0].device
        # All indices and how many buckets, then the size of each bucket.
        flat = torch.tensor([*(i for bucket in indices for i in bucket), len(indices)])
        flat = self._sent_by_first(flat.to(device))
        *order, count = flat.tolist()
        sizes = torch.zeros(count, dtype=torch.int64)
        sizes[: len(indices)] = torch.tensor([len(bucket) for bucket in indices][:count])
        split = self._sent_by_first(sizes.to(device)).tolist()
        self._make_buckets([part.tolist() for part in torch.split(torch.tensor(order), split)])
        self.has_rebuilt, self.order = True, []
        return True

    def _sent_by_first(self, tensor: Tensor) -> Tensor:
        self.group.broadcast(tensor, 0).wait()
        return tensor

    def _check_reducer_finalized(self) -> None:
        if self.unfinished:
            missing = [str(i) for i in range(len(self.params)) if i not in self.ready]
            text = UNFINISHED.format(rank=self.group.rank(), missing=" ".join(missing))
            raise RuntimeError(text)

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """Expect gradients.  ``outputs`` are those of forward, where unused parameters are
        searched.
        """
        self.expects_hooks = True
        self._reset_state()
        if self.finds_unused and not self.is_static:
            reached = parameters_reached(outputs)
            self.unused = [i for i, p in enumerate(self.params) if id(p) not in reached]

    # During backward

    @property
    def _in_first_of_static(self) -> bool:
        return self.is_static and not self.backwards

    def _autograd_hook(self, index: int) -> None:
        """The gradient of parameter ``index`` is complete."""
        if self.params[index].grad is not None:
            self.used[index] = 1  # inside no_sync(), too: what came there is sent later
        if not self.expects_hooks:
            return
        if self._in_first_of_static:  # how often it will be called is only known afterwards
            self.triggers[index] += 1
            return
        if not self.marked_unused:
            self.marked_unused = True
            for unused in self.unused:
                self._mark_ready(unused)
        self.left[index] -= 1
        if self.is_static and self.left[index] > 0:
            return
        if not self.has_rebuilt and (self.is_static or not self.finds_unused):
            self.order.append(index)
        self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        if index in self.ready:
            raise RuntimeError(TWICE.format(index=index))
        self.ready.add(index)
        self.unfinished = True
        bucket = self.bucket_of[index]
        self._fill(bucket, index)
        bucket.pending -= 1
        while self.next_bucket < len(self.buckets) and not self.buckets[self.next_bucket].pending:
            self._send(self.buckets[self.next_bucket])
        if self.next_bucket == len(self.buckets):
            if self.finds_unused and not self.is_static:
                self._send_used()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finalize)

    @torch.no_grad()
    def _fill(self, bucket: Bucket, index: int) -> None:
        """Put a gradient into its bucket, divided if no hook does that itself."""
        place, grad = bucket.places[index], self.params[index].grad
        if grad is None:
            place.zero_()
            return
        factor = 1.0 if self.hook[0] else 1.0 / self._divisor()
        if not (self.gives_views and grad.data_ptr() == place.data_ptr()):
            torch.mul(grad, factor, out=place) if factor != 1.0 else place.copy_(grad)
        elif factor != 1.0:
            place.mul_(factor)
        if self.gives_views:
            self.params[index].grad = place

    def _divisor(self) -> int:
        """The number of ranks; with ``model.join()`` that of those which still have data."""
        size: int = self.group.size()
        if self.joined_work is None:
            return size
        work, keeps_world_size = self.joined_work
        work.wait()
        return size if keeps_world_size else int(work.result()[0].item())

    def _send(self, bucket: Bucket) -> None:
        is_last = self.next_bucket == len(self.buckets) - 1
        all_unused = all(index in self.unused for index in bucket.indices)
        if not (self.skips_unused and all_unused):
            bucket.future = self._run_comm_hook(
                GradBucket(bucket, self.next_bucket, is_last=is_last)
            )
        self.next_bucket += 1

    def _run_comm_hook(self, bucket: GradBucket) -> Any:
        hook, state = self.hook
        return self._run_allreduce_hook(bucket) if hook is None else hook(state, bucket)

    def _run_allreduce_hook(self, bucket: GradBucket) -> Any:
        return self.group.allreduce([bucket.buffer()]).get_future()

    @torch.no_grad()
    def _finalize(self) -> None:
        """Wait for all buckets, and put the results into ``.grad``."""
        if not self.expects_hooks:
            raise RuntimeError(
                "expect_autograd_hooks_ INTERNAL ASSERT FAILED: with static_graph=True the first "
                "backward has to synchronize, and this one is inside no_sync()."
            )
        self.backwards += 1
        self.expects_hooks, self.unfinished = False, False
        for bucket in self.buckets:
            if bucket.future is None:
                continue
            result = bucket.future.wait()
            flat = result[0] if isinstance(result, list | tuple) else result
            bucket.future = None
            for index, mean in zip(bucket.indices, bucket.views(flat), strict=True):
                if not self._unused_everywhere(index):
                    self._give(index, mean.to(self.params[index].dtype))
        for future in self.futures:
            future.wait()
        if self.used_work is not None:
            self.used_work.wait()
        self.futures, self.used_work, self.joined_work = [], None, None
        self.used.zero_()

    def _send_used(self) -> None:
        """Find out which parameters any rank has used; the answer is needed for few of them."""
        self.used_anywhere = self.used.clone()
        self.used_work = self.group.allreduce([self.used_anywhere])

    def _unused_everywhere(self, index: int) -> bool:
        """Whether no rank used a parameter: then its ``.grad`` stays as it was."""
        if not (self.finds_unused or self.is_static) or self.used[index].item():
            return False
        if self.used_work is not None:
            self.used_work.wait()
            self.used_work = None
        return not self.used_anywhere[index].item()

    def _give(self, index: int, mean: Tensor) -> None:
        parameter = self.params[index]
        if self.frees_gradients and parameter.grad is None:
            return
        if self.gives_views:
            parameter.grad = mean
        elif parameter.grad is None:
            parameter.grad = torch.empty_like(parameter).copy_(mean)
        else:
            parameter.grad.copy_(mean)

    def _delay_all_reduce(self) -> None:
        """The first backward of a static graph: send everything at its end."""
        self._send_used()
        self.unused = [i for i in range(len(self.params)) if not self.triggers[i]]
        for bucket in self.buckets:
            for index in bucket.indices:
                self._fill(bucket, index)
            self._send(bucket)
        self._finalize()

    # What else DistributedDataParallel asks for

    def _set_static_graph(self) -> None:
        self.is_static = True

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None:
        self.joined_work = work, use_static_world_size

    def _get_zeros_like_grad_buckets(self) -> Iterator[GradBucket]:
        """What a rank without data sends instead of its gradients, inside ``model.join()``."""
        last = len(self.buckets) - 1
        for number, bucket in enumerate(self.buckets):
            empty = Bucket(bucket.indices, bucket.parameters)
            yield GradBucket(empty, number, is_last=number == last)

    def _get_local_used_map(self) -> list[Tensor]:
        return [self.used]

    def _push_all_rebuilt_params(self) -> None:
        """A rank without data has seen no gradient; it takes part when buckets are rebuilt."""
        self.order = list(range(len(self.params)))

    def _install_post_backward_futures(self, futures: Sequence[Any]) -> None:
        self.futures = list(futures)

    def _set_optimizer_in_backward(self) -> None:
        self.frees_gradients = True

    def _set_mixed_precision_param_dtype(self, dtype: torch.dtype) -> None:
        raise RuntimeError(
            "DistributedDataParallel(mixed_precision=...) does not work on virtual GPUs. Use "
            "torch.autocast instead."
        )

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _update_process_group(self, new_process_group: Any) -> None:
        self.group = new_process_group

    def set_logger(self, logger: Logger) -> None:
        """PyTorch counts here; we do not."""

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """The same."""


class Logger:
    """Stands in for dist.Logger, which collects statistics."""

    def __init__(self, reducer: Reducer) -> None:
        self.comm_hook = ""

    def _set_comm_hook_name(self, comm_hook: str) -> None:
        self.comm_hook = comm_hook

    def _nothing(self, *_: Any) -> None:
        """There is nothing to collect."""

    set_construction_data_and_log = set_runtime_stats_and_log = set_error_and_log = _nothing
    _set_static_graph = _set_uneven_input_join = _nothing


def parameters_reached(outputs: Sequence[Tensor]) -> set[int]:
    """The ids of the parameters that the graph above these outputs leads to."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, found = set(waiting), set[int]()
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        new = {following for following, _ in node.next_functions if following} - seen
        seen |= new
        waiting += new
    return found


# The functions of torch.distributed that DistributedDataParallel has in C++


def verify_parameters(group: Any, parameters: Sequence[Tensor], logger: Any = None) -> None:
    """All ranks have parameters of the same shapes.  Raises RuntimeError."""
    device = parameters[0].device
    count = torch.tensor([len(parameters)], device=device)
    counts = [torch.zeros_like(count) for _ in range(group.size())]
    group.allgather([counts], [count]).wait()
    for rank, other in enumerate(counts):
        if other.item() != len(parameters):
            raise RuntimeError(
                "DDP expects same model across all ranks, but Rank "
                f"{group.rank()} has {len(parameters)} params, while rank {rank} has inconsistent "
                f"{other.item()} params."
            )
    sizes = torch.tensor([n for p in parameters for n in (*p.shape, *p.stride())], device=device)
    first = sizes.clone()
    group.broadcast(first, 0).wait()
    expected = iter(first.tolist())
    for index, parameter in enumerate(parameters):
        if [next(expected) for _ in range(2 * parameter.dim())] != [
            *parameter.shape,
            *parameter.stride(),
        ]:
            raise RuntimeError(
                f"[{group.rank()}]: params[{index}] in this process with sizes "
                f"{list(parameter.shape)} appears not to match sizes of the same param in "
                "process 0."
            )


@torch.no_grad()
def broadcast_coalesced(group: Any, tensors: Sequence[Tensor], buffer_size: int, src: int) -> None:
    """Send tensors of one rank to all: those of one type together, up to a number of bytes."""
    for together in chunks_of(tensors, buffer_size):
        flat = torch.cat([tensor.reshape(-1) for tensor in together])
        group.broadcast(flat, src).wait()
        sizes = [tensor.numel() for tensor in together]
        for tensor, received in zip(together, torch.split(flat, sizes), strict=True):
            tensor.copy_(received.view_as(tensor))


def register_comm_hook(reducer: Reducer, state: Any, comm_hook: Hook) -> None:
    """What averages a bucket instead of an all-reduce."""
    reducer.hook = comm_hook, state


BUILTIN = {"ALLREDUCE": "allreduce_hook", "FP16_COMPRESS": "fp16_compress_hook"}


def register_builtin_comm_hook(reducer: Reducer, comm_hook_type: Any) -> None:
    """The hooks that PyTorch has in C++ too: the same in Python."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    reducer.hook = getattr(default_hooks, BUILTIN[comm_hook_type.name]), reducer.group


def for_virtual(plain: Any, ours: Any) -> Callable[..., Any]:
    """``ours`` where tensors or a reducer are of virtual GPUs, else ``plain``."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        given = [leaf for arg in args for leaf in (arg if isinstance(arg, list) else [arg])]
        is_ours = any(isinstance(one, VirtualTensor | Reducer) for one in given)
        return (ours if is_ours else plain)(*args, **kwargs)

    return chosen


REPLACEMENTS = {
    "Reducer": Reducer,
    "Logger": Logger,
    "_verify_params_across_processes": verify_parameters,
    "_broadcast_coalesced": broadcast_coalesced,
    "_register_comm_hook": register_comm_hook,
    "_register_builtin_comm_hook": register_builtin_comm_hook,
}
