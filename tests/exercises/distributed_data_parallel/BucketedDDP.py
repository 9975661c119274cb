"""``distributed_data_parallel.BucketedDDP``: as OverlappedDDP, but gradients travel in buckets."""

from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.specimen import rows_by_step
from multigpu.checking.verdicts import numbered
from multigpu.ranks.errors import counted, listed

from .models import accumulated, chain, fork, forked, specimen
from .wrapped_training import (
    calls,
    some_are_averaged,
    start,
    steps_of,
    training,
    trains_as_one_process,
    travels_during_backward,
)
from .wrong_wrappers import Wrapper, every_wrapper

DEFAULT = 25 * 2**20  # bytes in a bucket

bucketed = exercise(
    "distributed_data_parallel.BucketedDDP",
    expects="{promise}",
    share_of=lambda case: case.world,
)


@bucketed.cases
def cases():
    """Tied, frozen and zero-dimensional parameters, then layers that are ready one by one.

    On 3 ranks also no_sync, on 4 buckets that a rank does not fill.
    """
    for world in (3, 4, 2, 1):
        steps, slow = rows_by_step(world, 3, 3, 3), rows_by_step(world, 1, 3, 2)
        yield start(world)
        yield training(world, "training", specimen, steps, bucket_bytes=40)
        yield training(world, "layer by layer", chain, slow, ["one_by_one"], bucket_bytes=610)
        if world == 3:
            yield training(world, "zeroed gradients", specimen, steps, ["keep"])
            for options in ({"bucket_bytes": 250}, {"bucket_bytes": 1}, {}):
                yield training(world, "layer by layer", chain, slow, **options)
            yield from no_sync(world)
        if world == 4:
            yield from unused(world)
        yield calls(world)


def no_sync(world):
    """Four passes, three of them inside no_sync; then a step without it; then again."""
    steps = rows_by_step(world, 1, 3, 3, passes=4) + rows_by_step(world, 1, 3, 3)
    steps += rows_by_step(world, 1, 3, 3, passes=2)
    yield training(world, "several passes in a step", specimen, steps, bucket_bytes=40)
    slow = rows_by_step(world, 1, 3, 2, passes=2)
    yield training(world, "two slow passes", chain, slow, ["one_by_one"], bucket_bytes=610)
    steps = rows_by_step(world, 1, 3, 3)
    yield training(world, "after an exception in no_sync", specimen, steps, ["interrupted"])


def unused(world):
    """Parameters that some ranks do not use, or that the last pass of a step does not use."""
    about = "parameters not used on all ranks"
    for options in ({"bucket_bytes": 100}, {"bucket_bytes": 1}):
        yield training(world, about, fork, forked(world, 3), **options)
    about = "parameters not used in the last pass"
    for options in ({}, {"bucket_bytes": 1}):  # in one bucket no hook starts anything
        yield training(world, about, fork, accumulated(world), **options)


@bucketed.words
def words(case):
    return {"bytes": getattr(case, "options", {}).get("bucket_bytes", DEFAULT)}


# --- no_sync -------------------------------------------------------------------------------------


@bucketed.holds(
    "sent_inside_no_sync",
    expects="inside no_sync nothing is sent, and sync_gradients does nothing",
    usually="hooks run in every backward, also in those inside no_sync.",
    fix="Let no_sync set a flag, and look at it in the hooks and in sync_gradients.",
    first=True,
)
def sent_inside(run, case):
    for rank, note, _ in steps_of(run, case):
        if note["quiet"] is not None:
            began, ended = note["quiet"]
            sent = [c for c in run.calls(case, rank) if began <= c.time <= ended]
            if sent:
                came = f"rank {rank} called {counted(len(sent), 'collective')} in step"
                return f"{came} {note['number']}, the first one {sent[0].via}", sent[0].place
    return None


@bucketed.holds(
    "swallows_exceptions",
    expects="an exception inside no_sync comes out of it",
    usually="__exit__ returns True, or the yield is in a try with an except, so training would"
    " continue as if nothing had happened.",
    fix="try: yield, finally: set the flag back.",
    first=True,
)
def swallows(run, case):
    for rank, came in enumerate(run.came(case)):
        if came.get("watched", {}).get("swallowed"):
            return f"on rank {rank} it did not"
    return None


# --- values --------------------------------------------------------------------------------------

trains_as_one_process(bucketed)
some_are_averaged(
    bucketed,
    usually="a bucket that is not full, such as the one with the first layers, was never sent or"
    " never made.",
    fix="Close the last bucket too, and start in sync_gradients what has not been started.",
)


@bucketed.holds(
    "missing_stays_none",
    expects="after sync_gradients a parameter has a gradient on all ranks, or on none",
    usually="a bucket that this rank did not fill was not sent, or what arrived in it was thrown"
    " away.",
    fix="sync_gradients starts every bucket, with zeros where there is no gradient. Put the mean"
    " into .grad here too, or the weights of the ranks drift apart.",
    first=True,
)
def some_ranks_have_none(run, case):
    ranks = run.came(case)
    for name in ranks[0]:
        if name.endswith(".grad") and "no_sync" not in name:
            without = [rank for rank, came in enumerate(ranks) if came[name] is None]
            if 0 < len(without) < len(ranks):
                return f"on {numbered('rank', without)}, {name} is None, and not on the others"
    return None


every_wrapper.add_to(bucketed)


# --- buckets -------------------------------------------------------------------------------------


def cuts(sizes, limit):
    """The two ways to cut sizes into buckets: closed before the overflow, and after it."""
    before, after = [], []
    for size in sizes:
        if not before or sum(before[-1]) + size > limit:
            before.append([])
        before[-1].append(size)
        if not after or sum(after[-1]) > limit:
            after.append([])
        after[-1].append(size)
    return [before, after]


def steps_sent(run, case):
    """Bytes of gradients from the last to the first, and the bytes of each collective."""
    for _, note, sent in steps_of(run, case):
        if case.world > 1 and note["own"]:  # empty where this rank did not use all parameters
            trainable = [p for p in case.model(0).parameters() if p.requires_grad]
            sizes = [p.numel() * p.element_size() for p in reversed(trainable)]
            yield sizes, [call.bytes for call in sent]


def in_buckets(name, is_wrong, *, usually, fix):
    """A property of the buckets that travel: ``is_wrong(sizes, sent, limit)``."""

    @bucketed.holds(
        name,
        expects="from the last to the first parameter, gradients of up to {bytes} bytes together"
        " travel in one collective",
        usually=usually,
        fix=fix,
    )
    def _(run, case):
        for sizes, sent in steps_sent(run, case):
            if is_wrong(sizes, sent, case.options.get("bucket_bytes", DEFAULT)):
                made = f"{counted(len(sent), 'collective')} of {listed(sent)} bytes"
                return f"{made} for gradients of {listed(sizes)} bytes"
        return None


def is_forward(sizes, sent, limit):
    def summed(order):
        return [[sum(group) for group in cut] for cut in cuts(order, limit)]

    return sent in summed(sizes[::-1]) and sent not in summed(sizes)


in_buckets(
    "sent_too_much",
    lambda sizes, sent, limit: sum(sent) > sum(sizes),
    usually="a tied parameter was put in twice, frozen ones were put in, or sync_gradients starts"
    " again what the hooks have started.",
    fix="parameters() gives each parameter once; take those with requires_grad, and remember which"
    " buckets have been started.",
)
in_buckets(
    "wrong_number_of_buckets",
    lambda sizes, sent, limit: (
        len(sent) not in {len(cut) for cut in cuts(sizes, limit) + cuts(sizes[::-1], limit)}
    ),
    usually="every gradient travels alone, bucket_bytes has no effect, or a bucket was closed too"
    " early or too late: a gradient has numel() * element_size() bytes, and the sum begins at zero"
    " for each bucket.",
    fix="A bucket has one flat tensor, which is sent once. Close it before or after the parameter"
    " with which it passes bucket_bytes.",
)
in_buckets(
    "first_layers_first",
    is_forward,
    usually="the buckets were made in the order of the layers, but backward begins with the last"
    " one.",
    fix="Make them from reversed(list(module.parameters())).",
)
travels_during_backward(bucketed)


# --- what answers are made of --------------------------------------------------------------------


class Buckets(Wrapper):
    """A right answer that copies gradients into a bucket, and back."""

    def __init__(self, module, bucket_bytes=25 * 2**20):
        super().__init__(module)
        self.limit = bucket_bytes
        self.buckets = self.cut(self.in_order())
        for p in {p for bucket in self.buckets for p in bucket}:
            p.register_post_accumulate_grad_hook(self.hook)
        self.reset()

    def in_order(self):
        return [p for p in reversed(list(self.module.parameters())) if p.requires_grad]

    def cut(self, parameters):
        buckets, size = [[]], 0
        for p in parameters:
            bytes_of = p.numel() * p.element_size()
            if buckets[-1] and size + bytes_of > self.limit:
                buckets.append([])
                size = 0
            buckets[-1].append(p)
            size += bytes_of
        return buckets

    def reset(self):
        self.next = 0
        self.ready = set()
        self.sent = []

    def hook(self, p):
        if self.quiet:
            return
        self.ready.add(p)
        while self.next < len(self.buckets) and self.ready.issuperset(self.buckets[self.next]):
            self.begin(self.buckets[self.next])
            self.next += 1

    def gradient(self, p):
        return torch.zeros_like(p) if p.grad is None else p.grad

    def begin(self, bucket):
        flat = torch.cat([self.gradient(p).flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def unsent(self):
        """What backward has not filled."""
        return self.buckets[self.next :]

    def sync_gradients(self):
        if self.quiet:
            return
        for bucket in self.unsent():
            self.begin(bucket)
        for bucket, flat, handle in self.sent:
            handle.wait()
            self.spread(bucket, flat)
        self.reset()

    def spread(self, bucket, flat):
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p).clone()


@bucketed.right
class closes_after_the_overflow(Buckets):
    def cut(self, parameters):
        buckets, size = [[]], 0
        for p in parameters:
            if size >= self.limit:
                buckets.append([])
                size = 0
            buckets[-1].append(p)
            size += p.numel() * p.element_size()
        return buckets


@bucketed.right
class coalesced(Buckets):
    """Every bucket is one coalesced all-reduce of the gradients where they are."""

    def begin(self, bucket):
        for p in bucket:
            p.grad = self.gradient(p)
        grads = [p.grad for p in bucket]
        self.sent.append((bucket, grads, dist.all_reduce_coalesced(grads, async_op=True)))

    def spread(self, bucket, grads):
        for grad in grads:
            grad /= dist.get_world_size()


def sizes_differ(finding):
    return finding.details["difference"] == "numel"


@bucketed.mistake(
    "unused_out_of_step",
    "the ranks start their buckets in different orders, for example as they fill: that differs"
    " where a rank lacks a parameter.",
    fix="Start them in one order everywhere: the second one waits for the first, and"
    " sync_gradients starts the rest.",
    status="mismatch",
    roughly=sizes_differ,
)
class starts_whatever_is_full(Buckets):
    def hook(self, p):
        if not self.quiet:
            self.ready.add(p)
            (bucket,) = [b for b in self.buckets if any(p is q for q in b)]
            if self.ready.issuperset(bucket):
                self.begin(bucket)

    def unsent(self):
        return [bucket for bucket in self.buckets if not self.ready.issuperset(bucket)]


@bucketed.mistake(
    "unused_out_of_step",
    "a bucket that is not full is left out, on some ranks only.",
    fix="sync_gradients starts all that have not been started, with zeros where there is no"
    " gradient.",
    status="mismatch",
)
class leaves_out_what_is_not_full(Buckets):
    def unsent(self):
        return [bucket for bucket in super().unsent() if any(p in self.ready for p in bucket)]


@bucketed.mistake(
    "sent_too_early",
    "a bucket was sent with zeros for gradients that were not ready: counting did not begin again.",
    fix="Reset it in sync_gradients.",
)
class counts_on_from_the_step_before(Buckets):
    def reset(self):
        super().reset()
        self.ready = getattr(self, "all_ready", set())
        self.all_ready = self.ready


@bucketed.mistake(
    "not_reset",
    "nothing is sent after the first step: what says which buckets are started was not reset.",
    fix="Reset it in sync_gradients.",
)
class sends_in_the_first_step_only(Buckets):
    def reset(self):
        started = getattr(self, "next", 0)
        super().reset()
        self.next = started


@bucketed.mistake(
    "only_last_pass",
    "this is the mean of what the last backward gave: the gradients from inside no_sync are lost.",
    fix="Average the whole of .grad, also where the last pass did not use the parameter.",
)
class only_the_last_pass_counts(Buckets):
    def __init__(self, module, bucket_bytes=25 * 2**20):
        super().__init__(module, bucket_bytes)
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(lambda grad, p=p: self.fresh.__setitem__(p, grad))

    def gradient(self, p):
        return self.fresh.get(p, torch.zeros_like(p))

    def no_sync(self):
        self.fresh = {}
        return super().no_sync()

    def reset(self):
        super().reset()
        self.fresh = {}


@bucketed.mistake(
    "stays_silent",
    "after no_sync nothing was sent: its flag was never set back, or an exception skipped the line"
    " after the yield that sets it back.",
    fix="try: yield, finally: set it back.",
)
class no_finally(Buckets):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        yield
        self.quiet = False


@bucketed.breaks("missing_stays_none")
class spreads_where_there_was_something(Buckets):
    def spread(self, bucket, flat):
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            if p.grad is not None:
                p.grad.copy_(piece.view_as(p))


@bucketed.breaks("sent_inside_no_sync")
class no_sync_does_nothing(Buckets):
    @contextmanager
    def no_sync(self):
        yield


@bucketed.breaks("swallows_exceptions")
class excepts_everything(Buckets):
    @contextmanager
    def no_sync(self):
        self.quiet = True
        with suppress(Exception):
            yield
        self.quiet = False


@bucketed.breaks("some_not_averaged")
class never_sends_the_last_bucket(Buckets):
    """Sends a bucket when the next gradient does not fit any more."""

    def reset(self):
        super().reset()
        self.open = []

    def hook(self, p):
        if not self.quiet:
            if len(self.cut([*self.open, p])) > 1:
                self.begin(self.open)
                self.open = []
            self.open.append(p)

    def unsent(self):
        return []


@bucketed.breaks("starts_late")
class all_after_backward(Buckets):
    def hook(self, p):
        pass


@bucketed.breaks("starts_late")
class counts_inside_no_sync(Buckets):
    def reset(self):
        super().reset()
        self.missing = [len(bucket) for bucket in self.buckets]

    def hook(self, p):
        (number,) = [i for i, bucket in enumerate(self.buckets) if any(p is q for q in bucket)]
        self.missing[number] -= 1
        while not self.quiet and self.next < len(self.buckets) and not self.missing[self.next]:
            self.begin(self.buckets[self.next])
            self.next += 1


@bucketed.breaks("first_layers_first")
class in_the_order_of_the_layers(Buckets):
    def in_order(self):
        return super().in_order()[::-1]


@bucketed.breaks("wrong_number_of_buckets")
class always_four_bytes(Buckets):
    def cut(self, parameters):
        self.limit *= 2
        return super().cut(parameters)


@bucketed.breaks("sent_too_much")
class puts_a_tied_parameter_in_twice(Buckets):
    def in_order(self):
        named = self.module.named_parameters(remove_duplicate=False)
        return [p for _, p in list(named)[::-1] if p.requires_grad]
