"""What the two parallel layers are checked with: a linear layer, its training, its bytes.

``Column`` and ``Row`` tell a declaration which side is cut.  One training loop serves the ranks and
the judge, which trains the whole layer.
"""

import gc
import math
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import case
from multigpu.devices.meters import MemoryMeter
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted
from multigpu.ranks.memory_limit import counting
from multigpu.scaling.formulas import all_reduce_bytes, ring_bytes

STEPS = 3


def cases_of(inputs, outputs):
    """Every number of ranks with shapes, dtypes, frozen weights and layers that are used twice."""
    for world in (3, 2, 4, 1):
        ranks = f"on {counted(world, 'rank')}"

        def a_case(title, *shape, ranks=ranks, world=world, **more):
            usual = {"dtype": torch.float64, "bias": True, "frozen": (), "needs": True}
            whole = {"inputs": inputs, "outputs": outputs, "shape": shape}
            options: dict[str, Any] = usual | {"twice": False, "strided": False} | whole | more
            return case(f"{title} {ranks}", world=world, **options)

        yield a_case("5 rows", 5, example=world == 3)
        yield a_case("2 times 3 rows, no bias, the layer used twice", 2, 3, bias=False, twice=True)
        yield a_case("5 rows that need no gradient", 5, needs=False)
        yield a_case("5 rows, all weights frozen", 5, frozen=("weight", "bias"))
        yield a_case("inputs that are not contiguous, bias frozen", 3, 2, strided=True,
                     frozen=("bias",))  # fmt: skip
        yield a_case("one row without a dimension for rows, float32", dtype=torch.float32)
        yield a_case("4 rows of bfloat16", 4, dtype=torch.bfloat16)


# --- the training: on a rank with a part, in the judge with the whole ----------------------------


def numbers(case, seed, *shape):
    """Integers from -2 to 2 for bfloat16, in which small sums of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    if case.dtype == torch.bfloat16:
        return torch.randint(-2, 3, shape, generator=generator).to(case.dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)


def whole_linear(case):
    linear = nn.Linear(case.inputs, case.outputs, bias=case.bias, dtype=case.dtype)
    with torch.no_grad():
        for number, parameter in enumerate(linear.parameters()):
            parameter.copy_(numbers(case, 10 + number, *parameter.shape))
    for name in case.frozen:
        getattr(linear, name).requires_grad_(False)
    return linear


def inputs_of(case, step):
    """Of all ranks together; the numbers of a step are its own."""
    shape = (*case.shape[::-1], case.inputs) if case.strided else (*case.shape, case.inputs)
    rows = numbers(case, 100 + step, *shape)
    return rows.transpose(0, 1) if case.strided else rows


def exact(case):
    return case.dtype == torch.bfloat16


def trained(layer, case, side, rank, phase=lambda name: nullcontext(), device="cpu"):
    """Some steps with SGD: outputs, gradients and weights.  ``rank`` is None for the whole layer.

    Each forward and each backward of the layer is ``with phase("forward")``.
    """
    came: dict[str, Any] = {}
    trainable = [p for p in layer.parameters() if p.requires_grad]
    rate = 1.0 if exact(case) else 0.05
    optimizer = torch.optim.SGD(trainable, rate, momentum=0.9) if trainable else None
    for step in range(1, 2 if exact(case) else STEPS + 1):
        if optimizer:
            optimizer.zero_grad()
        rows = side.given(inputs_of(case, step), rank).to(device).detach()
        rows.requires_grad_(case.needs)
        before = rows.clone()
        with phase("forward"):
            outputs = layer(rows)
        factors = side.returned(numbers(case, 200 + step, *case.shape, case.outputs), rank)
        if getattr(outputs, "shape", None) != factors.shape:  # no use to go on
            return came | {f"step {step}: the output": outputs}
        came[f"step {step}: the output"] = outputs.detach().clone()
        made = outputs
        if case.twice:
            with phase("forward"):
                made = outputs + 2 * layer(rows.flip(0))
        loss = ((made if exact(case) else made.tanh()) * factors.to(device)).sum()
        # The rows are used elsewhere, too, with a gradient that no rank may sum.
        elsewhere = side.given(numbers(case, 300 + step, *case.shape, case.inputs), rank)
        loss = loss + (rows * elsewhere.to(device)).sum()
        if loss.requires_grad:
            with phase("backward"):
                loss.backward()
        if case.needs:
            came[f"step {step}: the gradient of the inputs"] = rows.grad.clone()
        for name in ("weight", "bias"):
            gradient = getattr(getattr(layer, name), "grad", None)
            came[f"step {step}: {name}.grad"] = None if gradient is None else gradient.clone()
        if optimizer:
            optimizer.step()
        for name in ("weight", "bias"):
            parameter = getattr(layer, name)
            value = None if parameter is None else parameter.detach().clone()
            came[f"after step {step}: {name}"] = value
        came[f"step {step}: whether the inputs are as they were"] = torch.equal(rows, before)
    with torch.no_grad(), phase("forward"):
        outputs = layer(side.given(inputs_of(case, 0), rank).to(device))
    came["the output in torch.no_grad()"] = outputs.detach().clone()
    return came


def drive_with(kind_name, side):
    """The drive of a declaration: makes the layer, trains it, and notes when what was done."""

    def drive(submission, case, rank):
        kind, device = getattr(submission, kind_name), rank_device()
        watched = {"held": held(kind, side, device), "made at": beginning(kind)}
        linear = whole_linear(case).to(device)
        untouched = [p.detach().clone() for p in linear.parameters()]
        layer = kind(linear)
        needs = {n: getattr(layer, n).requires_grad for n, _ in linear.named_parameters()}
        spans: dict[str, Any] = {"forward": [], "backward": []}
        came: dict[str, Any] = {f"whether {name} needs a gradient": needs[name] for name in needs}
        came["watched"] = watched | {"spans": spans, "needs": needs}
        came["the number of elements in parameters()"] = sum(p.numel() for p in layer.parameters())

        @contextmanager
        def phase(name):
            began = time.monotonic()
            yield
            spans[name].append((began, time.monotonic()))

        came |= trained(layer, case, side, rank, phase, device)
        same = all(torch.equal(p, own) for p, own in zip(linear.parameters(), untouched))
        return came | {"whether linear is as it was": same}

    return drive


def beginning(kind):
    """The line of a layer's constructor, for what is wrong before the layer is called."""
    code = getattr(kind.__init__, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else ""


def held(kind, side, device):
    """Bytes that are there when ``linear`` is gone, and those of this rank's weights."""
    meter = MemoryMeter()
    on_gpu = device.type == "cuda"

    def allocated():
        gc.collect()
        return meter.allocated + (torch.cuda.memory_allocated(device) if on_gpu else 0)

    with counting(meter):
        before = allocated()
        linear = nn.Linear(120, 240, device=device)
        layer = kind(linear)
        del linear
        there = allocated() - before
    whole = nn.Linear(120, 240, device="meta")
    parts = (side.weight(whole.weight, dist.get_rank()), side.bias(whole.bias, dist.get_rank()))
    del layer
    return there, sum(part.nbytes for part in parts)


def expected_with(side):
    """What ``drive_with`` must return: the whole layer's training, cut for each rank."""

    def expected(case):
        linear = whole_linear(case)
        came = trained(linear, case, side, None)
        return [
            fixed(case, side, rank)
            | {name: cut(case, side, name, value, rank) for name, value in came.items()}
            for rank in range(case.world)
        ]

    return expected


def cut(case, side, name, value, rank):
    """A rank's part of something that the training of the whole layer gave."""
    if not isinstance(value, torch.Tensor):
        return value
    for ending, part in (
        ("output", side.returned), ("output in torch.no_grad()", side.returned),
        ("inputs", side.given), ("weight", side.weight), ("weight.grad", side.weight),
    ):  # fmt: skip
        if name.endswith(ending):
            return part(value, rank, case.world)
    return side.bias(value, rank, case.world)


def fixed(case, side, rank):
    linear = whole_linear(case)
    parts = [side.weight(linear.weight, rank, case.world)]
    if case.bias:
        parts.append(side.bias(linear.bias, rank, case.world))
    needs = {f"whether {n} needs a gradient": p.requires_grad for n, p in linear.named_parameters()}
    return needs | {
        "the number of elements in parameters()": sum(part.numel() for part in parts),
        "whether linear is as it was": True,
    }


def part(tensor, rank, dim, world=None):
    """Part ``rank`` of a tensor that is cut along a dimension; all of it where rank is None."""
    if rank is None:
        return tensor
    return tensor.chunk(world or dist.get_world_size(), dim)[rank]


class Column:
    """Each rank has whole inputs, and a part of the outputs and of the bias."""

    @staticmethod
    def given(tensor, rank, world=None):
        return tensor

    @staticmethod
    def returned(tensor, rank, world=None):
        return part(tensor, rank, -1, world)

    @staticmethod
    def weight(tensor, rank, world=None):
        return part(tensor, rank, 0, world)

    bias = weight


class Row:
    """Each rank has a part of the inputs, and the whole outputs and the whole bias."""

    given, returned = Column.returned, Column.given
    weight, bias = Column.returned, Column.given


# --- properties ----------------------------------------------------------------------------------


def keeps_its_part(exercise):
    """Of the memory of the whole layer nothing else stays."""

    @exercise.holds(
        "keeps_the_whole",
        expects="when linear is deleted, only this rank's part of the weights is still in memory",
        usually="the parts are views of the whole weights, or the layer keeps linear itself.",
        fix="clone() the part before you make it a parameter, and keep no reference to linear.",
        first=True,
    )
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            there, own = came["watched"]["held"]
            if there > 1.1 * own:
                words = f"on rank {rank} {there:,} bytes are in memory; its part has {own:,}"
                return words, came["watched"]["made at"]
        return None


def freezes_what_is_frozen(exercise):
    """Parameters need a gradient only if those of the whole layer do."""

    @exercise.holds(
        "frozen_trained",
        expects="a frozen parameter of linear is frozen here, too",
        usually="nn.Parameter(...) needs a gradient unless you say otherwise.",
        fix="nn.Parameter(part, requires_grad=whole.requires_grad).",
        first=True,
    )
    def _(run, case):
        watched = run.came(case)[0]["watched"]
        for name in case.frozen:
            if watched["needs"].get(name):
                return f"{name} needs a gradient, and that of linear does not", watched["made at"]
        return None


def sends_at_most(exercise, phase, name, most, **sentences):
    """In this phase no rank sends more than ``most(case)`` bytes for each time of the phase."""

    @exercise.holds(name, **sentences)
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            for began, ended in came["watched"]["spans"][phase]:
                calls = [c for c in run.calls(case, rank) if began <= c.time <= ended]
                sent = sum(map(ring_bytes, calls))
                if sent > 1.001 * most(case):
                    names = [f"{call.op} of {call.bytes:,} bytes" for call in calls]
                    means = f"which makes a rank send {sent:,.0f} bytes in a ring"
                    return f"rank {rank} called {', '.join(names)}, {means}", calls[0].place
        return None


def all_reduced(case, columns, calls=1):
    """The bytes of all-reduces of tensors with so many columns."""
    size = math.prod(case.shape) * columns * torch.empty((), dtype=case.dtype).element_size()
    return calls * all_reduce_bytes(case.world, size)


# --- what answers are made of --------------------------------------------------------------------


class Parts(nn.Module):
    """Parts of a linear layer, without its forward."""

    dim = 0  # along which the weight is cut

    def __init__(self, linear):
        super().__init__()
        self.weight = self.parameter(linear.weight, self.part)
        self.bias = None if linear.bias is None else self.parameter(linear.bias, self.part_of_bias)

    def parameter(self, whole, part):
        own = part(whole.detach()).clone(memory_format=torch.contiguous_format)
        return nn.Parameter(own, requires_grad=whole.requires_grad)

    def part(self, whole):
        return whole.chunk(dist.get_world_size(), self.dim)[dist.get_rank()]

    def part_of_bias(self, whole):
        return self.part(whole)

    def total(self, tensor):
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
