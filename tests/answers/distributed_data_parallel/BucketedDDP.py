"""Answers to ``BucketedDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from collections.abc import Iterator
from contextlib import contextmanager
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


# %% copies_in_and_out: pass


class BucketedDDP(Wrapper):
    pass


# %% flags_for_what_nobody_used: pass


class BucketedDDP(Wrapper):
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


# %% gradients_live_in_the_bucket: pass


class BucketedDDP(nn.Module):
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


# %% a_share_in_float32: pass


class BucketedDDP(Wrapper):
    """A quotient of whole-number tensors."""

    def start(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads]) * (1 / torch.tensor(dist.get_world_size()))
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


# %% four_coalesced: pass

# Style: unusual, no flat vector of its own: dist.all_reduce_coalesced on the list of gradients of a bucket, in place.


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        self.buckets = [[]]
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            last = self.buckets[-1]
            held = sum(q.numel() * q.element_size() for q in last)
            fits = held + p.numel() * p.element_size() <= bucket_bytes
            if last and not (fits and last[0].dtype == p.dtype):
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.on_grad)
        if not self.buckets[0]:
            self.buckets = []
        self.enabled = True
        self.todo = list(self.buckets)
        self.seen = set()
        self.works = []

    def on_grad(self, p):
        if self.enabled:
            self.seen.add(p)
            while self.todo and self.seen.issuperset(self.todo[0]):
                self.send(self.todo.pop(0))

    def send(self, bucket):
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.works.append(dist.all_reduce_coalesced([p.grad for p in bucket], async_op=True))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.enabled:
            return
        for bucket in self.todo:
            self.send(bucket)
        for work in self.works:
            work.wait()
        for bucket in self.buckets:
            for p in bucket:
                p.grad /= dist.get_world_size()
        self.todo, self.seen, self.works = list(self.buckets), set(), []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled


# %% four_coroutine: pass

# Style: unusual, a generator that is advanced by every gradient walks over the buckets; no counters; a bucket with mixed dtypes travels in the wider one (torch.cat promotes).


def _plan(module, limit):
    """Yield the buckets, last parameters first."""
    bucket, room = [], limit
    for p in [p for p in module.parameters() if p.requires_grad][::-1]:
        need = p.numel() * p.element_size()
        if bucket and need > room:
            yield bucket
            bucket, room = [], limit
        bucket.append(p)
        room -= need
    if bucket:
        yield bucket


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self._plan = tuple(_plan(module, bucket_bytes))
        self._silent = False
        self._walk = None
        for bucket in self._plan:
            for p in bucket:
                p.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, p):
        if self._silent:
            return
        if self._walk is None:
            self._walk = self._walking()
            next(self._walk)
        self._walk.send(p)

    def _walking(self):
        """Take parameters whose gradients are ready, None for 'no more will come'."""
        there, flying, over = set(), [], False
        for bucket in self._plan:
            while not over and not there.issuperset(bucket):
                got = yield
                over = got is None
                there.add(got)
            flat = torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket]
            )
            flying.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        while not over:
            over = (yield) is None
        for bucket, flat, work in flying:
            work.wait()
            parts = (flat / dist.get_world_size()).split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad = part.reshape(p.shape).to(p.dtype, copy=True)
        yield

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if self._silent:
            return
        walk, self._walk = self._walk, None
        if walk is None:
            walk = self._walking()
            next(walk)
        walk.send(None)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        old = self._silent
        self._silent = True
        try:
            yield
        finally:
            self._silent = old


# %% four_countdown: pass

# Style: fixed buckets and countdowns; gradients are copied together with torch.cat when a bucket starts; closed before overflow, and where the dtype changes.


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if (
                not self.buckets
                or size + nbytes > bucket_bytes
                or self.buckets[-1][0].dtype != p.dtype
            ):
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []  # (flat, work) of the buckets 0, 1, 2, ... in this order

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        # a full bucket waits for those before it, so all ranks start them in one order
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start()

    def _start(self):
        bucket = self.buckets[len(self.started)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


# %% four_views: pass

# Style: long-lived flat buffers, .grad become views into them (as gradient_as_bucket_view), a Bucket class, buckets closed after overflow.


class _Bucket:
    def __init__(self, params):
        self.params = params
        total = sum(p.numel() for p in params)
        self.flat = torch.zeros(total, dtype=params[0].dtype, device=params[0].device)
        pieces = self.flat.split([p.numel() for p in params])
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
        self.ready = set()
        self.work = None

    @property
    def full(self):
        return len(self.ready) == len(self.params)

    def start(self):
        for p, view in zip(self.params, self.views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad is not view and p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
            p.grad = view
        self.flat.div_(dist.get_world_size())
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.work.wait()
        self.work = None
        self.ready.clear()


class BucketedDDP(nn.Module):
    """Gradients live in the buckets."""

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        self._buckets = []
        self._next = 0
        self._quiet = 0
        # one open bucket for each dtype and device, as a vector has only one
        pending = {}
        for p in reversed(list(module.parameters())):
            if not p.requires_grad:
                continue
            group = pending.setdefault((p.dtype, p.device), [])
            group.append(p)
            if sum(q.numel() * q.element_size() for q in group) >= bucket_bytes:
                self._buckets.append(_Bucket(pending.pop((p.dtype, p.device))))
        self._buckets += map(_Bucket, pending.values())
        for bucket in self._buckets:
            for p in bucket.params:
                p.register_post_accumulate_grad_hook(self._hook_for(bucket))

    def _hook_for(self, bucket):
        def hook(p):
            if self._quiet == 0:
                bucket.ready.add(p)
                self._launch(only_full=True)

        return hook

    def _launch(self, only_full):
        for bucket in self._buckets[self._next :]:
            if only_full and not bucket.full:
                break
            bucket.start()
            self._next += 1

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if self._quiet:
            return
        self._launch(only_full=False)
        for bucket in self._buckets:
            bucket.finish()
        self._next = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1


# %% four_nested_no_sync: pass

# Mistake: no_sync sets the flag to True at its end, so an inner no_sync switches the outer one off.


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if (
                not self.buckets
                or size + nbytes > bucket_bytes
                or self.buckets[-1][0].dtype != p.dtype
            ):
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []  # (flat, work) of the buckets 0, 1, 2, ... in this order

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        # a full bucket waits for those before it, so all ranks start them in one order
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start()

    def _start(self):
        bucket = self.buckets[len(self.started)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sync = False
        try:
            yield
        finally:
            self.sync = True


# %% sends_the_parameters: wrong BucketedDDP.weights_changed


class BucketedDDP(Wrapper):
    def start(self, bucket):
        flat = torch.cat([p.data.flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def spread(self, bucket, flat):
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.data = piece.view_as(p)


# %% never_sends_the_last_bucket: wrong BucketedDDP.some_not_averaged


class BucketedDDP(Wrapper):
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


# %% never_waits: wrong BucketedDDP.not_waited


class BucketedDDP(Wrapper):
    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.buckets[self.next :]:
            self.start(bucket)
        for bucket, flat, handle in self.sent:
            self.spread(bucket, flat)
        self.reset()


# %% all_after_backward: wrong BucketedDDP.starts_after_backward


class BucketedDDP(Wrapper):
    def hook(self, p):
        pass


# %% the_first_bucket_only: wrong BucketedDDP.starts_late


class BucketedDDP(Wrapper):
    def hook(self, p):
        if not self.next:
            super().hook(p)


# %% without_async: wrong BucketedDDP.blocks_backward


class BucketedDDP(Wrapper):
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


# %% in_the_order_of_the_layers: wrong BucketedDDP.first_layers_first


class BucketedDDP(Wrapper):
    def parameters_in_order(self):
        return [p for p in self.module.parameters() if p.requires_grad]


# %% ignores_the_limit: wrong BucketedDDP.one_bucket


class BucketedDDP(Wrapper):
    def cut(self, parameters):
        return [parameters]


# %% a_bucket_for_each: wrong BucketedDDP.one_collective_per_parameter


class BucketedDDP(Wrapper):
    def cut(self, parameters):
        return [[p] for p in parameters]


# %% always_four_bytes: wrong BucketedDDP.wrong_number_of_buckets


class BucketedDDP(Wrapper):
    def cut(self, parameters):
        self.limit *= 2
        return super().cut(parameters)


# %% puts_a_tied_parameter_in_twice: wrong BucketedDDP.sent_too_much


class BucketedDDP(Wrapper):
    def parameters_in_order(self):
        named = self.module.named_parameters(remove_duplicate=False)
        return [p for _, p in list(named)[::-1] if p.requires_grad]


# %% no_sync_does_nothing: wrong BucketedDDP.sent_inside_no_sync


class BucketedDDP(Wrapper):
    @contextmanager
    def no_sync(self):
        yield


# %% counts_inside_no_sync: wrong BucketedDDP.late_after_no_sync


class BucketedDDP(Wrapper):
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


# %% takes_one_input: wrong BucketedDDP.input_lost


class BucketedDDP(Wrapper):
    def forward(self, x):
        return self.module(x)


# %% returns_the_first_output: wrong BucketedDDP.output_changed


class BucketedDDP(Wrapper):
    def forward(self, *inputs, **named):
        outputs = self.module(*inputs, **named)
        return outputs[0] if isinstance(outputs, tuple) else outputs


# %% excepts_everything: wrong BucketedDDP.swallows_exceptions


class BucketedDDP(Wrapper):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        except Exception:
            pass
        self.quiet = False


# %% adds_up_in_float32: wrong rounded


class BucketedDDP(Wrapper):
    @contextmanager
    def no_sync(self):
        with super().no_sync():
            yield
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad = p.grad.float().to(p.dtype)


# %% four_not_reset_after_unused: wrong wrong_values

# Mistake: countdowns are set back only when a bucket became full; after a step with an unused parameter they are off by some.


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if (
                not self.buckets
                or size + nbytes > bucket_bytes
                or self.buckets[-1][0].dtype != p.dtype
            ):
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        if not hasattr(self, "missing"):
            self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []  # (flat, work) of the buckets 0, 1, 2, ... in this order

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        # a full bucket waits for those before it, so all ranks start them in one order
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start()

    def _start(self):
        bucket = self.buckets[len(self.started)]
        if self.missing[len(self.started)] == 0:
            self.missing[len(self.started)] = len(bucket)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


# %% four_unfull_never_sent: wrong none

# Mistake: buckets that are not full are not started in sync_gradients; other ranks wait for ever.


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if (
                not self.buckets
                or size + nbytes > bucket_bytes
                or self.buckets[-1][0].dtype != p.dtype
            ):
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = {}

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        if self.missing[self.bucket_of[p]] == 0:
            self._start(self.bucket_of[p])

    def _start(self, i):
        bucket = self.buckets[i]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started[i] = (flat, dist.all_reduce(flat, async_op=True))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        for i, (flat, work) in self.started.items():
            bucket = self.buckets[i]
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


# %% four_waits_at_the_end: wrong BucketedDDP.written_on_the_way

# Mistake: divides before the all-reduce is done (no wait until the end of the loop).


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if (
                not self.buckets
                or size + nbytes > bucket_bytes
                or self.buckets[-1][0].dtype != p.dtype
            ):
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []  # (flat, work) of the buckets 0, 1, 2, ... in this order

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        # a full bucket waits for those before it, so all ranks start them in one order
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start()

    def _start(self):
        bucket = self.buckets[len(self.started)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        for _, work in self.started:
            work.wait()
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before
