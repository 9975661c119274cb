"""Wrong means over ranks that are known by name, for all checks of averaged gradients."""

from multigpu.checking.comparing import alike

OUT_OF_STEP = (
    "a gradient that is None was skipped on one rank, while other ranks wait for it. Its part is"
    " zeros."
)

# By mistake: what the gradient is, and which code usually does that.
KNOWN = {
    "rounded": (
        "the mean, but rounded",
        "it was sent or added up in a smaller dtype. Reduce the gradient as it is.",
    ),
    "summed": (
        "{n} times the mean: the sum over {ranks}",
        "all_reduce adds up. Divide by dist.get_world_size(), which is {n} here. What is divided"
        " while an all-reduce is on its way is overwritten by its result.",
    ),
    "divided_twice": (
        "the mean divided by {n} once more",
        "it was divided twice, for example before the all-reduce and after it.",
    ),
    "divided_by_2": (
        "the sum divided by 2",
        "there are {n} ranks here: divide by dist.get_world_size(), not by a fixed number and not"
        " by the number of the other ranks.",
    ),
    "divided_by_users": (
        "the sum divided by the number of ranks that have one",
        "a rank that has none counts as zero: divide by the number of all ranks.",
    ),
    "not_averaged": (
        "this rank's own gradient",
        "it was never sent, or the result was not put into .grad, or not waited for.",
    ),
    "only_divided": (
        "this rank's own gradient divided by {n}",
        "it was divided, but the sum over the ranks is not in .grad, or was not waited for.",
    ),
    "of_one_rank": (
        "the gradient of rank {rank} alone",
        "one rank's gradient was copied to the others. A mean needs those of all.",
    ),
    "multiplied": (
        "{n} times the sum over {ranks}",
        "it was reduced twice. A tied parameter has two names, parameters() gives it once.",
    ),
    "largest": ("the largest one of all ranks", "ReduceOp.MAX is not a sum."),
}


def from_one_rank(everywhere, parts):
    """The gradient of one rank, if all ranks have it.  ``everywhere`` is what each rank has."""
    return {
        f"of_one_rank {rank}": part
        for rank, part in enumerate(parts)
        if len(parts) > 1 and part is not None
        if all(came is not None and alike(came.value, part) for came in everywhere)
    }
