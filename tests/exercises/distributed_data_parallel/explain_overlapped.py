"""What is wrong with an answer to ``distributed_data_parallel.OverlappedDDP``."""

from multigpu.checking.verdicts import count

from .explain_training import Report
from .explain_travel import calls_of, examine_handles, examine_overlap


class Overlapped(Report):
    function = "OverlappedDDP"

    def examine(self):
        super().examine()
        if "handles" in self.case.how:
            examine_handles(self)

    def steps_of_examination(self):
        return *super().steps_of_examination(), self.examine_travel

    def examine_writes(self, step, rank):
        if self.n > 1 and len(calls_of(self, step, rank)) > len(self.right[step].gradients):
            raise self.wrong_number(step, rank)
        super().examine_writes(step, rank)

    def words_for(self, mistake, right, came):
        what, usually = super().words_for(mistake, right, came)
        if mistake == "only_divided":
            usually += (
                " A hook of register_hook is called before its gradient is in .grad, and what is"
                " written into the tensor it gets does not arrive there:"
                " register_post_accumulate_grad_hook is called after that."
            )
        return what, usually

    def examine_travel(self, step, rank):
        """One all-reduce per trainable parameter, and started during backward."""
        if self.n == 1:  # there is nobody to send to
            return
        if len(calls_of(self, step, rank)) != len(self.right[step].gradients):
            raise self.wrong_number(step, rank)
        if "one_by_one" in self.case.how:
            examine_overlap(self, step, rank)

    def wrong_number(self, step, rank):
        trained = len(self.right[step].gradients)
        return self.wrong(
            "wrong_number_of_collectives",
            f"{count(trained, 'all-reduce')} in a step, one per trainable parameter",
            f"{len(calls_of(self, step, rank))} on rank {rank}",
            "a tied parameter has two names and one gradient, and frozen ones have none."
            " module.parameters() gives each parameter once.",
            step=step,
        )
