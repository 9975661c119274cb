"""Answers to ``ring_attention`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


# %% as_in_picotron: pass
class Comm:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ops, self.handles = [], []

    def send_recv(self, tensor):
        tensor = tensor.contiguous()
        arrived = torch.empty_like(tensor)
        self.ops.append(dist.P2POp(dist.isend, tensor, (self.rank + 1) % self.size))
        self.ops.append(dist.P2POp(dist.irecv, arrived, (self.rank - 1) % self.size))
        return arrived

    def commit(self):
        self.handles = dist.batch_isend_irecv(self.ops)
        self.ops = []

    def wait(self):
        for handle in self.handles:
            handle.wait()
        self.handles = []


class RingAttentionFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal):
        comm, out, lse = Comm(), None, None
        ctx.save_for_backward(q, k, v)
        for step in range(comm.size):
            if step + 1 != comm.size:
                next_k, next_v = comm.send_recv(k), comm.send_recv(v)
                comm.commit()
            if not causal or step <= comm.rank:
                scores = torch.matmul(q.to(work(q)), k.transpose(-2, -1).to(work(q))) * scale
                if causal and step == 0:
                    future = torch.triu(torch.ones_like(scores[0, 0], dtype=torch.bool), diagonal=1)
                    scores.masked_fill_(future, float("-inf"))
                top = scores.max(dim=-1, keepdim=True)[0]
                exps = torch.exp(scores - top)
                sums = exps.sum(dim=-1, keepdim=True)
                block, block_lse = torch.matmul(exps / sums, v.to(work(q))), sums.log() + top
                if out is None:
                    out, lse = block, block_lse
                else:
                    out = out - torch.sigmoid(block_lse - lse) * (out - block)
                    lse = lse - F.logsigmoid(lse - block_lse)
            if step + 1 != comm.size:
                comm.wait()
                k, v = next_k, next_v
                del next_k, next_v
        ctx.out, ctx.lse, ctx.scale, ctx.causal = out, lse, scale, causal
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, dout):
        q, k, v = ctx.saved_tensors
        kv_comm, d_kv_comm = Comm(), Comm()
        dq = dk = dv = next_dk = next_dv = None
        dout, qs = dout.to(work(q)), q.to(work(q))
        d = (dout * ctx.out).sum(dim=-1, keepdim=True)
        for step in range(kv_comm.size):
            if step + 1 != kv_comm.size:
                next_k, next_v = kv_comm.send_recv(k), kv_comm.send_recv(v)
                kv_comm.commit()
            if step <= kv_comm.rank or not ctx.causal:
                scores = torch.matmul(qs, k.transpose(-2, -1).to(work(q))) * ctx.scale
                if ctx.causal and step == 0:
                    future = torch.triu(torch.ones_like(scores[0, 0], dtype=torch.bool), diagonal=1)
                    scores = scores.masked_fill(future, float("-inf"))
                p = torch.exp(scores - ctx.lse)
                ds = p * (torch.matmul(dout, v.transpose(-2, -1).to(work(q))) - d) * ctx.scale
                block_dq = torch.matmul(ds, k.to(work(q)))
                block_dk = torch.matmul(ds.transpose(-2, -1), qs)
                block_dv = torch.matmul(p.transpose(-2, -1), dout)
                if dq is None:
                    dq, dk, dv = block_dq, block_dk, block_dv
                else:
                    dq += block_dq
                    d_kv_comm.wait()
                    dk, dv = block_dk + next_dk, block_dv + next_dv
            elif step != 0:
                d_kv_comm.wait()
                dk, dv = next_dk, next_dv
            if step + 1 != kv_comm.size:
                kv_comm.wait()
                k, v = next_k, next_v
            if kv_comm.size == 1:
                return dq, dk, dv, None, None
            next_dk, next_dv = d_kv_comm.send_recv(dk), d_kv_comm.send_recv(dv)
            d_kv_comm.commit()
        d_kv_comm.wait()
        return dq, next_dk, next_dv, None, None


def work(tensor):
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def ring_attention(q, k, v, *, causal=False):
    return RingAttentionFunc.apply(q, k, v, q.shape[-1] ** -0.5, causal)


# %% differentiates_each_part: pass
def attention(q, k, v, hidden):
    q, k, v = (t.float() if t.element_size() == 2 else t for t in (q, k, v))
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(2, 3)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def pass_on(*tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
    sends = [dist.isend(t.contiguous(), (rank + 1) % n) for t in tensors]
    for tensor in arrived:
        dist.recv(tensor, (rank - 1) % n)
    for handle in sends:
        handle.wait()
    return arrived


class Function(torch.autograd.Function):
    """Backward asks autograd for each part's gradients, through its output and its lse."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal, n, rank = causal, dist.get_world_size(), dist.get_rank()
        out, lse = attention(q, k, v, Function.mask(q, k, causal))
        for step in range(1, n):
            k, v = pass_on(k, v)
            if rank >= step or not causal:
                part, part_lse = attention(q, k, v, None)
                both = torch.logaddexp(lse, part_lse)
                out = (lse - both).exp()[..., None] * out + (part_lse - both).exp()[
                    ..., None
                ] * part
                lse = both
        ctx.out, ctx.lse = out, lse
        return out.to(q.dtype)

    @staticmethod
    def mask(q, k, causal):
        return ~torch.ones(q.size(2), k.size(2), device=q.device).tril().bool() if causal else None

    @staticmethod
    def backward(ctx, gradient):
        (q, k, v), rank, n = ctx.saved_tensors, dist.get_rank(), dist.get_world_size()
        gradient = gradient.to(ctx.out.dtype)
        q = q.detach().requires_grad_()
        grad_q = torch.zeros_like(ctx.out)
        grad_k, grad_v = (torch.zeros(k.shape, dtype=ctx.out.dtype, device=k.device) for _ in "kv")
        for step in range(n):
            if step:
                k, v = pass_on(k, v)
                grad_k, grad_v = pass_on(grad_k, grad_v)
            if rank >= step or not ctx.causal:
                inputs = [q, k.detach().requires_grad_(), v.detach().requires_grad_()]
                with torch.enable_grad():
                    part, part_lse = attention(
                        *inputs, None if step else Function.mask(q, k, ctx.causal)
                    )
                    share = (part_lse.detach() - ctx.lse).exp()
                    of_lse = share * ((part.detach() - ctx.out) * gradient).sum(-1)
                    found = torch.autograd.grad(
                        [part, part_lse], inputs, [share[..., None] * gradient, of_lse]
                    )
                grad_q += found[0]
                grad_k, grad_v = grad_k + found[1], grad_v + found[2]
        if n > 1:
            grad_k, grad_v = pass_on(grad_k, grad_v)
        return grad_q, grad_k, grad_v, None


def ring_attention(q, k, v, *, causal=False):
    return Function.apply(q, k, v, causal)


# %% first_in_first_out: pass
def ring_attention(q, k, v, *, causal=False):
    """Everything inside one function; even and odd ranks take turns with blocking calls."""
    rank, n = dist.get_rank(), dist.get_world_size()

    def swap(tensor):
        if n == 1:
            return tensor
        other = torch.zeros_like(tensor)
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(other, n - 1)
        else:
            dist.recv(other, rank - 1)
            dist.send(tensor, (rank + 1) % n)
        return other

    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
            scale = q.shape[3] ** -0.5
            top = torch.full(q.shape[:3] + (1,), -math.inf, dtype=dtype, device=q.device)
            total, out = torch.zeros_like(top), torch.zeros(q.shape, dtype=dtype, device=q.device)
            pair = torch.stack([k, v]).contiguous()
            positions = torch.arange(q.shape[2], device=q.device)[:, None] + rank * q.shape[2]
            for step in range(n):
                owner = (rank - step) % n
                scores = torch.matmul(q.to(dtype), pair[0].to(dtype).mT) * scale
                keys = torch.arange(k.shape[2], device=q.device)[None] + owner * k.shape[2]
                if causal:
                    scores = torch.where(keys > positions, -math.inf, scores)
                higher = torch.maximum(top, scores.amax(-1, keepdim=True))
                weights, old = torch.exp(scores - higher), torch.exp(top - higher)
                out = out * old + weights @ pair[1].to(dtype)
                total = total * old + weights.sum(-1, keepdim=True)
                top = higher
                if step < n - 1:
                    pair = swap(pair)
            out /= total
            ctx.save_for_backward(q, k, v, out, top + total.log())
            return out.to(q.dtype)

        @staticmethod
        def backward(ctx, g):
            q, k, v, out, lse = ctx.saved_tensors
            dtype, scale = out.dtype, q.shape[3] ** -0.5
            g, dq = g.to(dtype), torch.zeros_like(out)
            pair = torch.stack([k, v]).contiguous()
            grads = torch.zeros(pair.shape, dtype=dtype, device=q.device)
            positions = torch.arange(q.shape[2], device=q.device)[:, None] + rank * q.shape[2]
            for step in range(n):
                keys = (
                    torch.arange(k.shape[2], device=q.device)[None] + (rank - step) % n * k.shape[2]
                )
                scores = torch.matmul(q.to(dtype), pair[0].to(dtype).mT) * scale
                if causal:
                    scores = torch.where(keys > positions, -math.inf, scores)
                p = torch.exp(scores - lse)
                ds = p * (g @ pair[1].to(dtype).mT - (g * out).sum(-1, keepdim=True))
                dq += scale * ds @ pair[0].to(dtype)
                grads[0] += scale * ds.mT @ q.to(dtype)
                grads[1] += p.mT @ g
                grads = swap(grads)
                if step < n - 1:
                    pair = swap(pair)
            return dq, grads[0], grads[1]

    return Ring.apply(q, k, v)


# %% heads_and_width_mixed_up: wrong wrong_values
def ring_attention(q, k, v, *, causal=False):
    return ring_of_blocks(q, k, v, causal, q.shape[1] ** -0.5)


def ring_of_blocks(q, k, v, causal, scale):
    rank, n = dist.get_rank(), dist.get_world_size()
    out, total = 0, 0
    for step in range(n):
        if step:
            pair = torch.stack((k, v)).detach()
            arrived = torch.empty_like(pair)
            handle = dist.isend(pair, (rank + 1) % n)
            dist.recv(arrived, (rank - 1) % n)
            handle.wait()
            k, v = arrived
        weights = torch.exp(q.float() @ k.float().mT * scale)
        out, total = out + weights @ v.float(), total + weights.sum(-1, keepdim=True)
    return (out / total).to(q.dtype)
