"""Record ring attention on four ranks, forward and backward.

    python docs/_ext/course/ring_attention_recording.py

prints JSON for the stepper: each message with its bytes, what every rank has in each step, and the
picture of it. A message is recognized by its numbers: it is a block of keys and values, or the sum
of those parts of a block's gradient that certain ranks have computed.
"""

import json
import sys
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.pictures import Picture
from multigpu.pictures.holdings import added
from multigpu.pictures.palette import color
from multigpu.pictures.picture import element, rectangle, text, text_on, tooltip

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "solutions"))
import context_parallel

RANKS, SHAPE = 4, (1, 2, 16, 8)  # batch, heads, local sequence, width


def given(rank):
    """q, k, v and the gradient of the output of a rank."""
    torch.manual_seed(rank)
    return [torch.randn(SHAPE, dtype=torch.float64) for _ in range(4)]


# --- on the ranks --------------------------------------------------------------------------------


def recorded_on_a_rank(causal):
    """What this rank sends in forward and in backward, and which blocks it attends to."""
    q, k, v, gradient = given(dist.get_rank())
    kind, scores_of = type(dist.group.WORLD), context_parallel._scores
    send, noted = kind.send, []

    def note_message(group, tensors, target, tag):
        noted.append(("sent", target, tensors[0].detach().clone()))
        return send(group, tensors, target, tag)

    def note_scores(queries, keys, owner, causal):
        scores = scores_of(queries, keys, owner, causal)
        noted.append(("attends", owner, scores is not None))
        return scores

    passes = {}
    with patch.object(kind, "send", note_message), patch.object(
        context_parallel, "_scores", note_scores
    ):  # fmt: skip
        leaves = [t.requires_grad_() for t in (q, k, v)]
        out = context_parallel.ring_attention(*leaves, causal=causal)
        passes["forward"], noted[:] = list(noted), []
        out.backward(gradient)
        passes["backward"] = list(noted)
    return passes


# --- what the messages are -----------------------------------------------------------------------


def gradient_parts(causal):
    """By owner and rank: the gradient of the owner's block from this rank's queries."""
    q, k, v, gradient = (torch.cat(t, dim=2) for t in zip(*map(given, range(RANKS)), strict=True))
    k.requires_grad_(), v.requires_grad_()
    scores = q @ k.mT / SHAPE[3] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    outs = (scores.softmax(-1) @ v).chunk(RANKS, dim=2)
    found = {}
    for rank, (out, own) in enumerate(zip(outs, gradient.chunk(RANKS, dim=2), strict=True)):
        grads = torch.autograd.grad(out, (k, v), own, retain_graph=True)
        whole = torch.stack(grads).chunk(RANKS, dim=3)
        found |= {(owner, rank): part for owner, part in enumerate(whole)}
    return found


class Recognized:
    """Says of a message what it carries: a column, the owner of the block, the ranks in a sum."""

    def __init__(self, causal):
        self.blocks = [torch.stack(given(rank)[1:3]) for rank in range(RANKS)]
        self.parts = gradient_parts(causal)

    def __call__(self, tensor):
        for owner, block in enumerate(self.blocks):
            if torch.equal(tensor, block):
                return 0, owner, frozenset([owner])
            there = [r for r in range(RANKS) if self.parts[owner, r].abs().max() > 0]
            for many in range(1, len(there) + 1):
                for ranks in combinations(there, many):
                    if torch.allclose(tensor, sum(self.parts[owner, r] for r in ranks)):
                        return 1, owner, frozenset(ranks)
        raise ValueError("a message is neither a block nor a gradient of one")


# --- step by step --------------------------------------------------------------------------------


def recorded(causal):
    """The frames of one run.  In each step a rank attends to one block and sends it on."""
    ran, recognize = run_ranks(recorded_on_a_rank, RANKS, causal, show=False), Recognized(causal)
    nothing = [frozenset()] * RANKS
    own = [(rank, True) for rank in range(RANKS)]
    frames = [frame("start", own, None, nothing, [], "forward")]
    for direction in ("forward", "backward"):
        attended, sent = [], []  # by rank and step; what was sent: by rank, column and step
        for rank, passes in enumerate(ran):
            attended.append([event[1:] for event in passes[direction] if event[0] == "attends"])
            sent.append(([], []))
            for _, target, tensor in (e for e in passes[direction] if e[0] == "sent"):
                column, owner, ranks = recognize(tensor)
                step = len(sent[rank][column])
                assert owner == attended[rank][step][0], "what travels is not the block in use"
                sent[rank][column].append((rank, target, tensor.nbytes, column, owner, ranks))
        has = list(nothing)
        for step in range(RANKS):
            in_use = [each[step] for each in attended]
            messages = [m for each in sent for column in each for m in column[step : step + 1]]
            arriving = {
                m[1]: f"gradient {m[4]}" if m[3] else f"block {m[4]}" for m in messages[::-1]
            }
            for target, owner in ((m[1], m[4]) for m in messages if m[3] == 0):
                assert attended[target][step + 1][0] == owner, "what comes is used next"
            if direction == "forward":
                has = [h | {o} if seen else h for h, (o, seen) in zip(has, in_use, strict=True)]
            else:
                has = [sent[rank][1][step][5] for rank in range(RANKS)]
            name = f"{direction} {step + 1}"
            frames.append(frame(name, in_use, arriving, has, messages, direction))
    home = {target: (owner, ranks) for _, target, _, _, owner, ranks in messages}
    assert all(owner == rank for rank, (owner, _) in home.items())
    has = [home[rank][1] for rank in range(RANKS)]
    return [*frames, frame("end", own, None, has, [], "backward")]


def frame(name, in_use, arriving, has, messages, direction):
    what = "attended to" if direction == "forward" else "its gradient, by rank"
    holds = [
        {"in use": f"block {owner}"}
        | ({"arriving": arriving[rank]} if arriving else {})
        | {what: added(has[rank])}
        for rank, (owner, _) in enumerate(in_use)
    ]
    return {
        "label": name,
        "direction": direction,
        "copies": [
            {
                "source": f"rank {source}",
                "target": f"rank {target}",
                "bytes": size,
                "carries": carried(column, owner, ranks),
            }
            for source, target, size, column, owner, ranks in messages
        ],
        "holds": holds,
        "idle": [rank for rank, (_, seen) in enumerate(in_use) if not seen],
        "svg": picture(in_use, arriving or {}, has, messages, holds, what).svg(),
    }


def carried(column, owner, ranks):
    block = f"block {owner}"
    some = "part of rank" if len(ranks) == 1 else "parts of ranks"
    return block if column == 0 else f"the gradient of {block}, {some} {added(ranks)}"


# --- the picture ---------------------------------------------------------------------------------

LEFT, WIDE, MIDDLE, CELLS, CELL, ENDS = 56.0, 58.0, 154.0, 226.0, 34.0, 366.0
TOP, LANE, HIGH = 20.0, 42.0, 22.0


def picture(in_use, arriving, has, messages, holds, what):
    """A lane for each rank: its block, the one that arrives, and a place for each rank's."""
    titles = ((LEFT, "in use"), (MIDDLE, "arriving"), (CELLS, what))
    body = [text(x, 8, title, size=11, class_="muted") for x, title in titles]
    for rank, (owner, seen) in enumerate(in_use):
        y = TOP + rank * LANE
        body += [
            rectangle(0.5, y, ENDS - 1, LANE - 4, rx=7, fill="var(--band)"),
            rectangle(0.5, y, 5, LANE - 4, rx=2.5, fill=color(rank)),
            text(11, y + (LANE - 4) / 2, f"rank {rank}", size=11.5, class_="strong"),
            *block(LEFT, y, f"block {owner}", solid=True),
            *(block(MIDDLE, y, arriving[rank], solid=False) if rank in arriving else []),
            *(cell(y, other, other in has[rank]) for other in range(RANKS)),
        ]
        if not seen:
            body.append(text(11, y + 32, "idle", size=10, class_="muted"))
    pairs = {}
    for source, target, *rest in messages:
        pairs.setdefault((source, target), []).append(rest)
    body += [arrow(source, target, all_) for (source, target), all_ in pairs.items()]
    said = [f"rank {rank}: {state(held)}" for rank, held in enumerate(holds)]
    return Picture(
        "",
        body,
        size=(ENDS, TOP + RANKS * LANE + 2),
        says=[f"{each}." for each in said],
        lines=said,
        kinds=["communication"],  # always: the picture's height must not change from step to step
        notes=["color: the rank that a block belongs to, or that computed a part"],
    )


def state(held):
    """For example "in use block 3, attended to 0+3"."""
    return ", ".join(f"{name} {value}" for name, value in held.items())


def block(x, y, label, *, solid):
    """Keys and values, as they are used or on their way; or a gradient of them."""
    fill = color(int(label.split()[1]))
    middle = x + WIDE / 2, y + 8 + HIGH / 2
    if solid:
        box = rectangle(x, y + 8, WIDE, HIGH, rx=2, fill=fill, stroke="var(--line)")
        return [box, text_on(fill, *middle, label, size=11.5)]
    rim = {"fill": "var(--paper)", "stroke": fill, "stroke_width": 2, "stroke_dasharray": "4 3"}
    box = rectangle(x, y + 8, WIDE, HIGH, rx=2, class_="arrives", **rim)
    size = 11.5 if label.startswith("block") else 10
    return [box, text(*middle, label, size=size, text_anchor="middle")]


def cell(y, other, there):
    x = CELLS + other * CELL
    fill = color(other) if there else "var(--paper)"
    box = rectangle(x, y + 8, CELL - 3, HIGH, rx=2, fill=fill, stroke="var(--line)")
    place = x + (CELL - 3) / 2, y + 8 + HIGH / 2
    if there:
        return box + text_on(fill, *place, str(other), size=11.5)
    return box + text(*place, str(other), size=11.5, class_="muted", text_anchor="middle")


def arrow(source, target, carries):
    """From the block in use to the place where it arrives, each along a track of its own."""
    track = LEFT + WIDE + (14 if target < source else 24)
    start, end = (TOP + rank * LANE + 8 + HIGH / 2 for rank in (source, target))
    way = f"M{LEFT + WIDE:g} {start:g}H{track:g}V{end:g}H{MIDDLE - 5:g}"
    paint = color(carries[0][2])  # of the block's owner
    shaft = {"d": way, "stroke": paint, "stroke_width": 3.5, "fill": "none"}
    words = "; ".join(f"{carried(*rest)}, {size:,} B" for size, *rest in carries)
    return tooltip(
        f"rank {source} → rank {target}: {words}",
        element("path", **shaft, stroke_opacity=0.35),
        element("path", **shaft, stroke_dasharray="5 3", class_="stripes"),
        element("path", d=f"M{MIDDLE - 8:g} {end - 4:g}l7 4l-7 4z", fill=paint),
        rectangle(-4, -4, 8, 8, rx=2, fill=paint, class_="packet",
                  stroke="var(--line)", style=f'offset-path:path("{way}");opacity:0'),
    )  # fmt: skip


if __name__ == "__main__":
    json.dump({"none": recorded(False), "causal": recorded(True)}, sys.stdout)
