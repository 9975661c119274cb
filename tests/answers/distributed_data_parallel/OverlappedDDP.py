"""Answers to ``OverlappedDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import queue
import threading
import torch
import torch.distributed as dist
from exercises.distributed_data_parallel.OverlappedDDP import Hooked
from exercises.distributed_data_parallel.wrong_wrappers import Wrapper


# %% empties_the_list_before_the_next_step: pass
class OverlappedDDP(Hooked):
    def forward(self, *inputs, **named):
        self.handles = []
        return self.module(*inputs, **named)

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


# %% keeps_them_for_one_more_step: pass
class OverlappedDDP(Hooked):
    def sync_gradients(self):
        before = self.handles
        super().sync_gradients()
        self.before = before


# %% handles_in_a_cycle: pass
class OverlappedDDP(Hooked):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        kept = [dist.all_reduce(p.grad, async_op=True)]
        kept.append(kept)
        self.handles.append(kept)

    def sync_gradients(self):
        for handle, _ in self.handles:
            handle.wait()
        self.handles = []


# %% with_futures: pass
class OverlappedDDP(Hooked):
    def hook(self, p):
        future = dist.all_reduce(p.grad, async_op=True).get_future()
        self.handles.append((p, future))

    def sync_gradients(self):
        for p, future in self.handles:
            p.grad = future.wait()[0] / dist.get_world_size()
        self.handles.clear()


# %% hooks_on_the_graph: pass
class OverlappedDDP(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.handles, self.nodes = {}, []
        for p in module.parameters():
            if p.requires_grad:
                node = p.view_as(p).grad_fn.next_functions[0][0]
                node.register_hook(self.hook_for(p))
                self.nodes.append(node)  # the hook is gone with it

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
class OverlappedDDP(Hooked):
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
class OverlappedDDP(Hooked):
    """As PyTorch's own: a callback at the end of backward waits."""

    def hook(self, p):
        if not self.handles:
            torch.autograd.Variable._execution_engine.queue_callback(super().sync_gradients)
        super().hook(p)

    def sync_gradients(self):
        pass
