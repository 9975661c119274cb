"""Answers to ``NaiveDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn
from exercises.distributed_data_parallel.wrong_wrappers import Wrapper


# %% starts_with_coalesced_broadcasts: pass
class NaiveDDP(Wrapper):
    def start(self):
        everything = [t.detach() for t in (*self.module.parameters(), *self.module.buffers())]
        dist._broadcast_coalesced(dist.group.WORLD, everything, 250 * 2**20, 0)


# %% through_rank_0: pass
class NaiveDDP(Wrapper):
    def average(self, p):
        dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            p.grad.div_(dist.get_world_size())
        dist.broadcast(p.grad, src=0)


# %% all_at_once_and_waits: pass
class NaiveDDP(Wrapper):
    def start(self):
        tensors = [*self.module.parameters(), *self.module.buffers()]
        for handle in [dist.broadcast(t.data, src=0, async_op=True) for t in tensors]:
            handle.wait()

    def sync_gradients(self):
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
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


# %% every_rank_is_the_source: wrong mismatch
class NaiveDDP(Wrapper):
    def start(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.data, src=dist.get_rank())


# %% rank_0_alone_broadcasts: wrong mismatch
class NaiveDDP(Wrapper):
    def start(self):
        if dist.get_rank() == 0:
            super().start()


# %% sends_float32: wrong rounded
class NaiveDDP(Wrapper):
    def average(self, p):
        sent = p.grad.float()
        dist.all_reduce(sent)
        p.grad = sent.to(p.dtype) / dist.get_world_size()


# %% asks_pytorch: wrong refused_name
class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = nn.parallel.DistributedDataParallel(module)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        pass
