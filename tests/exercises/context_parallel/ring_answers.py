"""What answers to ``ring_attention`` are made of: a right one, of which a mistake changes one part.

``Ring(causal, scale=lambda width: 1.0)(q, k, v)`` is the right answer with another scale.
"""

import math

import torch
import torch.distributed as dist


def start(outgoing, incoming, hop=1):
    """Begin to send to the next rank and to receive from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return [
        dist.isend(outgoing, (rank + hop) % world),
        dist.irecv(incoming, (rank - hop) % world),
    ]


def finish(handles):
    for handle in handles:
        handle.wait()


def shifted(tensor, hop=1):
    """What the rank before has sent, in exchange for ``tensor``."""
    if dist.get_world_size() == 1:
        return tensor
    tensor = tensor.contiguous()
    arrived = torch.empty_like(tensor)
    finish(start(tensor, arrived, hop))
    return arrived


def in_float32(tensor):
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def seen_by(rank, owner, queries, keys, device=None):
    """Which keys of a rank's block a causal query sees: by their places in the whole sequence."""
    first_query, first_key = rank * queries, owner * keys
    places = torch.arange(queries, device=device)[:, None] + first_query
    return places >= torch.arange(keys, device=device) + first_key


def weighted(parts):
    """One output from those for each block, and the log-sum-exp over all."""
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    return (lses.softmax(0).unsqueeze(-1) * outs).sum(0), lses.logsumexp(0)


class Ring:
    """Each option is a decision that an answer makes; what is here is right."""

    def __init__(self, causal=False, **changed):
        self.causal = causal
        unknown = set(changed) - set(dir(self))
        assert not unknown, unknown
        vars(self).update(changed)

    def __call__(self, q, k, v):
        return Attention.apply(self, q, k, v)

    number = staticmethod(in_float32)
    scale = staticmethod(lambda width: width**-0.5)
    visits = staticmethod(lambda world: world)  # in forward
    visits_back = staticmethod(lambda world: world)
    owner = staticmethod(lambda rank, step, world: (rank - step) % world)
    seen = staticmethod(seen_by)
    combine = staticmethod(weighted)
    lse_for_backward = staticmethod(lambda scores, lse: lse)
    delta = staticmethod(lambda gradient, out: (gradient * out).sum(-1, keepdim=True))
    changes = staticmethod(lambda weights, seen, delta: weights * (seen - delta))  # of scores
    scale_back = None  # as in forward
    part_of_keys = staticmethod(lambda dk, dv, own: (dk, dv))  # own: whether the block is
    onward = staticmethod(shifted)  # a gradient, with its block
    at_home = staticmethod(lambda gradient, world: gradient)

    def blocks(self, k, v, visits):
        """Own block first, then those that arrive."""
        rank, world = dist.get_rank(), dist.get_world_size()
        block = torch.stack((k, v))
        for step in range(visits(world)):
            yield self.owner(rank, step, world), block[0], block[1]
            if step < visits(world) - 1:
                block = shifted(block)

    def scores(self, q, k, owner):
        scores = self.number(q) @ self.number(k).transpose(-2, -1) * self.scale(q.shape[-1])
        if self.causal:
            seen = self.seen(dist.get_rank(), owner, q.shape[-2], k.shape[-2])
            scores = scores.masked_fill(~seen.to(q.device), -math.inf)
        return scores

    def partial(self, q, k, v, owner):
        scores = self.scores(q, k, owner)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
        return weights @ self.number(v), lse

    def forward(self, q, k, v):
        parts = []
        for owner, keys, values in self.blocks(k, v, self.visits):
            parts.append(self.partial(q, keys, values, owner))
            del keys, values
        return self.combine(parts)

    def backward(self, gradient, q, k, v, out, lse):
        gradient, exact = self.number(gradient), self.number
        delta, world = self.delta(gradient, exact(out)), dist.get_world_size()
        dq, travels = 0.0, torch.zeros_like(exact(torch.stack((k, v))))
        for owner, keys, values in self.blocks(k, v, self.visits_back):
            scores = self.scores(q, keys, owner)
            own_lse = self.lse_for_backward(scores, lse).unsqueeze(-1)
            weights = torch.exp(scores - own_lse).nan_to_num(0.0)
            seen, own = gradient @ exact(values).transpose(-2, -1), owner == dist.get_rank()
            scale = (self.scale_back or self.scale)(q.shape[-1])
            changes = self.changes(weights, seen, delta) * scale
            dq = dq + changes @ exact(keys)
            dk, dv = changes.transpose(-2, -1) @ exact(q), weights.transpose(-2, -1) @ gradient
            travels += torch.stack(self.part_of_keys(dk, dv, own))
            del keys, values, dk, dv
            travels = self.onward(travels)
        return dq, *self.at_home(travels, world)


class Attention(torch.autograd.Function):
    """One operator for autograd, which keeps what this rank has of its own."""

    @staticmethod
    def forward(ctx, ring, q, k, v):
        out, lse = ring.forward(q, k, v)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        return None, *ctx.ring.backward(gradient, q, k, v, out, lse)
