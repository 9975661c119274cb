"""With which loss an answer to ``hangs.early_stop`` has asked, if not with the rank's own."""

import math

import torch

from multigpu.checking.comparing import ROUNDED

from . import team

# By mistake: the rule by which the weights come about, what they are equal to, and why.
RULES = {
    "never_averaged": (
        team.own,
        "training of every rank by itself",
        "no gradient was averaged, or the average went into a copy. It belongs in .grad.",
    ),
    "only_added": (
        team.summed,
        "training with the sum of the gradients",
        "the sum was never divided by the number of ranks.",
    ),
    "gradients_never_cleared": (
        team.never_cleared,
        "training in which gradients of all steps add up",
        "nothing clears .grad between two steps: optimizer.zero_grad().",
    ),
}


def wrong_loss(report, rank, step, loss):
    """Which loss was it, if not this rank's own?"""
    training, batches = report.training, report.batches
    everybody = training.losses[step]
    own = everybody[rank]
    after = team.gradient(training.weights[step + 1][rank], batches[rank][step])[1]
    known = {
        "asked_about_the_mean": (
            sum(everybody) / len(everybody),
            "the mean over ranks: one rank that wants to stop is outvoted. Ask with this"
            " rank's own loss, and reduce the answers.",
        ),
        "asked_after_the_step": (
            after,
            "the loss with the new weights. Ask with the one from before optimizer.step().",
        ),
        "asked_about_the_sum": (
            sum(everybody),
            "the sum over ranks. Ask with this rank's own loss, and reduce the answers.",
        ),
        "asked_about_rank_zero": (
            everybody[0],
            "the loss of rank 0. Ask with this rank's own loss, and reduce the answers.",
        ),
    }
    found = f"in step {step + 1} rank {rank} asked should_stop({loss:.6g}); its own loss is"
    for mistake, (value, usually) in known.items():
        if close(value, loss):
            return report.wrong(mistake, rank, f"{found} {own:.6g}", f"that is {usually}")
    for mistake, (rule, like, usually) in RULES.items():
        if close(team.train(batches, rule).losses[step][rank], loss):
            return report.wrong(mistake, rank, f"{found} {own:.6g}: as after {like}", usually)
    if step:
        return report.wrong(
            "other_weights",
            rank,
            f"{found} {own:.6g}, with the weights that it should have by then",
            "an earlier step went wrong. A step is: backward, average over all ranks,"
            " optimizer.step(), once per batch.",
        )
    return report.wrong(
        "asked_about_another_loss",
        rank,
        f"{found} {own:.6g}",
        "it was computed in another way than mse_loss(model(inputs), targets).",
    )


def close(came, right):
    return math.isclose(came, right, rel_tol=ROUNDED[torch.float64])
