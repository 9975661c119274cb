"""How many bytes data parallelism sends, how long a link needs for them, and what that costs.

These are lower bounds: a real link has an overhead for each message, and is rarely as fast as its
data sheet. Compare them with what was measured.
"""

from __future__ import annotations

from multigpu.scaling.speed_up import at_least_one, positive, share


def all_reduce_bytes(world_size: int, size: float) -> float:
    """Bytes that each rank sends, and receives, in a ring all-reduce of `size` bytes.

    2 (n - 1) / n · size: 1 × with 2 ranks, 1.5 × with 4, never 2 ×.
    Source: Patarasuk and Yuan 2009, Journal of Parallel and Distributed Computing 69.
    """
    at_least_one(world_size)
    return 2 * (world_size - 1) / world_size * size


def server_bytes(workers: int, size: float) -> float:
    """Bytes through a model server's link in a step: 2 n · size.

    Each of n workers sends it gradients of `size` bytes and gets new weights of as many.
    Source: Li et al. 2014, OSDI.
    """
    at_least_one(workers)
    return 2 * workers * size


def all_reduce_seconds(
    world_size: int, size: float, *, bandwidth: float, latency: float = 0.0
) -> float:
    """Seconds of a ring all-reduce of `size` bytes over links of `bandwidth` bytes per second.

    `bandwidth` counts one direction, since a ring sends and receives at once. Each of the
    2 (n - 1) messages of a rank costs `latency` seconds on top (the alpha-beta model: Thakur et al.
    2005, International Journal of High Performance Computing Applications 19).
    """
    positive("bandwidth", bandwidth)
    messages = 2 * (world_size - 1)
    return all_reduce_bytes(world_size, size) / bandwidth + messages * latency


def step_seconds(
    compute: float,
    gpus: int,
    *,
    gradients: float,
    bandwidth: float,
    latency: float = 0.0,
    overlap: float = 0.0,
) -> float:
    """Seconds of one step with `gpus` GPUs when one GPU computes the same batch in `compute` s.

    The computing is divided by the number of GPUs, the bytes of `gradients` are not. `overlap` is
    the share of the computing during which gradients can travel: 0 is a DDP that waits until
    backward has ended; with DDP's buckets it is most of backward. What travels meanwhile is free.
    """
    positive("compute", compute)
    share("overlap", overlap)
    working = compute / gpus
    talking = all_reduce_seconds(gpus, gradients, bandwidth=bandwidth, latency=latency)
    return working + max(0.0, talking - overlap * working)


def communication_share(
    compute: float, gpus: int, *, gradients: float, bandwidth: float, latency: float = 0.0
) -> float:
    """The share of a step that goes into the all-reduce if nothing overlaps (see step_seconds)."""
    whole = step_seconds(compute, gpus, gradients=gradients, bandwidth=bandwidth, latency=latency)
    return 1 - compute / gpus / whole
