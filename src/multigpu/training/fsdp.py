"""One process for each GPU, and each keeps a shard of the model: ZeRO with PyTorch's FSDP2.

    zero3: weights, gradients and the optimizer's state are divided among the ranks. A block of
           layers is gathered when its forward or its backward begins, and freed afterwards.
    zero2: the same, but gathered weights stay from forward to backward, so they are sent once.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
FSDP2 is not exactly ZeRO-2: between two steps it divides the weights, too.

With `tensor_parallel=t` the ranks are a mesh (dp, tp): t ranks next to each other also divide each
layer of the course's GPT among themselves, and compute the same rows (`divide_layers`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import SUPPORTED_NODES, register_dataclass, tree_leaves, tree_map

from multigpu.data.feeds import Batch
from multigpu.training.config import TrainConfig
from multigpu.training.ddp import Distributed
from multigpu.training.distributed import (
    Launch,
    all_gather_object,
    require_nccl_between_gpus,
    take_from_main_rank,
)
from multigpu.training.loss import LossFn, StepLoss
from multigpu.training.models import SmallGPT
from multigpu.training.strategy import Sample, call

UNUSED = "set_reduce_scatter_unused_params"  # a gradient of 0 for what took no part on a rank
REPEATED = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)  # they are never called, so they cannot be a block
END_OF_FORWARD, DIFFERS = "the end of forward", "what differs from time to time"


class Sharded(Distributed):
    """Each rank computes its share of the batch and keeps its shard of the model.

    The parameters become DTensors, so `Strategy.clip` finds the norm over the shards of all ranks.
    """

    scales_loss = False
    reshard: ClassVar[bool]  # whether gathered weights are freed after forward

    def __init__(self, config: TrainConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        require_nccl_between_gpus(self.mode, self.backend, self.device)
        if config.find_unused_parameters and not hasattr(FSDPModule, UNUSED):
            raise ValueError(
                f"find_unused_parameters=True with mode={self.mode!r} needs PyTorch 2.13, this is "
                f"{torch.__version__}. Freeze the unused parameters, or use mode='ddp'."
            )
        if launch.world_size % config.tensor_parallel:
            raise ValueError(
                f"tensor_parallel={config.tensor_parallel} does not divide the "
                f"{launch.world_size} ranks. Start a multiple of {config.tensor_parallel}."
            )
        self.world_size = self.copies = launch.world_size // config.tensor_parallel
        self.share = launch.rank // config.tensor_parallel  # tp changes fastest in the mesh

    def prepare(self, model: nn.Module, *, sample: Sample) -> None:
        """Start all ranks from rank 0's weights, and divide them."""
        self.plain = self.model = model.to(self.device)
        take_from_main_rank([*model.parameters(), *model.buffers()], device=self.device)
        tp = self.config.tensor_parallel
        sizes = {"dp": self.world_size} | ({"tp": tp} if tp > 1 else {})
        grid = init_device_mesh(
            self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
        mesh, self.group = grid["dp"], grid.get_group("dp")
        if tp > 1:
            grid._flatten()  # for the norm of all gradients, which is a sum over both dimensions
            divide_layers(model, grid["tp"])
        policy, norms = MixedPrecisionPolicy(), list[nn.Module]()
        if self.config.precision != "float32":
            # Weights, activations and their messages in bfloat16; gradients are added in float32.
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            # Their statistics stay float32, so their weights do.
            norms = [each for each in model.modules() if isinstance(each, NORMS) and each.affine]
        if not hasattr(FSDPModule, UNUSED):
            # It runs before FSDP's hook, which overlooks a dataclass's tensors before PyTorch 2.13.
            model.register_forward_hook(make_pytree_node)
        blocks = [*norms, *(block for block in blocks_of(model) if block not in norms)]
        for block in blocks:
            own = MixedPrecisionPolicy() if block in norms else policy
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard, mp_policy=own)
        if policy.param_dtype:  # the loss is computed of float32, as under autocast
            policy = replace(policy, output_dtype=torch.float32)
        self.root: FSDPModule = fully_shard(
            model, mesh=mesh, reshard_after_forward=self.reshard, mp_policy=policy
        )
        # Otherwise the gradients of different weights are added up if ranks use different ones.
        reduces_all = self.config.find_unused_parameters is not False and hasattr(self.root, UNUSED)
        if reduces_all:
            getattr(self.root, UNUSED)(True)
        self.call_order = CallOrder(model, blocks, mode=self.mode, weights_too=not reduces_all)

    def forward_backward(self, parts: Sequence[Batch], loss_fn: LossFn) -> StepLoss:
        step = StepLoss(averaged_over=self.world_size)
        take_from_main_rank(self.plain.buffers(), device=self.device)  # as DDP before forward
        # A forward gathers weights, so each rank runs as many as the others.
        fillers = [filler(parts[0])] * (self.config.accumulation_steps - len(parts))
        parts = [*parts, *fillers]
        for number, part in enumerate(parts, start=1):
            # Until the last part a rank adds up gradients of all weights, not only of its shard.
            self.root.set_requires_gradient_sync(number == len(parts))
            inputs, targets = self.place(part)
            returned = loss_fn(call(self.model, inputs), targets)
            loss = step.add(returned, part.rows, part.global_rows)
            self.call_order.before_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        self.complete_gradients(step)
        return step

    def where(self) -> str:
        said, tp = super().where(), self.config.tensor_parallel
        return f"{said} in a mesh of dp {self.world_size}, tp {tp}" if tp > 1 else said

    def rebuild_buckets(self, batch: Batch, loss_fn: LossFn) -> None:
        """Nothing to do: the tensors that are sent together do not change after the first step."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """None: FSDP itself casts weights and inputs to 16 bits."""
        return contextlib.nullcontext()

    def before_evaluation_or_save(self) -> None:
        super().before_evaluation_or_save()
        self.reshard_all()

    def reshard_all(self) -> None:
        """Free the gathered weights: after an evaluation zero2 still has all of them."""
        for module in self.plain.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def model_state(self, *, whole: bool = True) -> dict[str, Any]:
        self.reshard_all()
        state = self.plain.state_dict()
        return gathered(state) if whole else state

    def load_model_state(self, state: dict[str, Any]) -> None:
        self.reshard_all()
        there = self.plain.state_dict()
        self.plain.load_state_dict(
            {name: divided_as(there.get(name), value) for name, value in state.items()}
        )

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, *, whole: bool = True
    ) -> dict[str, Any]:
        state = optimizer.state_dict()
        return gathered(state) if whole else state

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Each rank takes its share of what has a number for each of a parameter's."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        divided = {}
        for number, values in state["state"].items():
            of = parameters[number] if number < len(parameters) else None
            divided[number] = {name: divided_as(of, value) for name, value in values.items()}
        optimizer.load_state_dict({**state, "state": divided})


def make_pytree_node(model: nn.Module, inputs: Any, output: Any) -> None:
    """Let PyTorch find the tensors in a dataclass that a model returns."""
    if is_dataclass(output) and type(output) not in SUPPORTED_NODES:
        register_dataclass(type(output))


class Zero2(Sharded):
    """Gathered weights are kept until backward has used them."""

    mode = "zero2"
    reshard = False


class Zero3(Sharded):
    """Gathered weights are freed after forward, and gathered again for backward."""

    mode = "zero3"
    reshard = True


class Replicated(ParallelStyle):
    """A part that all ranks of a tp group compute alike, with a whole copy of its weights."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def to_dtensor(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(each, mesh, [Replicate()]) for each in inputs)

        def to_tensor(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, to_dtensor, to_tensor)


def divide_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide each layer of the course's GPT among the ranks of `mesh`, as Megatron-LM does.

    A pair of matrices is divided by columns and by rows: queries, keys and values by heads, the
    perceptron by its hidden channels, and the table of bytes by bytes. Shoeybi et al. 2019,
    arXiv 1909.08053. Raises ValueError for another model, or one that cannot be divided.
    """
    size = mesh.size()
    if not isinstance(model, SmallGPT):
        raise ValueError(
            f"tensor_parallel={size} with a {type(model).__name__}: only the course's SmallGPT "
            "(--data text) can be divided by layers. Leave tensor_parallel out."
        )
    first: Any = model.layers[0]
    for what, number in (("heads", first.heads), ("bytes", model.bytes.num_embeddings)):
        if number % size:
            raise ValueError(
                f"tensor_parallel={size} does not divide the model's {number} {what}. Use a "
                f"divisor of {number}."
            )
    whole, columns, rows = Replicated(), ColwiseParallel(), RowwiseParallel()
    plan = {
        "bytes": RowwiseParallel(input_layouts=Replicate()),
        "positions": whole,
        "layers.*.attention_norm": whole,
        "layers.*.qkv": columns,
        "layers.*.attention_out": rows,
        "layers.*.perceptron.0": whole,
        "layers.*.perceptron.1": columns,
        "layers.*.perceptron.3": rows,
        "norm": whole,
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.bytes.weight  # tied again: each of them was divided by itself
    # DTensor returns a view, but FSDP's hook on what the model returns needs a tensor of its own.
    model.head.register_forward_hook(lambda head, inputs, scores: scores.clone())


class CallOrder:
    """Refuses a model if ranks use different blocks, or use them in a different order.

    FSDP's messages have no names, so the data for a rank's n-th block are used as the n-th block of
    the other ranks. If these blocks differ, weights or gradients are mixed up without an error, or
    ranks wait forever. So at the end of each forward all ranks compare the blocks that they have
    used. Before backward they also compare the blocks that the loss depends on, because these
    determine what backward sends. These are two comparisons per step between processes, with gloo,
    and no GPU waits for them.

    Within a forward a rank continues without a comparison if all ranks have always reached the same
    block next. A rank that reaches another block takes part in gathering the blocks that the others
    expect, until the next comparison. All ranks may skip the same block, as in stochastic depth:
    after a place with two different next blocks, they compare each time from then on.

    ``weights_too``: before backward they compare the weights outside of blocks as well. Before
    PyTorch 2.13, and with ``find_unused_parameters=False``, FSDP sends only the gradients that
    there are, one after the other without names.
    """

    def __init__(
        self, root: nn.Module, blocks: Sequence[nn.Module], *, mode: str, weights_too: bool
    ) -> None:
        self.mode, self.in_forward = mode, False
        self.weights: dict[int, str] = {}  # those of the root while they are gathered, by id
        self.group = dist.new_group(backend="gloo")
        names = {module: name for name, module in root.named_modules()}
        self.blocks: dict[str, Any] = {names[block]: block for block in blocks}
        self.after: dict[str, str] = {}  # a block → what all ranks have come to next, every time
        self.order: list[str] = []  # what this rank has come to in this forward
        self.made: list[tuple[str, list[Any]]] = []  # each block's outputs, as autograd's nodes
        root.register_forward_pre_hook(self._begin, prepend=True)
        for name, block in self.blocks.items():  # before FSDP's own hooks, which gather the block
            block.register_forward_pre_hook(functools.partial(self._before, name), prepend=True)
            block.register_forward_hook(functools.partial(self._after, name), prepend=True)
        root.register_forward_hook(self._end_of_forward)
        if weights_too:  # after FSDP's own hook, which gathers them
            root.register_forward_pre_hook(self._name_weights)

    def before_backward(self, loss: Tensor) -> None:
        """Called before ``loss.backward()``, which reaches blocks in reverse order."""
        nodes: set[Any] = set()
        ahead: list[Any] = [loss.grad_fn]
        while ahead:
            node = ahead.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                ahead += [before for before, _ in node.next_functions]
        made = [name for name, outputs in self.made if not nodes.isdisjoint(outputs)]
        self.order += [f"{name}'s backward" for name in reversed(made)]
        found = [id(node.variable) for node in nodes if hasattr(node, "variable")]
        names = sorted(self.weights[each] for each in found if each in self.weights)
        self.order += [f"the gradient of {name}" for name in names]
        self.made = []
        self._compare()

    def _name_weights(self, root: nn.Module, _: Any) -> None:
        self.weights = {id(each): name for name, each in root.named_parameters()}

    def _begin(self, *_: Any) -> None:
        self.in_forward, self.order, self.made = True, [], []

    def _before(self, name: str, *_: Any) -> None:
        if self.in_forward:  # not where activations are computed once more for backward
            self._come_to(name)

    def _after(self, name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self.in_forward:
            tensors = [each for each in tree_leaves(outputs) if isinstance(each, Tensor)]
            self.made.append((name, [each.grad_fn for each in tensors if each.grad_fn]))

    def _end_of_forward(self, *_: Any) -> None:
        self._come_to(END_OF_FORWARD)
        self._compare()
        self.in_forward = False

    def _come_to(self, what: str) -> None:
        last = self.order[-1] if self.order else "the beginning of forward"
        expected = self.after.get(last)
        self.order.append(what)
        if what == expected:
            return
        while expected in self.blocks:
            self.blocks[expected].unshard()
            expected = self.after.get(expected)
        self._compare()
        self.after[last] = DIFFERS if last in self.after else what

    def _compare(self) -> None:
        """Raise ValueError on every rank if the ranks have reached different places."""
        number = zlib.crc32("\n".join(self.order).encode())
        extremes = torch.tensor([number, -number])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        if extremes[0] == -extremes[1]:
            return
        first, *others = all_gather_object(self.order)
        rank, order = next((r, o) for r, o in enumerate(others, start=1) if o != first)
        pairs = itertools.zip_longest(order, first, fillvalue="the end of backward")
        here, there = next((one, other) for one, other in pairs if one != other)
        raise ValueError(
            f"rank {rank} reaches {here} where rank 0 reaches {there}: with "
            f"mode={self.mode!r} all ranks use the same blocks in the same order, in every step, "
            "or their weights would be mixed up. Let each rank use every block, if necessary with "
            "the weight 0 in the sum, or use mode='ddp' with find_unused_parameters=True."
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of `model` that are gathered one at a time; the rest is gathered with the root.

    A block is a part, with weights, of an nn.Sequential, nn.ModuleList or nn.ModuleDict. Parts that
    share a weight with others, or are in two places, belong to the root: its weights are gathered
    during all of forward, so both places use the same tensor.
    """

    def users_in(module: nn.Module) -> Counter[int]:
        """How many modules in `module` have each weight."""
        return Counter(id(own) for each in module.modules() for own in each.parameters(False))

    def blocks_in(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if isinstance(module, REPEATED) and not isinstance(child, WITHOUT_FORWARD):
                if any(True for _ in child.parameters()):
                    yield child
            else:
                yield from blocks_in(child)

    users = users_in(model)
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    return [
        block
        for block in dict.fromkeys(blocks_in(model))
        if places[id(block)] == 1 and users_in(block).items() <= users.items()
    ]


def filler(part: Batch) -> Batch:
    """A part with one row of weight 0. Only BatchNorm's statistics count the row again."""
    inputs, targets = tree_map(
        lambda value: value[:1] if isinstance(value, Tensor) and value.dim() else value,
        (part.inputs, part.targets),
    )
    return replace(part, inputs=inputs, targets=targets, rows=0)


def gathered(state: dict[str, Any]) -> dict[str, Any]:
    """`state` with every sharded tensor gathered, on the CPU. Every rank calls it.

    Tensors are gathered one after the other, so that no GPU ever holds the whole model.
    """

    def put_together(value: Any) -> Any:
        return value.full_tensor().cpu() if isinstance(value, DTensor) else value

    return {key: tree_map(put_together, value) for key, value in state.items()}


def divided_as(there: Any, value: Any) -> Any:
    """This rank's share of a whole `value`, divided as the tensor `there` is; nothing is sent."""
    if isinstance(value, DTensor) or not (isinstance(there, DTensor) and isinstance(value, Tensor)):
        return value
    if there.shape != value.shape:
        return value
    return distribute_tensor(
        value.to(there.device), there.device_mesh, there.placements, src_data_rank=None
    )
