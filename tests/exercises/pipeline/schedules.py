"""The checks of a schedule: the same for both exercises."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import same

from .explain_schedule import SIZES, Report
from .playing import drive as playing_drive
from .playing import right_gradients


def drive(submission, devices, function, sizes):
    """The table of every call."""
    return [getattr(submission, function)(*size) for size in sizes]


def check(learner, sizes):
    function = learner.exercise.function
    answer = learner.run(drive, function, sizes, gpus=0)
    for (ranks, micro_batches), came in zip(sizes, answer.result, strict=True):
        Report(function, ranks, micro_batches, came, answer.where).examine()


def check_all_sizes(learner):
    check(learner, SIZES)


def check_played(learner, world):
    """On real ranks, with messages, the gradients are those of the whole batch."""
    function, sizes = learner.exercise.function, [4, 1, 6, world - 1]
    answer = learner.run_ranks(playing_drive, function, sizes, world=world)
    for i, num_microbatches in enumerate(sizes):
        right = right_gradients(world, num_microbatches)
        for rank in range(world):
            came = [gradient.value for gradient in answer.results[rank][i]]
            if not all(map(same, came, right[rank])):
                raise Wrong(
                    f"{function}.other_gradients",
                    expected=f"{function}({world}, {num_microbatches}), followed on {world} ranks,"
                    " gives the gradients of the whole batch",
                    came=f"others on rank {rank}",
                    usually="neighbours take the micro-batches in different orders, so a message"
                    " meets the wrong one.",
                    where=answer.wheres[rank],
                )
