"""Checks of ``pipeline.balance``: contiguous stages with the smallest possible largest cost."""

import random

from multigpu.checking import exercise

from .explain_balance import Report


def drive(submission, devices, calls):
    """The result of every call; a range as ("range", start, stop), and its step if that matters."""
    return [plain(balanced(submission, *call)) for call in calls]


def balanced(submission, costs, num_stages):
    try:
        return submission.balance(costs, num_stages)
    except Exception as error:
        error.add_note(f"in balance({costs}, {num_stages})")
        raise


def plain(result):
    if type(result) is not list:
        return result
    return [told(item) if type(item) is range else item for item in result]


def told(item):
    ends = ("range", item.start, item.stop)
    return ends if item.step == 1 or len(item) < 2 else (*ends, item.step)


def check(learner, calls):
    answer = learner.run(drive, calls, gpus=0)
    Report(calls, answer).examine()


@exercise("pipeline.balance")
def test_stages_of_equal_cost(learner):
    """Cuts that a look at one stage after the other finds as well, and some that it does not."""
    check(
        learner,
        [
            ([1, 1, 1, 3], 2),
            ([2, 2, 2], 2),
            ([3, 1, 1, 1], 2),
            ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3),
            ([4, 1, 1, 1, 1, 4], 3),
            ([4, 4, 4, 4, 4], 3),
            ([9, 1, 1, 1], 2),
            ([1, 1, 1, 9], 3),
            ([5, 3, 1, 1, 3, 5], 4),
            ([7, 2, 5, 10, 8], 2),
            ([1], 1),
            ([2, 3, 4], 1),
            ([2, 3, 4], 3),
        ],
    )


@exercise("pipeline.balance")
def test_costs_that_are_no_whole_numbers(learner):
    check(
        learner,
        [
            ([0.1, 0.2, 0.3, 0.6], 2),
            ((0.25, 0.5, 0.125, 0.125), 3),
            ([0.0013, 0.0021, 0.0008, 0.0034, 0.0002], 3),
            ([1e-9, 2e-9, 3e-9, 4e-9], 2),
            ([2.5e9, 1, 1.5, 2.5e9], 3),
        ],
    )


@exercise("pipeline.balance")
def test_layers_that_cost_nothing(learner):
    check(
        learner,
        [
            ([0, 0, 5], 2),
            ([5, 0, 0], 3),
            ([0, 0, 0, 0], 3),
            ([0, 4, 0, 0, 4, 0], 2),
            ([3, 0, 0, 0, 3, 0], 4),
            ([10, 1, 1], 3),
        ],
    )


@exercise("pipeline.balance")
def test_fewer_layers_than_stages(learner):
    check(learner, [([5, 1], 3), ([1], 4), ([2, 2, 2], 5), ([0.5], 2), ([3, 1, 2, 4], 6)])


@exercise("pipeline.balance")
def test_many_costs(learner):
    """Random costs, few and many different ones, up to eight stages."""
    draw, calls = random.Random(0), []
    for layers in range(1, 13):
        for most in (1, 3, 9, 100):
            costs: list[float] = [draw.randint(0, most) for _ in range(layers)]
            calls += [(costs, stages) for stages in draw.sample(range(1, 9), 3)]
        costs = [round(draw.random(), 3) for _ in range(layers)]
        calls += [(costs, stages) for stages in draw.sample(range(1, 9), 3)]
    calls += [([draw.randint(1, 20) for _ in range(24)], 4) for _ in range(4)]
    check(learner, calls)
