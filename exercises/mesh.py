"""Two and three dimensions: which ranks belong together, and over which of them to average.

A large model is divided in several ways at once.  Each rank then has a place in a mesh, a grid of
ranks, and belongs to one group in each direction:

    tp    ranks that divide the layers among themselves (tensor parallelism)
    dp    ranks with the same part of the model and different rows (data parallelism)
    pp    ranks that are the stages of one pipeline (pipeline parallelism)

You write which ranks are in which group, and the average of the gradients over one of them.

    multigpu check mesh.groups_of       check one function
    multigpu hint mesh.groups_of        a hint; add --more for a stronger one
    python exercises/mesh.py            show your groups, and train in two of them

Read the lesson docs/lessons/mesh first.  ``groups_of`` is plain arithmetic.  ``average_over`` runs
on ranks: ``torch.distributed`` is initialized when your code runs.  You may not use
``torch.nn.parallel``, ``torch.distributed.algorithms``, ``torch.distributed.optim`` or
``torch.distributed.fsdp``.
"""

import torch
import torch.distributed as dist
from torch import nn


def groups_of(world_size: int, *, tp: int, pp: int) -> dict[str, list[list[int]]]:
    """List the ranks of every group of a mesh with the directions "pp", "dp" and "tp".

    * ``tp`` ranks divide each layer among themselves, and ``pp`` ranks are the stages of a
      pipeline.  Both are whole numbers of 1 or more.  The rest is data parallelism: dp is
      world_size / (tp * pp).
    * A rank's number follows from its place, so that tp changes fastest and pp slowest::

          rank = (pp_index * dp + dp_index) * tp + tp_index

      ``init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))`` numbers ranks in
      the same way.
    * A group of one direction has all ranks that differ only in this direction's index.  So each
      rank is in exactly one group of each direction.
    * Returns a dict with the keys "dp", "tp" and "pp".  Each value is the list of all groups of
      that direction, and a group is the list of its ranks in ascending order.  The groups may come
      in any order.  A direction of size 1 has groups of one rank.
    * Raises ValueError if tp * pp does not divide world_size.

    It is a plain function without messages, and all ranks call it with the same numbers.

    Example::

        groups_of(8, tp=2, pp=2)
        # {"dp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        #  "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        #  "pp": [[0, 4], [1, 5], [2, 6], [3, 7]]}

    Source: torch/distributed/device_mesh.py, ``init_device_mesh``.

    Lesson: docs/lessons/mesh
    """
    raise NotImplementedError


def average_over(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Replace every gradient by its mean over the ranks of one group.

    * ``group`` is a process group that this rank is in, as ``dist.new_group`` or
      ``mesh.get_group("dp")`` returns it.  All ranks of the group call the function together.  All
      have a model of the same kind, and each has called ``backward()`` on its own rows.
    * Afterwards the ``.grad`` of every trainable parameter is, on each rank of the group, the sum
      over the ranks of the group divided by their number.
    * Nothing is exchanged with ranks of other groups.  These may call the function at the same time
      for their own group, with a model of another kind, or do something else.
    * A rank that did not use a parameter has ``None`` there.  It counts as zero, the sum is still
      divided by the number of ranks in the group, and afterwards that rank has the mean too.
    * If no rank of the group has a gradient, it may stay ``None`` or become zeros.
    * Frozen parameters (``requires_grad=False``) are not sent.  The same ones are frozen on all
      ranks of the group.
    * A parameter with two names (tied weights) counts once.
    * Each rank sends at most twice the bytes of its trainable parameters' gradients, where an
      all-reduce counts once, and 8 bytes more for each parameter.
    * Only gradients change, never a weight.  Parameters may have different dtypes, and each
      gradient has its parameter's.

    Returns nothing.

    Example::

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        # say weight.grad is 1.0, 2.0, 3.0 and 4.0 on ranks 0 to 3
        average_over(model, mesh.get_group("dp"))
        model.weight.grad       # 2.0 on ranks 0 and 2, 3.0 on ranks 1 and 3

    Lesson: docs/lessons/mesh
    """
    raise NotImplementedError


if __name__ == "__main__":
    from multigpu import RankError, run_ranks

    def train(world: bool) -> float:
        """Two experiments on four ranks, in groups of two; the weight that this rank ends with."""
        # Every rank makes every group, and keeps its own.
        groups = [dist.new_group(ranks) for ranks in groups_of(4, tp=2, pp=1)["dp"]]
        mine = dist.new_group() if world else groups[dist.get_rank() % 2]
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # Ranks 0 and 2 learn to multiply by about 1, ranks 1 and 3 by about 10.
        rows = torch.ones(4, 1)
        targets = rows * (10.0 if dist.get_rank() % 2 else 1.0) + 0.1 * dist.get_rank()
        for _ in range(50):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            average_over(model, mine)
            optimizer.step()
        return model.weight.item()

    try:
        for direction, groups in groups_of(8, tp=2, pp=2).items():
            print(f"8 ranks, {direction}: {groups}")
        print("Ranks 0 and 2 hold one part of a model, ranks 1 and 3 the other part.")
        for name, world in (("their own group", False), ("the whole world", True)):
            weights = run_ranks(train, 4, world, backend="gloo", show=False)
            print(f"averaged over {name}: weights", *(f"{weight:.2f}" for weight in weights))
    except NotImplementedError:
        print("Next to write: groups_of. Check it with: multigpu check mesh.groups_of")
    except RankError as error:
        if "NotImplementedError" not in str(error):
            raise SystemExit(str(error)) from None
        print("Next to write: average_over. Check it with: multigpu check mesh.average_over")
