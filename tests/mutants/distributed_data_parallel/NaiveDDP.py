"""Answers to ``NaiveDDP``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from distributed_data_parallel import average_gradients
from harness import right, wrong
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


@wrong("NaiveDDP.start_not_shared")
class receives_into_copies(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach().clone(), 0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("mismatch")
class every_rank_is_the_source(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=dist.get_rank())

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("mismatch")
class rank_0_alone_broadcasts(nn.Module):
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


@wrong("rounded")
class sends_float32(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            sent = p.grad.float()
            dist.all_reduce(sent)
            p.grad = sent.to(p.dtype) / dist.get_world_size()


@wrong("NaiveDDP.weights_changed")
class averages_weights(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


@wrong("NaiveDDP.weights_changed")
class averages_weights_too(Wrapper):
    def sync_gradients(self):
        average_gradients(self.module)
        for p in self.module.parameters():
            dist.all_reduce(p.data)


@wrong("NaiveDDP.some_not_averaged")
class forgets_parameters_without_dimension(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            if p.dim() > 0:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()


@wrong("NaiveDDP.not_waited")
class does_not_wait(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            dist.all_reduce(p.grad, async_op=True)
            p.grad /= dist.get_world_size()


@wrong("NaiveDDP.not_waited")
class waits_for_the_last(Wrapper):
    def sync_gradients(self):
        for p in used(self.module):
            p.grad /= dist.get_world_size()
            handle = dist.all_reduce(p.grad, async_op=True)
        handle.wait()


@wrong("NaiveDDP.input_lost")
class takes_one_input(Wrapper):
    def forward(self, x):
        return self.module(x)

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("NaiveDDP.input_lost")
class drops_names(Wrapper):
    def forward(self, *inputs, **named):
        return self.module(*inputs)

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("NaiveDDP.output_changed")
class returns_the_first_output(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs[0] if isinstance(outputs, (tuple, list)) else outputs

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("mismatch")
class another_order_on_every_rank(Wrapper):
    def sync_gradients(self):
        parameters = list(used(self.module))
        if dist.get_rank():
            parameters.reverse()
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("NaiveDDP.none_was_sent", status="crash")
class everything_is_used(Wrapper):
    def sync_gradients(self):
        for p in self.module.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("refused_name")
class asks_pytorch(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = nn.parallel.DistributedDataParallel(module)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        pass


@wrong("wrong_values")
class adds_to_the_gradients_of_the_step_before(Wrapper):
    def sync_gradients(self):
        self.old = getattr(self, "old", {})
        average_gradients(self.module)
        for name, p in self.module.named_parameters():
            if p.grad is not None:
                p.grad += self.old.get(name, 0)
                self.old[name] = p.grad.clone()


@right
class starts_with_coalesced_broadcasts(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        everything = [t.detach() for t in (*module.parameters(), *module.buffers())]
        dist._broadcast_coalesced(dist.group.WORLD, everything, 250 * 2**20, 0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        average_gradients(self.module)


@right
class through_rank_0(Wrapper):
    def sync_gradients(self):
        n = dist.get_world_size()
        for p in used(self.module):
            dist.reduce(p.grad, dst=0)
            if dist.get_rank() == 0:
                p.grad.div_(n)
            dist.broadcast(p.grad, src=0)


@right
class all_at_once_and_waits(Wrapper):
    def sync_gradients(self):
        parameters = list(used(self.module))
        handles = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
        for handle, p in zip(handles, parameters):
            handle.wait()
            p.grad.mul_(1 / dist.get_world_size())


@right
class as_pytorch_does_it_during_backward(Wrapper):
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
