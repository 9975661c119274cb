"""The steps of an all-reduce: what every message carries, and what each rank holds after it.

    from multigpu.scaling.all_reduce_steps import all_reduce_steps
    all_reduce_steps(ring_all_reduce, 3)          # in a notebook: step through it

Each rank starts with marked numbers, with one bit of its own in each, so that every sum shows which
ranks are in it. The messages are recorded when they are sent, by any function of torch.distributed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from multigpu.pictures import Picture, Slide, Slides
from multigpu.pictures.holdings import ChunksSent, Contributors, chunks
from multigpu.ranks import run_ranks
from multigpu.ranks.errors import counted

NUMBERS = 12  # 2, 3 and 4 ranks divide it; 12 numbers of 4 bits fit into an int64
LARGEST_WORLD = 4
Holds = Sequence[Sequence[Contributors]]  # [rank][chunk]: the ranks whose numbers are in that sum


@dataclass(frozen=True)
class AllReduceStep:
    """Messages that travel at the same time, and what each rank holds before and after them."""

    label: str
    says: str
    messages: Sequence[ChunksSent]
    before: Holds
    holds: Holds

    def picture(self) -> Picture:
        return chunks(self.before, self.holds, self.messages)


def all_reduce_steps(all_reduce: Callable[[Any], None], world_size: int) -> Slides:
    """Run `all_reduce(tensor)` on 2 to 4 ranks and return its steps as pictures.

    Raises ValueError if it sent nothing by itself, or did not leave the sum on every rank, and
    RankError as `run_ranks` does.
    """
    steps = steps_of_all_reduce(all_reduce, world_size)
    title = f"{getattr(all_reduce, '__name__', 'all_reduce')} on {world_size} ranks"
    return Slides(title, [Slide(step.label, step.picture(), step.says) for step in steps])


def steps_of_all_reduce(all_reduce: Callable[[Any], None], world_size: int) -> list[AllReduceStep]:
    """The same as records: the start, then the steps."""
    if not 2 <= world_size <= LARGEST_WORLD:
        raise ValueError(f"2 to {LARGEST_WORLD} ranks can be shown, not {world_size}")
    ran = run_ranks(_recorded, world_size, all_reduce, backend="gloo", show=False)
    everyone = frozenset(range(world_size))
    for rank, (_, result) in enumerate(ran):
        wrong = [i for i, value in enumerate(result) if _decoded(i, value) != everyone]
        if wrong:
            raise ValueError(f"rank {rank} does not hold the sum of all ranks in number {wrong[0]}")
    queues = [
        [_message(rank, target, size, values) for target, size, values in sent if values]
        for rank, (sent, _) in enumerate(ran)
    ]
    if not any(queues):
        raise ValueError("no rank sent a message: use send, isend or batch_isend_irecv")
    return in_steps(queues)


def _recorded(all_reduce: Callable[[Any], None]) -> tuple[list[Any], list[int]]:
    """On a rank: its messages `(target, bytes, values)` in order, and what it ends with."""
    rank = dist.get_rank()
    tensor = torch.tensor([1 << (LARGEST_WORLD * i + rank) for i in range(NUMBERS)])
    kind: Any = type(dist.group.WORLD)
    send, sent = kind.send, []

    def noted(group: Any, tensors: list[Any], target: int, tag: int) -> Any:
        values = torch.cat([each.reshape(-1) for each in tensors])
        sent.append((target, values.nbytes, values.tolist()))
        return send(group, tensors, target, tag)

    # Every function that sends ends in this method; an instance of torch's own class takes none.
    with patch.object(kind, "send", noted):
        all_reduce(tensor)
    return sent, tensor.tolist()


def _message(source: int, target: int, size: int, values: list[int]) -> ChunksSent:
    """A message whose chunks are single numbers; a value's highest bit tells which number it is."""
    numbers = [(value.bit_length() - 1) // LARGEST_WORLD for value in values]
    sums = {i: _decoded(i, v) for i, v in zip(numbers, values, strict=True) if v > 0}
    return ChunksSent(source, target, size, sums)


def _decoded(number: int, value: int) -> Contributors:
    bits = value >> (LARGEST_WORLD * number)
    return frozenset(rank for rank in range(LARGEST_WORLD) if bits >> rank & 1)


def in_steps(queues: list[list[ChunksSent]]) -> list[AllReduceStep]:
    """Put messages that can travel at the same time into one step; `queues` has those of each rank.

    A message can be sent when its rank holds its contents. If none can (an algorithm may keep
    chunks elsewhere, which is not visible here), the next message of every rank is sent.
    """
    holds = [[frozenset([rank])] * NUMBERS for rank in range(len(queues))]
    held = [list(map(list, holds))]  # after each step
    sent: list[list[ChunksSent]] = [[]]
    labels = ["start"]
    while any(queues):
        heads = [queue[0] for queue in queues if queue]
        ready = [m for m in heads if all(holds[m.source][i] == s for i, s in m.chunks.items())]
        kinds = set()
        for message in ready or heads:
            queues[message.source].pop(0)
            for number, came in message.chunks.items():
                old = held[-1][message.target][number]
                kinds.add("copy" if came & old else "add")
                now = holds[message.target][number]
                holds[message.target][number] = came if came & now else came | now
        kind = kinds.pop() if len(kinds) == 1 else "step"
        labels.append(f"{kind} {1 + sum(label.startswith(kind) for label in labels)}")
        sent.append(ready or heads)
        held.append(list(map(list, holds)))
    # Neighboring numbers that always share the same fate are one chunk.
    fates = [[of_rank[i] for step in held for of_rank in step] for i in range(NUMBERS)]
    starts = [i for i in range(NUMBERS) if i == 0 or fates[i] != fates[i - 1]]
    by_chunk = [[[of_rank[i] for i in starts] for of_rank in step] for step in held]
    steps = []
    for number, (before, after) in enumerate(pairwise([by_chunk[0], *by_chunk])):
        messages = [
            replace(m, chunks={at: m.chunks[i] for at, i in enumerate(starts) if i in m.chunks})
            for m in sent[number]
        ]
        says = _says(number, sent[number], held[number])
        steps.append(AllReduceStep(labels[number], says, messages, before, after))
    return steps


def _says(number: int, messages: Sequence[ChunksSent], holds: Holds) -> str:
    if not messages:
        return "Every rank holds its own numbers only."
    amount = " or ".join(f"{size} bytes" for size in sorted({m.bytes for m in messages}))
    whole = sum(of_rank.count(frozenset(range(len(holds)))) for of_rank in holds)
    finished = f"{whole} of {len(holds) * NUMBERS} numbers are complete sums."
    sent = counted(len(messages), "message")
    return f"Step {number}: {sent} of {amount}. Afterwards {finished}"
