"""What every exercise of ``collectives`` may be told: the situation, and how the numbers came."""

from multigpu.checking import Wrong
from multigpu.checking.verdicts import count


def teller(function, came, expected):
    """``wrong(mistake, came, usually)`` for one rank of one case."""
    case = came.case
    situation = f"{count(came.world, 'rank')}, shape {case.shape}, {str(case.dtype)[6:]}"

    def wrong(mistake, found, usually, *, where=None):
        return Wrong(
            f"{function}.{mistake}",
            expected=f"{expected} ({situation})",
            came=found,
            usually=usually,
            where=where or came.where,
        )

    return wrong


def examine_road(came, wrong, ops):
    """The numbers came in messages: ``ops`` are those that this rank cannot do without."""
    if came.world == 1 or not came.case.size:
        return
    for op in ops:
        if not any(call.op == op for call in came.calls):
            done = "sent" if op == "send" else "received"
            raise wrong(
                "no_message",
                f"the numbers are right, but rank {came.rank} {done} no message",
                "they took another road, such as a file, a store or what the test is known to"
                " hold. Only messages between ranks count.",
            )


def examine_same_memory(came, right, wrong):
    """The caller's tensor is still in its own memory, and that holds the numbers."""
    tensor = came.tensor
    same_type = tensor.dtype == came.case.dtype
    if tensor.shape == came.case.shape and same_type and tensor.value.flatten().equal(came.memory):
        return
    is_right = tensor.shape == right.shape and bool((tensor.value == right).all())
    raise wrong(
        "rebound",
        f"rank {came.rank}'s tensor {'has the right numbers' if is_right else 'was replaced'},"
        " but in other memory: a view that was taken before the call does not see them",
        "tensor.data = ..., set_() or resize_() put other memory under the tensor. copy_(), +=,"
        " add_() and recv() write into what is there.",
    )
