"""What is wrong with an answer to ``distributed_data_parallel.OverlappedDDP``."""

from multigpu.checking.wording import count

from .explain_training import Report
from .explain_travel import calls_of, examine_overlap


class Overlapped(Report):
    function = "OverlappedDDP"

    def steps_of_examination(self):
        return *super().steps_of_examination(), self.examine_travel

    def examine_travel(self, step, rank):
        """One all-reduce per trainable parameter, and started during backward."""
        if self.n == 1:  # there is nobody to send to
            return
        trained, calls = len(self.right[step].gradients), calls_of(self, step, rank)
        if len(calls) != trained:
            raise self.wrong(
                "wrong_number_of_collectives",
                f"{count(trained, 'all-reduce')} in a step, one per trainable parameter",
                f"{len(calls)} on rank {rank}",
                "a tied parameter has two names and one gradient, and frozen ones have none."
                " module.parameters() gives each parameter once.",
                step=step,
            )
        if "one_by_one" in self.case.how:
            examine_overlap(self, step, rank)
