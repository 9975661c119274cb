"""What a training step costs, before you run it: operations, messages and seconds.

A GPU that can do 300 TFLOP/s does not do a step of 300 TFLOP in a second: it also waits for memory
and for other GPUs.  Once you know what a step *must* do, you can see which part takes longest,
and what more GPUs can change.

    flops_per_token     the floating-point operations of a transformer, for each token it trains on
    all_reduce_time     seconds of a ring all-reduce: a latency for each message, and its bytes
    step_time           seconds of a DDP step, where all-reduces overlap with backward

All three are plain functions of numbers: they need no GPU and start no ranks.

    multigpu check costs.step_time          check one function
    multigpu hint costs.step_time           a hint; add --more for a stronger one
    python exercises/costs.py               predict GPT-2's step on 1 to 64 GPUs with your code

Read the lesson docs/lessons/cost first.
"""

from collections.abc import Sequence


def flops_per_token(num_parameters: int, layers: int, hidden: int, seq: int) -> int:
    """Count the floating-point operations (FLOPs) with which a transformer trains on one token.

    Only matrix products count, because the rest is small beside them.  Multiplying an m × k matrix
    by a k × n matrix takes m · n · k multiplications and as many additions: 2 · m · n · k FLOPs.

    * ``num_parameters`` are the weights of all matrices that a token is multiplied by.  The
      embedding table is not among them: it is only looked up.  In forward each weight does one
      multiplication and one addition.
    * Attention also has products without weights.  In each of the ``layers``, a token's query is
      multiplied by the keys of all ``seq`` tokens, and the resulting scores by their values.  All
      heads together have ``hidden`` numbers in a query, in a key and in a value.  Count all ``seq``
      tokens, also those that a causal mask hides, as published figures do.
    * Backward computes two products for each one of forward: the gradient of one factor, and that
      of the other.

    Returns FLOPs of forward and backward, for one token.

    Example::

        flops_per_token(1000, layers=2, hidden=8, seq=10)       # 7920: 6000, and 1920 in attention

    Sources: Kaplan et al. 2020, arXiv 2001.08361; Chowdhery et al. 2022, arXiv 2204.02311, B.

    Lesson: docs/lessons/cost
    """
    raise NotImplementedError


def all_reduce_time(
    num_bytes: float, world_size: int, *, latency: float, bandwidth: float
) -> float:
    """Predict the seconds of a ring all-reduce.

    A message of b bytes takes ``latency`` + b / ``bandwidth`` seconds.  This is the α–β model of
    Hockney (1994, Parallel Computing 20): α is the latency, and β is 1 / bandwidth.

    * ``num_bytes`` is the size of the tensor on each rank, such as that of all gradients.
    * ``world_size`` is 1 or more.  In the ring every rank sends one message after the other, each
      with one of ``world_size`` equal parts: ``world_size - 1`` until the sums are complete, and
      ``world_size - 1`` until every rank has them.  All ranks send at the same time, and receiving
      takes no extra time.  A part may have a fraction of a byte here.
    * ``latency`` is in seconds, ``bandwidth`` in bytes per second.

    Returns seconds; 0 for one rank, which sends nothing.

    Example::

        all_reduce_time(1_000_000, 4, latency=10e-6, bandwidth=1e9)     # 0.00156

    Lesson: docs/lessons/cost
    """
    raise NotImplementedError


def step_time(forward: float, backward: Sequence[float], all_reduce: Sequence[float]) -> float:
    """Predict the seconds of one step with DDP, which sends gradients while backward still runs.

    DDP collects gradients in buckets.  When a bucket is complete, its all-reduce starts, and
    backward continues with the layers below at the same time.

    * Forward takes ``forward`` seconds.  Then backward takes ``backward[i]`` seconds until the
      gradients of bucket i are complete, one bucket after the other: bucket 0 is complete
      ``backward[0]`` seconds after backward began, bucket 1 ``backward[1]`` seconds later.
    * The all-reduce of bucket i takes ``all_reduce[i]`` seconds.  Both lists have one entry per
      bucket, and there is at least one bucket.
    * An all-reduce starts when its bucket is complete, but not before the all-reduce of the
      previous bucket has ended, because they all use the same link.
    * The step ends when backward and all all-reduces have ended.  The optimizer is not counted.

    Returns seconds.

    Example::

        step_time(0.010, [0.010, 0.010], [0.030, 0.005])
        # 0.055: bucket 0 is sent from 20 to 50 ms, and bucket 1, complete at 30 ms, from 50 to 55

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.

    Lesson: docs/lessons/cost
    """
    raise NotImplementedError


if __name__ == "__main__":
    from multigpu.scaling import links

    TOKENS = 8 * 1024  # in a micro-batch
    FLOPS_PER_SECOND = 0.4 * 312e12  # of an A100's peak in bfloat16, 40 % are usual
    PARAMETERS = 124_000_000  # of GPT-2; its output layer multiplies by the embedding table
    BUCKETS = 20  # of 25 MB each: gradients are float32

    try:
        writing = "flops_per_token"
        flops = TOKENS * flops_per_token(PARAMETERS, layers=12, hidden=768, seq=1024)
        seconds = flops / FLOPS_PER_SECOND
        print(f"GPT-2, {TOKENS:,} tokens: {flops / 1e12:.1f} TFLOP, {1e3 * seconds:.0f} ms")
        forward, backward = seconds / 3, [seconds * 2 / 3 / BUCKETS] * BUCKETS
        for link in links()[:2]:  # networks; within a machine, links are faster
            line = {"latency": 10e-6, "bandwidth": link.bytes_per_second}
            print(f"\n{link.name}")
            for ranks in (1, 2, 8, 64):
                writing = "all_reduce_time"
                sending = [all_reduce_time(4 * PARAMETERS / BUCKETS, ranks, **line)] * BUCKETS
                writing = "step_time"
                step = step_time(forward, backward, sending)
                print(
                    f"  {ranks:2} GPUs: all-reduces {1e3 * sum(sending):4.0f} ms,"
                    f" step {1e3 * step:4.0f} ms, efficiency {seconds / step:.0%}"
                )
    except NotImplementedError:
        print(f"Next to write: {writing}. Check it with: multigpu check costs.{writing}")
