"""Answers to ``NaiveDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from itertools import chain
from torch import nn


def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, 0)


def used(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


class Wrapper(nn.Module):
    """What most of these answers have in common."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        start_equal(module)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


# %% starts_with_coalesced_broadcasts: pass


class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        everything = [t.detach() for t in (*module.parameters(), *module.buffers())]
        dist._broadcast_coalesced(dist.group.WORLD, everything, 250 * 2**20, 0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


# %% through_rank_0: pass


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        n = dist.get_world_size()
        for p in used(self.module):
            dist.reduce(p.grad, dst=0)
            if dist.get_rank() == 0:
                p.grad.div_(n)
            dist.broadcast(p.grad, src=0)


# %% all_at_once_and_waits: pass


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        parameters = list(used(self.module))
        handles = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
        for handle, p in zip(handles, parameters):
            handle.wait()
            p.grad.mul_(1 / dist.get_world_size())


# %% as_pytorch_does_it_during_backward: pass


class NaiveDDP(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.handles = {}
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.note)

    def note(self, p):
        self.handles[p] = None

    def sync_gradients(self):
        flags = torch.tensor([p in self.handles for p in self.module.parameters()]).int()
        dist.all_reduce(flags)
        for p, flag in zip(self.module.parameters(), flags.tolist()):
            if flag:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        self.handles.clear()


# %% four_flat: pass

# Style: one flat broadcast for each dtype, gradients flat as well, nothing reused.


def _by_dtype(tensors):
    groups = {}
    for t in tensors:
        groups.setdefault((t.dtype, t.device), []).append(t)
    return groups.values()


def _through_flat(tensors, send):
    """Put tensors of one dtype end to end, let send change that vector in place, and copy back."""
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    send(flat)
    offset = 0
    for t in tensors:
        t.detach().copy_(flat[offset : offset + t.numel()].view(t.shape))
        offset += t.numel()


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module
        for group in _by_dtype(chain(module.parameters(), module.buffers())):
            _through_flat(group, lambda flat: dist.broadcast(flat, 0))

    def forward(self, *inputs, **named):
        """Call the module."""
        return self.inner(*inputs, **named)

    def _mean(self, flat):
        dist.all_reduce(flat)
        flat /= dist.get_world_size()

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Average the gradients over all ranks."""
        trainable = [p for p in self.inner.parameters() if p.requires_grad]
        for p in trainable:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for group in _by_dtype([p.grad for p in trainable]):
            _through_flat(group, self._mean)


# %% four_pickled: pass

# Style: unusual, rank 0 sends a pickled list of all tensors as one object; the others copy it in.


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module
        tensors = [t.detach() for t in (*module.parameters(), *module.buffers())]
        box = [[t.cpu() for t in tensors] if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        for t, value in zip(tensors, box[0], strict=True):
            t.copy_(value)

    def forward(self, *inputs, **named):
        return self.wrapped(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self)


# %% four_plain: pass

# Style: the plain one; broadcast every parameter and buffer, reuse average_gradients.


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)


# %% four_walks_modules: pass

# Style: unusual, walks module by module over _parameters and _buffers, asynchronous broadcasts, own averaging.


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.add_module("module", module)
        self.world_size = dist.get_world_size()
        seen, works = set(), []
        for part in module.modules():
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    works.append(dist.broadcast(tensor.data, src=0, async_op=True))
        for work in works:
            work.wait()

    def forward(self, *args, **kwargs):
        return self._modules["module"](*args, **kwargs)

    def sync_gradients(self) -> None:
        for p in filter(lambda p: p.requires_grad, self.parameters()):
            grad = torch.zeros_like(p) if p.grad is None else p.grad.detach() / self.world_size
            dist.all_reduce(grad)
            p.grad = grad


# %% four_not_registered: pass

# Mistake: keeps the module in a list, so parameters() of the wrapper is empty.


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = [module]
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        return self.wrapped[0](*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.wrapped[0])


# %% four_weights_every_step: pass

# Mistake: sends the weights of rank 0 again in every forward (numbers stay right; docstring: sent once and never again).


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        for p in self.module.parameters():
            dist.broadcast(p.data, src=0)
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)


# %% every_rank_is_the_source: wrong mismatch


class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=dist.get_rank())

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


# %% rank_0_alone_broadcasts: wrong mismatch


class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        if dist.get_rank() == 0:
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.data, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


# %% sends_float32: wrong rounded


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            sent = p.grad.float()
            dist.all_reduce(sent)
            p.grad = sent.to(p.dtype) / dist.get_world_size()


# %% averages_weights: wrong NaiveDDP.weights_changed


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


# %% forgets_parameters_without_dimension: wrong NaiveDDP.some_not_averaged


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            if p.dim() > 0:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()


# %% does_not_wait: wrong NaiveDDP.not_waited


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            dist.all_reduce(p.grad, async_op=True)
            p.grad /= dist.get_world_size()


# %% takes_one_input: wrong NaiveDDP.input_lost


class NaiveDDP(Wrapper):
    def forward(self, x):
        return self.module(x)

    def sync_gradients(self):
        average_gradients(self.module)


# %% returns_the_first_output: wrong NaiveDDP.output_changed


class NaiveDDP(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs[0] if isinstance(outputs, (tuple, list)) else outputs

    def sync_gradients(self):
        average_gradients(self.module)


# %% another_order_on_every_rank: wrong mismatch


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        parameters = list(used(self.module))
        if dist.get_rank():
            parameters.reverse()
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


# %% asks_pytorch: wrong refused_name


class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = nn.parallel.DistributedDataParallel(module)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        pass


# %% adds_to_the_gradients_of_the_step_before: wrong wrong_values


class NaiveDDP(Wrapper):
    def sync_gradients(self):
        self.old = getattr(self, "old", {})
        average_gradients(self.module)
        for name, p in self.module.named_parameters():
            if p.grad is not None:
                p.grad += self.old.get(name, 0)
                self.old[name] = p.grad.clone()
