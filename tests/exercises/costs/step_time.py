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
    works_with="all_reduce_time",
)

MB = 1_000_000
CALLS = [
    (0.010, [0.010, 0.010], [30 * MB, 5 * MB], 2, 0, 1e9),
    (0.010, [0.010, 0.010, 0.010], [5 * MB, 30 * MB, 2 * MB], 4, 20e-6, 1e9),
    (0.020, [0.010, 0.020, 0.010], [1 * MB, 1 * MB, 1 * MB], 4, 20e-6, 1e9),  # all but one hidden
    (0.004, [0.002, 0.002, 0.002], [80 * MB, 80 * MB, 80 * MB], 8, 50e-6, 3e9),  # sends longer
    (0.010, [0.020], [10 * MB], 2, 10e-6, 1e9),
    (0.010, [0.005, 0.0, 0.020], [40 * MB, 3, 7 * MB], 3, 30e-6, 2e9),
    (0.0, [0.001, 0.03, 0.002, 0.04], [4 * MB, 90 * MB, 0, 25 * MB], 5, 15e-6, 4e9),
    (1.5, (0.7, 0.9, 0.3), (250 * MB, 250 * MB, 124 * MB), 64, 20e-6, 12.5e9),
    (0.010, [0.010, 0.030], [20 * MB, 10 * MB], 1, 10e-6, 1e9),
]


def random_calls():
    draw = random.Random(0)
    for n in range(1, 9):
        for buckets in (1, 2, 5, 9):
            backward = [round(draw.uniform(0.001, 0.02), 4) for _ in range(buckets)]
            sizes = [draw.randint(1, 25 * MB) for _ in range(buckets)]
            yield round(draw.uniform(0.01, 0.05), 4), backward, sizes, n, 20e-6, 1e9


@step_time.cases
def cases():
    for forward, backward, sizes, n, latency, bandwidth in [*CALLS, *random_calls()]:
        line = {"latency": latency, "bandwidth": bandwidth}
        numbers = f"{forward}, {backward}, {sizes}, {n}"
        title = f"step_time({numbers}, latency={latency:g}, bandwidth={bandwidth:g})"
        yield case(title, forward=forward, backward=backward, sizes=sizes, n=n, line=line)


@step_time.drive
def drive(submission, case, devices):
    kind = type(case.sizes)
    backward, sizes = kind(case.backward), kind(case.sizes)
    return number(submission.step_time(case.forward, backward, sizes, case.n, **case.line))


@step_time.expected
def expected(case):
    """The link is never idle after the bucket that starts last without waiting; any may be it."""
    latency, bandwidth = map(Fraction, case.line.values())
    ready = list(itertools.accumulate(map(Fraction, case.backward)))
    took = [2 * (case.n - 1) * (latency + Fraction(s) / case.n / bandwidth) for s in case.sizes]
    ends = [begins + sum(took[i:]) for i, begins in enumerate(ready)]
    return near(float(Fraction(case.forward) + max(ends)), "seconds")


# --- right answers -------------------------------------------------------------------------------


@step_time.right
def latest_of_all_beginnings(forward, backward, sizes, ranks, *, latency, bandwidth):
    took = [2 * (ranks - 1) * (latency + size / ranks / bandwidth) for size in sizes]
    return forward + max(sum(backward[: i + 1]) + sum(took[i:]) for i in range(len(sizes)))


@step_time.right
def with_two_clocks(forward, backward, sizes, ranks, *, latency, bandwidth):
    clock = forward
    link_free_at = forward
    for i in range(len(backward)):
        clock = clock + backward[i]
        begins = clock if clock > link_free_at else link_free_at
        message = latency + sizes[i] / ranks / bandwidth
        link_free_at = begins + message * (ranks - 1) * 2
    return max(clock, link_free_at)


# --- mistakes ------------------------------------------------------------------------------------


def seconds_of(sizes, ranks, latency, bandwidth):
    return [2 * (ranks - 1) * (latency + size / ranks / bandwidth) for size in sizes]


@step_time.mistake(
    "no_overlap",
    "all times are added, as if nothing happened at the same time.",
    fix="Backward of the next bucket goes on while a bucket is sent.",
)
def one_after_the_other(forward, backward, sizes, ranks, *, latency, bandwidth):
    return forward + sum(backward) + sum(seconds_of(sizes, ranks, latency, bandwidth))


@step_time.mistake(
    "no_overlap",
    "all gradients are sent in one all-reduce after backward.",
    fix="Each bucket has its own all-reduce, which starts when the bucket is complete.",
)
def one_bucket_at_the_end(forward, backward, sizes, ranks, *, latency, bandwidth):
    (took,) = seconds_of([sum(sizes)], ranks, latency, bandwidth)
    return forward + sum(backward) + took


@step_time.mistake(
    "link_shared",
    "an all-reduce starts although the link still sends the bucket before.",
    fix="Start it at the later of two times: the bucket is complete, and the link is free.",
)
def every_bucket_at_once(forward, backward, sizes, ranks, *, latency, bandwidth):
    took = seconds_of(sizes, ranks, latency, bandwidth)
    ready = itertools.accumulate(backward)
    return forward + max(each + more for each, more in zip(ready, took, strict=True))


@step_time.mistake(
    "perfect_overlap",
    "all of backward and all of the sending overlap.",
    fix="Nothing can be sent until the first bucket is complete, and the last one is sent after"
    " backward.",
)
def the_longer_of_both(forward, backward, sizes, ranks, *, latency, bandwidth):
    return forward + max(sum(backward), sum(seconds_of(sizes, ranks, latency, bandwidth)))


@step_time.mistake(
    "perfect_overlap",
    "the sending overlaps with forward as well.",
    fix="Forward makes no gradients: nothing is sent until backward has completed a bucket.",
)
def beside_forward(forward, backward, sizes, ranks, *, latency, bandwidth):
    return max(forward + sum(backward), sum(seconds_of(sizes, ranks, latency, bandwidth)))


@step_time.mistake(
    "last_bucket_only",
    "only the last all-reduce is added to the computing.",
    fix="It may have to wait for those before it, if they take longer than backward.",
)
def only_the_last(forward, backward, sizes, ranks, *, latency, bandwidth):
    return forward + sum(backward) + seconds_of(sizes, ranks, latency, bandwidth)[-1]


@step_time.mistake(
    "starts_too_early",
    "a bucket is sent while its own backward runs.",
    fix="Add backward[i] first: the bucket is complete when that has ended.",
)
def before_its_backward(forward, backward, sizes, ranks, *, latency, bandwidth):
    computed = free = forward
    took = seconds_of(sizes, ranks, latency, bandwidth)
    for seconds, more in zip(backward, took, strict=True):
        free = max(computed, free) + more
        computed += seconds
    return max(computed, free)


@step_time.mistake(
    "backward_waits",
    "the next bucket's backward begins when the all-reduce before it has begun, not at once.",
    fix="Keep two times: the computing never waits for the link.",
)
def waits_for_its_turn(forward, backward, sizes, ranks, *, latency, bandwidth):
    computed = free = forward
    took = seconds_of(sizes, ranks, latency, bandwidth)
    for seconds, more in zip(backward, took, strict=True):
        computed = max(computed + seconds, free)
        free = computed + more
    return free


@step_time.mistake(
    "forward_forgotten",
    "forward is missing.",
    fix="Backward, and with it the first bucket, begins when forward has ended.",
)
def backward_only(forward, backward, sizes, ranks, *, latency, bandwidth):
    computed = free = 0.0
    took = seconds_of(sizes, ranks, latency, bandwidth)
    for seconds, more in zip(backward, took, strict=True):
        computed += seconds
        free = max(computed, free) + more
    return free


@step_time.mistake(
    "order_reversed",
    "the buckets are taken from the last to the first.",
    fix="They are in the order in which backward completes them: bucket 0 is the first.",
)
def from_the_last(forward, backward, sizes, ranks, *, latency, bandwidth):
    computed = free = forward
    took = seconds_of(sizes, ranks, latency, bandwidth)
    for seconds, more in zip(backward[::-1], took[::-1], strict=True):
        computed += seconds
        free = max(computed, free) + more
    return free


@step_time.mistake(
    "one_latency",
    "all buckets together are counted as one message behind the first.",
    fix="Each bucket has an all-reduce of its own, with its own latencies and its own beginning.",
)
def from_the_first_bucket_on(forward, backward, sizes, ranks, *, latency, bandwidth):
    (took,) = seconds_of([sum(sizes)], ranks, latency, bandwidth)
    return max(forward + sum(backward), forward + backward[0] + took)
