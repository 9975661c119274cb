"""Record a column-parallel and a row-parallel layer, forward and backward, on 2 and 4 ranks.

    python docs/_ext/course/explorers/tensor_pair_recording.py

prints JSON for the stepper: what every rank holds at each moment, what it sends, and the picture of
it.  The layers are the reference answers.  What a rank holds is found by comparing its tensor with
those of one process: the whole, a part, or a share of a sum.
"""

import json
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from multigpu import run_ranks
from multigpu.pictures.palette import HOST, color
from multigpu.pictures.picture import Picture, element, rank_lane, rectangle, text, tooltip
from multigpu.scaling.formulas import ring_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "solutions"))
from tensor_parallel import ColumnParallelLinear, RowParallelLinear

SIZES = (2, 4)
ROWS, WIDTH, HIDDEN = 4, 4, 8
LABELS = (
    *("start", "into the pair", "columns", "rows", "out of the pair"),
    *("back into it", "back: rows", "back: columns", "back out of it"),
)
BACK, COMPLETE = 5, (4, 8)  # where backward begins; where a rank holds complete sums


# --- one process ---------------------------------------------------------------------------------


def layers():
    torch.manual_seed(3)
    return nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)


def inputs_and_gradient():
    torch.manual_seed(4)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def whole():
    """The tensors of one process, by name."""
    first, second = layers()
    inputs, gradient = inputs_and_gradient()
    inputs.requires_grad_()
    hidden = F.gelu(first(inputs))
    hidden.retain_grad()
    outputs = second(hidden)
    outputs.backward(gradient)
    return {
        **{"X": inputs.detach(), "Y": hidden.detach(), "Z": outputs.detach()},
        **{"dX": inputs.grad, "dY": hidden.grad, "dZ": gradient},
        **{"A": first.weight.detach().T, "B": second.weight.detach().T},
    }


# --- on the ranks --------------------------------------------------------------------------------


class GatherRows(torch.autograd.Function):
    """All-gather in forward, reduce-scatter in backward."""

    @staticmethod
    def forward(ctx, rows):
        return gathered(rows)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient)


class ScatterRows(torch.autograd.Function):
    """Reduce-scatter in forward, all-gather in backward."""

    @staticmethod
    def forward(ctx, share):
        return scattered(share)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient)


def gathered(rows):
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def scattered(share):
    parts = [part.contiguous() for part in share.chunk(dist.get_world_size())]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts)
    return own


def pair(kind):
    """What this rank holds at each moment, (name, tensor); and its parts of both weights."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, second = layers()
    column, row = ColumnParallelLinear(first), RowParallelLinear(second)
    inputs, gradient = inputs_and_gradient()
    if kind == "sequence":
        inputs, gradient = inputs.chunk(size)[rank], gradient.chunk(size)[rank]
    inputs = inputs.clone().requires_grad_()
    held = []

    def note(name, tensor):
        held.append((name, tensor.detach().clone()))

    def all_reduce(tensor):
        shares.append(tensor.clone())
        return reduce(tensor)

    shares, reduce = [], dist.all_reduce
    note("X", inputs)
    with patch.object(dist, "all_reduce", all_reduce):
        if kind == "tensor":
            note("X", inputs)
            hidden = F.gelu(column(inputs))
            note("Y", hidden)
            outputs = row(hidden)
            note("Z", shares[0])
        else:
            whole_inputs = GatherRows.apply(inputs)
            note("X", whole_inputs)
            hidden = F.gelu(F.linear(whole_inputs, column.weight))
            note("Y", hidden)
            share = F.linear(hidden, row.weight)
            note("Z", share)
            outputs = ScatterRows.apply(share)
        note("Z", outputs)
        of_hidden = []
        hidden.register_hook(of_hidden.append)
        if kind == "sequence":
            of_share, of_inputs = [], []
            share.register_hook(of_share.append)
            whole_inputs.register_hook(of_inputs.append)
        outputs.backward(gradient)
    if kind == "tensor":
        of_share, of_inputs = [gradient], [shares[1]]
    note("dZ", gradient)  # as the next layer's backward gives it
    note("dZ", of_share[0])
    note("dY", of_hidden[0])
    note("dX", of_inputs[0])
    note("dX", inputs.grad)
    return held, column.weight.detach().T, row.weight.detach().T


# --- what it is ----------------------------------------------------------------------------------


def region(tensor, all_of_them, right):
    """Of the whole tensor: (rows, columns) as ranges, and whether it is only a share of a sum."""
    rows, columns = right.shape
    if tensor.shape == right.shape and torch.allclose(tensor, right, atol=1e-6):
        return (0, rows), (0, columns), False
    for dim, number in enumerate(right.shape):
        long = tensor.shape[dim]
        for begin in range(0, number - long + 1, long) if long < number else ():
            if tensor.shape == right.narrow(dim, begin, long).shape and torch.allclose(
                tensor, right.narrow(dim, begin, long), atol=1e-6
            ):
                ends = [(0, rows), (0, columns)]
                ends[dim] = (begin, begin + long)
                return (*ends, False)
    assert torch.allclose(sum(all_of_them), right, atol=1e-6)  # a share of the sum
    return (0, rows), (0, columns), True


def said(place, right):
    """In words: "rows 0 to 1", "a share of the sum"."""
    (rows, columns, share), (all_rows, all_columns) = place, right.shape
    if share:
        return "a share of the sum"
    if rows != (0, all_rows):
        return f"rows {rows[0]} to {rows[1] - 1}" if rows[1] - rows[0] > 1 else f"row {rows[0]}"
    if columns != (0, all_columns):
        return f"columns {columns[0]} to {columns[1] - 1}"
    return "whole"


def recorded(size, kind):
    """The moments of one run, as plain data."""
    right = whole()
    ran = run_ranks(pair, size, kind, backend="gloo", show=False)
    moments = len(ran[0][0])
    places = []
    for moment in range(moments):
        name = ran[0][0][moment][0]
        tensors = [own[0][moment][1] for own in ran]
        places.append((name, [region(each, tensors, right[name]) for each in tensors]))
    weights = {
        name: [region(own[at], [], right[name]) for own in ran] for name, at in (("A", 1), ("B", 2))
    }
    frames, sent = [], 0.0
    for moment, label in enumerate(LABELS):
        at = moment + (moment >= BACK)  # backward begins with a gradient that is there already
        before, after = places[at - 1] if moment else None, places[at]
        calls = moved_in(ran, moment, kind)
        sent += sum(map(ring_bytes, calls))
        used = {2: "A", 3: "B", 6: "B", 7: "A"}.get(moment)
        weight = used and (used, weights[used])
        frames.append(
            {
                "label": label,
                "copies": [],
                "call": calls[0].op if calls else "",
                "each": sum(map(ring_bytes, calls)),
                "sent": sent,
                "holds": [f"{after[0]}: {said(place, right[after[0]])}" for place in after[1]],
                "svg": picture(before, after, right, weight, calls, moment in COMPLETE).svg(),
            }
        )
    return frames


def moved_in(ran, moment, kind):
    """Rank 0's collectives between this moment and the one before.

    Backward runs in one go: its collectives come in the order of its moments.
    """
    calls = [call for call in ran.trace.collectives(0) if call.op != "barrier"]
    begins = {"tensor": {4: 0, 8: 1}, "sequence": {1: 0, 4: 1, 5: 2, 8: 3}}[kind]
    assert len(calls) == len(begins), calls
    return [calls[begins[moment]]] if moment in begins else []


# --- the picture ---------------------------------------------------------------------------------

NOTES = (
    "gray: the same on all ranks",
    "color: only this rank has it",
    "bands: a sum of the ranks' shares",
)
LEFT, WIDE, HIGH = 58.0, 72.0, 24.0
MIDDLE, RIGHT, ENDS = 168.0, 278.0, 366.0
TOP, LANE, BAND = 6.0, 54.0, 9.0


def picture(before, after, right, weight, calls, complete):
    """A lane for each rank: what it held, what it did with it, what it holds now."""
    name, places = after
    size = len(places)
    same = len(set(map(str, places))) == 1 and not places[0][2]  # on all ranks
    body = []
    for rank in range(size):
        y = TOP + rank * LANE
        body.append(rank_lane(rank, y, ENDS, LANE - 6))
        if before is not None:
            old, olds = before
            alike = len(set(map(str, olds))) == 1 and not olds[rank][2]
            body.append(matrix(LEFT, y, old, right[old], olds[rank], rank, size, alike))
        body.append(matrix(RIGHT, y, name, right[name], places[rank], rank, size, same, complete))
        if weight is not None:
            title, parts = weight
            body.append(matrix(MIDDLE, y, title, right[title], parts[rank], rank, size, False))
            body.append(sign((LEFT + WIDE + MIDDLE) / 2, y, "×"))
            body.append(sign((MIDDLE + WIDE + RIGHT) / 2, y, "="))
        elif before is not None and not calls:
            body.append(sign(MIDDLE + WIDE / 2, y, "nothing sent", size=11))
    if calls:
        body.append(exchange(calls[0], size))
    lines = [f"rank {r}: {name}, {said(p, right[name])}" for r, p in enumerate(places)]
    return Picture(
        "",
        body,
        size=(ENDS, TOP + size * LANE),
        says=[f"{each}." for each in lines],
        lines=lines,
        kinds=["communication"],  # always: the picture's height must not change from step to step
        notes=NOTES,
    )


def sign(x, y, what, size=15):
    return text(x, y + 4 + HIGH / 2, what, size=size, text_anchor="middle")


def matrix(x, y, name, right, place, rank, size, same, complete=False):
    """The whole as an outline, and in it what the rank holds."""
    rows, columns, share = place
    all_rows, all_columns = right.shape
    y += 4
    left, top = x + WIDE * columns[0] / all_columns, y + HIGH * rows[0] / all_rows
    wide = WIDE * (columns[1] - columns[0]) / all_columns
    high = HIGH * (rows[1] - rows[0]) / all_rows
    owners = [rank] if share else range(size) if complete else []
    bands = min(BAND, high)  # a place for each rank whose share is in the sum
    pieces = [
        rectangle(left + wide * owner / size, top + high - bands, wide / size, bands,
                  fill=color(owner))
        for owner in owners
    ] or [rectangle(left, top, wide, high, fill=HOST if same else color(rank))]  # fmt: skip
    words = said(place, right)
    short = "a share" if share else words.replace(" to ", "–")
    label = name if words == "whole" else f"{name}: {short}"
    return tooltip(
        f"rank {rank}: {name}, {words}",
        rectangle(x, y, WIDE, HIGH, fill="var(--paper)", stroke="var(--line)",
                  stroke_dasharray="3 3"),
        *pieces,
        rectangle(left, top, wide, high, fill="none", stroke="var(--ink)",
                  stroke_width=2 if complete else 1),
        text(x, y + HIGH + 9, label, size=10.5),
    )  # fmt: skip


def exchange(call, size):
    """A collective: a striped line through all lanes."""
    x, begin, end = MIDDLE + WIDE / 2, TOP + 6, TOP + size * LANE - 12
    middles = [TOP + rank * LANE + 4 + HIGH / 2 for rank in range(size)]
    way = f"M{x:g} {begin:g}V{end:g}"
    shaft = {"d": way, "stroke": HOST, "stroke_width": 9, "fill": "none"}
    ends = [
        element("path", d=f"M{LEFT + WIDE + 6:g} {y:g}H{RIGHT - 6:g}", fill="none",
                stroke=color(rank), stroke_width=3, stroke_dasharray="5 3", class_="stripes")
        for rank, y in enumerate(middles)
    ]  # fmt: skip
    halo = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"
    amount = f"each sends {ring_bytes(call):g} B"
    words = [call.op.replace("_", "-"), amount]
    where = TOP + LANE * size / 2 - 3
    return tooltip(
        f"{call.op}: {amount}",
        *ends,
        element("path", **shaft, stroke_opacity=0.35),
        element("path", **shaft, stroke_dasharray="5 3", class_="stripes"),
        *(
            text(x, where + 13 * i - 6.5, word, size=10.5, class_="strong", text_anchor="middle",
                 style=halo)
            for i, word in enumerate(words)
        ),
    )  # fmt: skip


if __name__ == "__main__":
    made = {size: {kind: recorded(size, kind) for kind in ("tensor", "sequence")} for size in SIZES}
    json.dump(made, sys.stdout)
