"""What the two parallel layers are checked with: a linear layer, its training, its bytes.

``Column`` and ``Row`` tell a declaration which side is cut.  One training loop serves the ranks and
the judge, which trains the whole layer.
"""

import gc
import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import case
from multigpu.checking.verdicts import count
from multigpu.devices.meters import MemoryMeter
from multigpu.ranks import rank_device
from multigpu.ranks.memory_limit import Metering
from multigpu.scaling.formulas import all_reduce_bytes, ring_bytes

STEPS = 3
FROZEN = ("frozen_trained", "nn.Parameter(...) needs a gradient unless you say otherwise.")
FROZEN_FIX = "nn.Parameter(part, requires_grad=whole.requires_grad)."


def cases_of(inputs, outputs):
    """Every number of ranks with shapes, dtypes, frozen weights and layers that are used twice."""
    for world in (3, 2, 4, 1):
        ranks = f"on {count(world, 'rank')}"

        def a_case(title, *shape, ranks=ranks, world=world, **more):
            options = {
                "dtype": torch.float64,
                "bias": True,
                "frozen": (),
                "needs": True,
                "twice": False,
                "strided": False,
                **more,
            }
            whole = {"inputs": inputs, "outputs": outputs, "shape": shape}
            return case(f"{title} {ranks}", world=world, **whole, **options)

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


def trained(layer, case, side, rank, note, device="cpu"):
    """Some steps with SGD: outputs, gradients and weights.  ``rank`` is None for the whole layer.

    ``note(phase)`` is called before and after each forward and each backward of the layer.
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
        note("forward")
        outputs = layer(rows)
        note("")
        factors = side.returned(numbers(case, 200 + step, *case.shape, case.outputs), rank)
        if getattr(outputs, "shape", None) != factors.shape:  # no use to go on
            return came | {f"step {step}: the output": outputs}
        came[f"step {step}: the output"] = outputs.detach().clone()
        made = outputs
        if case.twice:
            note("forward")
            made = outputs + 2 * layer(rows.flip(0))
            note("")
        loss = ((made if exact(case) else made.tanh()) * factors.to(device)).sum()
        # The rows are used elsewhere, too, with a gradient that no rank may sum.
        elsewhere = side.given(numbers(case, 300 + step, *case.shape, case.inputs), rank)
        loss = loss + (rows * elsewhere.to(device)).sum()
        if loss.requires_grad:
            note("backward")
            loss.backward()
            note("")
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
    with torch.no_grad():
        note("forward")
        outputs = layer(side.given(inputs_of(case, 0), rank).to(device))
        note("")
    came["the output in torch.no_grad()"] = outputs.detach().clone()
    return came


def drive_with(kind_name, side):
    """The drive of a declaration: makes the layer, trains it, and notes when what was done."""

    def drive(submission, case, rank):
        kind, device = getattr(submission, kind_name), rank_device()
        linear = whole_linear(case).to(device)
        untouched = [p.detach().clone() for p in linear.parameters()]
        layer = kind(linear)
        came: dict[str, Any] = {
            f"whether {name} needs a gradient": getattr(layer, name).requires_grad
            for name in ("weight", "bias")
            if getattr(linear, name) is not None
        }
        came["the number of elements in parameters()"] = sum(p.numel() for p in layer.parameters())
        spans: dict[str, Any] = {"": [], "forward": [], "backward": []}
        last: list[Any] = []

        def note(phase):
            now = time.monotonic()
            if last:
                before, began = last.pop()
                spans[before].append((began, now))
            if phase:
                last.append((phase, now))

        came |= trained(layer, case, side, rank, note, device)
        same = all(torch.equal(p, own) for p, own in zip(linear.parameters(), untouched))
        came["whether linear is as it was"] = same
        came["watched"] = {"spans": spans, "held": held(kind, side, device)}
        return came

    return drive


def held(kind, side, device):
    """Bytes that are there when ``linear`` is gone, and those of this rank's weights."""
    meter = MemoryMeter(2**60, lambda **_: AssertionError("the limit is never reached"))
    on_gpu = device.type == "cuda"

    def allocated():
        gc.collect()
        return meter.allocated + (torch.cuda.memory_allocated(device) if on_gpu else 0)

    with Metering(meter):
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
        came = trained(linear, case, side, None, lambda phase: None)
        return [{name: cut(case, side, name, value, rank) for name, value in came.items()}
                | fixed(case, side, rank) for rank in range(case.world)]  # fmt: skip

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
        usually="the parts are views of the whole weights, or the layer keeps linear or all of its"
        " weights.",
        fix="clone() the part before you make it a parameter, and keep no reference to linear.",
        first=True,
    )
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            there, own = came["watched"]["held"]
            if there > 1.1 * own:
                return f"on rank {rank} {there:,} bytes are in memory; its part has {own:,}"
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
