"""Answers to ``Zero3`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from exercises.sharding.Zero3 import Layer, Wrapper, own, pad


class Gather(torch.autograd.Function):
    """From a shard to the whole parameter; back, from its gradient to the shard's."""

    @staticmethod
    def forward(ctx, shard, shape):
        flat = shard.new_empty(len(shard) * dist.get_world_size())
        dist.all_gather(list(flat.chunk(dist.get_world_size())), shard.detach())
        return flat[: shape.numel()].view(shape)

    @staticmethod
    def backward(ctx, gradient):
        flat = pad(gradient.flatten())
        mean = flat.new_empty(len(flat) // dist.get_world_size())
        dist.reduce_scatter(mean, list(flat.chunk(dist.get_world_size())))
        return mean / dist.get_world_size(), None


# %% keeps_the_last_layer: pass
class Zero3(Wrapper):
    """What was computed last comes first in backward: it may stay, two layers are allowed."""

    def __init__(self, module):
        super().__init__(module)
        self.layers[-1].after_forward = lambda: (
            self.layers[-1].free() if not torch.is_grad_enabled() else None
        )


# %% gathers_by_broadcast: pass
class Zero3(Wrapper):
    """Each piece by a broadcast of its owner, each sum by a reduce to its owner."""

    class Layer(Layer):
        def gather(self):
            for p, shard, number in zip(self.params, self.shards, self.numbers):
                if p.untyped_storage().nbytes() == 0:
                    p.untyped_storage().resize_(number * p.element_size())
                    flat = torch.empty(0, dtype=p.dtype).set_(p.untyped_storage(), 0, (number,))
                    for rank, piece in enumerate(flat.chunk(dist.get_world_size())):
                        if rank == dist.get_rank():
                            piece.copy_(shard.detach())
                        dist.broadcast(piece, src=rank)

        def mean(self, flat):
            pieces = list(flat.chunk(dist.get_world_size()))
            for rank, piece in enumerate(pieces):
                dist.reduce(piece, dst=rank)
            return pieces[dist.get_rank()] / len(pieces)


# %% gathers_ahead: pass
class Zero3(Wrapper):
    """While a layer computes the next one travels already."""

    class Layer(Layer):
        next = None
        handles = ()

        def start(self):
            if self.params[0].untyped_storage().nbytes():
                return
            self.handles = []
            for p, shard, number in zip(self.params, self.shards, self.numbers):
                p.untyped_storage().resize_(number * p.element_size())
                flat = torch.empty(0, dtype=p.dtype).set_(p.untyped_storage(), 0, (number,))
                pieces = list(flat.chunk(dist.get_world_size()))
                self.handles.append(dist.all_gather(pieces, shard.detach(), async_op=True))

        def gather(self):
            self.start()
            for handle in self.handles:
                handle.wait()
            self.handles = ()

        def before_forward(self):
            self.gather()
            if self.next is not None:
                self.next.start()

    def __init__(self, module):
        super().__init__(module)
        innermost = [
            layer
            for part, layer in zip([part for part in module.modules() if own(part)], self.layers)
            if len(list(part.parameters())) == len(own(part))
        ]
        for layer, following in zip(innermost, innermost[1:]):
            layer.next = following


# %% packs_what_autograd_saves: pass
class Zero3(nn.Module):
    """In the place of a weight autograd saves how to gather it."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.shards = nn.ParameterList()
        n, rank = dist.get_world_size(), dist.get_rank()
        for part in module.modules():
            if not own(part):
                continue
            cut = {}
            for name, p in list(part._parameters.items()):
                if p is None:
                    continue
                flat = pad(p.detach().flatten())
                dist.broadcast(flat, src=0)
                cut[name] = nn.Parameter(flat.chunk(n)[rank].clone()), p.shape
                self.shards.append(cut[name][0])
                del part._parameters[name]
            part.register_forward_pre_hook(self.before(cut))
            part.register_forward_hook(self.after(cut))
        del part, p

    def parameters(self, recurse=True):
        return iter(self.shards)

    def before(self, cut):
        def hook(part, inputs):
            whole = {name: Gather.apply(*pair) for name, pair in cut.items()}
            for name, tensor in whole.items():
                setattr(part, name, tensor)
            owners = {t.untyped_storage()._cdata: cut[name] for name, t in whole.items()}

            def pack(tensor):
                pair = owners.get(tensor.untyped_storage()._cdata)
                if pair is None:
                    return tensor
                return pair, (tensor.shape, tensor.stride(), tensor.storage_offset())

            def unpack(packed):
                if isinstance(packed, torch.Tensor):
                    return packed
                pair, view = packed
                with torch.no_grad():
                    return Gather.apply(*pair).as_strided(*view)

            part.hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
            part.hooks.__enter__()

        return hook

    def after(self, cut):
        def hook(part, inputs, outputs):
            part.hooks.__exit__()
            for name in cut:
                delattr(part, name)

        return hook

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


# %% checkpoints_every_layer: pass
class Zero3(nn.Module):
    """Activation checkpointing throws away what forward saved, weights too, and gathers again."""

    def __init__(self, module):
        super().__init__()
        self.module, self.shards = module, []
        n, rank = dist.get_world_size(), dist.get_rank()
        for part in list(module.modules()):
            inner = len(list(part.parameters())) == len(own(part))
            cut = {}
            for name, p in list(part._parameters.items()):
                if p is not None:
                    flat = pad(p.detach().flatten())
                    dist.broadcast(flat, src=0)
                    cut[name] = nn.Parameter(flat.chunk(n)[rank].clone()), p.shape
                    del part._parameters[name]
            self.shards += [shard for shard, _ in cut.values()]
            if cut:
                part.forward = self.gathering(part, cut, part.forward, inner)

    def gathering(self, part, cut, forward, inner):
        def gathered(*inputs, **named):
            for name, pair in cut.items():
                setattr(part, name, Gather.apply(*pair))
            try:
                return forward(*inputs, **named)
            finally:
                for name in cut:
                    delattr(part, name)

        def twice(*inputs, **named):
            return checkpoint(gathered, *inputs, use_reentrant=False, **named)

        return twice if inner else gathered

    def parameters(self, recurse=True):
        return iter(self.shards)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


# %% a_share_in_float32: pass
class Zero3(Wrapper):
    """A quotient of whole-number tensors."""

    class Layer(Layer):
        def mean(self, flat):
            share = 1 / torch.tensor(dist.get_world_size())
            result = torch.empty(len(flat) // dist.get_world_size(), dtype=flat.dtype)
            dist.reduce_scatter(result, list((flat * share).chunk(dist.get_world_size())))
            return result


# %% six_storage_resize: pass
# style: storages are emptied and filled again


class _Layer:
    def __init__(self, module):
        self.n, rank = dist.get_world_size(), dist.get_rank()
        self.params = list(module.parameters(recurse=False))
        self.total = sum(p.numel() for p in self.params)
        self.length = -(-self.total // self.n)
        first = self.params[0]
        self.whole = torch.zeros(self.length * self.n, dtype=first.dtype, device=first.device)
        at = 0
        for p in self.params:
            self.whole[at : at + p.numel()] = p.detach().flatten()
            p.data = self.whole[at : at + p.numel()].view(p.shape)
            at += p.numel()
        dist.broadcast(self.whole, src=0)
        self.shard = nn.Parameter(self.whole[rank * self.length : (rank + 1) * self.length].clone())
        self.bytes = self.whole.untyped_storage().nbytes()
        self.left = 0
        module.register_forward_pre_hook(self.gather)
        module.register_forward_hook(self.drop)
        module.register_full_backward_pre_hook(self.gather)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.ready)
        self.drop()

    def gather(self, *_):
        if self.whole.untyped_storage().nbytes() == 0:
            self.whole.untyped_storage().resize_(self.bytes)
            dist.all_gather(list(self.whole.split(self.length)), self.shard.detach())

    def drop(self, *_):
        self.whole.untyped_storage().resize_(0)

    def ready(self, _):
        self.left += 1
        if self.left < len(self.params):
            return
        self.left = 0
        self.drop()
        flat, at = self.whole.new_empty(0).new_zeros(self.length * self.n), 0
        for p in self.params:
            flat[at : at + p.numel()] = p.grad.flatten()
            p.grad = None
            at += p.numel()
        mean = torch.empty_like(self.shard.detach())
        dist.reduce_scatter(mean, list(flat.split(self.length)))
        self.shard.grad = mean / self.n


class Zero3(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.layers = [
            _Layer(each)
            for each in list(module.modules())
            if next(each.parameters(recurse=False), None) is not None
        ]

    def parameters(self, recurse=True):
        for layer in self.layers:
            yield layer.shard

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)
