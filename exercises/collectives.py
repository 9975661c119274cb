"""Collectives by hand: operations of all ranks together, made of messages between two ranks.

``torch.distributed`` has such operations ready-made.  Here you build four of them from nothing but
messages between two ranks.  The last one, a ring, is among the methods that NCCL uses on GPUs:

    shift               every rank passes its tensor to the next one
    broadcast           every rank gets the tensor of one rank
    all_reduce          every rank gets the sum of all tensors, by any method
    ring_all_reduce     the same in small chunks around a ring, so that all ranks send equally much

Every function is called by all ranks at the same time, each in its own process.
``torch.distributed`` is initialized already: ``dist.get_rank()`` gives the number of your rank, and
``dist.get_world_size()`` the number of ranks.

    multigpu check collectives.shift        check one function
    multigpu hint collectives.shift         a hint; add --more for a stronger one
    python exercises/collectives.py         watch your functions send real rows

Read the lesson docs/lessons/processes_and_ranks first, then docs/lessons/server_to_all_reduce.
You may use messages between two ranks: ``dist.send``, ``recv``, ``isend``, ``irecv`` and
``batch_isend_irecv``.  The collectives of ``torch.distributed`` are not allowed, because you build
them here: ``dist.all_reduce``, ``dist.broadcast``, ``dist.barrier`` and all others.

Wait for each handle that ``isend`` or ``irecv`` returns (``handle.wait()``), and do not write into
a tensor that is being sent before that.  With NCCL, read *On real GPUs* in the first lesson, too.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    """Send a tensor to the next rank, and return the one that the rank before has sent.

    * The ranks form a ring: rank r sends to rank r + 1, and the last rank sends to rank 0.  So rank
      r gets the tensor of rank r - 1, and rank 0 gets that of the last rank.
    * All ranks call it at the same time, with tensors of one shape and dtype but with different
      numbers.  Any shape is possible, even without dimensions or elements.  Tensors are contiguous:
      their numbers are side by side in memory, row after row.
    * It must not hang.  ``dist.send`` may wait until the receiver takes the message, so if all
      ranks send first, all of them wait forever.
    * ``tensor`` itself does not change.  The result is a new tensor with memory of its own.
    * With one rank the result is a copy of ``tensor``.

    Returns a tensor of the same shape and dtype.

    Example::

        # three ranks hold tensor([0.]), tensor([1.]) and tensor([2.])
        shift(tensor)
        # rank 0 gets tensor([2.]), rank 1 gets tensor([0.]), rank 2 gets tensor([1.])

    Lesson: docs/lessons/processes_and_ranks
    """
    raise NotImplementedError


def broadcast(tensor: Tensor, src: int) -> None:
    """Copy the numbers of one rank's tensor to all ranks.

    This is an operation between processes.  ``data_parallel.broadcast``, which has the same name,
    copies a whole model to other GPUs within one process.  ``src`` is the source, also called root.

    * Afterwards ``tensor`` holds on every rank what it held on rank ``src`` before.  On rank
      ``src`` it does not change.
    * All ranks call it at the same time, with the same ``src``, which may be any rank, and with
      tensors of one shape and dtype.  Any shape is possible, even without dimensions or elements.
      Tensors are contiguous.
    * Write into the tensor that you were given: it keeps its memory, and a view of it sees the new
      numbers.  ``tensor = ...`` only assigns another tensor to your variable.
    * You decide which rank sends to which.  With one rank there is nothing to do.

    Returns nothing.

    Example::

        # three ranks hold tensor([0.]), tensor([1.]) and tensor([2.])
        broadcast(tensor, src=1)
        # now all of them hold tensor([1.])

    Lesson: docs/lessons/processes_and_ranks
    """
    raise NotImplementedError


def all_reduce(tensor: Tensor) -> None:
    """Add up the tensors of all ranks, and leave the sum on every rank, by any method.

    * Afterwards ``tensor`` holds on every rank the sum of the tensors of all ranks, each counted
      once.
    * All ranks call it at the same time, with tensors of one shape and dtype but with different
      numbers.  Sums of integers must be exact, so do not add in another dtype.  Any shape is
      possible, even without dimensions or elements.  Tensors are contiguous.
    * Write into the tensor that you were given: it keeps its memory, and a view of it sees the sum.
    * With one rank the sum is the tensor itself.

    Returns nothing.  You may call the functions above.

    Example::

        # three ranks hold tensor([0.]), tensor([1.]) and tensor([2.])
        all_reduce(tensor)
        # now all of them hold tensor([3.])

    Lesson: docs/lessons/server_to_all_reduce
    """
    raise NotImplementedError


def ring_all_reduce(tensor: Tensor) -> None:
    """Add up the tensors of all ranks on every rank, in chunks that travel around a ring.

    The tensor is cut into n chunks, one per rank.  In the first n - 1 steps (reduce-scatter) every
    rank sends one chunk to its neighbor and adds the chunk that arrives to its own.  Then each rank
    holds one chunk with the sum of all ranks.  In the next n - 1 steps (all-gather) these finished
    chunks travel around the ring.  In every step all links carry the same number of elements, if
    the number of elements is divisible by n.

    * Afterwards ``tensor`` holds on every rank the sum of the tensors of all ranks.
    * All ranks call it at the same time, with tensors of one shape and dtype but with different
      numbers.  Sums of integers must be exact.  Any shape and any number of elements is possible: a
      number that is not divisible by n, fewer elements than n, none at all, or no dimension.
      Tensors are contiguous.
    * Write into the tensor that you were given: it keeps its memory, and a view of it sees the sum.
    * Only neighbors communicate: rank r sends to rank r + 1 or to rank r - 1.  The last rank and
      rank 0 are neighbors too.
    * A rank sends at most 2 (n - 1) messages in one call, each of at most ceil(size / n) elements,
      where size is the number of elements of ``tensor``.  Messages without any element may be left
      out or sent.
    * With one rank there is nothing to do.

    Returns nothing.

    Example::

        # two ranks hold tensor([1., 2., 3.]) and tensor([10., 20., 30.]); chunks of 2 and 1
        ring_all_reduce(tensor)
        # both hold tensor([11., 22., 33.]); each has sent 2 messages, of 2 and of 1 element

    Lesson: docs/lessons/server_to_all_reduce
    """
    raise NotImplementedError


if __name__ == "__main__":
    # What your functions do with handwritten digits on three ranks, as far as they go.
    from multigpu import RankError, run_ranks
    from multigpu.data import digits
    from multigpu.training.models import SmallCNN

    images, labels = digits().train[:300]

    def own_rows() -> slice:
        """A hundred rows for each rank."""
        return slice(100 * dist.get_rank(), 100 * dist.get_rank() + 100)

    def pass_on_a_label() -> str:
        mine = labels[dist.get_rank() + 3]
        return f"had the digit {mine.item()}, received {shift(mine).item()}"

    def start_alike() -> str:
        torch.manual_seed(dist.get_rank())
        weights = torch.randn(3)
        before = weights.clone()
        broadcast(weights, src=0)
        return f"started with the weights {before}, now has {weights}"

    def count_digits() -> str:
        counts = labels[own_rows()].bincount(minlength=10)
        own = counts.tolist()
        all_reduce(counts)
        return f"counted {own}, sum over all ranks {counts.tolist()}"

    def add_gradients() -> str:
        torch.manual_seed(0)  # the same weights on every rank
        model = SmallCNN()
        rows = own_rows()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        gradient = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
        own = gradient.norm().item()
        ring_all_reduce(gradient)
        return f"{len(gradient)} numbers, own norm {own:.4f}, norm of the sum {gradient.norm():.4f}"

    for name, demonstration in {
        "shift": pass_on_a_label,
        "broadcast": start_alike,
        "all_reduce": count_digits,
        "ring_all_reduce": add_gradients,
    }.items():
        try:
            results = run_ranks(demonstration, 3, show=False)
        except RankError as error:
            if "NotImplementedError" not in str(error):
                raise SystemExit(f"{name}: {error}") from None
            print(f"Next to write: {name}. Check it with: multigpu check collectives.{name}")
            break
        print(f"{name}, on three ranks")
        for rank, result in enumerate(results):
            print(f"  rank {rank} {result}")
        print(results.trace.traffic().text(), end="\n\n")
