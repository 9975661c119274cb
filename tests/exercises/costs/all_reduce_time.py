"""``costs.all_reduce_time``: the messages of a ring in the α–β model."""

from fractions import Fraction

from multigpu.checking.declaration import case, exercise

from .numbers import near, number

all_reduce_time = exercise(
    "costs.all_reduce_time",
    expects="{messages}, each of a latency and an n-th of the bytes",
    everywhere=True,
)

SLOW, FAST = (50e-6, 3.125e9), (5e-6, 450e9)  # 25 Gbit/s, NVLink


@all_reduce_time.cases
def cases():
    calls = [
        (1_000_000, 4, 10e-6, 1e9),
        *((size, n, *line) for size in (496e6, 4096) for n in range(1, 9) for line in (SLOW, FAST)),
        (7, 3, 1e-6, 1e3),
        (1, 4, 0.0, 10.0),
        (0, 4, 2e-5, 1e9),
        (1e6, 2, 0, 1e6),
        (4e9, 64, 20e-6, 12.5e9),
        (28e9, 1000, 20e-6, 50e9),
    ]
    for size, n, latency, bandwidth in calls:
        line = {"latency": latency, "bandwidth": bandwidth}
        called = f"{size:g}, {n}, latency={latency:g}, bandwidth={bandwidth:g}"
        yield case(f"all_reduce_time({called})", size=size, n=n, line=line)


@all_reduce_time.drive
def drive(submission, case, devices):
    return number(submission.all_reduce_time(case.size, case.n, **case.line))


@all_reduce_time.words
def words(case):
    return {"n": case.n, "messages": f"{2 * (case.n - 1)} messages"}


@all_reduce_time.expected
def expected(case):
    latency, bandwidth = map(Fraction, case.line.values())
    each = latency + Fraction(case.size) / case.n / bandwidth
    return near(float(2 * (case.n - 1) * each), "seconds")


# --- right answers -------------------------------------------------------------------------------


@all_reduce_time.right
def bytes_and_latencies(num_bytes, world_size, *, latency, bandwidth):
    if world_size == 1:
        return 0
    return (
        2 * (world_size - 1) / world_size * num_bytes / bandwidth + 2 * (world_size - 1) * latency
    )


@all_reduce_time.right
def message_by_message(num_bytes, world_size, *, latency, bandwidth):
    scatter = [latency + (num_bytes / world_size) / bandwidth for _ in range(world_size - 1)]
    return sum(scatter) + sum(scatter)


# --- mistakes ------------------------------------------------------------------------------------


@all_reduce_time.mistake(
    "whole_messages",
    "each message is counted with all bytes.",
    fix="In a ring a message has one of n parts: num_bytes / world_size bytes.",
)
def all_bytes_in_each(num_bytes, world_size, *, latency, bandwidth):
    return 2 * (world_size - 1) * (latency + num_bytes / bandwidth)


@all_reduce_time.mistake(
    "latency_once",
    "the latency is counted once.",
    fix="Every one of the 2 (n - 1) messages has it.",
)
def one_latency(num_bytes, world_size, *, latency, bandwidth):
    return latency + 2 * (world_size - 1) / world_size * num_bytes / bandwidth


@all_reduce_time.mistake(
    "latency_once",
    "the latency is counted once, or not at all.",
    fix="Every one of the 2 (n - 1) messages has it.",
)
def no_latency(num_bytes, world_size, *, latency, bandwidth):
    return 2 * (world_size - 1) / world_size * num_bytes / bandwidth


@all_reduce_time.mistake(
    "half_a_ring",
    "n - 1 messages are counted.",
    fix="After these every rank has the sum of one part only. As many again pass the sums on.",
)
def reduce_scatter(num_bytes, world_size, *, latency, bandwidth):
    return (world_size - 1) * (latency + num_bytes / world_size / bandwidth)


@all_reduce_time.mistake(
    "n_messages",
    "the messages are counted with n instead of n - 1.",
    fix="A part that goes all the way round makes n - 1 hops, so one rank sends nothing.",
)
def as_many_as_ranks(num_bytes, world_size, *, latency, bandwidth):
    return 2 * world_size * (latency + num_bytes / world_size / bandwidth)


@all_reduce_time.mistake(
    "no_ring",
    "each rank sends everything once, whatever n is.",
    fix="Count the messages of a ring: 2 (n - 1), each with an n-th of the bytes.",
)
def one_message(num_bytes, world_size, *, latency, bandwidth):
    return latency + num_bytes / bandwidth if world_size > 1 else 0.0
