"""Which wrong gradients an answer to ``sharding.Zero3`` has, however it has cut the layers.

The checks do not know which element lies in which shard, so numbers are looked for anywhere.
"""

import torch

from multigpu.checking.verdicts import numbered

EXPECTED = "after backward the .grad of every shard is its part of the mean over all ranks"
SHARE = 0.98  # of the numbers that must be found


def explain_gradients(report, step):
    """Raise what is known of the gradients of one step; nothing if they are right."""
    notes = [result["steps"][step]["gradients"] for result in report.results]
    for rank, gradients in enumerate(notes):
        explain_missing(report, step, rank, gradients)
    own = report.right.steps[step].gradients
    mean = report.right.steps[step].mean
    came = [numbers(gradients) for gradients in notes]
    everything = torch.cat(came)
    if holds(everything, mean):
        return
    if not len(everything):
        raise told(report, step, "all_zero")
    n = report.n
    known = {
        "summed": mean * n,
        "divided_twice": mean / n,
        "divided_by_2": sum(own) / 2,
    }
    if step:
        means = [done.mean for done in report.right.steps[: step + 1]]
        known["gradients_added_up"] = sum(means)
        known["gradient_too_early"] = means[-2]
    for mistake, values in known.items():
        if holds(everything, values):
            raise told(report, step, mistake)
    if n > 1:
        for rank in range(n):
            explain_own(report, step, rank, came, own)
    raise report.wrong(
        "other_gradient",
        EXPECTED,
        "on no rank do the numbers agree",
        "backward computed with wrong weights, or not all of a layer's gradients were sent. Check"
        " that a layer is gathered, from the shards as they are now, before its backward begins.",
        step=step,
    )


def explain_missing(report, step, rank, gradients):
    """A shard without a gradient is not stepped."""
    shards = report.results[rank]["shards"]
    missing = [
        i
        for i, (shard, gradient) in enumerate(zip(shards, gradients, strict=True))
        if gradient is None and shard["elements"]
    ]
    if missing:
        which = numbered("shard", missing)
        raise report.wrong(
            "no_gradient",
            EXPECTED,
            f"on rank {rank} it is None for {which} of {len(shards)}"
            if len(missing) < len(shards)
            else f"on rank {rank} it is None for all of them",
            "the gradients stayed in the parameters of the module. Where the gradients of a layer"
            " are ready (register_post_accumulate_grad_hook), reduce-scatter them and set .grad of"
            " the shard.",
            step=step,
        )


def explain_own(report, step, rank, came, own):
    """This rank's shards have what one rank alone has computed."""
    for other, gradients in enumerate(own):
        for factor in (1, 1 / report.n):
            if not within(came[rank], gradients * factor):
                continue
            if other == rank:
                raise told(report, step, "not_averaged" if factor == 1 else "only_divided")
            raise report.wrong(
                "of_one_rank",
                EXPECTED,
                f"on rank {rank} it has numbers of rank {other}'s gradient alone",
                "scatter and broadcast hand out what one rank has. dist.reduce_scatter adds up what"
                " all ranks have.",
                step=step,
            )


EARLY = (
    "the shard got its .grad before this step's gradients were there, or from another tensor than"
    " the one that is filled later."
)
WORDS = {
    "summed": (
        "it is exactly {n}× that: the sum",
        "reduce_scatter adds up. Divide by dist.get_world_size().",
    ),
    "divided_twice": (
        "it is 1/{n} of that",
        "the gradients were divided twice: before they were sent and after, or the loss as well.",
    ),
    "divided_by_2": (
        "it is the sum over ranks divided by 2",
        "2 is written where dist.get_world_size() belongs.",
    ),
    "gradients_added_up": (
        "it is the sum of the means of all steps so far",
        "zero_grad() clears the .grad of the shards, and something else keeps adding up: a tensor"
        " of your own, or .grad of the module's parameters. Set those to None once they are sent.",
    ),
    "gradient_too_early": (
        "it is the mean of the step before",
        EARLY,
    ),
    "all_zero": (
        "it is zero everywhere",
        EARLY,
    ),
    "not_averaged": (
        "on this rank it is a part of this rank's own gradient",
        "the gradient was cut and never sent. dist.reduce_scatter adds up over ranks.",
    ),
    "only_divided": (
        "on this rank it is a part of this rank's own gradient, divided by {n}",
        "the gradient was divided and cut, and never sent. dist.reduce_scatter adds up over ranks.",
    ),
}  # fmt: skip


def told(report, step, mistake):
    came, usually = WORDS[mistake]
    return report.wrong(mistake, EXPECTED, came.format(n=report.n), usually, step=step)


def numbers(gradients):
    """All numbers of a rank's gradients that are not zero, in any order."""
    parts = [g.value.flatten().double() for g in gradients if g is not None]
    together = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    return together[together != 0]


def within(some, of):
    """Whether nearly all of ``some`` are among the numbers ``of``."""
    of = of[of != 0].sort().values
    if not len(some) or not len(of):
        return False
    place = torch.searchsorted(of, some).clamp(max=len(of) - 1)
    nearest = torch.minimum((of[place] - some).abs(), (of[(place - 1).clamp(min=0)] - some).abs())
    return bool((nearest <= 1e-7 * some.abs()).double().mean() >= SHARE)


def holds(came, right):
    """Whether what came are these numbers, and all of them."""
    return within(came, right) and within(right[right != 0], came)
