"""What is wrong with training by hand, in the learner's numbers: gradients, weights, the start.

These mistakes belong to each of ``distributed_data_parallel.NaiveDDP``,
``distributed_data_parallel.OverlappedDDP`` and ``distributed_data_parallel.BucketedDDP``.
"""

from multigpu.checking import Wrong
from multigpu.checking.comparing import largest_difference, recognise, same
from multigpu.checking.verdicts import count, listed, numbered

from .explain_start import examine_start
from .explain_travel import examine_waits, examine_writes
from .known_means import KNOWN, OUT_OF_STEP, from_one_rank
from .one_process import mistaken, train


class Report:
    """What training with one wrapper came to on every rank, and what is wrong with it."""

    function: str  # the wrapper's name
    OUT_OF_STEP = OUT_OF_STEP

    def __init__(self, world, case, results, answer):
        self.n, self.case, self.results = world, case, results
        self.answer = answer
        self.right = train(case.model_of(0), case.steps)

    def wrong(self, mistake, expected, came, usually, *, step=None):
        situation = f" ({count(self.n, 'rank')}" + (")" if step is None else f", step {step + 1})")
        return Wrong(
            f"{self.function}.{mistake}",
            expected=expected + situation,
            came=came,
            usually=usually,
            where=self.answer.where,
        )

    def examine(self):
        examine_start(self)
        for step in range(len(self.right)):
            for examine in self.steps_of_examination():
                for rank in range(self.n):
                    examine(step, rank)

    def steps_of_examination(self):
        """What is looked at after each step, one after the other, on all ranks."""
        travel = self.examine_waits, self.examine_writes
        return *travel, self.examine_gradients, self.examine_weights

    def examine_waits(self, step, rank):
        examine_waits(self, step, rank)

    def examine_writes(self, step, rank):
        examine_writes(self, step, rank)

    def note(self, step, rank):
        """What the drive wrote down in one step on one rank."""
        return self.results[rank]["steps"][step]

    def examine_gradients(self, step, rank):
        """Every gradient is the mean over all ranks."""
        came = self.note(step, rank)["gradients"]
        wrong = [
            name
            for name, right in self.right[step].gradients.items()
            if not agrees(came.get(name), right, share_of=self.n)
        ]
        if not wrong:
            return
        name = wrong[0]
        right, parts = self.right[step].gradients[name], self.right[step].parts(name)
        expected = f"{name}.grad on every rank is the mean over all ranks"
        if right is None:
            raise self.wrong(
                "other_gradient",
                f"{name}.grad stays None or becomes zeros: no rank used it",
                f"on rank {rank} it has other numbers",
                "numbers of another parameter, or of an earlier step, came into it.",
                step=step,
            )
        if came.get(name) is None:
            raise self.missing(step, rank, name, expected, parts)
        everywhere = [self.note(step, other)["gradients"].get(name) for other in range(self.n)]
        known = {"rounded": right} | from_one_rank(everywhere, parts) | mistaken(parts, rank)
        known |= self.known_besides(step, rank, name)
        mistake, _, other = (recognise(came[name].value, known) or "other_gradient").partition(" ")
        if mistake in ("not_averaged", "only_divided") and self.n > 1:
            self.explain_own(step, rank, wrong)
        what, usually = self.words_for(mistake, right, came[name].value)
        words = {"n": self.n, "ranks": numbered("rank", range(self.n)), "rank": other}
        raise self.wrong(
            mistake,
            expected,
            f"on rank {rank} it is {what.format(**words)}",
            usually.format(**words),
            step=step,
        )

    def words_for(self, mistake, right, came):
        return KNOWN.get(mistake) or (
            f"another tensor, which {largest_difference(came, right)}",
            "gradients of different parameters were mixed, or something was added or left out.",
        )

    def known_besides(self, step, rank, name):
        """More mistakes that a wrapper can make: name and value."""
        return {}

    def missing(self, step, rank, name, expected, parts):
        if parts[rank] is None:
            return self.wrong(
                "missing_stays_none",
                expected,
                f"on rank {rank}, which did not use it, it is None",
                "this rank took no part, or threw the result away. Its optimizer would not move"
                " the parameter, and the ranks' weights drift apart.",
                step=step,
            )
        return self.wrong(
            "gradient_lost",
            expected,
            f"on rank {rank} it is None",
            "something set .grad to None.",
            step=step,
        )

    def explain_own(self, step, rank, wrong):
        """A gradient is still this rank's own: why?"""
        trained = list(self.right[step].gradients)
        for later in range(len(self.right)):
            moved = self.note(later, rank)["moved"]
            if moved:
                raise self.wrong(
                    "weights_averaged",
                    "the ranks average their gradients, and no weight changes before the step",
                    f"the gradients of rank {rank} are still its own, and {listed(moved, most=3)}"
                    " changed during backward or sync_gradients",
                    "a hook on a parameter is called with the parameter, not with its gradient."
                    " Send parameter.grad.",
                    step=later,
                )
        if len(wrong) < len(trained):
            raise self.some_own(step, rank, wrong)

    def some_own(self, step, rank, wrong):
        return self.wrong(
            "some_not_averaged",
            "every gradient on every rank is the mean over all ranks",
            f"on rank {rank} {listed(wrong, most=4)} still {'have' if wrong[1:] else 'has'} this"
            " rank's own gradient, the others are averaged",
            "not every parameter was sent, or not every result waited for.",
            step=step,
        )

    def examine_weights(self, step, rank):
        """Given the right gradients, a step of the optimizer gives the right weights."""
        note, weights = self.note(step, rank), self.right[step].weights
        largest = max(float(right.abs().max()) for right in weights.values())
        for name, right in weights.items():
            came = note["weights"].get(name)
            if came is not None and same(came.value, right, size=largest, share_of=self.n):
                continue
            found = "is gone" if came is None else largest_difference(came.value, right)
            raise self.wrong(
                "weights_changed",
                "after the optimizer's step all ranks have the weights of one process that trained"
                " on the rows of all ranks",
                f"on rank {rank}, {name} {found}"
                + (f"; sync_gradients changed {listed(note['moved'])}" if note["moved"] else ""),
                "the gradients are right, but something else changed the weights. They are sent"
                " once, at the beginning.",
                step=step,
            )


def agrees(came, right, *, share_of=1):
    """A gradient that no rank has may be None or zeros."""
    if right is None:
        return came is None or not came.value.any()
    return came is not None and same(came.value, right, share_of=share_of)
