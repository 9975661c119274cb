"""Which tokens each rank holds, where they must go, and how many bytes that may take.

Every token has numbers of its own, so that a row tells which token of which rank it is.
"""

import random
import time
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case
from multigpu.checking.probes import noted_on_each_rank
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

LEFT_OUT: Any = {
    "name": "exchange_left_out",
    "usually": "a rank without tokens or without rows left out an exchange, in forward or in"
    " backward, and the others wait for it.",
    "fix": "Every rank takes part in every exchange, also with no rows. Return what came out of it,"
    " so that autograd calls its backward.",
    "status": "hang",
    "roughly": True,
}
PER_ROW, PER_CALL = 24, 2000  # bytes that may travel besides: numbers of experts, counts, headers


def each_routing(world):
    """A case has one or more calls; each says by rank which experts the tokens go to."""
    some = (5, 4, 6, 3)[:world]
    yield a_case("uneven counts", world, 2, [drawn(2 * world, some)], example=world == 3)
    few = drawn(world, (3, 7, 1, 4)[:world])
    of_one = {"dtype": torch.float64, "ones": True, "transposed": True}
    yield a_case("one expert per rank, a transposed tensor", world, 1, [few], **of_one)
    without = drawn(2 * world, (0, *some[1:]) if world > 1 else (5,))
    alone = world == 3  # ranks that get stuck do so here, and do not go on to another case
    of_all = {"dtype": torch.bfloat16, "alone": alone}
    yield a_case("rank 0 without tokens", world, 2, [without], **of_all)
    last = [[2 * world - 1] * size for size in some]
    yield a_case("all tokens to the last expert", world, 2, [last], ones=True, alone=alone)
    at_home = [[2 * rank + i % 2 for i in range(size)] for rank, size in enumerate(some)]
    yield a_case("all tokens to experts of their own rank", world, 2, [at_home])
    crowd = [[0, *[own[0]] * 12, *own[1:]] for own in drawn(3 * world, (24, 20, 22, 21)[:world])]
    yield a_case("wide tokens, many to one expert", world, 3, [crowd], torch.float64, width=64)
    both = [drawn(2 * world, some, seed=seed) for seed in (1, 2)]
    yield a_case("two calls before the first combine", world, 2, both)
    frozen = drawn(2 * world, some, seed=3)
    yield a_case("tokens that need no gradient", world, 2, [frozen], gradient=False)


def drawn(num_experts, sizes, seed=0):
    """By rank: an expert for each of its tokens."""
    chance = random.Random(seed)
    return [[chance.randrange(num_experts) for _ in range(size)] for size in sizes]


def a_case(title, world, own, calls, dtype=torch.float32, *, width=3, **more):
    """``own`` experts per rank; in backward the gradient of a row is ``ones``, or differs."""
    options = {"gradient": True, "ones": False, "transposed": False} | more
    experts = counted(own * world, "expert")
    return case(
        f"{counted(world, 'rank')}, {experts}, {title}, {str(dtype)[6:]}",
        world=world,
        own=own,
        experts=own * world,
        calls=calls,
        dtype=dtype,
        width=width,
        **options,
    )


def tokens_of(case, call, rank):
    """What one rank holds before a call."""
    size = len(case.calls[call][rank])
    rows = 64 * call + (16 if case.width < 10 else 64) * rank + torch.arange(size)
    values = rows[:, None] + torch.arange(case.width) / (4 if case.width < 10 else 64)
    # exact in bfloat16; in other types with digits that a smaller one would lose
    return (values.double() * (1 if case.dtype == torch.bfloat16 else 1.1)).to(case.dtype)


def routes(case, call, rank):
    """The ``(source, number)`` of each row that a rank must receive, by own expert."""
    return [
        [
            (source, number)
            for source, chosen in enumerate(case.calls[call])
            for number, expert in enumerate(chosen)
            if expert == rank * case.own + own
        ]
        for own in range(case.own)
    ]


def received_by(case, call, rank):
    """The tokens that a rank must receive."""
    held = [tokens_of(case, call, source) for source in range(case.world)]
    rows = [held[source][number] for own in routes(case, call, rank) for source, number in own]
    return torch.stack(rows) if rows else held[0][:0]


def gradient_at(case, rank, size, width, dtype):
    """The gradient of the rows of a rank, wherever they come from."""
    if case.ones:
        return torch.ones(size, width, dtype=dtype)
    rows = 1 + 10 * rank + torch.arange(size)
    return (rows[:, None] + torch.arange(width) / 2).to(dtype)


def gradient_back(case, call, rank):
    """The gradient of a rank's tokens: what their rows have, wherever these are."""
    gradient = torch.empty_like(tokens_of(case, call, rank))
    for other in range(case.world):
        flat = [route for own in routes(case, call, other) for route in own]
        there = gradient_at(case, other, len(flat), case.width, case.dtype)
        for place, (source, number) in enumerate(flat):
            if source == rank:
                gradient[number] = there[place]
    return gradient


def weighted_sum(case, rank, rows):
    """A number whose gradient is ``gradient_at``; for ones one that takes no memory of its own."""
    if case.ones:
        return rows.sum()
    gradient = gradient_at(case, rank, len(rows), rows.shape[1], rows.dtype)
    return (rows * gradient.to(rows.device)).sum()


def given(case, call, rank):
    """Tokens and experts, as the function gets them."""
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    tokens = tokens_of(case, call, rank).to(place)
    if case.transposed:
        tokens = tokens.t().contiguous().t()
    expert = torch.tensor(case.calls[call][rank], dtype=torch.int64, device=place)
    return tokens.requires_grad_(case.gradient), expert


@contextmanager
def noted(times, part):
    """Note when a part began and ended."""
    began = time.monotonic()
    yield
    times.setdefault(part, []).append((began, time.monotonic()))


def turn(number):
    """What the names of a later call's results end with."""
    return f" of call {number + 1}" if number else ""


def whose(case, tensor, word, rows_of):
    """In words: whose ``rows_of(case, call, rank)`` the rows of a wrong result are, or None."""
    known = {
        (*row.tolist(),): f"{number} of rank {rank}"
        for call in range(len(case.calls))
        for rank in range(case.world)
        for number, row in enumerate(rows_of(case, call, rank))
    }
    rows = [known.get((*row.tolist(),), "") for row in tensor] if tensor.dim() == 2 else []
    if not rows or "" in rows or len(rows) > 12:
        return None
    return f"its rows are the {word} {', '.join(rows)}"


def sends_once(exercise, part, row_bytes):
    """Rows go to one rank and come back once; ``row_bytes(case)`` are those of a row of a part."""

    @exercise.holds(
        "too_many_bytes",
        expects="every row is sent to one rank, and its gradient comes back from there",
        usually="rows went to all ranks, were sent twice, or were filled up to equal counts.",
        fix="all_to_all_single with the numbers of rows as split sizes sends each row once.",
    )
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            windows = came["watched"]["times"].get(part, [])
            calls = [
                each
                for each in run.calls(case, rank)
                if any(began <= each.time <= ended for began, ended in windows)
            ]
            rows = sum(
                len(chosen[rank]) + sum(map(len, routes(case, number, rank)))
                for number, chosen in enumerate(case.calls)
            )
            most, sent = rows * row_bytes(case), sum(map(outgoing, calls))
            besides = PER_ROW * rows + (PER_CALL + 16 * case.experts * case.world) * len(windows)
            if sent > most + besides:
                came = f"rank {rank} sent {sent:,} bytes where its rows have {most:,}"
                return came, max(calls, key=outgoing).place
        return None


def inputs_stay(exercise, *names):
    """These are what they were, after the call."""
    noted_on_each_rank(
        exercise,
        "input_changed",
        lambda notes, case: notes["changed"] and f"{listed(notes['changed'])} changed",
        expects=f"{' and '.join(names)} stay as they are",
        usually="something wrote into them in place, such as a method with _ at its end.",
        fix=f"{names[0]}[order] makes a new tensor.",
        first=False,
    )


def outgoing(call):
    """The bytes that a call sends, as far as its kind tells; rows to the own rank count as sent."""
    receives = call.op in ("broadcast", "scatter") and call.root != call.rank
    if receives or call.op in ("recv", "barrier", "new_group"):
        return 0
    return call.bytes * (len(call.members) - 1 if call.op in ("all_gather", "broadcast") else 1)
