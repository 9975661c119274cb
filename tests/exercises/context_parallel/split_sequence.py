"""Cases of ``ring_attention``: what a rank has, does, sends and keeps, and what is right."""

import gc
import math
import time
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import numbered
from multigpu.devices.meters import MemoryMeter
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted
from multigpu.ranks.memory_limit import counting, limited_memory, rank_memory

from .numbers import OF_DIFFERENCES, exact

NAMES = ("q", "k", "v")


def cases():
    """``keys`` is the local sequence of k and v, ``queries`` that of q."""
    for world in (3, 2, 4, 1):
        yield a_case(world, (2, 2, 3, 4))
        yield a_case(world, (1, 2, 3, 5), causal=True)
        yield a_case(world, (2, 3, 4, 8), causal=True, dtype=torch.float32)
        yield a_case(world, (1, 1, 1, 2), causal=True, what="one position per rank")
        yield a_case(world, (2, 1, 5, 3), queries=2, what="2 queries and 5 keys per rank")
        yield a_case(world, (2, 3, 4, 2), causal=True, layout="transposed", what="transposed")
        yield a_case(world, (1, 2, 4, 3), causal=True, layout="one", what="q, k and v are one")
        yield a_case(world, (1, 2, 2, 4), causal=True, layers=2, what="two layers")
        yield a_case(world, (1, 2, 4, 4), base=1000.0, what="scores of 1000 and -1000")
        yield a_case(world, (1, 2, 32, 16), queries=1, measured=True, what="memory is counted")
    for world in (2, 4):
        yield a_case(world, (2, 2, 4, 8), base=40.0, causal=True, dtype=torch.bfloat16)
    for world in (3, 2):
        for needed in ("q", "k", "v", "qv", ""):
            what = f"gradients only of {needed}" if needed else "none needs a gradient"
            yield a_case(world, (1, 2, 2, 3), causal=True, needed=needed, what=what)
        yield a_case(world, (1, 1, 3, 4), recorded=False, what="under torch.no_grad()")


def a_case(world, shape, *, causal=False, dtype=torch.float64, what="", **given):
    usual: dict[str, Any] = {"layout": "", "layers": 1, "base": 0.0, "needed": "qkv"}
    usual |= {"recorded": True, "measured": False, "queries": shape[2]}
    title = f"{world} {'ranks' if world > 1 else 'rank'}, shape {shape}, {str(dtype)[6:]}"
    title += ", causal" if causal else ""
    return case(
        f"{title}, {what}" if what else title,
        world=world,
        shape=shape,
        causal=causal,
        dtype=dtype,
        block=2 * math.prod(shape),  # elements of one rank's k and v
        others=world - 1,
        **usual | given,
        example=world == 3 and not given,
    )


def leaves_of(case, rank):
    """What a rank begins with: a tensor by name, some of which need gradients."""
    draw = torch.Generator().manual_seed(100 + rank)
    batch, heads, keys, width = case.shape
    leaves = {}
    for name in ("q",) if case.layout == "one" else NAMES:
        length = case.queries if name == "q" else keys
        shape = (batch, heads, length, width)
        if case.layout == "transposed":
            shape = (batch, length, heads, width)
        leaf = torch.randn(shape, generator=draw, dtype=torch.float64)
        if case.base and name != "v":  # by turns, a query has high and low scores with all keys
            sign = 1 - 2 * (torch.arange(length) % 2) if name == "q" else torch.ones(length)
            size = math.sqrt(case.base * math.sqrt(width))
            leaf[..., 0] = size * sign
        leaves[name] = leaf.to(case.dtype)
    return leaves


def gradient_of(case, rank):
    """Of the loss with respect to a rank's output."""
    batch, heads, _, width = case.shape
    shape = (batch, heads, case.queries, width)
    if case.layout == "transposed":  # as out.sum().backward() gives it: one number for all places
        return torch.full((), 1.5 + rank, dtype=case.dtype).expand(shape)
    draw = torch.Generator().manual_seed(200 + rank)
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(case.dtype)


def arguments_from(case, leaves):
    if case.layout == "one":
        return [leaves["q"]] * 3
    given = [leaves[name] for name in NAMES]
    return [t.transpose(1, 2) for t in given] if case.layout == "transposed" else given


def through_layers(case, attend, q, k, v):
    """In the second layer, queries and values are what the first one gives."""
    out = attend(q, k, v)
    for _ in range(case.layers - 1):
        out = attend(out, k, out)
    return out


# --- on a rank -----------------------------------------------------------------------------------


def drive(submission, case, rank):
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    leaves = {name: leaf.to(place) for name, leaf in leaves_of(case, rank).items()}
    before = {name: leaf.clone() for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in case.needed)
    gradient = gradient_of(case, rank).to(place)

    def attend(q, k, v):
        return submission.ring_attention(q, k, v, causal=case.causal)

    def run():
        return through_layers(case, attend, *arguments_from(case, leaves))

    seen = {}
    if case.measured:
        with memory_counted(place, rank) as memory:
            for leaf in leaves.values():
                leaf.detach()  # now it is counted
            out = step(case, run, gradient, seen, memory)
    else:
        out = step(case, run, gradient, seen)
    seen["changed"] = [name for name, old in before.items() if not torch.equal(leaves[name], old)]
    came = {f"the gradient of {name}": leaf.grad for name, leaf in leaves.items()}
    return {"out": out.detach() if isinstance(out, torch.Tensor) else out, **came, "watched": seen}


@contextmanager
def memory_counted(place, rank):
    """Count the tensors on the CPU, even where a rank has a GPU; or those on its GPU."""
    if place != "cpu":
        with limited_memory(2**30, rank=rank):
            yield rank_memory
        return
    meter = MemoryMeter()

    def read(*, reset_peak=False):
        if reset_peak:
            meter.reset_peak()
        return meter.read()

    with counting(meter):
        yield read


def step(case, run, gradient, seen, memory=None):
    """Forward, and backward where there is one; notes the times, and the memory in elements."""
    held = begin(memory)
    seen["forward"] = (time.monotonic(),)
    with torch.set_grad_enabled(case.recorded):
        out = run()
    seen["forward"] += (time.monotonic(),)
    if memory:
        seen["in forward"] = (memory().peak - held) / 8
        seen["after forward"] = (begin(memory) - held) / 8
    seen["backward"] = (time.monotonic(),)
    if getattr(out, "requires_grad", False) and out.shape == gradient.shape:
        out.backward(gradient)
    seen["backward"] += (time.monotonic(),)
    if memory:
        seen["in backward"] = (memory().peak - held) / 8
    return out


def begin(memory):
    """The bytes that are there, from which the peak is counted."""
    gc.collect()
    return memory(reset_peak=True).allocated if memory else 0


# --- in one process ------------------------------------------------------------------------------


def whole(q, k, v, causal):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v


def expected(case):
    """By rank: the output and the gradients of attention over the whole sequence."""
    ranks = [leaves_of(case, rank) for rank in range(case.world)]
    ranks = [
        {n: t.double().requires_grad_(n in case.needed) for n, t in own.items()} for own in ranks
    ]
    parts = zip(*(arguments_from(case, own) for own in ranks), strict=True)
    joined = [torch.cat(tensors, dim=2) for tensors in parts]
    out = through_layers(case, lambda q, k, v: whole(q, k, v, case.causal), *joined)
    if out.requires_grad and case.recorded:
        gradients = [gradient_of(case, rank).double() for rank in range(case.world)]
        out.backward(torch.cat(gradients, dim=2))
    outs = out.detach().split(case.queries, dim=2)
    return [
        {"out": exact("out", own_out.to(case.dtype))}
        | {f"the gradient of {name}": gradient(case, name, leaf.grad) for name, leaf in own.items()}
        for own, own_out in zip(ranks, outs, strict=True)
    ]


def gradient(case, name, value):
    if value is None:
        return None
    value = value.to(case.dtype)
    return exact(f"the gradient of {name}", value, roundings=OF_DIFFERENCES)


# --- what no value shows: messages, and memory in blocks -----------------------------------------

BLOCK = "k and v of one rank are one block"


def travels_as_promised(ring_attention):
    """Declare all of them."""
    handles_are_waited_for(ring_attention)

    @ring_attention.holds(
        "input_changed",
        expects="q, k and v stay as they are",
        usually="something was written into them, such as a block that was received.",
        fix="Receive into new tensors.",
        first=True,
    )
    def inputs_stay(run, case):
        for rank, came in enumerate(run.came(case)):
            if came["watched"]["changed"]:
                return f"on rank {rank}, {came['watched']['changed'][0]} changed"
        return None

    @ring_attention.holds(
        "collective",
        expects="blocks travel in messages between neighbors",
        usually="a collective brings the keys of all {n} ranks to every rank at once, or sums for"
        " all of them. Then the memory grows with the whole sequence.",
        fix="Send one block to the next rank and receive one from the rank before, {others} times.",
    )
    def no_collective(run, case):
        for rank in range(case.world):
            for call in run.calls(case, rank):
                if not call.is_message and call.op != "barrier":
                    return f"rank {rank} called {call.via}", call.place
        return None

    @ring_attention.holds(
        "no_message",
        expects="blocks travel in messages between neighbors",
        usually="they took another road, such as a file or a store.",
        fix="Only messages between ranks count.",
    )
    def some_message(run, case):
        for rank in range(case.world if case.world > 1 and not case.causal else 0):
            if not any(call.op == "send" for call in run.calls(case, rank)):
                return f"rank {rank} sent no message"
        return None

    @ring_attention.holds(
        "not_neighbors",
        expects="a rank sends to its neighbors in the ring only",
        usually="the result is right, but not made in a ring.",
        fix="Rank r sends to rank (r + 1) % {n}, and receives from rank (r - 1) % {n}.",
    )
    def talks_to_neighbors(run, case):
        for rank in range(case.world):
            neighbors = {(rank + 1) % case.world, (rank - 1) % case.world}
            for call in run.calls(case, rank):
                if call.op == "send" and call.peer not in neighbors:
                    others = numbered("rank", sorted(neighbors))
                    came = f"rank {rank} sent to rank {call.peer}; its neighbors are {others}"
                    return came, call.place
        return None

    keeps_at_most(
        ring_attention,
        "after forward",
        1,
        "kept_for_backward",
        expects=f"between forward and backward a rank has at most one block more ({BLOCK})",
        usually="autograd keeps what backward needs: here the blocks of all other ranks.",
        fix="Write a torch.autograd.Function that saves q, k, v, the output and the log-sum-exp. In"
        " its backward the blocks travel around the ring once more.",
    )
    keeps_at_most(
        ring_attention,
        "in forward",
        2,
        "too_many_blocks",
        expects=f"forward needs the memory of two blocks besides q, k and v ({BLOCK})",
        usually="blocks were collected, or a buffer was kept, perhaps by an old handle.",
        fix="Two buffers are enough: one in use, one to receive into. Keep no handle after wait().",
    )
    keeps_at_most(
        ring_attention,
        "in backward",
        7,
        "too_much_in_backward",
        expects=f"backward needs the memory of at most seven blocks besides q, k and v ({BLOCK})",
        usually="blocks of all ranks, or their gradients, were collected.",
        fix="The gradient of a block travels with the block: add this rank's part and send it on.",
    )
    sends_at_most(
        ring_attention,
        "forward",
        lambda world: world - 1,
        "sent_too_much",
        expects="in forward a rank sends at most n - 1 = {others} blocks",
        usually="after the last block nothing needs to be sent: the own one would come again.",
        fix="Send in the first {others} of {n} steps.",
    )
    sends_at_most(
        ring_attention,
        "backward",
        lambda world: 2 * world,
        "sent_too_much_back",
        expects="in backward a rank sends at most {n} blocks, and the gradients of {n} blocks",
        usually="more travels than blocks and their gradients, or they go around more than once.",
        fix="Each of the {n} steps sends one block and the gradient of one block.",
    )


def keeps_at_most(ring_attention, phase, limit, name, *, expects, usually, fix):
    """No rank holds more blocks than this, up to a half, in a phase."""

    @ring_attention.holds(name, expects=expects, usually=usually, fix=fix)
    def _(run, case):
        for rank, came in enumerate(run.came(case) if case.measured and case.world > 1 else ()):
            blocks = came["watched"][phase] / case.block
            if blocks > limit + 0.5:
                return f"rank {rank} had {blocks:.1f} blocks"
        return None


def sends_at_most(ring_attention, phase, blocks_of, name, *, expects, usually, fix):
    @ring_attention.holds(name, expects=expects, usually=usually, fix=fix)
    def _(run, case):
        limit = case.layers * blocks_of(case.world) * case.block if case.world > 1 else 0
        for rank, came in enumerate(run.came(case)):
            began, ended = came["watched"][phase]
            sends = [call for call in run.calls(case, rank) if call.op == "send"]
            sends = [call for call in sends if began <= call.time <= ended]
            sent = sum(call.numel for call in sends)
            if sent > limit + 16 * case.world * case.layers:  # numbers that tell shapes are fine
                came = f"rank {rank} sent {counted(sent, 'element')}, and {limit:,} are enough"
                return came, sends[-1].place
        return None
