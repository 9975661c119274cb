"""Record ring attention on four ranks, forward and backward.

    python docs/_ext/course/explorers/ring_attention_recording.py

prints JSON for the stepper: each message with its bytes, what every rank has in each step, and the
picture of it. A message is recognized by its numbers: it is a block of keys and values, or the sum
of those parts of a block's gradient that certain ranks have computed.
"""

import json
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.pictures import Picture
from multigpu.pictures.holdings import added
from multigpu.pictures.palette import color
from multigpu.pictures.picture import rank_lane, rectangle, text, text_on, tooltip, traveling

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "solutions"))
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


@dataclass(frozen=True)
class Message:
    """The block of `owner`, or of its gradient the parts that these ranks have computed."""

    source: int
    target: int
    bytes: int
    owner: int
    parts: frozenset[int]  # none: the block itself

    @property
    def short(self):
        return f"gradient {self.owner}" if self.parts else f"block {self.owner}"

    @property
    def carries(self):
        if not self.parts:
            return self.short
        some = "part of rank" if len(self.parts) == 1 else "parts of ranks"
        return f"the gradient of block {self.owner}, {some} {added(self.parts)}"


class Recognizer:
    def __init__(self, causal):
        self.blocks = [torch.stack(given(rank)[1:3]) for rank in range(RANKS)]
        self.parts = gradient_parts(causal)

    def message(self, source, target, tensor):
        for owner, block in enumerate(self.blocks):
            if torch.equal(tensor, block):
                return Message(source, target, tensor.nbytes, owner, frozenset())
            there = [r for r in range(RANKS) if self.parts[owner, r].abs().max() > 0]
            for many in range(1, len(there) + 1):
                for ranks in combinations(there, many):
                    if torch.allclose(tensor, sum(self.parts[owner, r] for r in ranks)):
                        return Message(source, target, tensor.nbytes, owner, frozenset(ranks))
        raise ValueError("a message is neither a block nor a gradient of one")


# --- step by step --------------------------------------------------------------------------------


def recorded(causal):
    """The frames of one run.  In each step a rank attends to one block and sends it on."""
    ran, recognizer = run_ranks(recorded_on_a_rank, RANKS, causal, show=False), Recognizer(causal)
    nothing = [frozenset()] * RANKS
    own = [(rank, True) for rank in range(RANKS)]
    frames = [frame("start", "forward", own, nothing)]
    for direction in ("forward", "backward"):
        attended, sent = [], []  # by rank and step; what was sent: by rank, kind and step
        for rank, passes in enumerate(ran):
            events = passes[direction]
            attended.append([event[1:] for event in events if event[0] == "attends"])
            messages = [recognizer.message(rank, *e[1:]) for e in events if e[0] == "sent"]
            blocks = [message for message in messages if not message.parts]
            gradients = [message for message in messages if message.parts]
            sent.append((blocks, gradients))
            for kind in sent[rank]:
                for step, message in enumerate(kind):
                    assert message.owner == attended[rank][step][0], "it sends the block in use"
        has = list(nothing)
        for step in range(RANKS):
            in_use = [each[step] for each in attended]
            messages = [m for kinds in sent for kind in kinds for m in kind[step : step + 1]]
            for message in messages:
                if not message.parts:
                    used_next, _ = attended[message.target][step + 1]
                    assert message.owner == used_next
            if direction == "forward":
                has = [h | {o} if seen else h for h, (o, seen) in zip(has, in_use, strict=True)]
            else:
                has = [sent[rank][1][step].parts for rank in range(RANKS)]
            frames.append(frame(f"{direction} {step + 1}", direction, in_use, has, messages))
    home = {message.target: message for message in messages}
    assert all(message.owner == rank for rank, message in home.items())
    has = [home[rank].parts for rank in range(RANKS)]
    return [*frames, frame("end", "backward", own, has)]


def frame(label, direction, in_use, has, messages=()):
    what = "attended to" if direction == "forward" else "its gradient, by rank"
    arriving = {message.target: message.short for message in messages[::-1]}
    holds = [
        {"in use": f"block {owner}"}
        | ({"arriving": arriving[rank]} if arriving else {})
        | {what: added(has[rank])}
        for rank, (owner, _) in enumerate(in_use)
    ]
    return {
        "label": label,
        "direction": direction,
        "copies": [
            {
                "source": f"rank {message.source}",
                "target": f"rank {message.target}",
                "bytes": message.bytes,
                "carries": message.carries,
            }
            for message in messages
        ],
        "holds": holds,
        "idle": [rank for rank, (_, seen) in enumerate(in_use) if not seen],
        "svg": picture(in_use, arriving, has, messages, holds, what).svg(),
    }


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
            rank_lane(rank, y, ENDS, LANE - 4),
            *block(LEFT, y, f"block {owner}", solid=True),
            *(block(MIDDLE, y, arriving[rank], solid=False) if rank in arriving else []),
            *(cell(y, other, other in has[rank]) for other in range(RANKS)),
        ]
        if not seen:
            body.append(text(11, y + 32, "idle", size=10, class_="muted"))
    pairs = {}
    for message in messages:
        pairs.setdefault((message.source, message.target), []).append(message)
    body += [arrow(source, target, together) for (source, target), together in pairs.items()]
    states = (", ".join(f"{name} {value}" for name, value in held.items()) for held in holds)
    said = [f"rank {rank}: {state}" for rank, state in enumerate(states)]
    return Picture(
        "",
        body,
        size=(ENDS, TOP + RANKS * LANE + 2),
        says=[f"{each}." for each in said],
        lines=said,
        kinds=["communication"],  # always: the picture's height must not change from step to step
        notes=["color: the rank that a block belongs to, or that computed a part"],
    )


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


def arrow(source, target, messages):
    """From the block in use to the place where it arrives, each along a track of its own."""
    track = LEFT + WIDE + (14 if target < source else 24)
    start, end = (TOP + rank * LANE + 8 + HIGH / 2 for rank in (source, target))
    way = f"M{LEFT + WIDE:g} {start:g}H{track:g}V{end:g}H{MIDDLE - 5:g}"
    paint = color(messages[0].owner)
    words = "; ".join(f"{message.carries}, {message.bytes:,} B" for message in messages)
    tip = f"M{MIDDLE - 8:g} {end - 4:g}l7 4l-7 4z"
    return tooltip(
        f"rank {source} → rank {target}: {words}", traveling(way, tip, paint, thickness=3.5)
    )


if __name__ == "__main__":
    json.dump({"none": recorded(False), "causal": recorded(True)}, sys.stdout)
