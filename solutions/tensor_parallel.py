"""Tensor parallelism: every rank computes a part of every layer.

The ranks hold different columns of the same weights, and all of them see every row of the batch:

    ColumnParallelLinear         whole inputs, and a part of the outputs on each rank
    RowParallelLinear            a part of the inputs on each rank, and whole outputs
    vocab_parallel_cross_entropy the loss, if each rank has the scores of a part of the vocabulary

A column-parallel layer, an activation function and a row-parallel layer are a transformer's MLP
(the perceptron of the lesson), which then sends one all-reduce in forward and one in backward.

``torch.distributed`` is initialized when your code runs, and all ranks take part (the default
group).  All ranks call your code in the same order.

    multigpu check tensor_parallel.ColumnParallelLinear   check one class
    multigpu hint tensor_parallel.ColumnParallelLinear    a hint; add --more for a stronger one
    python exercises/tensor_parallel.py                   split a small network, and compare

Read the lesson docs/lessons/tensor_parallel first.  You build these here, so you may not use
``torch.distributed.tensor``.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank computes its part of the outputs.

    * ``ColumnParallelLinear(linear)`` takes an ``nn.Linear``, which is the same on all n ranks and
      stays as it is.  n divides ``linear.out_features``.
    * Its parameters are called ``weight`` and ``bias``, as in ``nn.Linear``.  Cut the outputs into
      n equal parts, in order: rank r keeps the rows of ``linear.weight`` (out, in) and the entries
      of ``linear.bias`` for part r.  So ``weight`` is (out / n, in) and ``bias`` is (out / n).
      Without ``linear.bias``, ``bias`` is None.  A frozen parameter (``requires_grad=False``) of
      ``linear`` is frozen here.
    * It keeps nothing of the other ranks' parts: when the caller deletes ``linear``, their memory
      is free.
    * It is called with inputs (..., in), which are the same on all ranks, and returns (..., out/n),
      this rank's part of ``linear(inputs)``.  The inputs stay as they are.  In forward the ranks
      send nothing.
    * Backward: each rank has the gradient of its part of the outputs.  The gradient that goes back
      through this layer to the inputs is that of ``linear``, on every rank, so it is summed over
      the ranks.  Inputs that are also used elsewhere, as in ``x + layer(x)``, get the sum of both
      gradients as usual; only the one through this layer is summed over the ranks.
    * Backward sends no more bytes than one all-reduce of this gradient.  ``weight.grad`` and
      ``bias.grad`` stay on their rank.  If the inputs need no gradient, nothing is sent.
    * It works in the dtype of ``linear``, and may be called several times before backward.

    Example::

        # two ranks, linear = nn.Linear(4, 6)
        layer = ColumnParallelLinear(linear)
        layer(torch.ones(5, 4))     # (5, 3): on rank 0 linear(...)[:, :3], on rank 1 [:, 3:]

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; "f" in its figure 3.

    Lesson: docs/lessons/tensor_parallel
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = _part_of(linear.weight, dim=0)
        self.bias = None if linear.bias is None else _part_of(linear.bias, dim=0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute this rank's outputs from the whole inputs."""
        inputs = _SumInBackward.apply(inputs)  # type: ignore[no-untyped-call]
        return F.linear(inputs, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer to which each rank brings its part of the inputs.

    * ``RowParallelLinear(linear)`` takes an ``nn.Linear``, which is the same on all n ranks and
      stays as it is.  n divides ``linear.in_features``.
    * Its parameters are called ``weight`` and ``bias``, as in ``nn.Linear``.  Cut the inputs into n
      equal parts, in order: rank r keeps the columns of ``linear.weight`` (out, in) for part r, so
      ``weight`` is (out, in / n).  Every rank keeps a copy of the whole ``bias`` (out), or None.  A
      frozen parameter of ``linear`` is frozen here.
    * It keeps nothing of the other ranks' parts: when the caller deletes ``linear``, their memory
      is free.
    * It is called with inputs (..., in / n): rank r has part r, as ``ColumnParallelLinear`` returns
      it.  Every rank gets the same outputs (..., out): what ``linear`` returns for all parts
      together.  So the bias counts once, not n times.  The inputs stay as they are.
    * Forward sends no more bytes than one all-reduce of the outputs.
    * Backward: all ranks do the same with the outputs, so every rank has the gradient of the whole
      outputs already, and backward sends nothing.  ``weight.grad`` and the gradient of the inputs
      are this rank's part of those of ``linear``; ``bias.grad`` is that of ``linear`` on every
      rank.
    * It works in the dtype of ``linear``, and may be called several times before backward.

    Example::

        # two ranks, linear = nn.Linear(6, 4)
        layer = RowParallelLinear(linear)
        layer(inputs[:, :3] if rank == 0 else inputs[:, 3:])    # linear(inputs) on both ranks

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; "g" in its figure 3.

    Lesson: docs/lessons/tensor_parallel
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = _part_of(linear.weight, dim=1)
        self.bias = None if linear.bias is None else _copy_of(linear.bias, linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the whole outputs from this rank's inputs."""
        share = F.linear(inputs, self.weight)
        outputs: Tensor = _SumInForward.apply(share)  # type: ignore[no-untyped-call]
        return (
            outputs if self.bias is None else outputs + self.bias
        )  # after the sum: it counts once


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, first: int) -> Tensor:
    """Compute the mean cross-entropy loss, with the logits of a part of the vocabulary per rank.

    * ``logits`` are this rank's scores (rows, local vocabulary), float32 or float64: those of the
      words ``first``, ``first + 1`` and so on.  Each word of the vocabulary is on one rank.  The
      ranks may have different numbers of words, at least one each, and the words of rank 0 need not
      be the first.
    * ``targets`` (rows), of int64, are the same on all ranks: the right word of each row, which is
      on any rank.
    * Returns on every rank the same number, of the dtype of ``logits``: what
      ``F.cross_entropy(whole_logits, targets)`` would return, the mean over the rows.
    * The ranks do not send their logits to each other: for each row, a rank gives at most eight
      numbers to ``torch.distributed`` in forward and backward together, whatever the size of the
      vocabulary.  Three are enough.
    * Logits may be so large that ``exp`` of them is infinite, or so small that it is zero, on all
      ranks or on some.  They are finite.
    * Backward: all ranks do the same with the loss.  Each rank's logits get their part of the
      gradient that the whole logits would get, also if the loss is multiplied by something first.
    * ``logits`` and ``targets`` stay as they are.

    Example::

        # two ranks, a vocabulary of ten words: rank 0 has words 0 to 5, rank 1 has 6 to 9
        first = 0 if rank == 0 else 6
        loss = vocab_parallel_cross_entropy(logits, targets, first)

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Megatron-LM,
    ``megatron/core/tensor_parallel/cross_entropy.py``.

    Lesson: docs/lessons/tensor_parallel
    """
    largest = logits.detach().amax(dim=1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits - largest.unsqueeze(1)  # (rows, local vocabulary), 0 at most
    columns = targets - first
    is_here = (columns >= 0) & (columns < logits.shape[1])
    columns = columns.clamp(0, logits.shape[1] - 1)  # some column, where the word is elsewhere
    scores = shifted.gather(1, columns.unsqueeze(1)).squeeze(1) * is_here
    # All ranks have the gradient of these sums: backward need not send anything.
    both = torch.stack([shifted.exp().sum(dim=1), scores])
    sums, scores = _SumInForward.apply(both)  # type: ignore[no-untyped-call]
    loss: Tensor = (sums.log() - scores).mean()
    return loss


class _SumInBackward(torch.autograd.Function):
    """Megatron's f: forward changes nothing, backward sums the gradient over the ranks."""

    @staticmethod
    def forward(ctx: object, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return _summed(gradient)


class _SumInForward(torch.autograd.Function):
    """Megatron's g: forward sums over the ranks, backward changes nothing."""

    @staticmethod
    def forward(ctx: object, outputs: Tensor) -> Tensor:
        return _summed(outputs)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _part_of(whole: Tensor, dim: int) -> nn.Parameter:
    """This rank's part, as a parameter of its own."""
    return _copy_of(whole.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()], whole)


def _copy_of(values: Tensor, like: Tensor) -> nn.Parameter:
    """Not a view, which would keep the memory of the whole."""
    return nn.Parameter(values.detach().clone(), requires_grad=like.requires_grad)


if __name__ == "__main__":
    # A small network on one rank and on two: losses, weights and what the ranks send.
    from functools import partial

    from multigpu import RankError, run_ranks

    def train(split: int) -> tuple[list[float], int]:
        """Split so many of: the first layer, the second, the loss.  Losses, and weights held."""
        torch.manual_seed(0)
        first, second, words = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 12)
        rank, size = dist.get_rank(), dist.get_world_size()
        layers = [
            ColumnParallelLinear(first) if split > 0 else first,
            RowParallelLinear(second) if split > 1 else second,
            ColumnParallelLinear(words) if split > 2 else words,
        ]
        weights = [weight for layer in layers for weight in layer.parameters()]
        optimizer = torch.optim.SGD(weights, 0.5)
        # The inputs need a gradient, as if another layer were in front, so f has something to sum.
        inputs, targets = torch.randn(6, 8, requires_grad=True), torch.randint(12, (6,))
        losses = []
        for _ in range(5):
            hidden = layers[0](inputs).tanh()
            if split == 1:  # the second layer is whole: it needs the other rank's part, too
                parts = [torch.empty_like(hidden) for _ in range(size)]
                dist.all_gather(parts, hidden.detach())
                parts[rank] = hidden
                hidden = torch.cat(parts, dim=-1)
            logits = layers[2](layers[1](hidden))
            if split > 2:
                loss = vocab_parallel_cross_entropy(logits, targets, logits.shape[1] * rank)
            else:
                loss = F.cross_entropy(logits, targets)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return losses, sum(weight.numel() for weight in weights)

    names = "ColumnParallelLinear", "RowParallelLinear", "vocab_parallel_cross_entropy"
    start = partial(run_ranks, backend="gloo", show=False)
    print(f"{'':30} {'losses of five steps':25} weights of a rank   given to all_reduce")
    for split, name in enumerate(("whole, on one rank", *names)):
        try:
            ran = start(train, 1 if split == 0 else 2, split)
        except RankError as error:
            if "NotImplementedError" not in repr(error):
                raise
            print(f"Next to write: {name}. Check it with: multigpu check tensor_parallel.{name}")
            break
        (losses, held), trace = ran[0], ran.trace
        given = sum(call.bytes for call in trace.collectives(0) if call.op == "all_reduce")
        shown = " ".join(f"{loss:.2f}" for loss in losses)
        print(f"{'+ ' * bool(split) + name:30} {shown:25} {held:17} {given:19} B")
