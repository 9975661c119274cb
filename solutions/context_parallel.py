"""Long sequences: each rank has a part of one sequence, and attention needs all of it.

A rank computes everything for its own tokens alone, with one exception: in attention its queries
meet the keys and values of all ranks.  These travel around a ring, block by block.  Besides its own
tensors a rank has at most two blocks in forward: the one in use and the one arriving.

    merge_partial_attention    attention over two sets of keys, from the results for each of them
    ring_attention             attention over a sequence that is split over the ranks

``merge_partial_attention`` needs one process.  For ``ring_attention``, ``torch.distributed`` is
initialized when your code runs.

    multigpu check context_parallel.ring_attention      check one function
    multigpu hint context_parallel.ring_attention       a hint; add --more for a stronger one
    python exercises/context_parallel.py                compare your functions with one process

Read the lesson docs/lessons/long_sequences first.  You build these here, so you may not use
``torch.distributed.tensor``, which has ring attention ready-made.
"""

import math
from collections.abc import Iterator  # solution only
from typing import Any  # solution only

import torch
import torch.distributed as dist
from torch import Tensor


def merge_partial_attention(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys, from the partial result for each set.

    For one query and a set of keys, attention computes scores s, one per key, and from them::

        out = sum of softmax(s)_j * value_j        lse = log(sum of exp(s_j))

    ``lse`` is the log-sum-exp, with the natural logarithm.  From ``out`` and ``lse`` for the set a
    and for the set b, compute both for all keys of a and b together.

    * ``out_a`` and ``out_b`` have the shape (..., queries, width), with any number of dimensions in
      front.  ``lse_a`` and ``lse_b`` have the shape (..., queries).
    * Returns ``(out, lse)`` in the shapes and dtypes of ``out_a`` and ``lse_a``.
    * An ``lse`` of minus infinity means that the set has no keys for this query, and then its
      ``out`` is zero.  If both sets have none, the result is zero and minus infinity, not NaN.
    * All other numbers are finite.  ``lse`` may be large, such as 1000 or -1000, and differ much
      from query to query.
    * ``out`` and ``lse`` have the same dtype, but for bfloat16 or float16 ``out`` the ``lse`` is
      float32.  Compute with it in float32 then.
    * The arguments stay as they are.  No gradients are needed.

    Example::

        # one query; set a has 3 keys with score 0, set b one key with score 0
        out, lse = merge_partial_attention(
            torch.tensor([[4.0]]), torch.tensor([3.0]).log(),
            torch.tensor([[8.0]]), torch.tensor([1.0]).log(),
        )
        # out is tensor([[5.]]), lse is tensor([1.3863]), which is log(4)

    Source: Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135.

    Lesson: docs/lessons/long_sequences
    """
    lse = torch.logaddexp(lse_a, lse_b)
    # Minus infinity minus itself would be NaN; zero in its place gives both sets the weight 0.
    base = lse.masked_fill(lse == -math.inf, 0)
    weight_a, weight_b = (torch.exp(own - base).unsqueeze(-1) for own in (lse_a, lse_b))
    return (weight_a * out_a + weight_b * out_b).to(out_a.dtype), lse


def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Attention over a sequence of which every rank has a part.

    Query i gets the mean of all values of the whole sequence, weighted with
    ``softmax(q_i · k_j / sqrt(width))`` over all keys j.  With ``causal`` these are only the keys
    with j <= i.

    * ``q``, ``k`` and ``v`` have the shape (batch, heads, local sequence, width).  The sequence is
      split in rank order: rank 0 has the first positions, rank 1 the next ones, and so on.  With
      ``causal``, i and j are positions in the whole sequence.
    * All ranks call it at the same time, with tensors of the same shapes.  (A caller whose sequence
      cannot be divided by the number of ranks pads it.)  Without ``causal``, the local sequence of
      ``q`` may have another length than that of ``k`` and ``v``.
    * Returns what belongs to the rank's own queries, in the shape and dtype of ``q``.  With
      bfloat16 or float16, compute scores, softmax and sums in float32.
    * The tensors need not be contiguous, and ``q``, ``k`` and ``v`` may be the same tensor.  They
      stay as they are.
    * **Gradients** are those of attention in one process: after ``backward`` on all ranks, ``k``
      and ``v`` have gradients from the queries of all ranks.  Some of the three may need none, the
      same ones on all ranks.  There is one backward for each forward, or none; several forwards may
      come before their backwards.  Gradients are not differentiated again.
    * **Memory.** A block is the ``k`` and ``v`` of one rank.  Besides the tensors that it was
      given, a rank has at most two blocks at any time in forward, such as the one with which it
      computes and the one that arrives.  Between forward and backward it has at most one, such as a
      copy of its own, because the others are sent around again.  Backward may need the memory of
      five more blocks, for example for gradients of blocks.
    * **Messages.** Ranks send to their neighbors in the ring only, with ``send``, ``recv``,
      ``isend``, ``irecv`` or ``batch_isend_irecv``; a collective would bring all blocks at once.
      With n ranks, forward sends at most n - 1 blocks per rank, and backward at most n blocks and
      the gradients of n blocks.  A single rank sends nothing.
    * Any scores that are finite are fine, such as 1000 or -1000: softmax subtracts the largest.

    Example::

        # two ranks; the whole sequence is 2 * 512 positions long
        q, k, v = (torch.randn(1, 8, 512, 64, requires_grad=True) for _ in range(3))
        out = ring_attention(q, k, v, causal=True)    # (1, 8, 512, 64) on each rank
        out.sum().backward()                          # on both ranks

    Source: Liu, Zaharia and Abbeel 2023, arXiv 2310.01889.

    Lesson: docs/lessons/long_sequences
    """
    out: Tensor = _RingAttention.apply(q, k, v, causal)  # type: ignore[no-untyped-call]
    return out


class _RingAttention(torch.autograd.Function):
    """One operator, so that autograd keeps this rank's tensors and none that came by."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        own = _exact(q)
        out = torch.zeros_like(own)
        lse = own.new_full(own.shape[:-1], -math.inf)
        for owner, (keys, values) in _blocks(torch.stack((k, v))):
            scores = _scores(own, _exact(keys), owner, causal)
            if scores is not None:
                part = scores.logsumexp(-1)  # finite: a query sees at least one key of this block
                weights = torch.exp(scores - part.unsqueeze(-1))
                out, lse = merge_partial_attention(out, lse, weights @ _exact(values), part)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        own, gradient = _exact(q), _exact(gradient)
        # If all scores of a query grow alike, softmax stays the same: this part must not count.
        delta = (gradient * _exact(out)).sum(-1, keepdim=True)
        grad_q = torch.zeros_like(own)
        grad_block = torch.zeros_like(_exact(torch.stack((k, v))))  # travels with its block
        scale = 1 / math.sqrt(q.shape[-1])
        for owner, (keys, values) in _blocks(torch.stack((k, v))):
            scores = _scores(own, _exact(keys), owner, ctx.causal)
            if scores is not None:
                weights = torch.exp(scores - lse.unsqueeze(-1))  # of the softmax over all blocks
                grad_scores = weights * (gradient @ _exact(values).mT - delta) * scale
                grad_q += grad_scores @ _exact(keys)
                grad_block[0] += grad_scores.mT @ own
                grad_block[1] += weights.mT @ gradient
            grad_block = _sent_on(grad_block)  # after n steps it is at home, with n parts in it
        return grad_q, *grad_block.unbind(), None


def _blocks(block: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each rank's block with the number of the rank, beginning with the own one.

    The next block arrives while the caller computes.  Two buffers take turns.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(block) if world > 1 else block
    for step in range(world):
        handles = _exchange(block, arriving) if step < world - 1 else []
        yield (rank - step) % world, block
        for handle in handles:
            handle.wait()
        block, arriving = arriving, block


def _exchange(outgoing: Tensor, incoming: Tensor) -> list[dist.Work]:
    """Begin to send to the next rank, and to receive from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, (rank + 1) % world),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
        ]
    )


def _sent_on(tensor: Tensor) -> Tensor:
    """What the rank before has sent, in exchange for ``tensor``."""
    if dist.get_world_size() == 1:
        return tensor
    arrived = torch.empty_like(tensor)
    for handle in _exchange(tensor, arrived):
        handle.wait()
    return arrived


def _scores(q: Tensor, keys: Tensor, owner: int, causal: bool) -> Tensor | None:
    """The scores of this rank's queries; None if they may see no key of this owner."""
    rank = dist.get_rank()
    if causal and owner > rank:
        return None
    scores = q @ keys.mT / math.sqrt(q.shape[-1])
    if causal and owner == rank:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores


def _exact(tensor: Tensor) -> Tensor:
    """In float32 instead of 16 bits."""
    return tensor.float() if tensor.element_size() < 4 else tensor


if __name__ == "__main__":
    # Merge two halves of the keys, then split a sequence over three ranks; compare with torch.
    from functools import partial

    from torch.nn.functional import scaled_dot_product_attention

    from multigpu import RankError, run_ranks

    def tensors(length: int) -> list[Tensor]:
        """The same on every rank: q, k, v and the gradient of the output."""
        torch.manual_seed(0)
        return [torch.randn(2, 4, length, 16, requires_grad=True) for _ in range(4)]

    def apart(one: Tensor, other: Tensor) -> str:
        return f"{(one - other).abs().max().item():.0e}"

    def both_halves() -> str:
        q, k, v, _ = tensors(8)
        halves = []
        for keys, values in zip(k.chunk(2, dim=2), v.chunk(2, dim=2), strict=True):
            scores = q @ keys.mT / math.sqrt(16)
            halves += [scores.softmax(-1) @ values, scores.logsumexp(-1)]
        out, _ = merge_partial_attention(*halves)
        return f"two halves of the keys merged: {apart(out, scaled_dot_product_attention(q, k, v))}"

    def around_the_ring(causal: bool) -> list[str]:
        """How far this rank's output and gradients are from those of one process."""
        rank, world = dist.get_rank(), dist.get_world_size()
        q, k, v, gradient = tensors(8 * world)
        right = scaled_dot_product_attention(q, k, v, is_causal=causal)
        whole = [right, *torch.autograd.grad(right, (q, k, v), gradient)]
        q, k, v, gradient = (t.chunk(world, dim=2)[rank] for t in (q, k, v, gradient))
        out = ring_attention(q, k, v, causal=causal)
        mine = [out, *torch.autograd.grad(out, (q, k, v), gradient)]
        pairs = zip(("out", "dq", "dk", "dv"), mine, whole, strict=True)
        return [f"{name} {apart(a, b.chunk(world, dim=2)[rank])}" for name, a, b in pairs]

    try:
        writing = "merge_partial_attention"
        print("largest difference from one process")
        print(both_halves())
        writing = "ring_attention"
        start = partial(run_ranks, backend="gloo", show=False)
        for causal in (False, True):
            for rank, differences in enumerate(start(around_the_ring, 3, causal)):
                print(f"causal={causal!s:5} rank {rank}: {', '.join(differences)}")
    except (NotImplementedError, RankError) as error:
        if "NotImplementedError" not in repr(error):
            raise
        print(f"Next to write: {writing}. Check it with: multigpu check context_parallel.{writing}")
