"""What is wrong with an answer to ``hangs.early_stop``, in the learner's numbers."""

from functools import partial

from multigpu.checking import Wrong, describe
from multigpu.checking.comparing import alike, largest_difference, same
from multigpu.checking.verdicts import count, listed, numbered

from . import team
from .explain_early_stop_loss import RULES, close, wrong_loss
from .stuck import in_own_words

TOLD_LATE = {
    "expected": "in every step all ranks make the same calls",
    "usually": "a rank tells the others only when it wants to stop, and they are in another call"
    " then. In every step all ranks must say whether they want to stop: 0 or 1.",
}
STUCK = {
    "expected": "all ranks stop after the same step",
    "usually": "a rank that wants to stop returns at once, and the others wait for its part of the"
    " next step. In every step all ranks must learn whether any rank wants to stop.",
}

ROUNDED = {"rounded": (team.over_all, *team.ROUNDED)}


def explain_stuck(refused, situation):
    """What it means here that ranks wait for ever, or do not call the same."""
    stuck = in_own_words(
        refused, "early_stop.stops_alone", kind="deadlock", situation=situation, **STUCK
    )
    return in_own_words(
        stuck,
        "early_stop.told_only_when_stopping",
        kind="mismatch",
        situation=situation,
        **TOLD_LATE,
    )


class Report:
    """What one training on all ranks came to, and what is wrong with it."""

    def __init__(self, batches, limit, results, wheres):
        self.batches, self.limit, self.results, self.wheres = batches, limit, results, wheres
        self.training = team.train(batches, team.over_all)
        self.right = self.first(lambda losses: min(losses) < limit)

    def first(self, wanted):
        """The number of the first step whose losses are as ``wanted``, else of all steps."""
        losses = self.training.losses
        return next((s for s, own in enumerate(losses, 1) if wanted(own)), len(losses))

    def wrong(self, mistake, rank, came, usually):
        losses = self.training.losses[self.right - 1]
        wanting = [r for r, loss in enumerate(losses) if self.low(loss)]
        verb = "wants" if len(wanting) == 1 else "want"
        why = f"where {numbered('rank', wanting)} {verb} to stop" if wanting else "nobody stops"
        situation = f"{count(len(self.batches), 'rank')} with {len(self.batches[0])} batches each"
        return Wrong(
            f"early_stop.{mistake}",
            expected=f"{count(self.right, 'step')} on every rank, {why} ({situation})",
            came=came,
            usually=usually,
            where=self.wheres[rank],
        )

    def low(self, loss):
        return loss < self.limit

    def examine(self):
        for rank, result in enumerate(self.results):
            self.examine_type(rank, result["returned"])
            self.examine_asked(rank, result["asked"])
        self.examine_count()
        self.examine_weights()

    def examine_type(self, rank, came):
        if came is None:
            raise self.wrong(
                "returned_nothing",
                rank,
                f"None on rank {rank}",
                "the function ends there without `return`. It returns the number of steps.",
            )
        if type(came) is not int:
            raise self.wrong(
                "not_an_int",
                rank,
                f"{describe(came)} on rank {rank}",
                "the number of steps is a whole number, a Python int.",
            )

    def examine_asked(self, rank, asked):
        """``should_stop`` was asked with this rank's own losses, as floats."""
        if not all(is_float for is_float, _ in asked):
            raise self.wrong(
                "loss_is_a_tensor",
                rank,
                f"on rank {rank} should_stop was given something that is no float",
                "hand it loss.item().",
            )
        own = [losses[rank] for losses in self.training.losses]
        position = 0
        for index, (_, loss) in enumerate(asked):
            later = [s for s in range(position, len(own)) if close(own[s], loss)]
            if not later:
                step = min(index, len(own) - 1)
                raise wrong_loss(self, rank, step, loss)
            position = later[0]

    def examine_count(self):
        counts = [result["returned"] for result in self.results]
        came = f"steps returned: {listed(counts)}"
        for rank, steps in enumerate(counts):
            if steps != self.right:
                mistake, usually = self.why(steps, len(set(counts)) == 1)
                raise self.wrong(mistake, rank, came, usually)

    def why(self, steps, agreed):
        """The mistake that leads to this number of steps."""
        if steps == self.right - 1:
            done = alike(self.results[0]["weights"].value, self.training.weights[self.right][0])
            return (
                ("counted_from_zero", "all steps were done, but they were counted from 0.")
                if done
                else ("stopped_too_early", "the step that brings the loss is to be finished.")
            )
        if not agreed:
            return "ranks_disagree", "each rank stops by itself. All must learn of all answers."
        last = len(self.training.losses)
        known = {
            "rank_zero_decides": (
                self.first(lambda losses: self.low(losses[0])),
                "only rank 0's answer counts. Any rank's does: reduce with MAX, or add up.",
            ),
            "last_rank_decides": (
                self.first(lambda losses: self.low(losses[-1])),
                "only the last rank's answer counts. Any rank's does: reduce with MAX, or add up.",
            ),
            "all_must_agree": (
                self.first(lambda losses: self.low(max(losses))),
                "the ranks stop only when all of them want to. One is enough: MAX, not MIN.",
            ),
        }
        for mistake, (value, usually) in known.items():
            if steps == value != last:
                return mistake, usually
        if steps == self.right + 1:
            return "stopped_too_late", "the ranks learn of it one step later, or count one more."
        wanting = sum(map(self.low, self.training.losses[self.right - 1]))
        if steps == last and wanting > 1:
            return (
                "never_stopped",
                f"{wanting} ranks wanted to stop in the same step: the sum of their answers is"
                " neither 0 nor 1. Stop where it is more than 0, or reduce with MAX.",
            )
        if steps == last:
            return "never_stopped", "the answer of should_stop on a rank did not reach the others."
        return "other_count", "count a step when it is done, on every rank."

    def examine_weights(self):
        right = self.training.weights[self.right]
        came = [result["weights"].value for result in self.results]
        equal = map(partial(same, share_of=len(came)), came, right)
        wrong_ones = [rank for rank, is_equal in enumerate(equal) if not is_equal]
        if not wrong_ones:
            return
        rank = wrong_ones[0]
        for steps, mistake, usually in (
            (self.right - 1, "step_left_out", "the last step was counted, but not done."),
            (self.right + 1, "one_step_more", "one more step was done than was counted."),
        ):
            ends = self.training.weights[steps : steps + 1]
            if ends and all(map(alike, came, ends[0])):
                raise self.wrong(
                    mistake, rank, f"the weights after {count(steps, 'step')}", usually
                )
        for mistake, (rule, like, usually) in (ROUNDED | RULES).items():
            if all(map(alike, came, team.train(self.batches, rule).weights[self.right])):
                raise self.wrong(mistake, rank, f"exactly the weights after {like}", usually)
        raise self.wrong(
            "other_weights",
            rank,
            f"on rank {rank} weight {largest_difference(came[rank], right[rank])}",
            "a step is: backward, average over all ranks, optimizer.step(), once per batch.",
        )
