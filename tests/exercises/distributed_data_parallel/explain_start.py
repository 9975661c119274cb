"""Whether all ranks start from rank 0's module, and what is wrong if they do not.

These mistakes belong to each of ``distributed_data_parallel.NaiveDDP``,
``distributed_data_parallel.OverlappedDDP`` and ``distributed_data_parallel.BucketedDDP``.
"""

import torch

from multigpu.checking.comparing import alike, largest_difference, same, snapshot
from multigpu.checking.verdicts import listed

EXPECTED = "after the wrapper is made, every rank has the parameters and buffers of rank 0"


def examine_start(report):
    """Raise what ``report`` says of the first rank that starts with something else."""
    before = [tensors_of(snapshot(report.case.model_of(rank))) for rank in range(report.n)]
    came = [
        {name: tensor.value for kind in result["start"].values() for name, tensor in kind.items()}
        for result in report.results
    ]
    for rank in range(report.n):
        lost = [name for name in before[0] if name not in came[rank]]
        if lost:
            raise report.wrong(
                "tensors_lost",
                EXPECTED,
                f"rank {rank} has no {listed(lost, most=4)} any more",
                "something was deleted or got another name. Write into the tensors that are there.",
            )
    for rank in range(report.n):
        wrong = [name for name, right in before[0].items() if not same(came[rank][name], right)]
        if wrong:
            raise explained(report, rank, wrong, before, came[rank])


def explained(report, rank, wrong, before, came):
    """Which tensors are wrong, and what do they have in common?"""
    name = wrong[0]
    if all(identical(came[n], before[rank][n]) for n in wrong):
        return left_out(report, rank, wrong, before)
    found = f"on rank {rank}, {name}"
    mean = sum(old[name] for old in before) / report.n
    if mean.isfinite().all() and alike(came[name], mean.to(came[name].dtype)):
        return report.wrong(
            "start_averaged",
            EXPECTED,
            f"{found} is the mean over all ranks",
            "the weights were averaged. Rank 0's are taken over as they are: dist.broadcast.",
        )
    for other, old in enumerate(before[1:], 1):
        if identical(came[name], old[name]):
            return report.wrong(
                "start_of_another_rank",
                EXPECTED,
                f"{found} has the numbers of rank {other}",
                "the broadcast has another source. dist.broadcast(tensor, src=0).",
            )
    if not came[name].isfinite().all():
        return report.wrong(
            "start_not_finite",
            EXPECTED + ", whatever the others had",
            f"{found} {largest_difference(came[name], before[0][name])}",
            "another rank had nan or inf there, and its numbers were added, perhaps times 0. But 0"
            " times nan is nan. dist.broadcast overwrites them.",
        )
    return report.wrong(
        "start_changed",
        EXPECTED,
        f"{found} {largest_difference(came[name], before[0][name])}",
        "rank 0's numbers arrived in another tensor, or were added. Every rank must call broadcast"
        " for the same tensors in the same order.",
    )


def left_out(report, rank, wrong, before):
    """All wrong ones are still this rank's own."""
    model = report.case.model_of(0)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    kinds = (
        (
            "start_not_shared",
            set(before[0]),
            "nothing was sent, or what arrived was put into no parameter. dist.broadcast(tensor,"
            " src=0) writes in place.",
        ),
        ("buffers_not_sent", set(before[0]) - set(parameters), "parameters() gives no buffers."),
        ("parameters_not_sent", set(parameters), "buffers() gives no parameters."),
        (
            "non_persistent_not_sent",
            {"position"},
            "state_dict() lacks non-persistent buffers. buffers() gives them all.",
        ),
        (
            "integers_not_sent",
            {name for name, tensor in before[0].items() if not tensor.is_floating_point()},
            "tensors that are not floating point were left out.",
        ),
        (
            "frozen_not_sent",
            {name for name, p in parameters.items() if not p.requires_grad},
            "parameters with requires_grad=False were left out. They belong to the model too.",
        ),
    )
    differing = {n for n, right in before[0].items() if not same(before[rank][n], right)}
    came = f"on rank {rank} {listed(wrong, most=4)} kept other numbers"
    for mistake, members, usually in kinds:
        if set(wrong) == members & differing:
            return report.wrong(mistake, EXPECTED, came, usually)
    return report.wrong("some_not_sent", EXPECTED, came, "not every tensor was sent.")


def identical(came, before):
    """The same numbers, of which some can be nan: nothing was computed."""
    alike = came.shape == before.shape and came.dtype == before.dtype
    return alike and torch.allclose(came, before, rtol=0, atol=0, equal_nan=True)


def tensors_of(snap):
    """Parameters and buffers by name, without autograd."""
    return {name: t.detach() for name, t in (snap["parameters"] | snap["buffers"]).items()}
