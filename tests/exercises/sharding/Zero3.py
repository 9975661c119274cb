"""``sharding.Zero3``: each rank keeps a part of the weights, and gathers a layer to use it.

What is compared are the outputs: momentum and several steps bring every wrong gradient into them.
So a layer may be cut in any way.

What is held is counted for weights, gradients and activations together.  In backward, where all
three are there, this promises less than the task: a rank that has its gradients once instead of
twice may hold two more layers of weights.  To tell weights from gradients one would have to follow
every number through every operator.  In forward and at rest there is nothing but weights to count.
"""

import functools

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for, noted_on_each_rank
from multigpu.ranks.errors import counted, listed

from .volume import sends_at_most
from .zero3_training import cases, expected, train

zero3 = exercise(
    "sharding.Zero3",
    expects="forward gives on every rank what one process gives that has trained on the rows of all"
    " ranks",
    share_of=lambda case: case.world,
    cpu=24.0,  # seconds: most of what a right answer takes is our looking for all that is alive
)

zero3.cases(cases)
zero3.drive(train)
zero3.expected(expected)
handles_are_waited_for(zero3)

on_a_rank = functools.partial(noted_on_each_rank, zero3)

# --- the shards ----------------------------------------------------------------------------------


def no_shards(notes, case):
    tensors, elements, others = notes["shards"]
    if others or not tensors or elements > case.shards:
        return f"it gives {listed([counted(elements, 'element'), *others])}"
    return None


def without_gradient(notes, case):
    missing = [number for number in notes["missing"] if number]
    return missing and f".grad is None for {missing[0]} of {notes['shards'][0]} shards"


on_a_rank(
    "parameters_not_sharded",
    no_shards,
    expects="parameters() gives this rank's shards: at most {shards} of {total} elements",
    usually="parameters() of nn.Module also gives the parameters of the module inside, and no"
    " parameter that is in a plain list; or the shards are whole parameters.",
    fix="Write a method parameters() that gives the shards and nothing else: rank r keeps the r-th"
    " of {n} pieces of equal length.",
)
on_a_rank(
    "no_gradient",
    without_gradient,
    expects="after backward every shard has its part of the mean gradient in .grad",
    usually="the gradients stayed in the parameters of the module.",
    fix="Where a layer's gradients are ready (register_post_accumulate_grad_hook), reduce-scatter"
    " them, and set .grad of the shard.",
)

# --- what is held --------------------------------------------------------------------------------

HELD = (
    "of {total} weights in {layers} layers a rank holds at most {at_rest} at any time: {shards} in"
    " its shards and {two} in two whole layers"
)


def beyond(notes, phase, place, most):
    """What to say where a phase adds more elements than ``most`` to those at its beginning.

    ``place`` is 0 for the most there was in it, 1 for what was left at its end.
    """
    for held in notes[phase]:
        if held[place] > most:
            when = f"after {phase}" if place else f"in {phase}"
            return f"there were {held[place]} elements more {when}, and {most} more are allowed"
    return None


on_a_rank(
    "whole_module_kept",
    lambda notes, case: (
        notes["at_rest"] > case.at_rest and f"there were {notes['at_rest']} after __init__"
    ),
    expects=HELD,
    usually="the parameters of the module still hold their numbers; or a shard is a slice of a"
    " tensor with all of them, and keeps it alive.",
    fix="Make each shard a clone(), and free the rest at once: p.data = torch.empty(0), or"
    " p.untyped_storage().resize_(0).",
    first=False,
)
on_a_rank(
    "kept_for_backward",
    lambda notes, case: (
        beyond(notes, "forward", 1, case.in_forward) or beyond(notes, "evaluation", 1, case.two)
    ),
    expects=HELD,
    usually="a layer is not discarded after each forward, also in evaluation; or autograd has saved"
    " the gathered weights for backward and keeps them, whatever your own references are.",
    fix="register_forward_hook calls you there. Empty the storage itself,"
    " untyped_storage().resize_(0), and fill it again before backward; or have other things saved,"
    " with torch.autograd.graph.saved_tensors_hooks or a torch.autograd.Function.",
    first=False,
)
on_a_rank(
    "more_than_two_layers",
    lambda notes, case: (
        beyond(notes, "forward", 0, case.in_forward)
        or beyond(notes, "evaluation", 0, case.in_forward)
    ),
    expects=HELD,
    usually="all layers are gathered together, or one layer is there several times: the list that"
    " was received into, what cat made of it, and a copy in the parameter.",
    fix="Gather a layer when it is its turn. Receive into the slices of one tensor, and let the"
    " parameters be views of it. Discard a layer before the next but one is gathered.",
    first=False,
)
on_a_rank(
    "gradients_kept",
    lambda notes, case: (
        beyond(notes, "backward", 1, case.shards + case.two)
        or beyond(notes, "backward", 0, case.in_backward)
    ),
    expects="in backward a rank has at most two whole layers and their gradients, which may be"
    " there once more while they are sent, besides its shards and their .grad; after it less",
    usually="gradients are reduced only when backward is over, or the whole ones stay in .grad of"
    " the module's parameters, or .grad of a shard is a slice of them; or gathered layers stay.",
    fix="When the last of a layer's gradients is there (register_post_accumulate_grad_hook),"
    " discard the layer, reduce-scatter the gradients, and set .grad of these parameters to None."
    " clone() the slices.",
    first=False,
)
sends_at_most(
    zero3,
    "sent_too_much",
    lambda case: 3 * case.total + 16 if case.world > 1 else None,
    expects="one step sends at most 3 Ψ elements per rank, Ψ = {total}",
    usually="an all-reduce brings the whole sum of the gradients to every rank, and costs 2 Ψ; or a"
    " layer is gathered more than once in forward or in backward.",
    fix="A rank needs the sum of its own part only: dist.reduce_scatter costs Ψ. Gather each of the"
    " {layers} layers once in forward and once in backward.",
)


# --- what answers are made of --------------------------------------------------------------------


def own(module):
    return list(module.parameters(recurse=False))


def pad(flat):
    return torch.cat([flat, flat.new_zeros(-len(flat) % dist.get_world_size())])


class Layer:
    """The parameters of one layer, each cut by itself; storages come and go."""

    def __init__(self, module):
        self.params, self.shards, self.numbers = own(module), [], []
        for p in self.params:
            flat = pad(p.detach().flatten())
            self.start_equal(flat)
            self.shards.append(nn.Parameter(self.cut(flat)))
            p.data = flat[: p.numel()].view(p.shape)
            p.register_post_accumulate_grad_hook(self.gradient_ready)
            self.numbers.append(len(flat))
        self.free()
        module.register_forward_pre_hook(lambda *_: self.before_forward())
        module.register_forward_hook(lambda *_: self.after_forward())
        module.register_full_backward_pre_hook(lambda *_: self.before_backward())

    def start_equal(self, flat):
        dist.broadcast(flat, src=0)

    def cut(self, flat):
        return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()

    def gather(self):
        for p, shard, number in zip(self.params, self.shards, self.numbers):
            storage = p.untyped_storage()
            if storage.nbytes() == 0:
                storage.resize_(number * p.element_size())
                flat = torch.empty(0, dtype=p.dtype).set_(storage, 0, (number,), (1,))
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
    """What most of these answers change in one place."""

    Layer = Layer

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.layers = [self.Layer(part) for part in module.modules() if own(part)]

    def parameters(self, recurse=True):
        return iter([shard for layer in self.layers for shard in layer.shards])

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


@zero3.right
class cuts_every_parameter(Wrapper):
    pass


# --- mistakes ------------------------------------------------------------------------------------


@zero3.mistake(
    "summed",
    "the gradients are sums over ranks: reduce_scatter adds up.",
    fix="Divide by dist.get_world_size(), which is {n} here.",
)
class sums(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            return super().mean(flat) * dist.get_world_size()


@zero3.mistake(
    "not_averaged",
    "every shard got a part of this rank's own gradient, which was cut and never sent.",
    fix="dist.reduce_scatter adds up over ranks.",
)
class sends_no_gradient(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            return self.cut(flat)


@zero3.mistake(
    "divided_twice",
    "the gradients were divided by {n} twice: before they were sent and after it, or in the loss.",
    fix="Divide once.",
)
class divides_twice(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            return super().mean(flat) / dist.get_world_size()


@zero3.mistake(
    "start_not_shared",
    "each rank cut its own module, so the shards belong to different ones.",
    fix="Before you cut, dist.broadcast(tensor, src=0) brings rank 0's numbers to all, in place.",
)
class starts_from_its_own(Wrapper):
    class Layer(Layer):
        def start_equal(self, flat):
            pass


@zero3.mistake(
    "numbers_lost",
    "the last elements of a parameter are in no shard: // rounds down where {n} does not divide.",
    fix="Fill up with zeros to a multiple of {n} first.",
)
class drops_the_rest(Wrapper):
    class Layer(Layer):
        def __init__(self, module):
            super().__init__(module)
            n, rank = dist.get_world_size(), dist.get_rank()
            for shard, p in zip(self.shards, self.params):
                cut = p.numel() // n * n
                shard.data[max(0, cut - rank * len(shard)) :] = 0


@zero3.mistake(
    "not_gathered",
    "backward read a weight whose storage is empty: nothing gathered the layer again.",
    fix="register_full_backward_pre_hook calls you before the backward of a layer. Gather it there"
    " too, for every module with parameters of its own.",
    status="unusable",
)
class gathers_for_forward_only(Wrapper):
    class Layer(Layer):
        def before_backward(self):
            pass


@zero3.mistake(
    "reads_what_is_gone",
    "something read a tensor whose storage was emptied with resize_(0): a shard that is a view of"
    " the gathered tensor, or a parameter of the module that was given to the optimizer.",
    fix="clone() the shard, and let parameters() give the shards only.",
    status="crash",
)
class shards_are_emptied(Wrapper):
    class Layer(Layer):
        def cut(self, flat):
            return flat.chunk(dist.get_world_size())[dist.get_rank()]


@zero3.mistake(
    "reduced_too_early",
    "one parameter of the layer had its gradient, and .grad of another one was None.",
    fix="Send a layer's gradients when the last of them is there: count the calls of"
    " register_post_accumulate_grad_hook.",
    status="crash",
)
class sends_with_the_first_gradient(Wrapper):
    class Layer(Layer):
        def gradient_ready(self, p):
            self.free()
            self.send()


# --- what breaks a property ----------------------------------------------------------------------


@zero3.breaks("parameters_not_sharded")
class gives_whole_parameters(Wrapper):
    def parameters(self, recurse=True):
        return self.module.parameters()


@zero3.breaks("whole_module_kept")
class does_not_clone(Wrapper):
    class Layer(Layer):
        def cut(self, flat):
            return flat.clone().chunk(dist.get_world_size())[dist.get_rank()]


@zero3.breaks("gradients_kept")
class cuts_gradients_without_a_copy(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            own = flat.chunk(dist.get_world_size())[dist.get_rank()]
            own.copy_(super().mean(flat))
            return own


@zero3.breaks("kept_for_backward")
class frees_only_while_it_trains(Wrapper):
    class Layer(Layer):
        def before_forward(self):
            self.free()
            self.gather()

        def after_forward(self):
            if torch.is_grad_enabled():
                self.free()


@zero3.breaks("kept_for_backward")
class lets_go_of_its_own_reference_only(Wrapper):
    class Layer(Layer):
        """``p.data`` is empty after forward, and autograd still has the numbers."""

        def __init__(self, module):
            self.shapes = [p.shape for p in own(module)]
            super().__init__(module)

        def gather(self):
            for p, shard, shape in zip(self.params, self.shards, self.shapes):
                pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
                dist.all_gather(pieces, shard.detach())
                p.data = torch.cat(pieces)[: shape.numel()].view(shape)

        def free(self):
            for p in self.params:
                p.data = torch.empty(0, dtype=p.dtype)


@zero3.breaks("more_than_two_layers")
class gathers_all_before_forward(Wrapper):
    def forward(self, *inputs, **named):
        for layer in self.layers:
            layer.gather()
        return super().forward(*inputs, **named)


@zero3.breaks("gradients_kept")
class reduces_after_backward(Wrapper):
    class Layer(Layer):
        waiting = []  # noqa: RUF012 (one list for all layers)

        def gradient_ready(self, p):
            if all(p.grad is not None for p in self.params):
                self.free()
                if not self.waiting:
                    torch.autograd.Variable._execution_engine.queue_callback(self.send_all)
                self.waiting.append(self)

        def send_all(self):
            while self.waiting:
                self.waiting.pop().send()


@zero3.breaks("sent_too_much")
class all_reduces(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            dist.all_reduce(flat)
            return self.cut(flat) / dist.get_world_size()


@zero3.breaks("sent_too_much")
class gathers_for_every_gradient(Wrapper):
    class Layer(Layer):
        def gradient_ready(self, p):
            self.free()
            self.gather()
            super().gradient_ready(p)


@zero3.breaks("not_waited")
class does_not_wait(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            n = dist.get_world_size()
            result = torch.empty(len(flat) // n, dtype=flat.dtype)
            self.handle = dist.reduce_scatter(result, list(flat.chunk(n)), async_op=True)
            return result / n
