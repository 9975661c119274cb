"""Checks of ``pipeline.gpipe``: all forwards first, and the smallest bubble."""

from multigpu.checking import exercise

from .schedules import check, check_all_sizes, check_played


@exercise("pipeline.gpipe")
def test_a_table_of_actions(learner):
    """More micro-batches than stages, as in real training."""
    check(learner, [(3, 5), (2, 3), (4, 8), (2, 2)])


@exercise("pipeline.gpipe")
def test_one_stage_or_one_microbatch(learner):
    check(learner, [(1, 1), (1, 4), (4, 1), (2, 1)])


@exercise("pipeline.gpipe")
def test_fewer_microbatches_than_stages(learner):
    check(learner, [(3, 2), (4, 2), (6, 5), (5, 3)])


@exercise("pipeline.gpipe")
def test_all_sizes(learner):
    """1 to 6 stages, 1 to 9 micro-batches."""
    check_all_sizes(learner)


@exercise("pipeline.gpipe")
def test_followed_on_ranks(learner):
    check_played(learner, 3)
