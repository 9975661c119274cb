"""Answers to ``OverlappedDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import queue
import threading
import torch
import torch.distributed as dist
import weakref
from collections import deque
from functools import partial
from torch import nn


class Wrapper(nn.Module):
    """What most of these answers have in common: the start, forward and a hook per parameter."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handles = []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook(self, p):
        p.grad /= dist.get_world_size()
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()
        self.handles = []


# %% empties_the_list_before_the_next_step: pass


class OverlappedDDP(Wrapper):
    def forward(self, *inputs, **named):
        self.handles = []
        return self.module(*inputs, **named)

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


# %% keeps_them_for_one_more_step: pass


class OverlappedDDP(Wrapper):
    def sync_gradients(self):
        before = self.handles
        super().sync_gradients()
        self.before = before


# %% handles_in_a_cycle: pass


class OverlappedDDP(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        kept = [dist.all_reduce(p.grad, async_op=True)]
        kept.append(kept)
        self.handles.append(kept)

    def sync_gradients(self):
        for handle, _ in self.handles:
            handle.wait()
        self.handles = []


# %% remembers_the_last_step_weakly: pass


class OverlappedDDP(Wrapper):
    def sync_gradients(self):
        handles = {h for h in self.handles}
        self.last = weakref.proxy(handles)
        for handle in handles:
            handle.wait()
        self.handles = []


# %% with_futures: pass


class OverlappedDDP(Wrapper):
    def hook(self, p):
        future = dist.all_reduce(p.grad, async_op=True).get_future()
        self.handles.append((p, future))

    def sync_gradients(self):
        for p, future in self.handles:
            p.grad = future.wait()[0] / dist.get_world_size()
        self.handles.clear()


# %% hooks_on_the_graph: pass


class OverlappedDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handles, self.nodes = {}, []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        for p in module.parameters():
            if p.requires_grad:
                node = p.view_as(p).grad_fn.next_functions[0][0]
                node.register_hook(self.hook_for(p))
                self.nodes.append(node)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook_for(self, p):
        def hook(*unused):
            self.handles[p] = dist.all_reduce(p.grad, async_op=True)

        return hook

    def sync_gradients(self):
        for p, handle in self.handles.items():
            handle.wait()
            p.grad /= dist.get_world_size()
        self.handles = {}


# %% a_thread_that_sends: pass


class OverlappedDDP(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.waiting = queue.Queue()
        self.done = queue.Queue()
        self.count = 0
        threading.Thread(target=self.send, daemon=True).start()

    def hook(self, p):
        self.count += 1
        self.waiting.put(p)

    def send(self):
        while True:
            p = self.waiting.get()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            self.done.put(p)

    def sync_gradients(self):
        while self.count:
            self.done.get()
            self.count -= 1


# %% waits_when_backward_is_over: pass


class OverlappedDDP(nn.Module):
    """As PyTorch's own: a callback at the end of backward waits."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handles = []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook(self, p):
        if not self.handles:
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        p.grad.div_(dist.get_world_size())
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def finish(self):
        for handle in self.handles:
            handle.wait()
        self.handles = []

    def sync_gradients(self):
        pass


# %% a_share_in_float32: pass


class OverlappedDDP(Wrapper):
    """A quotient of whole-number tensors."""

    def hook(self, p):
        p.grad *= 1 / torch.tensor(dist.get_world_size())
        self.handles.append(dist.all_reduce(p.grad, async_op=True))


# %% four_accumulate_node: pass

# Style: as before PyTorch 2.1, a hook on the AccumulateGrad node of each parameter.


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        self.handles = []
        self.nodes = []  # keeps the nodes alive, else the hooks go with them
        for p in module.parameters():
            if not p.requires_grad:
                continue
            node = p.view_as(p).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=p: self.handles.append(self.start(p)))
            self.nodes.append(node)

    @staticmethod
    def start(p):
        p.grad.mul_(1 / dist.get_world_size())
        return dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, async_op=True)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        handles, self.handles = self.handles, []
        for handle in handles:
            handle.wait()


# %% four_post_accumulate: pass

# Style: the modern one, post-accumulate-grad hooks and a list of (parameter, work).


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.works = []
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._start)

    def _start(self, p):
        self.works.append((p, dist.all_reduce(p.grad, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for p, work in self.works:
            work.wait()
            p.grad /= dist.get_world_size()
        self.works.clear()


# %% four_predivided_closure: pass

# Style: divide in the hook before sending, closures over local variables, sync only waits.


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        world_size = dist.get_world_size()
        pending = deque()

        def hook(param):
            param.grad.div_(world_size)
            pending.append(dist.all_reduce(param.grad, async_op=True))

        def wait():
            while pending:
                pending.popleft().wait()

        self._wait = wait
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        self._wait()


# %% four_tensor_hook: pass

# Style: old-fashioned register_hook on the tensor; sends a copy of old .grad plus the new gradient, puts it into .grad in sync.


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._flying = {}
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(partial(self._launch, p))

    @torch.no_grad()
    def _launch(self, p, grad):
        # .grad does not hold the new gradient yet: this runs just before it is added
        total = grad.clone() if p.grad is None else p.grad + grad
        self._flying[p] = total, dist.all_reduce(total, async_op=True)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    @torch.no_grad()
    def sync_gradients(self) -> None:
        for p, (total, work) in self._flying.items():
            work.wait()
            p.grad.copy_(total / dist.get_world_size())
        self._flying = {}


# %% never_empties_the_list: wrong OverlappedDDP.keeps_handles


class OverlappedDDP(Wrapper):
    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


# %% reduces_what_the_hook_is_given: wrong OverlappedDDP.weights_changed


class OverlappedDDP(Wrapper):
    def hook(self, p):
        self.handles.append(dist.all_reduce(p.data, async_op=True))

    def sync_gradients(self):
        super().sync_gradients()
        for p in self.module.parameters():
            p.data /= dist.get_world_size()


# %% divides_before_it_has_arrived: wrong OverlappedDDP.written_on_the_way


class OverlappedDDP(Wrapper):
    def hook(self, p):
        self.handles.append(dist.all_reduce(p.grad, async_op=True))
        p.grad /= dist.get_world_size()


# %% inputs_without_names: wrong OverlappedDDP.input_lost


class OverlappedDDP(Wrapper):
    def forward(self, *inputs):
        return self.module(*inputs)


# %% outputs_in_a_list: wrong OverlappedDDP.output_changed


class OverlappedDDP(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs if isinstance(outputs, torch.Tensor) else [outputs]


# %% never_waits: wrong OverlappedDDP.not_waited


class OverlappedDDP(Wrapper):
    def sync_gradients(self):
        pass


# %% all_after_backward: wrong OverlappedDDP.starts_after_backward


class OverlappedDDP(Wrapper):
    def hook(self, p):
        pass

    def sync_gradients(self):
        handles = []
        for p in self.module.parameters():
            if p.requires_grad:
                p.grad /= dist.get_world_size()
                handles.append(dist.all_reduce(p.grad, async_op=True))
        for handle in handles:
            handle.wait()


# %% starts_the_first_ones_only: wrong OverlappedDDP.starts_late


class OverlappedDDP(Wrapper):
    def hook(self, p):
        self.ready = [*getattr(self, "ready", []), p]
        if len(self.handles) < 2:
            super().hook(p)

    def sync_gradients(self):
        for p in self.ready[2:]:
            super().hook(p)
        self.ready = []
        super().sync_gradients()


# %% without_async: wrong OverlappedDDP.blocks_backward


class OverlappedDDP(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)


# %% one_for_each_name: wrong OverlappedDDP.wrong_number_of_collectives


class OverlappedDDP(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        for name, p in module.named_parameters(remove_duplicate=False):
            if name == "decode.weight":
                p.register_post_accumulate_grad_hook(self.again)

    def again(self, p):
        self.handles.append(dist.all_reduce(torch.zeros_like(p), async_op=True))


# %% weights_only: wrong OverlappedDDP.some_not_averaged


class OverlappedDDP(Wrapper):
    def hook(self, p):
        if p.dim() > 1:
            super().hook(p)
