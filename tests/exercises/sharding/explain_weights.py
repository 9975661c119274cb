"""Whether every rank has the plain optimizer's weights after a step, and what is wrong if not.

These mistakes belong to both ``sharding.Zero1Optimizer`` and ``sharding.Zero2Optimizer``.
"""

import torch

from multigpu.checking.comparing import alike, same, tolerance
from multigpu.checking.verdicts import listed

from .known_steps import KNOWN
from .one_process import mistaken

EQUAL = "after every step each rank has the weights of the plain optimizer in one process"


def examine_weights(report, step, rank):
    came, right = weights(report, step, rank), flat(report.right[step].weights, report.trained)
    if same(came, right, share_of=report.n):
        return
    if alike(came, right):
        raise report.wrong(
            "rounded",
            EQUAL,
            f"on rank {rank} they are these, but rounded",
            "gradients or weights were sent or added up in a smaller dtype.",
            step=step,
        )
    exact = tolerance(right.dtype, share_of=report.n) or 0.0
    off = ~torch.isclose(came, right, rtol=exact, atol=exact * float(right.abs().max()))
    before = flat(report.right[step].before, report.trained)
    if torch.equal(came[off], before[off]):
        raise stale(report, step, rank, off, before)
    for mistake, forms in mistaken(report.case, report.right, step):
        others = torch.stack([flat(weights, report.trained)[off] for weights in forms])
        nearest = others[(others - came[off]).abs().argmin(dim=0), torch.arange(int(off.sum()))]
        if alike(came[off], nearest):
            raise known(report, step, rank, off, mistake)
    name, place = first(report, off)
    raise report.wrong(
        "other_weights",
        EQUAL,
        f"on rank {rank}, {named(report, off)} differ: {name} at {place} is"
        f" {came[off][0]:.6g} and not {right[off][0]:.6g}",
        "slices of gradients and of weights do not lie at the same place, or ranks received"
        " into the wrong parameter.",
        step=step,
    )


def known(report, step, rank, off, mistake):
    """A mistake that has a name."""
    mistake, _, what = mistake.partition(" ")
    came, usually = KNOWN[mistake]
    words = {"n": report.n, "what": what}
    return report.wrong(
        mistake,
        EQUAL,
        f"on rank {rank}, {named(report, off)} are {came.format(**words)}",
        usually.format(**words),
        step=step,
    )


def stale(report, step, rank, off, before):
    """Some weights have not moved: on this rank only, or on all?"""
    everywhere = [torch.equal(weights(report, step, r)[off], before[off]) for r in range(report.n)]
    if all(everywhere):
        return report.wrong(
            "not_stepped",
            EQUAL,
            f"on all ranks {named(report, off)} are as they were before the step",
            "nobody owns them, or their owner's step did not reach the model. Division with //"
            " rounds down: ⌈Ψ/n⌉ is -(-total // n). An inner optimizer that holds copies moves"
            " the copies. model.parameters() can be gone through once: begin with list(params).",
            step=step,
        )
    return report.wrong(
        "weights_not_shared",
        EQUAL,
        f"on rank {rank}, {named(report, off)} are as they were before the step, on rank"
        f" {everywhere.index(False)} they are new",
        "the owner stepped, and did not bring the new weights to the other ranks: broadcast or"
        " all_gather after the inner step, written into the parameters.",
        step=step,
    )


def weights(report, step, rank):
    """All trained weights of a rank after a step, side by side."""
    came = {name: t.value for name, t in report.note(step, rank)["weights"].items()}
    return flat(came, report.trained)


def named(report, off):
    """Which parameters elements belong to, in words."""
    parts = off.split(list(report.trained.values()))
    names = {n: part for n, part in zip(report.trained, parts, strict=True) if part.any()}
    if len(names) == len(report.trained) and off.all():
        return "all trained weights"
    if len(names) == 1 and not all(part.all() for part in names.values()):
        return f"{int(off.sum())} elements of {listed(names)}"
    return f"{int(off.sum())} of {len(off)} elements ({listed(names, most=4)})"


def first(report, off):
    """The parameter and the place of the first element."""
    place = int(off.nonzero()[0])
    for name, size in report.trained.items():
        if place < size:
            return name, place
        place -= size
    raise AssertionError("no element is off")


def flat(weights, trained):
    """The trained ones side by side."""
    return torch.cat([weights[name].flatten().double() for name in trained])
