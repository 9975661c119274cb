"""What is wrong with an answer to ``hangs.uneven_batches``, in the learner's numbers."""

import math
from functools import partial

from multigpu.checking import Wrong
from multigpu.checking.comparing import alike, largest_difference, same
from multigpu.checking.verdicts import count, listed, numbered

from . import team
from .stuck import in_own_words

STUCK = {
    "expected": "every rank takes part in every step, also when it has no batch left",
    "usually": "a rank without a batch makes no all_reduce: it has left the loop, or skips"
    " gradients that are None. Do as many steps on every rank as the longest list has batches;"
    " without a batch all-reduce zeros.",
}
OTHER_CALLS = {
    "expected": "every rank makes the same calls in every step, also when it has no batch left",
    "usually": "a rank without a batch leaves calls out, for instance where .grad is None, and its"
    " next call meets another one. Let it take part with zeros.",
}

# By mistake: the rule by which the weights come about, what they are equal to, and why.
KNOWN = {
    "rounded": (team.over_all, *team.ROUNDED),
    "rounded over present": (team.over_present, *team.ROUNDED),
    "batches_left_out": (
        team.until_one_is_missing,
        "training that ends when the first rank has no batch left",
        "the loop runs to the shortest list, so batches are left out. Run to the longest.",
    ),
    "trained_alone": (
        team.alone_when_one_is_missing,
        "training in which ranks step alone once a rank has no batch left",
        "gradients were averaged only while all ranks had batches. Average in every step.",
    ),
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
    "idle_ranks_stale": (
        team.idle_ranks_do_not_step,
        "training in which a rank without a batch does not step",
        "it took part in the average, but left optimizer.step() out. Step on every rank.",
    ),
    "idle_ranks_stale over present": (
        team.idle_ranks_do_not_step_over_present,
        "training in which a rank without a batch does not step",
        "it took part in the average, but left optimizer.step() out. Step on every rank.",
    ),
    "old_gradient_again": (
        team.old_gradient_again,
        "training in which a rank without a batch gives its last gradient again",
        "its .grad was not cleared in this step. Without a batch it counts as zero.",
    ),
    "gradients_never_cleared": (
        team.never_cleared,
        "training in which gradients of all steps add up",
        "nothing clears .grad between two steps: optimizer.zero_grad().",
    ),
    "rank_zero_only": (
        team.of_rank_zero,
        "training on rank 0's batches alone",
        "rank 0's gradient was sent to all ranks. Average those of all ranks.",
    ),
}


def explain_stuck(refused, situation):
    """What it means here that ranks wait for ever, or do not call the same."""
    stuck = in_own_words(
        refused, "uneven_batches.out_of_batches", kind="deadlock", situation=situation, **STUCK
    )
    return in_own_words(
        stuck, "uneven_batches.other_calls", kind="mismatch", situation=situation, **OTHER_CALLS
    )


def examine(batches, results, wheres):
    """Raise Wrong unless all ranks have been trained on all ``batches``, a list per rank.

    ``results`` are the weights at the end and the number of calls of optimizer.step, per rank.
    """
    came = [result["weights"].value for result in results]
    counts = [len(own) for own in batches]

    def wrong(mistake, found, usually, rank=0):
        return Wrong(
            f"uneven_batches.{mistake}",
            expected=f"training on all batches ({listed(counts)} on {count(len(counts), 'rank')}):"
            f" {count(max(counts), 'step')}, the same weights on every rank",
            came=found,
            usually=usually,
            where=wheres[rank],
        )

    if is_right(came, batches, counts):
        examine_steps([result["steps"] for result in results], max(counts), wrong)
        return
    for name, (rule, like, usually) in KNOWN.items():
        if (rule is not team.of_rank_zero or counts[0] == max(counts)) and alike_on_all_ranks(
            came, team.train(batches, rule).ends
        ):
            raise wrong(name.partition(" ")[0], f"exactly the weights after {like}", usually)
    for pad in (first_again, last_again, around):
        if min(counts) and alike_on_all_ranks(came, team.train(pad(batches), team.over_all).ends):
            raise wrong(
                "batches_repeated",
                "exactly the weights after training in which short lists begin again",
                "ranks with fewer batches use some twice. Without a batch they count as zero.",
            )
    for steps in range(max(counts)):
        some = [own[:steps] for own in batches]
        if steps and alike_on_all_ranks(came, team.train(some, team.over_all).ends):
            raise wrong(
                "batches_left_out",
                f"exactly the weights after the first {count(steps, 'step')} alone",
                "the number of steps is fixed, or another rank's. The longest list sets it.",
            )
    raise unknown(came, team.train(batches, team.over_all).ends, wrong)


def is_right(came, batches, counts):
    """A rank without a batch may count as zero in the mean, or not at all."""
    present = [sum(step < own for own in counts) for step in range(max(counts))]
    divisors = {team.over_all: len(counts), team.over_present: len(counts) * math.prod(present)}
    return any(
        all(map(partial(same, share_of=n), came, team.train(batches, rule).ends))
        for rule, n in divisors.items()
    )


def examine_steps(steps, most, wrong):
    """The weights are right: has every rank made them itself?"""
    for rank, came in enumerate(steps):
        if came != most:
            raise wrong(
                "not_every_rank_steps",
                f"the right weights, but rank {rank} called optimizer.step() {count(came, 'time')}",
                "weights were sent from rank to rank. With the mean gradient in .grad every rank"
                " makes the same step, and its optimizer keeps the momentum.",
                rank,
            )


def unknown(came, right, wrong):
    """Other weights: do the ranks agree at least?"""
    others = [rank for rank, weights in enumerate(came) if not alike(weights, came[0])]
    if others:
        return wrong(
            "ranks_disagree",
            f"{numbered('rank', others)} {'has' if len(others) == 1 else 'have'} other weights than"
            f" rank 0: weight {largest_difference(came[others[0]], came[0])}",
            "ranks stepped with different gradients, or not equally often.",
            others[0],
        )
    return wrong(
        "other_weights",
        f"on all ranks the same weights, but weight {largest_difference(came[0], right[0])}",
        "a batch was left out or used twice, or the average has another divisor.",
    )


def alike_on_all_ranks(came, ends):
    return all(map(alike, came, ends))


def first_again(batches):
    return [own + own[:1] * (max(map(len, batches)) - len(own)) for own in batches]


def last_again(batches):
    return [own + own[-1:] * (max(map(len, batches)) - len(own)) for own in batches]


def around(batches):
    most = max(map(len, batches))
    return [(own * most)[:most] for own in batches]
