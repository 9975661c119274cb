"""``costs.step_time``: all-reduces of buckets beside backward, one after the other on one link."""

import itertools
import random
from fractions import Fraction

from multigpu.checking.declaration import case, exercise

from .numbers import near, number

step_time = exercise(
    "costs.step_time",
    expects="the time at which the last all-reduce ends, each begun when its bucket is complete and"
    " the link is free",
    everywhere=True,
)

CALLS = [
    (0.010, [0.010, 0.010], [0.030, 0.005]),
    (0.010, [0.010, 0.010, 0.010], [0.005, 0.030, 0.002]),
    (0.020, [0.010, 0.020, 0.010], [0.001, 0.001, 0.001]),  # all but one hidden
    (0.004, [0.002, 0.002, 0.002], [0.080, 0.080, 0.080]),  # sends longer
    (0.010, [0.020], [0.010]),
    (0.010, [0.005, 0.0, 0.020], [0.040, 0.001, 0.007]),
    (0.0, [0.001, 0.03, 0.002, 0.04], [0.004, 0.09, 0.0, 0.025]),
    (1.5, (0.7, 0.9, 0.3), (0.25, 2.5, 0.124)),
    (0.010, [0.010, 0.030], [0.0, 0.0]),  # one rank
    (3, [2, 1], [4, 1]),
]


def random_calls():
    draw = random.Random(0)
    for buckets in (1, 2, 3, 5, 9):
        for longest in (0.002, 0.01, 0.02, 0.05):
            backward = [round(draw.uniform(0.001, 0.02), 4) for _ in range(buckets)]
            sending = [round(draw.uniform(0.0005, longest), 4) for _ in range(buckets)]
            yield round(draw.uniform(0.01, 0.05), 4), backward, sending


@step_time.cases
def cases():
    for forward, backward, sending in [*CALLS, *random_calls()]:
        title = f"step_time({forward}, {backward}, {sending})"
        yield case(title, forward=forward, backward=backward, sending=sending)


@step_time.drive
def drive(submission, case, devices):
    backward, sending = (type(each)(each) for each in (case.backward, case.sending))
    return number(submission.step_time(case.forward, backward, sending))


@step_time.expected
def expected(case):
    """From some bucket on the link is busy until the end: the one for which that takes longest."""
    ready = itertools.accumulate(map(Fraction, case.backward))
    ends = [begins + sum(map(Fraction, case.sending[i:])) for i, begins in enumerate(ready)]
    return near(float(Fraction(case.forward) + max(ends)), "seconds")


# --- right answers -------------------------------------------------------------------------------


@step_time.right
def latest_of_all_beginnings(forward, backward, all_reduce):
    return forward + max(sum(backward[: i + 1]) + sum(all_reduce[i:]) for i in range(len(backward)))


@step_time.right
def with_two_clocks(forward, backward, all_reduce):
    clock = forward
    link_free_at = forward
    for i in range(len(backward)):
        clock = clock + backward[i]
        begins = clock if clock > link_free_at else link_free_at
        link_free_at = begins + all_reduce[i]
    return max(clock, link_free_at)


# --- mistakes ------------------------------------------------------------------------------------


@step_time.mistake(
    "no_overlap",
    "all times are added, as if nothing happened at the same time.",
    fix="Backward of the next bucket goes on while a bucket is sent.",
)
def one_after_the_other(forward, backward, all_reduce):
    return forward + sum(backward) + sum(all_reduce)


@step_time.mistake(
    "link_shared",
    "an all-reduce starts although the link still sends the bucket before.",
    fix="Start it at the later of two times: the bucket is complete, and the link is free.",
)
def every_bucket_at_once(forward, backward, all_reduce):
    ready = itertools.accumulate(backward)
    return forward + max(each + more for each, more in zip(ready, all_reduce, strict=True))


@step_time.mistake(
    "perfect_overlap",
    "all of backward and all of the sending overlap.",
    fix="Nothing is sent before the first bucket is complete; the last is sent after backward.",
)
def the_longer_of_both(forward, backward, all_reduce):
    return forward + max(sum(backward), sum(all_reduce))


@step_time.mistake(
    "last_bucket_only",
    "only the last all-reduce is added to the computing.",
    fix="It may have to wait for those before it, if they take longer than backward.",
)
def only_the_last(forward, backward, all_reduce):
    return forward + sum(backward) + all_reduce[-1]


@step_time.mistake(
    "starts_too_early",
    "a bucket is sent while its own backward runs.",
    fix="Add backward[i] first: the bucket is complete when that has ended.",
)
def before_its_backward(forward, backward, all_reduce):
    computed = free = forward
    for seconds, more in zip(backward, all_reduce, strict=True):
        free = max(computed, free) + more
        computed += seconds
    return max(computed, free)


@step_time.mistake(
    "backward_waits",
    "the next bucket's backward begins when the all-reduce before it has begun, not at once.",
    fix="Keep two times: the computing never waits for the link.",
)
def waits_for_its_turn(forward, backward, all_reduce):
    computed = free = forward
    for seconds, more in zip(backward, all_reduce, strict=True):
        computed = max(computed + seconds, free)
        free = computed + more
    return free


@step_time.mistake(
    "forward_forgotten",
    "forward is missing.",
    fix="Backward, and with it the first bucket, begins when forward has ended.",
)
def backward_only(forward, backward, all_reduce):
    return with_two_clocks(0.0, backward, all_reduce)


@step_time.mistake(
    "sending_forgotten",
    "only the computing is counted.",
    fix="The last bucket is complete when backward ends, so at least its all-reduce comes after.",
)
def all_hidden(forward, backward, all_reduce):
    return forward + sum(backward)
