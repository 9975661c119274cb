"""``context_parallel.ring_attention``: attention over a sequence that is split over the ranks."""

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from . import split_sequence
from .ring_answers import Attention, Ring, finish, in_float32, seen_by, shifted, start, weighted
from .what_travels import travels_as_promised
from .wrong_outputs import wrong_outputs
from .wrong_rings import wrong_rings

if TYPE_CHECKING:  # what a program below calls of its own module
    from context_parallel import merge_partial_attention

ring_attention = exercise(
    "context_parallel.ring_attention",
    expects="the rank's part of attention over the whole sequence, and of its gradients",
)

ring_attention.cases(split_sequence.cases)
ring_attention.drive(split_sequence.drive)
ring_attention.expected(split_sequence.expected)


@ring_attention.words
def words(case):
    return {"width": case.shape[3], "mine": f"rank * {case.queries}"}


travels_as_promised(ring_attention)
wrong_outputs.add_to(ring_attention)
wrong_rings.add_to(ring_attention)


# --- right answers -------------------------------------------------------------------------------


@ring_attention.right
def one_operator(q, k, v, *, causal=False):
    return Ring(causal)(q, k, v)


@ring_attention.right
def with_running_sums(q, k, v, *, causal=False):
    """Online softmax with a maximum and a sum; keys and values in messages of their own, to the
    left; backward differentiates block by block with autograd.
    """

    def scores_of(q, keys, owner):
        scores = torch.einsum("bhid,bhjd->bhij", in_float32(q), in_float32(keys))
        scores = scores / q.shape[-1] ** 0.5
        if not causal:
            return scores
        seen = seen_by(dist.get_rank(), owner, q.shape[2], keys.shape[2], q.device)
        return torch.where(seen, scores, -math.inf)

    def each_block(k, v):
        rank, world = dist.get_rank(), dist.get_world_size()
        keys, values = k.contiguous(), v.contiguous()
        for step in range(world):
            handles, last = [], step == world - 1
            if not last:
                next_keys, next_values = torch.empty_like(keys), torch.empty_like(values)
                handles = start(keys, next_keys, -1) + start(values, next_values, -1)
            yield (rank + step) % world, keys, values
            finish(handles)
            if not last:
                keys, values = next_keys, next_values
                del next_keys, next_values

    class Running(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            exact = in_float32(q)
            top = exact.new_full(q.shape[:3], -math.inf)
            total, out = torch.zeros_like(top), torch.zeros_like(exact)
            for owner, keys, values in each_block(k, v):
                scores = scores_of(q, keys, owner)
                new_top = torch.maximum(top, scores.amax(-1))
                shift = torch.where(new_top == -math.inf, 0.0, new_top)
                weights, old = torch.exp(scores - shift[..., None]), torch.exp(top - shift)
                total = total * old + weights.sum(-1)
                out = out * old[..., None] + weights @ in_float32(values)
                top = new_top
                del keys, values
            out = out / total[..., None]
            ctx.save_for_backward(q, k, v, out, top + total.log())
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, gradient):
            q, k, v, out, lse = ctx.saved_tensors
            gradient = in_float32(gradient)
            delta = (gradient * out).sum(-1, keepdim=True)
            q, dq = q.detach().requires_grad_(), torch.zeros_like(in_float32(q))
            dk, dv = torch.zeros_like(in_float32(k)), torch.zeros_like(in_float32(v))
            for owner, keys, values in each_block(k, v):
                keys, values = keys.detach().requires_grad_(), values.detach().requires_grad_()
                with torch.enable_grad():
                    weights = torch.exp(scores_of(q, keys, owner) - lse[..., None])
                    seen = gradient @ in_float32(values).mT - delta
                    gone = (weights * seen).sum() if seen.requires_grad else weights.sum() * 0
                    parts = torch.autograd.grad(gone, (q, keys, values))
                dq, dk, dv = dq + parts[0], dk + parts[1], dv + parts[2]
                del keys, values, parts, weights, seen, gone
                dk, dv = shifted(dk, -1), shifted(dv, -1)
            return dq, dk, dv

    return Running.apply(q, k, v)


@ring_attention.right
def blocking_messages_and_merging(q, k, v, *, causal=False):
    """Even ranks send first, odd ones receive first; later blocks are left out under a mask."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def passed_on(tensor):
        arrived = torch.empty_like(tensor)
        to, source = (rank + 1) % world, (rank - 1) % world
        if world == 1:
            return tensor
        if rank % 2:
            dist.recv(arrived, source)
            dist.send(tensor, to)
        else:
            handle = dist.isend(tensor, to) if rank == world - 1 else None
            if handle is None:
                dist.send(tensor, to)
            dist.recv(arrived, source)
            if handle is not None:
                handle.wait()
        return arrived

    ring = Ring(causal)

    class Merging(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            block, merged = torch.stack((k, v)), ring.partial(q, k, v, rank)
            for step in range(1, world):
                block, owner = passed_on(block), (rank - step) % world
                if owner <= rank or not causal:
                    part = ring.partial(q, block[0], block[1], owner)
                    merged = merge_partial_attention(*merged, *part)
            ctx.save_for_backward(q, k, v, *merged)
            return merged[0].to(q.dtype)

        @staticmethod
        def backward(ctx, gradient):
            return ring.backward(gradient, *ctx.saved_tensors)

    return Merging.apply(q, k, v)


@ring_attention.right
def queries_travel_in_backward(q, k, v, *, causal=False):
    """Keys stay at home in backward; queries and what belongs to them go around."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ring = Ring(causal)

    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            out, lse = ring.forward(q, k, v)
            ctx.save_for_backward(q, k, v, out, lse)
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, gradient):
            q, k, v, out, lse = ctx.saved_tensors
            q, k, v, gradient = (in_float32(t) for t in (q, k, v, gradient))
            delta = (gradient * out).sum(-1)
            dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
            scale = q.shape[-1] ** -0.5
            for step in range(world):
                owner = (rank - step) % world
                scores = q @ k.mT * scale
                if causal:
                    seen = seen_by(owner, rank, q.shape[2], k.shape[2], q.device)
                    scores = scores.masked_fill(~seen, -math.inf)
                weights = torch.exp(scores - lse[..., None])
                dv += weights.mT @ gradient
                changes = weights * (gradient @ v.mT - delta[..., None]) * scale
                dk += changes.mT @ q
                dq = shifted(dq + changes @ k)
                if step < world - 1:
                    q, gradient = shifted(q), shifted(gradient)
                    lse, delta = shifted(lse), shifted(delta)
            return dq, dk, dv

    return Other.apply(q, k, v)


@ring_attention.right
def with_the_kernel_of_torch(q, k, v, *, causal=False):
    """As published codes do with FlashAttention: forward and backward of the kernel per block."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            parts, block = [], torch.stack((k, v))
            for step in range(world):
                owner = (rank - step) % world
                if owner <= rank or not causal:
                    out, lse = kernel(q, *block, 0.0, causal and owner == rank)
                    parts.append((in_float32(out), lse))
                if step < world - 1:
                    block = shifted(block)
            out, lse = weighted(parts)
            out = out.to(q.dtype)
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx, gradient):
            q, k, v, out, lse = ctx.saved_tensors
            block, dq = torch.stack((k, v)), 0.0
            travels = torch.zeros_like(in_float32(block))
            for step in range(world):
                owner = (rank - step) % world
                if owner <= rank or not causal:
                    whole = gradient.contiguous(), q, *block, out, lse
                    part, *others = back(*whole, 0.0, causal and owner == rank)
                    dq = dq + part
                    travels = travels + torch.stack(others)
                    del others, whole
                if step < world - 1:
                    block = shifted(block)
                travels = shifted(travels)
            return dq, *travels

    return Kernel.apply(q, k, v)


@ring_attention.right
def sends_only_what_is_needed(q, k, v, *, causal=False):
    """Under a mask no block goes to an earlier rank, and the last rank's block goes nowhere."""
    if not causal:
        return Ring()(q, k, v)
    rank, world = dist.get_rank(), dist.get_world_size()
    right_of, left_of = (rank + 1) % world, (rank - 1) % world

    class Forward(Ring):
        def blocks(self, k, v, visits):
            block = torch.stack((k, v))
            for step in range(rank + 1):
                yield rank - step, block[0], block[1]
                if rank < world - 1:
                    handle = dist.isend(block, right_of)
                if step < rank:
                    arrived = torch.empty_like(block)
                    dist.recv(arrived, left_of)
                if rank < world - 1:
                    handle.wait()
                if step < rank:
                    block = arrived

        def backward(self, *args):
            return Ring(True).backward(*args)

    return Attention.apply(Forward(True), q, k, v)
