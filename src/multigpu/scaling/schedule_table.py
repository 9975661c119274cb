"""A schedule as a table: what its actions are, and what each of them needs.

Row r is what rank r does, in its order. An action is ("forward", m) or ("backward", m) for
micro-batch m; a rank with several stages also says which: ("forward", m, 3).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

KINDS = ("forward", "backward")
Action = tuple[Any, ...]  # (kind, micro-batch) or (kind, micro-batch, stage)


def whole(action: Any, rank: int) -> Action:
    """(kind, micro-batch, stage) of an action as it was written."""
    parts = tuple(action)
    if len(parts) == 2:
        parts = (*parts, rank)
    kind, *numbers = parts
    if len(parts) != 3 or kind not in KINDS or not all(isinstance(n, int) for n in numbers):
        raise ValueError(
            f"rank {rank}: {action!r} is no action: write ('forward', m) or ('backward', m)"
        )
    return parts


def homes(rows: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """Every action, with its rank.  Raises ValueError for one that is there twice."""
    home: dict[Action, int] = {}
    for rank, row in enumerate(rows):
        for action in row:
            if action in home:
                raise ValueError(f"rank {rank}: {action[:2]} is there twice (rank {home[action]})")
            home[action] = rank
    return home


def needs_of(action: Action, last_stage: int) -> Iterator[Action]:
    """What must be done before an action."""
    kind, micro_batch, stage = action
    if kind == "forward":
        if stage:
            yield "forward", micro_batch, stage - 1
        return
    yield "forward", micro_batch, stage
    if stage < last_stage:
        yield "backward", micro_batch, stage + 1


def who_waits(
    rows: Sequence[Sequence[Action]], at: Sequence[int], done: Container[Action], last_stage: int
) -> str:
    waits = [
        f"rank {rank} waits before {row[i][:2]} for {need[:2]} of stage {need[2]}"
        for rank, (row, i) in enumerate(zip(rows, at, strict=True))
        if i < len(row)
        for need in needs_of(row[i], last_stage)
        if need not in done
    ]
    return f"nobody can go on: {'; '.join(waits)}. Change the order, or add what is missing."
