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


def flops_per_token(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocabulary: int,
    sequence: int,
    gated: bool = False,
) -> int:
    """Count the floating-point operations (FLOPs) with which a transformer trains on one token.

    Only matrix products count, because all else is small beside them.  Multiplying an m × k matrix
    by a k × n matrix takes m · n · k multiplications and as many additions: 2 · m · n · k FLOPs.
    So a linear layer with a × b weights takes 2 · a · b for each token.

    * A layer computes queries (``hidden`` × ``hidden`` weights), keys and values.  There are
      ``heads`` heads of ``hidden / heads`` numbers for the queries, but only ``kv_heads`` of them
      for the keys, and as many for the values.  ``heads`` divides ``hidden``, and ``kv_heads``
      divides ``heads``.
    * Attention multiplies each query by the keys of all ``sequence`` tokens, and the resulting
      scores by their values: in both, every head does one product for each of the tokens.  Count
      all of them, also those that a causal mask sets to zero, as PyTorch's ``FlopCounterMode``
      and published figures do.
    * Then the layer has one more linear layer of ``hidden`` × ``hidden``, and an MLP: two linear
      layers, from ``hidden`` to ``ffn`` and back.  With ``gated`` the MLP has a third one, from
      ``hidden`` to ``ffn``, as in Llama.
    * After all ``layers`` of them comes the output layer, from ``hidden`` to ``vocabulary``.
    * The embedding at the start takes no FLOPs: it is a lookup.
    * Backward computes two products for each one of forward: the gradient of the weights, and that
      of the inputs.

    Returns FLOPs of forward and backward, for one token.

    Example::

        flops_per_token(layers=1, hidden=4, heads=2, kv_heads=1, ffn=8, vocabulary=10, sequence=5)
        # 1152: three times 32 (queries) + 32 (keys, values) + 80 (attention) + 32 + 128 + 80

    Source: Narayanan et al. 2021, arXiv 2104.04473, appendix.

    Lesson: docs/lessons/cost
    """
    key_values = hidden // heads * kv_heads  # numbers of a key; as many of a value
    attention = hidden * (2 * hidden + 2 * key_values)
    mlp = (3 if gated else 2) * hidden * ffn
    scores = 2 * sequence * hidden  # queries by keys, and scores by values
    forward = 2 * (layers * (attention + scores + mlp) + hidden * vocabulary)
    return 3 * forward


def all_reduce_time(size: float, ranks: int, *, latency: float, bandwidth: float) -> float:
    """Predict the seconds of a ring all-reduce.

    A message of b bytes takes ``latency`` + b / ``bandwidth`` seconds.  This is the α–β model of
    Hockney (1994, Parallel Computing 20): α is the latency, and β is 1 / bandwidth.

    * ``size`` is the number of bytes on each rank, such as those of all gradients.
    * ``ranks`` is 1 or more.  In the ring every rank sends one message after the other, each with
      one of ``ranks`` equal parts: ``ranks - 1`` until the sums are complete, and ``ranks - 1``
      until every rank has them.  All ranks send at the same time, and receiving takes no extra
      time.  A part may have a fraction of a byte here.
    * ``latency`` is in seconds, ``bandwidth`` in bytes per second.

    Returns seconds; 0 for one rank, which sends nothing.

    Example::

        all_reduce_time(1_000_000, 4, latency=10e-6, bandwidth=1e9)     # 0.00156

    Lesson: docs/lessons/cost
    """
    messages = 2 * (ranks - 1)
    return messages * (latency + size / ranks / bandwidth)


def step_time(
    forward: float,
    backward: Sequence[float],
    sizes: Sequence[float],
    ranks: int,
    *,
    latency: float,
    bandwidth: float,
) -> float:
    """Predict the seconds of one step with DDP, which sends gradients while backward goes on.

    DDP collects gradients in buckets.  When a bucket is complete, its all-reduce starts, and
    backward continues with the layers below at the same time.

    * Forward takes ``forward`` seconds.  Then backward takes ``backward[i]`` seconds until the
      gradients of bucket i are complete, one bucket after the other: bucket 0 is complete
      ``backward[0]`` seconds after backward began, bucket 1 ``backward[1]`` seconds later.
    * Bucket i has ``sizes[i]`` bytes.  There are as many sizes as times, at least one.
    * The all-reduce of a bucket takes your ``all_reduce_time`` for its bytes.  It starts when the
      bucket is complete, but not before the all-reduce of the bucket before has ended: they all
      use the same link.
    * The step ends when backward and all all-reduces have ended.  The optimizer is not counted.

    Returns seconds.

    Example, where an all-reduce of 1 MB takes 1 ms::

        step_time(0.010, [0.010, 0.010], [30e6, 5e6], 2, latency=0, bandwidth=1e9)
        # 0.055: bucket 0 is sent from 20 to 50 ms, and bucket 1, complete at 30 ms, from 50 to 55

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.

    Lesson: docs/lessons/cost
    """
    computed, sent = forward, 0.0  # when the computing so far ends, and when the link is free
    for seconds, size in zip(backward, sizes, strict=True):
        computed += seconds
        took = all_reduce_time(size, ranks, latency=latency, bandwidth=bandwidth)
        sent = max(computed, sent) + took
    return sent  # not before backward: the last bucket is complete when that ends


if __name__ == "__main__":
    from multigpu.scaling import links

    GPT2 = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn": 3072}
    TOKENS = 8 * 1024  # in a micro-batch
    FLOPS_PER_SECOND = 0.4 * 312e12  # of an A100's peak in bfloat16, 40 % are usual
    PARAMETERS = 124e6
    BUCKETS = 20  # of 25 MB each: gradients are float32

    try:
        writing = "flops_per_token"
        flops = TOKENS * flops_per_token(**GPT2, vocabulary=50_257, sequence=1024)
        seconds = flops / FLOPS_PER_SECOND
        print(f"GPT-2, {TOKENS:,} tokens: {flops / 1e12:.1f} TFLOP, {1e3 * seconds:.0f} ms")
        forward, backward = seconds / 3, [seconds * 2 / 3 / BUCKETS] * BUCKETS
        sizes = [4 * PARAMETERS / BUCKETS] * BUCKETS
        for link in links()[:2]:  # networks; within a machine, links are faster
            line = {"latency": 10e-6, "bandwidth": link.bytes_per_second}
            writing = "all_reduce_time"
            alone = all_reduce_time(sum(sizes), 8, **line)
            print(f"\n{link.name}: an all-reduce on 8 GPUs takes {1e3 * alone:.0f} ms")
            writing = "step_time"
            for ranks in (1, 2, 8, 64):
                step = step_time(forward, backward, sizes, ranks, **line)
                print(f"  {ranks:2} GPUs: {1e3 * step:4.0f} ms, efficiency {seconds / step:.0%}")
    except NotImplementedError:
        print(f"Next to write: {writing}. Check it with: multigpu check costs.{writing}")
