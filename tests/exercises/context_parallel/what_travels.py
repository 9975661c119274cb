"""What no value shows of ``ring_attention``: messages, and the memory of a rank in blocks."""

from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import count, numbered

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
                return f"on rank {rank}, {came['watched']['changed'][0]} changed", run.where(rank)
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
                return f"rank {rank} sent no message", run.where(rank)
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

    @ring_attention.holds(
        "kept_for_backward",
        expects=f"between forward and backward a rank has at most one block more ({BLOCK})",
        usually="autograd keeps whatever it needs for backward: here the blocks of all other ranks,"
        " or what was computed from them.",
        fix="Write a torch.autograd.Function that saves q, k, v, the output and the log-sum-exp. In"
        " its backward the blocks travel around the ring once more.",
    )
    def little_between(run, case):
        if not measured(case):
            return None
        rank, blocks = most_held(run, case, "after forward")
        return (f"rank {rank} had {blocks:.1f} blocks", run.where(rank)) if blocks > 1.5 else None

    @ring_attention.holds(
        "too_many_blocks",
        expects=f"forward needs the memory of two blocks besides q, k and v ({BLOCK})",
        usually="blocks were collected, or a buffer was kept that is not needed any more. A third"
        " block is often a copy of the own one under another name, or a handle of an earlier step"
        " still holds its buffer.",
        fix="Two buffers are enough: one in use, one to receive into. Then they swap. Keep no"
        " handle after its wait().",
    )
    def two_blocks_in_forward(run, case):
        if not measured(case):
            return None
        rank, blocks = most_held(run, case, "in forward")
        return (f"rank {rank} had {blocks:.1f} blocks", run.where(rank)) if blocks > 2.5 else None

    @ring_attention.holds(
        "too_much_in_backward",
        expects=f"backward needs the memory of at most seven blocks besides q, k and v ({BLOCK})",
        usually="blocks of all ranks, or their gradients, were collected.",
        fix="The gradient of a block travels with the block: add this rank's part and send it on.",
    )
    def little_in_backward(run, case):
        if not measured(case):
            return None
        rank, blocks = most_held(run, case, "in backward")
        return (f"rank {rank} had {blocks:.1f} blocks", run.where(rank)) if blocks > 7.5 else None

    sends_at_most(
        ring_attention,
        "forward",
        lambda world: world - 1,
        "sent_too_much",
        expects="in forward a rank sends at most n - 1 = {others} blocks",
        usually="after the last block nothing needs to be sent: the next one would be the own block"
        " again.",
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


def measured(case):
    return case.measured and case.world > 1


def most_held(run, case, phase):
    """The rank that held the most in a phase, and how many blocks that is."""
    held = [came["watched"][phase] / case.block for came in run.came(case)]
    rank = max(range(case.world), key=held.__getitem__)
    return rank, held[rank]


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
                came = f"rank {rank} sent {count(sent, 'element')}, and {limit} are enough"
                return came, sends[-1].place
        return None
