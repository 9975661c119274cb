"""Plan a run before you book the machines: what fits on a GPU, and which layout is fastest.

A layout says how a model is divided.  ``dp`` replicas each train on other rows (data parallelism);
a replica is cut into ``pp`` stages of layers (a pipeline); and each layer's matrices are cut into
``tp`` parts (tensor parallelism).  Together they use dp · tp · pp GPUs.

    memory_per_gpu      bytes that a GPU must hold in a layout
    best_layout         the fastest of all layouts that fit

Both are plain functions: they need no GPU and start no ranks.

    multigpu check planning.best_layout     check one function
    multigpu hint planning.best_layout      a hint; add --more for a stronger one
    python exercises/planning.py            plan Llama 3 8B on 64 H100 with your code

Read the lesson docs/lessons/planning first.
"""

from collections.abc import Callable


def memory_per_gpu(
    num_parameters: int, *, dp: int, tp: int, pp: int, zero: int, activation_bytes: int
) -> int:
    """Count the bytes that one GPU holds while it trains in mixed precision with Adam.

    * Tensor and pipeline parallelism divide all parameters: a GPU has one of tp · pp parts of
      ``num_parameters``, rounded up where they do not divide evenly.
    * For each parameter of this part, training holds 16 bytes: 2 for the weight, 2 for its
      gradient, and 12 for the optimizer's state (a copy of the weight, and Adam's two numbers, in
      float32).
    * ZeRO divides among the ``dp`` replicas: stage 1 the optimizer's state, stage 2 also the
      gradients, stage 3 also the weights.  A GPU holds what is divided for only one of dp parts of
      its parameters, rounded up again.  With ``zero=0`` nothing is divided.
    * ``activation_bytes`` is the number of bytes that the GPU's activations take; it is added.

    Returns bytes.

    Example::

        memory_per_gpu(1000, dp=4, tp=2, pp=1, zero=1, activation_bytes=50)
        # 3550: 500 parameters of 4 bytes, the state of 125 of 12 bytes, and 50

    Source: Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, section 5.

    Lesson: docs/lessons/planning
    """
    mine = -(-num_parameters // (tp * pp))  # rounded up, in whole numbers
    divided = -(-mine // dp)
    weights = 2 * (divided if zero >= 3 else mine)
    gradients = 2 * (divided if zero >= 2 else mine)
    state = 12 * (divided if zero >= 1 else mine)
    return weights + gradients + state + activation_bytes


def best_layout(
    gpus: int,
    gpus_per_node: int,
    memory: float,
    time_of: Callable[[int, int, int], float],
    memory_of: Callable[[int, int, int], float],
) -> tuple[int, int, int] | None:
    """Find the fastest layout (dp, tp, pp) of ``gpus`` GPUs that fits into their memory.

    * A layout uses all GPUs: dp · tp · pp is ``gpus``, and each of the three is 1 or more.
    * Tensor parallelism needs the fast links inside a node: neighboring GPUs are in the same tp
      group, and no group may reach into another node.  So ``tp`` divides ``gpus_per_node``.
    * ``memory_of(dp, tp, pp)`` gives the bytes that a GPU needs.  A layout fits if these are at
      most ``memory``.
    * ``time_of(dp, tp, pp)`` gives the seconds of a step.  The smallest wins.  Of equally fast
      layouts take one with the fewest stages, the smallest ``pp``.  If several are left, any will
      do.

    Both functions may be called for every layout that uses all GPUs, and for no other.  Either may
    give ``math.inf`` for a layout that is not possible.

    Returns (dp, tp, pp), or None if nothing fits.

    Example::

        def time_of(dp, tp, pp):
            return 1.0 + pp

        def memory_of(dp, tp, pp):
            return 64 / (tp * pp)

        best_layout(8, 4, 16.0, time_of, memory_of)     # (2, 4, 1)
        best_layout(8, 4, 8.0, time_of, memory_of)      # (1, 4, 2)
        best_layout(8, 4, 4.0, time_of, memory_of)      # None

    Lesson: docs/lessons/planning
    """
    fitting = [
        (time_of(gpus // tp // pp, tp, pp), pp, tp)
        for tp in range(1, gpus_per_node + 1)
        for pp in range(1, gpus + 1)
        if gpus_per_node % tp == 0
        and gpus % (tp * pp) == 0
        and memory_of(gpus // tp // pp, tp, pp) <= memory
    ]
    if not fitting:
        return None
    _, pp, tp = min(fitting)
    return gpus // tp // pp, tp, pp


if __name__ == "__main__":
    from multigpu.scaling.plan import Layout, plan
    from multigpu.scaling.specs import cluster_of, model_of

    MODEL, CLUSTER = model_of("llama-3-8b"), cluster_of("H100", gpus=64)
    GIB = 2**30

    def planned(dp: int, tp: int, pp: int):
        layout = Layout(dp=dp, tp=tp, pp=pp, zero=1, recompute="selective")
        return plan(MODEL, CLUSTER, layout, global_batch=256)

    def time_of(dp: int, tp: int, pp: int) -> float:
        try:
            return planned(dp, tp, pp).step_seconds
        except ValueError:  # more stages than layers
            return float("inf")

    def memory_of(dp: int, tp: int, pp: int) -> float:
        try:
            activations = planned(dp, tp, pp).memory["activations"]
        except ValueError:
            return float("inf")
        sizes = {"dp": dp, "tp": tp, "pp": pp}
        return memory_per_gpu(
            MODEL.parameters, **sizes, zero=1, activation_bytes=round(activations)
        )

    try:
        writing = "memory_per_gpu"
        for tp, pp in ((1, 1), (8, 1), (1, 8)):
            held = memory_of(64 // tp // pp, tp, pp) / GIB
            print(f"dp {64 // tp // pp:2}, tp {tp}, pp {pp}: {held:5.1f} GiB")
        writing = "best_layout"
        found = best_layout(64, 8, 75 * GIB, time_of, memory_of)
        print(f"the fastest (dp, tp, pp) that fits into 75 GiB: {found}")
        if found:
            print(f"a step of {256 * MODEL.seq:,} tokens takes {time_of(*found):.2f} s")
    except NotImplementedError:
        print(f"Next to write: {writing}. Check it with: multigpu check planning.{writing}")
