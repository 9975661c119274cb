"""Four programs that hang or return different results.  Find out why, and fix them.

Here the functions are written already, and each contains a common mistake.  With one rank all four
work.  With two or more, a rank waits for a call that another rank never makes, or ranks add up
numbers that do not belong together.

    multigpu check hangs.rank_zero_metric      which rank waits, in which line, for which rank
    multigpu hint hangs.rank_zero_metric       a hint; add --more for a stronger one
    python exercises/hangs.py                  run all four on three ranks

``torch.distributed`` is initialized before your code runs: ask ``dist.get_rank()`` and
``dist.get_world_size()``.  Put the tensors that you send on the device of the values or of the
model, so that the code also works with NCCL.

Read the lesson docs/lessons/when_it_hangs first.  You may not use ``torch.nn.parallel`` here:
``DistributedDataParallel`` and its ``join`` would hide the mistakes that you have to find.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank_zero_metric(values: Tensor) -> float:
    """Return the mean over the values of all ranks, on every rank.

    Rank 0 prints a metric.  The other ranks need it too, for example to choose the best
    epoch.

    * ``values`` has shape (count,) and a floating-point dtype: this rank's values, one or more.
      Ranks may hold different numbers of them.
    * The result is the mean of all values, in which each value counts once.  With different counts
      this is not the mean of the ranks' means.
    * Every rank gets the same number, as a Python ``float``.
    * ``values`` does not change.

    Example::

        # rank 0 holds [1.0, 2.0], rank 1 holds [6.0]
        rank_zero_metric(values)        # 3.0 on both

    Lesson: docs/lessons/when_it_hangs
    """
    total = torch.stack([values.sum(), values.new_tensor(len(values))])  # sum, count
    dist.all_reduce(total)  # every rank, also those that do not print
    return (total[0] / total[1]).item()


def uneven_batches(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    """Train on all batches of all ranks, although ranks hold different numbers of them.

    * ``batches`` is this rank's list of ``(inputs, targets)``.  Other ranks may have more or fewer,
      and a rank may have none.  All batches have the same number of rows.
    * The loss is the mean squared error, ``nn.functional.mse_loss(model(inputs), targets)``.
    * Step i uses batch i of every rank that has one.  There are as many steps as the longest list
      has batches, so every batch is used once.
    * In each step the gradients are averaged over ranks by hand, with ``torch.distributed``, and
      then every rank calls ``optimizer.step()`` once.  A rank without a batch takes part as well,
      and its gradient counts as zero.  You may divide by the number of all ranks or by the number
      of ranks that had a batch in this step.
    * All ranks start with the same weights and end with the same weights.  Every parameter is
      trained and used by every batch.  ``optimizer`` may have momentum.

    Returns nothing.

    Example::

        # rank 0 holds 3 batches, rank 1 holds 1, rank 2 holds none
        uneven_batches(model, batches, optimizer)       # 3 steps on every rank

    Lesson: docs/lessons/when_it_hangs
    """
    device = next(model.parameters()).device
    most = torch.tensor(len(batches), device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)  # so many steps on every rank
    for step in range(int(most)):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            if parameter.grad is None:  # no batch here: take part with zeros
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    """Sum each tensor over all ranks, in place.

    * ``tensors`` has the same names on every rank, with the same shapes, but the order may differ,
      because a dict keeps the order in which it was filled.
    * Afterwards ``tensors[name]`` holds, on every rank, the sum of what the ranks held under this
      name.  It is the same tensor object as before.
    * The tensors have any shape, even no dimension (a single number), and are contiguous.  All
      tensors in a dict have the same dtype.  The dict may be empty, but then it is so on all ranks.

    Returns nothing.

    Example::

        # rank 0 holds {"loss": tensor(1.0), "rows": tensor(5.0)}
        # rank 1 holds {"rows": tensor(7.0), "loss": tensor(2.0)}
        reordered_reductions(tensors)   # "loss" is 3.0 and "rows" is 12.0 on both

    Lesson: docs/lessons/when_it_hangs
    """
    for name in sorted(tensors):  # an order that does not depend on how a rank filled its dict
        dist.all_reduce(tensors[name])


def early_stop(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    should_stop: Callable[[float], bool],
) -> int:
    """Train until any rank wants to stop, and stop on all ranks after the same step.

    * ``batches`` is this rank's list of ``(inputs, targets)``, one or more.  Every rank holds the
      same number of batches, and all batches have the same number of rows.
    * In a step, each rank computes the mean squared error of its batch and runs backward.  Then the
      gradients are averaged over all ranks by hand, and each rank calls ``optimizer.step()``.
    * In every step each rank calls ``should_stop(loss)`` with its own loss of this step, as a
      Python ``float`` (the loss from before ``optimizer.step()``).
    * As soon as ``should_stop`` is true on any rank, all ranks stop after this step.  All ranks
      still complete the step, ``optimizer.step()`` included.
    * All ranks start with the same weights, so they end with the same weights.  Every parameter is
      trained and used by every batch.  ``optimizer`` may have momentum.

    Returns the number of completed steps, the same on every rank.  It is ``len(batches)`` if no
    rank wanted to stop.

    Example::

        # 10 batches on every rank; in step 4 the loss of rank 1 falls below 0.1
        early_stop(model, batches, optimizer, lambda loss: loss < 0.1)      # 4 on every rank

    Lesson: docs/lessons/when_it_hangs
    """
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        stop = torch.tensor(int(should_stop(loss.item())), device=loss.device)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)  # 1 if any rank wants to stop
        if stop:
            return step
    return len(batches)


if __name__ == "__main__":
    # Each function on three ranks: what it returns, or which rank waits for which.
    from multigpu import RankError, run_ranks

    def training(count):
        """A small model, ``count`` batches of this rank's own, and an optimizer."""
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        torch.manual_seed(dist.get_rank())
        batches = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(count)]
        return model, batches, torch.optim.SGD(model.parameters(), lr=0.1)

    def metric():
        """Rank 0 holds the values 1 and 2, rank 1 holds 1 to 3, rank 2 holds 1 to 4."""
        return rank_zero_metric(torch.arange(1.0, dist.get_rank() + 3))

    def uneven():
        """Rank 0 has 4 batches, rank 1 has 3, rank 2 has 2."""
        model, batches, optimizer = training(count=4 - dist.get_rank())
        uneven_batches(model, batches, optimizer)
        return model.weight.tolist()

    def reordered():
        """Rank 1 has filled its dict in another order."""
        tensors = {"confusion": torch.ones(3, 3), "loss": torch.ones(()), "rows": torch.ones(())}
        if dist.get_rank() == 1:
            tensors = dict(reversed(tensors.items()))
        reordered_reductions(tensors)
        return {name: tensor.tolist() for name, tensor in sorted(tensors.items())}

    def stopping():
        """Rank 1 wants to stop after its second step."""
        losses = []

        def should_stop(loss):
            losses.append(loss)
            return dist.get_rank() == 1 and len(losses) == 2

        return early_stop(*training(count=5), should_stop)

    for program in (metric, uneven, reordered, stopping):
        print(f"\n{program.__name__}: {program.__doc__}")
        try:
            for rank, result in enumerate(run_ranks(program, 3, show=False)):
                print(f"  rank {rank}: {result}")
        except RankError as error:
            print(error)
