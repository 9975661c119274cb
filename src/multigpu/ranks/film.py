"""The film of an all-reduce: what every message carries, and what each rank holds after it.

    from multigpu.ranks.film import film
    film(ring_all_reduce, 3)          # in a notebook: step through it

Each rank starts with marked numbers, one bit of its own in each: so every sum tells which ranks are
in it. The messages are noted as they leave, whatever function of torch.distributed sends them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from multigpu.pictures import Slide, Slides
from multigpu.pictures.holdings import PartSent, Sum, parts

NUMBERS = 12  # 2, 3 and 4 ranks divide it; 12 numbers of 4 bits fit into an int64
LARGEST_WORLD = 4


@dataclass(frozen=True)
class Message:
    """`sums[i]` is the set of ranks in number i; a number that was not sent is missing."""

    source: int
    target: int
    bytes: int
    sums: dict[int, Sum]


@dataclass(frozen=True)
class Frame:
    """A step: the messages that travel at the same time, and `holds[rank][number]` after it."""

    messages: tuple[Message, ...]
    holds: tuple[tuple[Sum, ...], ...]


def film(all_reduce: Callable[[Any], None], world_size: int) -> Slides:
    """Run `all_reduce(tensor)` on 2 to 4 ranks and return its steps as pictures.

    Raises ValueError if it sent nothing by itself, or did not leave the sum on every rank, and
    RankError as `run_ranks` does.
    """
    frames = frames_of(all_reduce, world_size)
    labels = labels_of(frames)
    columns = columns_of(frames)
    slides = []
    for number, (label, frame) in enumerate(zip(labels, frames, strict=True)):
        before = frames[max(number - 1, 0)]
        sent = [in_parts(message, columns) for message in frame.messages]
        picture = parts(held_in(before, columns), held_in(frame, columns), sent)
        slides.append(Slide(label, picture, says(frame, number)))
    title = f"{getattr(all_reduce, '__name__', 'all_reduce')} on {world_size} ranks"
    return Slides(title, slides)


def frames_of(all_reduce: Callable[[Any], None], world_size: int) -> list[Frame]:
    """The same as records: the start, then one frame per step."""
    from multigpu.ranks import run_ranks  # late: the pictures alone need no torch

    if not 2 <= world_size <= LARGEST_WORLD:
        raise ValueError(f"a film has 2 to {LARGEST_WORLD} ranks, not {world_size}")
    ran = run_ranks(_play, world_size, all_reduce, backend="gloo", show=False)
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
    return _in_steps(queues, world_size)


def _play(all_reduce: Callable[[Any], None]) -> tuple[list[tuple[int, int, list[int]]], list[int]]:
    """On a rank: its messages `(target, bytes, values)` in order, and what it ends with."""
    import torch
    import torch.distributed as dist

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


def _message(source: int, target: int, size: int, values: list[int]) -> Message:
    places = [value.bit_length() - 1 for value in values]
    sums = {
        place // LARGEST_WORLD: _decoded(place // LARGEST_WORLD, value)
        for place, value in zip(places, values, strict=True)
        if value > 0
    }
    return Message(source, target, size, sums)


def _decoded(number: int, value: int) -> Sum:
    bits = value >> (LARGEST_WORLD * number)
    return frozenset(rank for rank in range(LARGEST_WORLD) if bits >> rank & 1)


def _in_steps(queues: list[list[Message]], world_size: int) -> list[Frame]:
    """Put messages that can travel at the same time into one step.

    A message can go when its rank holds what it carries. If none can (a plan that keeps parts
    aside, which this film does not see), the next of every rank goes.
    """
    holds = [[frozenset([rank])] * NUMBERS for rank in range(world_size)]
    frames = [Frame((), _frozen(holds))]
    while any(queues):
        heads = [queue[0] for queue in queues if queue]
        ready = [m for m in heads if all(holds[m.source][i] == s for i, s in m.sums.items())]
        for message in ready or heads:
            queues[message.source].pop(0)
            for number, came in message.sums.items():
                held = holds[message.target][number]
                holds[message.target][number] = came if came & held else came | held
        frames.append(Frame(tuple(ready or heads), _frozen(holds)))
    return frames


def _frozen(holds: list[list[Sum]]) -> tuple[tuple[Sum, ...], ...]:
    return tuple(tuple(held) for held in holds)


def columns_of(frames: Sequence[Frame]) -> list[range]:
    """Cut the numbers into parts: neighbours that always share the same fate."""
    fates = [[held[i] for frame in frames for held in frame.holds] for i in range(NUMBERS)]
    starts = [i for i in range(NUMBERS) if i == 0 or fates[i] != fates[i - 1]]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], NUMBERS], strict=True)]


def held_in(frame: Frame, columns: Sequence[range]) -> list[list[Sum]]:
    """What each rank holds, by part."""
    return [[held[column[0]] for column in columns] for held in frame.holds]


def in_parts(message: Message, columns: Sequence[range]) -> PartSent:
    """A message with parts instead of single numbers."""
    carried = {
        part: message.sums[column[0]]
        for part, column in enumerate(columns)
        if column[0] in message.sums
    }
    return PartSent(message.source, message.target, message.bytes, carried)


def labels_of(frames: Sequence[Frame]) -> list[str]:
    """`start`, `add 1`, `add 2`, `copy 1`, …; `step 3` where some add and some copy."""
    labels = ["start"]
    for before, frame in pairwise(frames):
        kinds = {
            "copy" if sum_ & before.holds[message.target][number] else "add"
            for message in frame.messages
            for number, sum_ in message.sums.items()
        }
        kind = kinds.pop() if len(kinds) == 1 else "step"
        labels.append(f"{kind} {1 + sum(label.startswith(kind) for label in labels)}")
    return labels


def says(frame: Frame, number: int) -> str:
    """The step in a sentence."""
    if not frame.messages:
        return "Every rank holds its own numbers only."
    sizes = sorted({message.bytes for message in frame.messages})
    amount = " or ".join(f"{size} bytes" for size in sizes)
    everyone = frozenset(range(len(frame.holds)))
    whole = sum(held.count(everyone) for held in frame.holds)
    finished = f"{whole} of {len(frame.holds) * NUMBERS} numbers are complete sums."
    count = len(frame.messages)
    plural = "message" if count == 1 else "messages"
    return f"Step {number}: {count} {plural} of {amount}. Afterwards {finished}"
