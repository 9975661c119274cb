"""A part of a model as a module, which takes the outputs of the previous stage; and its time."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_map

from multigpu.training.model_graph import (
    ModelGraph,
    StageDevice,
    TracedModel,
    Uncuttable,
    memory_order,
    tensors_in,
    without_fast_paths,
)
from multigpu.training.strategy import modes_kept, synchronize


def chain_of(model: nn.Module, program: TracedModel, places: Sequence[int]) -> list[nn.Module]:
    """A stage for each pair of neighboring `places`.

    The first one also holds the parameters and buffers that forward never uses, because a
    checkpoint contains them, too.
    """
    stages = [Stage(model, program, begin, end) for begin, end in itertools.pairwise(places)]
    used = {name for stage in stages for name in stage.state_dict()}
    persistent = model.state_dict(keep_vars=True)
    same = {id(persistent[name]) for name in used if name in persistent}  # under another name
    for name, one in persistent.items():
        if name not in used and isinstance(one, Tensor) and id(one) not in same:
            stages[0].register_from(model, name)
    return list(stages)


class Stage(nn.Module):
    """Some of the steps of a model, one after the other.

    Call it with the outputs of the previous stage; it returns the tensors that the next one needs,
    including those that it only passes on. The last stage returns the model's outputs. The shapes
    are those that were traced. Its modules are the model's own, under the same names, so
    `state_dict()` has the model's names.
    """

    def __init__(self, model: nn.Module, program: TracedModel, begin: int, end: int) -> None:
        """The steps from `begin` up to `end`, both of `program.places`."""
        super().__init__()
        # With _: a model may have a layer called `graphs`, and it is put here under its name.
        self._graphs = {
            True: _subgraph(program.training, begin, end),
            False: _subgraph(program.evaluation, program.places[begin], program.places[end]),
        }
        self._takes = [
            node.meta["shape"] for node in self._graphs[True].nodes if node.op == "placeholder"
        ]
        self._num_steps = end - begin
        nodes = [*self._graphs[True].nodes, *self._graphs[False].nodes]
        for op in ("call_module", "get_attr"):  # a module brings its tensors
            for name in sorted({str(node.target) for node in nodes if node.op == op}):
                self.register_from(model, name)
        self.training = model.training  # its modules are the model's, and are in a mode already

    def register_from(self, model: nn.Module, name: str) -> None:
        """Hold a module or tensor of the model under its name in the model."""
        *path, last = name.split(".")
        home: nn.Module = self
        for part in path:
            if not hasattr(home, part):
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        source = model.get_submodule(".".join(path))
        if hasattr(home, last):
            return
        value = getattr(source, last)
        if isinstance(value, nn.Module | nn.Parameter):
            setattr(home, last, value)
        else:
            home.register_buffer(last, value, persistent=last in source.state_dict())

    def forward(self, *given: Any) -> Any:
        """Tensors in, a tensor or a tuple of tensors out, by the graph of the stage's mode.

        Not by fx.Interpreter: that takes 15 µs for each node, a tenth of a small layer's time.
        Raises ValueError for tensors of other shapes.
        """
        entered = tensors_in(given)
        shapes = [tuple(tensor.shape) for tensor in entered]
        if shapes != self._takes:
            raise ValueError(
                f"this stage was cut for tensors of the shapes {self._takes}, got {shapes}. "
                "Give micro-batches of the sample's size, or cut the model with another sample."
            )
        waiting = iter(entered)
        values: dict[str, Any] = {}  # by the names of the nodes that still need them

        def found(given: Any) -> Any:
            """The real object in place of its placeholder in the graph."""
            if isinstance(given, fx.Node):
                return values[given.name]
            return entered[0].device if isinstance(given, StageDevice) else given

        for node in self._graphs[self.training].nodes:
            if node.op == "placeholder":
                values[node.name] = next(waiting)
                continue
            if node.op == "get_attr":
                values[node.name] = functools.reduce(getattr, node.target.split("."), self)
                continue
            args, kwargs = map_aggregate((node.args, node.kwargs), found)
            if node.op == "output":
                return args[0]
            call = self.get_submodule(node.target) if node.op == "call_module" else node.target
            with torch.no_grad() if node.meta.get("no_grad") else contextlib.nullcontext():
                values[node.name] = call(*args, **kwargs)
            for name in node.meta["over"]:
                del values[name]
        raise AssertionError("the graph has no output")

    def extra_repr(self) -> str:
        return f"{self._num_steps} steps, takes {len(self._takes)} tensors"


def _subgraph(trace: ModelGraph, begin: int, end: int) -> fx.Graph:
    """The graph of some steps.

    fx's split_module would pass parameters to a stage as inputs, and it would not pass a long skip
    connection through the stages in between; PyTorch's PipelineStage receives only from its
    neighbor.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in trace.crossings[begin]:
        copies[node] = graph.placeholder(node.name)
        shape, order = node.meta["value"].shape, memory_order(node.meta["value"])
        copies[node].meta["shape"] = tuple(shape[dim] for dim in order) if begin else tuple(shape)
    for node, entered in list(copies.items()) if begin else ():
        order = memory_order(node.meta["value"])
        copies[node] = graph.call_function(received, (entered, order))

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter or buffer
            copies[node] = graph.create_node("get_attr", node.target)
        return copies[node]

    for step in trace.steps[begin:end]:
        for node in step.nodes:
            copies[node] = graph.node_copy(node, copied)
            copies[node].meta = {"no_grad": node.meta.get("no_grad", False)}
    if end == len(trace.steps):
        [output] = (node for node in trace.graph.nodes if node.op == "output")
        graph.output(map_arg(output.args[0], copied))
    else:
        handed = tuple(
            graph.call_function(handed_on, (copies[node], memory_order(node.meta["value"])))
            for node in trace.crossings[end]
        )
        graph.output(handed[0] if len(handed) == 1 else handed)
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        over = {node, *node.all_input_nodes} - needed
        needed |= over
        node.meta["over"] = [one.name for one in over]  # what nothing after it needs any more
    return graph


# Between stages a tensor's dimensions are in their order in memory. In another order its numbers
# would meet dropout's in another order than in the model, and a later .view() would fail.


def handed_on(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """The tensor as it is sent: the next stage receives into memory without gaps."""
    return tensor.permute(order).contiguous()


def received(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """What `handed_on` was given. The gradient that goes back has no gaps either."""
    if tensor.requires_grad:
        tensor = tensor.view_as(tensor)
        tensor.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return tensor.permute([*map(order.index, range(len(order)))])


def verify(model: nn.Module, program: TracedModel, inputs: tuple[Any, ...]) -> None:
    """Compare the steps with the model, in evaluation: it verifies that nothing was overlooked.

    Raises Uncuttable if the results differ.
    """
    whole = Stage(model, program, 0, len(program.training.steps))
    with modes_kept(model), torch.random.fork_rng(), torch.no_grad(), without_fast_paths():
        model.eval()
        whole.eval()
        answers = []
        for module in (model, whole):
            torch.manual_seed(0)
            # What forward does to buffers and inputs in place, it does to copies.
            buffers = {name: one.clone() for name, one in module.named_buffers()}
            answer = torch.func.functional_call(module, buffers, copy.deepcopy(inputs))
            answers.append(tensors_in(answer))
    if not all(alike(one, other) for one, other in zip(*answers, strict=True)):
        raise Uncuttable(
            "its steps do not compute what the model computes. Does forward depend on something "
            "that changes between calls? Then write the stages by hand."
        )


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by rounding at most.

    Rounding errors depend on the size of a sum's terms, not on the size of the sum: a score near 0
    may be off by more than itself. So the largest number is the scale.
    """
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    tolerance = max(1e-4, 4 * torch.finfo(one.dtype).eps)
    finite = one.masked_fill(~one.isfinite(), 0)
    largest = float(finite.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=tolerance * largest, equal_nan=True)


# How long each piece takes, forward and backward, on the device that it will run on. Nothing is
# estimated: every piece runs by itself, as a stage does, several times. What a stage without any
# step costs is measured, too, and taken off: it is paid once for a stage, not per piece.

PER_SWEEP = 2  # timed runs of a piece before the next one has its turn
ENOUGH_SECONDS = 4.0  # after which no new sweep begins


class Seconds(NamedTuple):
    """The least time of one piece."""

    forward: float
    backward: float


def measure(
    model: nn.Module,
    program: TracedModel,
    inputs: tuple[Any, ...],
    *,
    device: torch.device,
    repeats: int,
) -> list[Seconds]:
    """Seconds of each piece between two places: the least of at least `repeats` runs, as whatever
    else this machine does can only add to them.
    """
    spans = list(itertools.pairwise(sorted(program.places)))
    runs: list[list[Seconds]] = [[] for _ in spans]
    began = time.perf_counter()
    with torch.random.fork_rng(), torch.enable_grad():
        for sweep in range(-(-repeats // PER_SWEEP)):
            if sweep and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            given: tuple[Any, ...] = inputs
            for (begin, end), mine in zip(spans, runs, strict=True):
                taken = given
                # A copy, so that measuring does not change weights, gradients and buffers.
                stage = copy.deepcopy(Stage(model, program, begin, end)).train().to(device)
                returned, times = timed(stage, given, device=device, times=PER_SWEEP)
                given = returned if isinstance(returned, tuple) else (returned,)
                mine += times
        empty = Stage(model, program, begin, begin)
        _, idle = timed(empty, taken, device=device, times=20)

    def least(times: list[Seconds]) -> tuple[float, ...]:
        return tuple(map(min, zip(*times, strict=True)))

    nothing = least(idle)
    return [
        Seconds(*(max(one - idle, 0.0) for one, idle in zip(least(mine), nothing, strict=True)))
        for mine in runs
    ]


def timed(
    stage: nn.Module, given: tuple[Any, ...], *, device: torch.device, times: int
) -> tuple[Any, list[Seconds]]:
    """Run a piece `times` times after a warm-up: what it returned, and how long each run took."""

    def detached(one: Any) -> Any:  # whether a gradient flows back is kept
        return one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one

    def now() -> float:
        synchronize(device)
        return time.perf_counter()

    runs = []
    for _ in range(1 + times):
        fresh = tree_map(detached, given)
        began = now()
        returned = stage(*fresh)
        middle = now()
        outs = [tensor for tensor in tensors_in(returned) if tensor.requires_grad]
        grads = [torch.ones_like(out) for out in outs]
        turned = now()
        if outs:
            torch.autograd.backward(outs, grads)
        runs.append(Seconds(middle - began, now() - turned))
    return tree_map(detached, returned), runs[1:]
