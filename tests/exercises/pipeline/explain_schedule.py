"""What is wrong with a schedule of ``pipeline.gpipe`` or of ``pipeline.one_f_one_b``."""

from itertools import product

from multigpu.checking import Wrong
from multigpu.scaling.pipeline_times import steps_of

from .tables import examine_table, shown

SIZES = [*product(range(1, 7), range(1, 10))]  # stages, micro-batches
ONE_AT_A_TIME = (
    "one micro-batch goes all the way forward and back before the next one begins, so only one"
    " stage works at a time. {instead}"
)
INSTEAD = {
    "gpipe": "Do all forwards first.",
    "one_f_one_b": "Stage s first does num_stages - s - 1 forwards more than backwards.",
}

TOO_FEW = {
    "one_f_one_b": "there are fewer micro-batches than stages: at most that many forwards come"
    " first.",
}
TOO_SLOW = {
    "gpipe": "a stage waits longer than it must. {orders}",
    "one_f_one_b": "a stage waits longer than it must. All stages go through the micro-batches in"
    " the same order; a stage with k stages after it does k forwards more than backwards before it"
    " takes turns.",
}
ORDERS = {
    "forward": "The stages do their forwards in different orders: 0, 1, 2, ... on all of them.",
    "backward": "The stages go back in different orders: 0, 1, 2, ... or the reverse, the same on"
    " all.",
}


class Report:
    """One schedule, and what is wrong with it."""

    def __init__(self, function, num_stages, num_microbatches, came, where):
        self.function, self.came, self.where = function, came, where
        self.stages, self.microbatches = num_stages, num_microbatches
        self.right = "a table in which each stage does every forward and backward once"

    def wrong(self, mistake, came, usually):
        call = f"{self.function}({self.stages}, {self.microbatches})"
        return Wrong(
            f"{self.function}.{mistake}",
            expected=f"{call} gives {self.right}",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        too_few = TOO_FEW.get(self.function)
        examine_table(self.came, self.stages, self.microbatches, self.wrong, too_few=too_few)
        self.examine_own_order()
        if self.function == "gpipe":
            self.examine_forwards_first()
        else:
            self.examine_in_flight()
        self.examine_time()

    def examine_own_order(self):
        self.right = "the forward of a micro-batch before its backward, on every stage"
        for stage, row in enumerate(self.came):
            for kind, m in row:
                if kind == "backward" and row.index((kind, m)) < row.index(("forward", m)):
                    raise self.wrong(
                        "backward_before_forward",
                        f"B{m} before F{m} on stage {stage}: {shown(row)}",
                        "backward needs what forward has computed. Begin with forwards.",
                    )

    def examine_forwards_first(self):
        self.right = "all forwards before the first backward, on every stage"
        for stage, row in enumerate(self.came):
            if not forwards_first(row):
                self.examine_one_at_a_time()
                raise self.wrong(
                    "backward_too_early",
                    f"stage {stage}: {shown(row)}",
                    "that may be a good schedule, but not this one: it is how one_f_one_b begins.",
                )

    def examine_in_flight(self):
        """On stage s at most num_stages - s micro-batches between forward and backward."""
        for stage, row in enumerate(self.came):
            most, now, allowed = 0, 0, self.stages - stage
            for kind, _ in row:
                now += 1 if kind == "forward" else -1
                most = max(most, now)
            if most > allowed:
                self.right = (
                    f"at most {self.stages} - {stage} = {allowed} in flight on stage {stage}"
                )
                raise self.too_many(stage, row, most)

    def too_many(self, stage, row, most):
        came = f"{most} in flight on stage {stage}: {shown(row)}"
        if all(forwards_first(row) for row in self.came):
            return self.wrong(
                "all_forwards_first",
                came,
                "that is GPipe's schedule. After the first few forwards do a backward and a forward"
                " in turn.",
            )
        return self.wrong(
            "too_many_in_flight",
            came,
            "there is a forward too many before the first backward. The forwards that come before"
            " the turns are num_stages - s - 1, and each turn begins with one more.",
        )

    def examine_time(self):
        """With actions of one unit, no schedule is quicker."""
        shortest = 2 * (self.microbatches + self.stages - 1)
        self.right = f"a schedule that can be done, in {shortest} units of time"
        try:
            end = max(step.end for step in steps_of(self.came, forward=1, backward=1))
        except ValueError as error:
            raise self.wrong(
                "stages_wait_for_each_other",
                str(error).partition(". Change")[0].replace("rank", "stage"),
                "two stages go through the micro-batches in orders that do not fit, or a stage does"
                " too few forwards before its first backward.",
            ) from None
        if end > shortest:
            self.examine_one_at_a_time()
            raise self.wrong(
                "bubble_too_large",
                f"{end:g} units; stage 0: {shown(self.came[0])}; stage {self.stages - 1}:"
                f" {shown(self.came[-1])}",
                TOO_SLOW[self.function].format(orders=ORDERS[self.unequal()]),
            )

    def unequal(self):
        """The kind of action whose order is not the same on all stages."""
        forwards = {tuple(m for kind, m in row if kind == "forward") for row in self.came}
        return "forward" if len(forwards) > 1 else "backward"

    def examine_one_at_a_time(self):
        """Is it the schedule of somebody who does not pipeline at all?"""
        if all(
            row[i][1] == row[i + 1][1] for row in self.came for i in range(0, len(row), 2)
        ):  # F and B of one micro-batch always next to each other
            raise self.wrong(
                "one_at_a_time",
                f"{shown(self.came[0])} on stage 0",
                ONE_AT_A_TIME.format(instead=INSTEAD[self.function]),
            )


def forwards_first(row):
    """Whether no forward comes after a backward."""
    kinds = [kind for kind, _ in row]
    return kinds == sorted(kinds, reverse=True)
