"""Answers to ``Zero3`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def own(module):
    return list(module.parameters(recurse=False))


def pad(flat):
    n = dist.get_world_size()
    return torch.cat([flat, flat.new_zeros(-len(flat) % n)])


class Layer:
    """The parameters of one layer, each cut by itself; storages come and go."""

    def __init__(self, module):
        self.params = own(module)
        self.shards, self.numbers = [], []
        for p in self.params:
            flat = pad(p.detach().flatten())
            self.start_equal(flat)
            self.shards.append(nn.Parameter(self.cut(flat)))
            p.data = flat[: p.numel()].view(p.shape)
            self.numbers.append(len(flat))
        self.free()

    def start_equal(self, flat):
        dist.broadcast(flat, src=0)

    def cut(self, flat):
        return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()

    def gather(self):
        for p, shard, number in zip(self.params, self.shards, self.numbers):
            storage = p.untyped_storage()
            if storage.nbytes() == 0:
                storage.resize_(number * p.element_size())
                flat = torch.empty(0, dtype=p.dtype).set_(storage, 0, (number,))
                dist.all_gather(list(flat.chunk(dist.get_world_size())), shard.detach())

    def free(self):
        for p in self.params:
            p.untyped_storage().resize_(0)

    def before_forward(self):
        self.gather()

    def after_forward(self):
        self.free()

    def before_backward(self):
        self.gather()

    def gradient_ready(self, p):
        if all(p.grad is not None for p in self.params):
            self.free()
            self.send()

    def send(self):
        for p, shard in zip(self.params, self.shards):
            flat = pad(p.grad.flatten())
            p.grad = None
            shard.grad = self.mean(flat)

    def mean(self, flat):
        n = dist.get_world_size()
        result = torch.empty(len(flat) // n, dtype=flat.dtype)
        dist.reduce_scatter(result, list(flat.chunk(n)))
        return result / n


class Wrapper(nn.Module):
    """A way to do it that most of these answers change in one place."""

    Layer = Layer

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.layers = [self.Layer(part) for part in module.modules() if own(part)]
        for part, layer in zip([part for part in module.modules() if own(part)], self.layers):
            self.hook(part, layer)

    def hook(self, part, layer):
        part.register_forward_pre_hook(lambda *_: layer.before_forward())
        part.register_forward_hook(lambda *_: layer.after_forward())
        part.register_full_backward_pre_hook(lambda *_: layer.before_backward())
        for p in own(part):
            p.register_post_accumulate_grad_hook(layer.gradient_ready)

    def parameters(self, recurse=True):
        return iter([shard for layer in self.layers for shard in layer.shards])

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


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


# %% computes_again: pass


class Again(torch.autograd.Function):
    """A layer without autograd in forward; backward gathers and computes it once more."""

    @staticmethod
    def forward(ctx, part, names, shapes, rows, *shards):
        ctx.part, ctx.names, ctx.shapes = part, names, shapes
        ctx.save_for_backward(rows, *shards)
        whole = [Gather.apply(*pair) for pair in zip(shards, shapes)]
        return torch.func.functional_call(part, dict(zip(names, whole)), (rows,))

    @staticmethod
    def backward(ctx, gradient):
        rows, *shards = ctx.saved_tensors
        rows = rows.detach().requires_grad_(rows.is_floating_point())
        with torch.enable_grad():
            whole = [
                Gather.apply(shard.detach(), shape) for shard, shape in zip(shards, ctx.shapes)
            ]
            whole = [tensor.detach().requires_grad_() for tensor in whole]
            outputs = torch.func.functional_call(ctx.part, dict(zip(ctx.names, whole)), (rows,))
        wanted = [*whole, rows] if rows.requires_grad else whole
        found = torch.autograd.grad(outputs, wanted, gradient)
        back = found[-1] if rows.requires_grad else None
        del whole, wanted, outputs
        means = [Gather.backward(None, each)[0] for each in found[: len(shards)]]
        return None, None, None, back, *means


class Plain(nn.Module):
    """A layer as it was before its forward was replaced."""

    def __init__(self, part, forward):
        super().__init__()
        self.part = part
        self.call = forward

    def forward(self, rows):
        return self.call(rows)


class Zero3(nn.Module):
    """Innermost layers are computed twice; those with layers inside are gathered around them."""

    def __init__(self, module):
        super().__init__()
        self.module, self.shards = module, []
        n, rank = dist.get_world_size(), dist.get_rank()
        for part in list(module.modules()):
            inner = len(list(part.parameters())) == len(own(part))
            names, shapes, shards = [], [], []
            for name, p in list(part._parameters.items()):
                if p is not None:
                    flat = pad(p.detach().flatten())
                    dist.broadcast(flat, src=0)
                    names.append(name)
                    shapes.append(p.shape)
                    shards.append(nn.Parameter(flat.chunk(n)[rank].clone()))
                    p.data = torch.empty(0, dtype=p.dtype)
                    if not inner:
                        del part._parameters[name]
            self.shards += shards
            if shards and inner:
                part.forward = self.twice(part, names, shapes, shards, part.forward)
            elif shards:
                part.forward = self.around(part, names, shapes, shards, part.forward)

    def parameters(self, recurse=True):
        return iter(self.shards)

    def twice(self, part, names, shapes, shards, forward):
        def call(rows):
            if part.__dict__.get("inside"):
                return forward(rows)
            return Again.apply(plain, names, shapes, rows, *shards)

        plain = Plain(part, forward)
        names = ["part." + name for name in names]
        return call

    def around(self, part, names, shapes, shards, forward):
        def call(*inputs, **named):
            for name, shard, shape in zip(names, shards, shapes):
                setattr(part, name, Gather.apply(shard, shape))
            try:
                return forward(*inputs, **named)
            finally:
                for name in names:
                    delattr(part, name)

        return call

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


# %% six_saved_tensor_hooks: pass

# style: unusual: saved_tensors_hooks gather again


class _Layer:
    """Each parameter is cut by itself; autograd saves a note instead of a gathered weight."""

    def __init__(self, module):
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.module, self.params = module, dict(module.named_parameters(recurse=False))
        self.shards, self.cached, self.owner = {}, {}, {}
        for name, p in self.params.items():
            dist.broadcast(p.data, src=0)
            length = -(-p.numel() // self.n)
            padded = p.new_zeros(length * self.n, requires_grad=False).detach()
            padded[: p.numel()] = p.detach().flatten()
            self.shards[name] = nn.Parameter(
                padded[self.rank * length : (self.rank + 1) * length].clone()
            )
        self.shapes = {name: p.shape for name, p in self.params.items()}
        for name in self.params:
            delattr(module, name)
            setattr(module, name, None)
        del self.params
        original = module.forward

        def forward(*inputs, **named):
            for name in self.shards:
                module.__dict__.pop(name, None)
                module._parameters.pop(name, None)
                module.__dict__[name] = _Whole.apply(self.shards[name], self, name)
            storages = {
                module.__dict__[name].untyped_storage().data_ptr(): name for name in self.shards
            }

            def pack(tensor):
                name = storages.get(tensor.untyped_storage().data_ptr())
                if name is None:
                    return tensor
                return name, tensor.shape, tensor.stride(), tensor.storage_offset()

            def unpack(kept):
                if not isinstance(kept, tuple):
                    return kept
                name, *view = kept
                return self.gather(name).as_strided(*view)

            with saved_tensors_hooks(pack, unpack):
                made = original(*inputs, **named)
            for name in self.shards:
                module.__dict__[name] = None
            return made

        module.forward = forward

    def gather(self, name):
        shard, shape = self.shards[name].detach(), self.shapes[name]
        whole = shard.new_empty(shard.numel() * self.n)
        dist.all_gather(list(whole.split(shard.numel())), shard)
        return whole[: shape.numel()].view(shape)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, layer, name):
        ctx.layer, ctx.length = layer, shard.numel()
        return layer.gather(name)

    @staticmethod
    def backward(ctx, gradient):
        n, length = ctx.layer.n, ctx.length
        padded = gradient.new_zeros(length * n)
        padded[: gradient.numel()] = gradient.flatten()
        mean = gradient.new_empty(length)
        dist.reduce_scatter(mean, list(padded.split(length)))
        return mean / n, None, None


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
            yield from layer.shards.values()

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


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


# %% shards_nothing: wrong Zero3.parameters_not_sharded


class Averaging(nn.Module):
    """All weights on every rank, and gradients averaged during backward: no sharding at all."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self.average)

    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


class Zero3(Averaging):
    pass


# %% shards_only_the_optimizer: wrong Zero3.whole_module_kept


class Zero3(nn.Module):
    """The optimizer steps shards, but every rank has all weights as well."""

    def __init__(self, module):
        super().__init__()
        self.module, self.shards = module, []
        n, rank = dist.get_world_size(), dist.get_rank()
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            shard = nn.Parameter(pad(p.detach().flatten()).chunk(n)[rank].clone())
            self.shards.append(shard)
            p.register_post_accumulate_grad_hook(lambda p, shard=shard: self.average(p, shard))

    def average(self, p, shard):
        n = dist.get_world_size()
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter(shard.grad, list(pad(p.grad.flatten()).chunk(n)))
        shard.grad /= n
        p.grad = None

    def parameters(self, recurse=True):
        return iter(self.shards)

    def forward(self, *inputs, **named):
        for p, shard in zip(self.module.parameters(), self.shards):
            pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
            dist.all_gather(pieces, shard.detach())
            p.data.copy_(torch.cat(pieces)[: p.numel()].view(p.shape))
        return self.module(*inputs, **named)


# %% shards_are_views: wrong Zero3.shards_are_views


class Zero3(Wrapper):
    class Layer(Layer):
        def cut(self, flat):
            return flat.clone().chunk(dist.get_world_size())[dist.get_rank()]


# %% gathers_and_keeps: wrong Zero3.kept_after_forward


class Zero3(Wrapper):
    class Layer(Layer):
        def gather(self):
            self.free()
            super().gather()

        def after_forward(self):
            pass

        def before_backward(self):
            pass

        def gradient_ready(self, p):
            if all(p.grad is not None for p in self.params):
                self.send()


# %% drops_its_own_reference: wrong Zero3.kept_for_backward


class Zero3(Wrapper):
    """``p.data`` is empty after forward, and autograd still has the numbers."""

    class Layer(Layer):
        def __init__(self, module):
            self.shapes = [p.shape for p in own(module)]
            super().__init__(module)

        def gather(self):
            for p, shard, shape in zip(self.params, self.shards, self.shapes):
                pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
                dist.all_gather(pieces, shard.detach())
                p.data = torch.cat(pieces)[: shape.numel()].view(shape)

        def after_forward(self):
            for p in self.params:
                p.data = torch.empty(0, dtype=p.dtype)

        free = after_forward


# %% gathers_all_before_forward: wrong Zero3.more_than_two_layers


class Zero3(Wrapper):
    def forward(self, *inputs, **named):
        for layer in self.layers:
            layer.gather()
        return super().forward(*inputs, **named)


# %% keeps_after_backward: wrong Zero3.kept_after_backward


class Zero3(Wrapper):
    class Layer(Layer):
        def gradient_ready(self, p):
            if all(p.grad is not None for p in self.params):
                self.send()

        def before_forward(self):
            self.free()
            self.gather()


# %% frees_only_while_it_trains: wrong Zero3.kept_after_evaluation


class Zero3(Wrapper):
    class Layer(Layer):
        def before_forward(self):
            self.free()
            self.gather()

        def after_forward(self):
            if torch.is_grad_enabled():
                self.free()


# %% reduces_after_backward: wrong Zero3.gradients_kept


class Zero3(Wrapper):
    class Layer(Layer):
        waiting = []

        def gradient_ready(self, p):
            if all(p.grad is not None for p in self.params):
                self.free()
                if not self.waiting:
                    torch.autograd.Variable._execution_engine.queue_callback(self.send_all)
                self.waiting.append(self)

        def send_all(self):
            while self.waiting:
                self.waiting.pop().send()


# %% all_reduces: wrong Zero3.all_reduced


class Zero3(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            n = dist.get_world_size()
            dist.all_reduce(flat)
            return flat.chunk(n)[dist.get_rank()] / n


# %% gathers_for_every_gradient: wrong Zero3.sent_too_much


class Zero3(Wrapper):
    class Layer(Layer):
        def gradient_ready(self, p):
            self.free()
            self.gather()
            super().gradient_ready(p)


# %% does_not_wait: wrong Zero3.not_waited


class Zero3(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            n = dist.get_world_size()
            result = torch.empty(len(flat) // n, dtype=flat.dtype)
            self.handle = dist.reduce_scatter(result, list(flat.chunk(n)), async_op=True)
            return result / n


# %% six_shard_grad_is_view_of_flat: wrong Zero3.gradients_are_views

# mistake: .grad of a shard is a view of the flat gradients


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
        rank = dist.get_rank()
        mean = flat[rank * self.length : (rank + 1) * self.length]
        dist.reduce_scatter(mean, list(flat.split(self.length)))
        mean /= self.n
        self.shard.grad = mean


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
