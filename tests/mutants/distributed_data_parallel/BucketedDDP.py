"""Answers to ``BucketedDDP``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

from contextlib import contextmanager

import torch
import torch.distributed as dist
from harness import right, wrong
from torch import nn


def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, src=0)


def size_of(p):
    return p.numel() * p.element_size()


class Wrapper(nn.Module):
    """A way to do it that most of these answers change in one place."""

    def __init__(self, module, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module = module
        self.limit = bucket_bytes
        self.quiet = False
        start_equal(module)
        self.buckets = self.cut(self.parameters_in_order())
        self.hooked()
        self.reset()

    def parameters_in_order(self):
        return [p for p in reversed(list(self.module.parameters())) if p.requires_grad]

    def hooked(self):
        for p in {p for bucket in self.buckets for p in bucket}:
            p.register_post_accumulate_grad_hook(self.hook)

    def cut(self, parameters):
        buckets, size = [[]], 0
        for p in parameters:
            if buckets[-1] and size + size_of(p) > self.limit:
                buckets.append([])
                size = 0
            buckets[-1].append(p)
            size += size_of(p)
        return buckets

    def reset(self):
        self.next = 0
        self.ready = set()
        self.sent = []

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def hook(self, p):
        if self.quiet:
            return
        self.ready.add(p)
        while self.next < len(self.buckets) and self.ready.issuperset(self.buckets[self.next]):
            self.start(self.buckets[self.next])
            self.next += 1

    def start(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.buckets[self.next :]:
            self.start(bucket)
        for bucket, flat, handle in self.sent:
            handle.wait()
            self.spread(bucket, flat)
        self.reset()

    def spread(self, bucket, flat):
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p).clone()

    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False


@wrong("BucketedDDP.weights_changed")
class sends_the_parameters(Wrapper):
    def start(self, bucket):
        flat = torch.cat([p.data.flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def spread(self, bucket, flat):
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.data = piece.view_as(p)


@wrong("BucketedDDP.not_averaged")
class forgets_to_copy_back(Wrapper):
    def spread(self, bucket, flat):
        pass


@wrong("BucketedDDP.some_not_averaged")
class never_sends_the_last_bucket(Wrapper):
    """Sends a bucket when the next gradient does not fit any more."""

    def cut(self, parameters):
        self.open, self.size = [], 0
        return [parameters]

    def hook(self, p):
        if self.quiet:
            return
        if self.open and self.size + size_of(p) > self.limit:
            self.start(self.open)
            self.open, self.size = [], 0
        self.open.append(p)
        self.size += size_of(p)

    def sync_gradients(self):
        if self.quiet:
            return
        for bucket, flat, handle in self.sent:
            handle.wait()
            self.spread(bucket, flat)
        self.sent, self.open, self.size = [], [], 0

    def start(self, bucket):
        super().start(list(bucket))


@wrong("BucketedDDP.not_waited")
class never_waits(Wrapper):
    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.buckets[self.next :]:
            self.start(bucket)
        for bucket, flat, handle in self.sent:
            self.spread(bucket, flat)
        self.reset()


@wrong("BucketedDDP.not_waited")
class waits_for_the_last_bucket(Wrapper):
    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.buckets[self.next :]:
            self.start(bucket)
        self.sent[-1][2].wait()
        for bucket, flat, handle in self.sent:
            self.spread(bucket, flat)
        self.reset()


@wrong("BucketedDDP.starts_after_backward")
class all_after_backward(Wrapper):
    def hook(self, p):
        pass


@wrong("BucketedDDP.not_reset")
class works_for_one_step_only(Wrapper):
    def reset(self):
        self.next = getattr(self, "next", 0)
        self.ready = set()
        self.sent = []


@wrong("BucketedDDP.starts_late")
class the_first_bucket_only(Wrapper):
    def hook(self, p):
        if not self.next:
            super().hook(p)


@wrong("BucketedDDP.blocks_backward")
class without_async(Wrapper):
    def start(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        self.sent.append((bucket, flat, None))

    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.buckets[self.next :]:
            self.start(bucket)
        for bucket, flat, _ in self.sent:
            self.spread(bucket, flat)
        self.reset()


@wrong("BucketedDDP.first_layers_first")
class in_the_order_of_the_layers(Wrapper):
    def parameters_in_order(self):
        return [p for p in self.module.parameters() if p.requires_grad]


@wrong("BucketedDDP.one_bucket")
class ignores_the_limit(Wrapper):
    def cut(self, parameters):
        return [parameters]


@wrong("BucketedDDP.one_collective_per_parameter")
class a_bucket_for_each(Wrapper):
    def cut(self, parameters):
        return [[p] for p in parameters]


@wrong("BucketedDDP.one_collective_per_parameter")
class sends_the_parts_of_a_bucket(Wrapper):
    def start(self, bucket):
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= dist.get_world_size()
            self.sent.append(([p], p.grad.flatten(), dist.all_reduce(p.grad, async_op=True)))

    def spread(self, bucket, flat):
        pass


@wrong("BucketedDDP.one_bucket")
class counts_numbers_and_not_bytes(Wrapper):
    def cut(self, parameters):
        self.limit *= parameters[0].element_size()
        return super().cut(parameters)


@wrong("BucketedDDP.wrong_number_of_buckets")
class always_four_bytes(Wrapper):
    def cut(self, parameters):
        self.limit *= 2
        return super().cut(parameters)


@wrong("BucketedDDP.wrong_number_of_buckets")
class two_parameters_to_a_bucket(Wrapper):
    def cut(self, parameters):
        return [parameters[i : i + 2] for i in range(0, len(parameters), 2)]


@wrong("BucketedDDP.sent_too_much")
class puts_a_tied_parameter_in_twice(Wrapper):
    def parameters_in_order(self):
        named = self.module.named_parameters(remove_duplicate=False)
        return [p for _, p in list(named)[::-1] if p.requires_grad]


@wrong("BucketedDDP.sent_too_much")
class puts_frozen_ones_in(Wrapper):
    def parameters_in_order(self):
        return list(self.module.parameters())[::-1]

    def hooked(self):
        for p in self.module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)
        self.frozen = {p for p in self.module.parameters() if not p.requires_grad}

    def reset(self):
        super().reset()
        self.ready |= self.frozen


@wrong("BucketedDDP.sent_too_much")
class sends_all_again(Wrapper):
    def sync_gradients(self):
        self.next = 0
        super().sync_gradients()


@wrong("BucketedDDP.sent_inside_no_sync")
class no_sync_does_nothing(Wrapper):
    @contextmanager
    def no_sync(self):
        yield


@wrong("BucketedDDP.sent_inside_no_sync")
class sync_gradients_sends_in_no_sync(Wrapper):
    def sync_gradients(self):
        quiet, self.quiet = self.quiet, False
        super().sync_gradients()
        self.quiet = quiet


@wrong("BucketedDDP.late_after_no_sync")
class counts_inside_no_sync(Wrapper):
    def reset(self):
        super().reset()
        self.missing = [len(bucket) for bucket in self.buckets]

    def hook(self, p):
        (number,) = [i for i, b in enumerate(self.buckets) if any(p is q for q in b)]
        self.missing[number] -= 1
        if self.quiet:
            return
        while self.next < len(self.buckets) and self.missing[self.next] == 0:
            self.start(self.buckets[self.next])
            self.next += 1


@wrong("BucketedDDP.input_lost")
class takes_one_input(Wrapper):
    def forward(self, x):
        return self.module(x)


@wrong("BucketedDDP.output_changed")
class returns_the_first_output(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs[0] if isinstance(outputs, tuple) else outputs


@wrong("BucketedDDP.swallows_exceptions")
class excepts_everything(Wrapper):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        except Exception:
            pass
        self.quiet = False


@wrong("rounded")
class adds_up_in_float32(Wrapper):
    @contextmanager
    def no_sync(self):
        with super().no_sync():
            yield
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad = p.grad.float().to(p.dtype)


@right
class copies_in_and_out(Wrapper):
    pass


@right
class flags_for_what_nobody_used(Wrapper):
    """One more collective, of another type, so that unused parameters can stay None."""

    def sync_gradients(self):
        if self.quiet:
            return
        flags = torch.tensor([p.grad is not None for b in self.buckets for p in b]).int()
        super().sync_gradients()
        dist.all_reduce(flags)
        for p, flag in zip([p for b in self.buckets for p in b], flags.tolist()):
            if not flag:
                p.grad = None


@right
class gradients_live_in_the_bucket(nn.Module):
    def __init__(self, module, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module = module
        self.silent = False
        start_equal(module)
        self.flats, self.place, self.counts, self.handles = [], {}, [], []
        group = []
        for p in list(module.parameters())[::-1]:
            if p.requires_grad:
                group.append(p)
                if sum(map(size_of, group)) > bucket_bytes:
                    self.close(group)
                    group = []
        if group:
            self.close(group)
        self.begin()

    def close(self, group):
        flat = group[0].new_zeros(sum(p.numel() for p in group))
        start = 0
        for p in group:
            view = flat[start : start + p.numel()].view(p.shape)
            self.place[p] = (len(self.flats), view)
            start += p.numel()
            p.register_post_accumulate_grad_hook(self.arrived)
        self.flats.append(flat)
        self.counts.append(len(group))

    def begin(self):
        self.left = list(self.counts)
        self.here = set()
        self.handles = []

    def take(self, p):
        number, view = self.place[p]
        if p.grad is None:
            view.zero_()
        elif p.grad is not view:
            view.copy_(p.grad)
        p.grad = view
        self.left[number] -= 1
        self.here.add(p)

    def launch(self):
        while len(self.handles) < len(self.flats) and not self.left[len(self.handles)]:
            flat = self.flats[len(self.handles)]
            self.handles.append(dist.all_reduce(flat, async_op=True))

    def arrived(self, p):
        if not self.silent:
            self.take(p)
            self.launch()

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        if self.silent:
            return
        for p in self.place:
            if p not in self.here:
                self.take(p)
        self.launch()
        for flat, handle in zip(self.flats, self.handles):
            handle.wait()
            flat.div_(dist.get_world_size())
        self.begin()

    @contextmanager
    def no_sync(self):
        self.silent, before = True, self.silent
        try:
            yield
        finally:
            self.silent = before


@right
class a_share_in_float32(Wrapper):
    """A quotient of whole-number tensors."""

    def start(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads]) * (1 / torch.tensor(dist.get_world_size()))
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
