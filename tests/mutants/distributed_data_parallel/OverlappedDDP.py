"""Answers to ``OverlappedDDP``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import queue
import threading
import weakref

import torch
import torch.distributed as dist
from distributed_data_parallel import average_gradients
from harness import right, wrong
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


@wrong("OverlappedDDP.keeps_handles")
class never_empties_the_list(Wrapper):
    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


@right
class empties_the_list_before_the_next_step(Wrapper):
    def forward(self, *inputs, **named):
        self.handles = []
        return self.module(*inputs, **named)

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


@wrong("OverlappedDDP.keeps_handles")
class keeps_the_last_one_of_each_step(Wrapper):
    def sync_gradients(self):
        self.all_steps = [*getattr(self, "all_steps", []), self.handles[-1]]
        super().sync_gradients()


@right
class keeps_them_for_one_more_step(Wrapper):
    def sync_gradients(self):
        before = self.handles
        super().sync_gradients()
        self.before = before


@right
class handles_in_a_cycle(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        kept = [dist.all_reduce(p.grad, async_op=True)]
        kept.append(kept)
        self.handles.append(kept)

    def sync_gradients(self):
        for handle, _ in self.handles:
            handle.wait()
        self.handles = []


@right
class remembers_the_last_step_weakly(Wrapper):
    def sync_gradients(self):
        handles = {h for h in self.handles}
        self.last = weakref.proxy(handles)
        for handle in handles:
            handle.wait()
        self.handles = []


@wrong("OverlappedDDP.weights_changed")
class reduces_what_the_hook_is_given(Wrapper):
    def hook(self, p):
        self.handles.append(dist.all_reduce(p.data, async_op=True))

    def sync_gradients(self):
        super().sync_gradients()
        for p in self.module.parameters():
            p.data /= dist.get_world_size()


@wrong("OverlappedDDP.weights_changed")
class averages_parameters_one_by_one(Wrapper):
    def hook(self, p):
        with torch.no_grad():
            dist.all_reduce(p)
            p /= dist.get_world_size()


@wrong("OverlappedDDP.written_on_the_way")
class divides_before_it_has_arrived(Wrapper):
    def hook(self, p):
        self.handles.append(dist.all_reduce(p.grad, async_op=True))
        p.grad /= dist.get_world_size()


@wrong("OverlappedDDP.input_lost")
class inputs_without_names(Wrapper):
    def forward(self, *inputs):
        return self.module(*inputs)


@wrong("OverlappedDDP.output_changed")
class outputs_in_a_list(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs if isinstance(outputs, torch.Tensor) else [outputs]


@wrong("OverlappedDDP.start_not_finite")
class adds_zeros_to_rank_0(Wrapper):
    def __init__(self, module):
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data.mul_(dist.get_rank() == 0)
            dist.all_reduce(tensor.data)
        super().__init__(module)


@wrong("OverlappedDDP.written_on_the_way")
class never_clears_its_list(Wrapper):
    def hook(self, p):
        self.handles.append((p, dist.all_reduce(p.grad, async_op=True)))

    def sync_gradients(self):
        for p, handle in self.handles:
            handle.wait()
            p.grad /= dist.get_world_size()


@wrong("OverlappedDDP.not_waited")
class never_waits(Wrapper):
    def sync_gradients(self):
        pass


@wrong("OverlappedDDP.not_waited")
class looks_once_if_they_are_done(Wrapper):
    def sync_gradients(self):
        self.handles.clear()
        dist.barrier()


@wrong("OverlappedDDP.not_waited")
class waits_for_the_last_handle(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        self.handle = dist.all_reduce(p.grad, async_op=True)

    def sync_gradients(self):
        self.handle.wait()


@wrong("OverlappedDDP.not_waited")
class leaves_out_the_last_one(Wrapper):
    def sync_gradients(self):
        for handle in self.handles[:-1]:
            handle.wait()
        self.handles = []


@wrong("OverlappedDDP.starts_after_backward")
class all_after_backward(Wrapper):
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


@wrong("OverlappedDDP.starts_after_backward")
class is_naive(Wrapper):
    def hook(self, p):
        pass

    def sync_gradients(self):
        average_gradients(self.module)


@wrong("OverlappedDDP.starts_late")
class starts_the_first_ones_only(Wrapper):
    def hook(self, p):
        self.ready = [*getattr(self, "ready", []), p]
        if len(self.handles) < 2:
            super().hook(p)

    def sync_gradients(self):
        for p in self.ready[2:]:
            super().hook(p)
        self.ready = []
        super().sync_gradients()


@wrong("OverlappedDDP.starts_after_backward")
class starts_at_the_end_of_backward(Wrapper):
    def hook(self, p):
        self.ready = [*getattr(self, "ready", []), p]
        if len(self.ready) == sum(p.requires_grad for p in self.module.parameters()):
            for p in self.ready:
                super().hook(p)
            self.ready = []


@wrong("OverlappedDDP.blocks_backward")
class without_async(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)


@wrong("OverlappedDDP.blocks_backward")
class waits_at_once(Wrapper):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad, async_op=True).wait()


@wrong("OverlappedDDP.wrong_number_of_collectives")
class one_for_each_name(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        for name, p in module.named_parameters(remove_duplicate=False):
            if name == "decode.weight":
                p.register_post_accumulate_grad_hook(self.again)

    def again(self, p):
        self.handles.append(dist.all_reduce(torch.zeros_like(p), async_op=True))


@wrong("OverlappedDDP.wrong_number_of_collectives")
class hooks_each_name(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handles = []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        for _, p in module.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook(self, p):
        self.handles.append((dist.all_reduce(p.grad, async_op=True), p))

    def sync_gradients(self):
        for handle, p in self.handles:
            handle.wait()
            p.grad /= dist.get_world_size()
        self.handles.clear()


@wrong("OverlappedDDP.not_averaged")
class hooks_on_the_gradient_that_nobody_keeps(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.handles = []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(self.hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook(self, grad):
        grad = grad / dist.get_world_size()
        self.handles.append(dist.all_reduce(grad, async_op=True))

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()
        self.handles = []


@wrong("OverlappedDDP.some_not_averaged")
class weights_only(Wrapper):
    def hook(self, p):
        if p.dim() > 1:
            super().hook(p)


@wrong("OverlappedDDP.of_one_rank")
class sends_rank_0(Wrapper):
    def hook(self, p):
        self.handles.append(dist.broadcast(p.grad, 0, async_op=True))


@right
class with_futures(Wrapper):
    def hook(self, p):
        future = dist.all_reduce(p.grad, async_op=True).get_future()
        self.handles.append((p, future))

    def sync_gradients(self):
        for p, future in self.handles:
            p.grad = future.wait()[0] / dist.get_world_size()
        self.handles.clear()


@right
class hooks_on_the_graph(nn.Module):
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


@right
class a_thread_that_sends(Wrapper):
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


@right
class waits_when_backward_is_over(nn.Module):
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


@right
class a_share_in_float32(Wrapper):
    """A quotient of whole-number tensors."""

    def hook(self, p):
        p.grad *= 1 / torch.tensor(dist.get_world_size())
        self.handles.append(dist.all_reduce(p.grad, async_op=True))
