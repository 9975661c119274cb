"""``sharding.Zero3``: each rank keeps a part of the weights, and gathers a layer to use it.

What is compared are the outputs: momentum and three steps bring every wrong gradient into them.  So
a layer may be cut in any way.

What is held is counted for weights, gradients and activations together.  In backward, where all
three are there, this promises less than the task: a rank that has its gradients once instead of
twice may hold two more layers of weights.  To tell weights from gradients one would have to follow
every number through every operator.  In forward and at rest there is nothing but weights to count.
"""

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import listed

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

SHARDS = "parameters() gives this rank's shards: at most {shards} of {total} elements"
HELD = (
    "of {total} weights in {layers} layers a rank holds at most {at_rest} at any time: {shards} in"
    " its shards and {two} in two whole layers"
)
GRADIENTS = (
    "in backward a rank has at most two whole layers and their gradients, which may be there once"
    " more while they are sent, besides its shards and their .grad"
)


def seen(run, case):
    """Every rank and what it has noted."""
    return enumerate(came["watched"] for came in run.came(case))


# --- the shards ----------------------------------------------------------------------------------


@zero3.holds(
    "no_parameters",
    expects=SHARDS,
    usually="parameters() of nn.Module finds an nn.Parameter that was assigned to a module or put"
    " into an nn.ParameterList, and none that is in a plain list.",
    fix="Write a method parameters() of your own.",
    first=True,
)
def some_shards(run, case):
    for rank, notes in seen(run, case):
        if notes["strange"] or not notes["shards"][0]:
            return f"on rank {rank} it gives {listed(notes['strange'], most=3)}", run.where(rank)
    return None


@zero3.holds(
    "parameters_not_sharded",
    expects=SHARDS,
    usually="parameters() of nn.Module also gives the parameters of the module inside; or the"
    " shards are whole parameters.",
    fix="Write a method parameters() that gives the shards and nothing else: rank r keeps the r-th"
    " of {n} pieces of equal length.",
    first=True,
)
def small_shards(run, case):
    for rank, notes in seen(run, case):
        if notes["shards"][1] > case.shards:
            return f"on rank {rank} it gives {notes['shards'][1]} elements", run.where(rank)
    return None


@zero3.holds(
    "no_output",
    expects="forward returns what the module returns",
    usually="a return is missing in forward.",
    fix="Write return self.module(*inputs, **named).",
    first=True,
)
def some_output(run, case):
    for rank, notes in seen(run, case):
        if "returned" in notes:
            return f"on rank {rank} it returned {notes['returned']}", run.where(rank)
    return None


@zero3.holds(
    "no_gradient",
    expects="after backward every shard has its part of the mean gradient in .grad",
    usually="the gradients stayed in the parameters of the module.",
    fix="Where a layer's gradients are ready (register_post_accumulate_grad_hook), reduce-scatter"
    " them, and set .grad of the shard.",
    first=True,
)
def every_shard_has_a_gradient(run, case):
    for rank, notes in seen(run, case):
        for step, missing in enumerate(notes["missing"]):
            if missing:
                came = f".grad is None for {missing} of {notes['shards'][0]} shards"
                return f"on rank {rank}, step {step + 1}, {came}", run.where(rank)
    return None


# --- what is held --------------------------------------------------------------------------------


@zero3.holds(
    "shards_are_views",
    expects=HELD,
    usually="a shard that is a slice or a chunk of the whole tensor keeps all of it alive.",
    fix="Copy it: .clone().",
)
def shards_have_their_own_memory(run, case):
    for rank, notes in seen(run, case):
        number, own, stored = notes["shards"]
        if stored > case.at_rest:
            came = f"its {number} shards have {own} elements, and their storages have {stored}"
            return f"on rank {rank}, {came}", run.where(rank)
    return None


@zero3.holds(
    "whole_module_kept",
    expects=HELD,
    usually="the parameters of the module still hold their numbers. A view, or a flat copy of all,"
    " keeps them too.",
    fix="Free them as soon as the shard is cut: p.data = torch.empty(0), or"
    " p.untyped_storage().resize_(0).",
)
def little_is_held_at_rest(run, case):
    for rank, notes in seen(run, case):
        if notes["at_rest"] > case.at_rest:
            return f"after __init__ rank {rank} held {notes['at_rest']}", run.where(rank)
    return None


def held_too_much(run, case, phase, place, most):
    """Rank, step and elements beyond those at the beginning of the step, where these are too many.

    ``place`` is 0 for the most there was in a phase, 1 for what was left at its end.
    """
    for rank, notes in seen(run, case):
        for step, held in enumerate(notes[phase]):
            if held[place] > most:
                return rank, step + 1, held[place], notes
    return None


@zero3.holds(
    "kept_after_forward",
    expects=HELD,
    usually="nothing discards a layer after its forward.",
    fix="register_forward_hook calls you there. Empty the storage, untyped_storage().resize_(0):"
    " p.data = torch.empty(0) is not enough, because autograd has saved the weights for backward.",
)
def module_is_empty_after_forward(run, case):
    found = held_too_much(run, case, "forward", 1, case.in_forward)
    if found is None or found[3]["in_module"] <= case.two:
        return None
    rank, step, held, notes = found
    came = f"between forward and backward of step {step} rank {rank} held {held} more than before"
    return f"{came}, {notes['in_module']} of them in the parameters of the module", run.where(rank)


@zero3.holds(
    "kept_for_backward",
    expects=HELD,
    usually="autograd has saved the gathered weights for backward and keeps them, whatever your own"
    " references are.",
    fix="Empty the storage itself, untyped_storage().resize_(0), and fill it again before backward;"
    " or have something else saved, with torch.autograd.graph.saved_tensors_hooks or a"
    " torch.autograd.Function.",
)
def autograd_keeps_nothing(run, case):
    found = held_too_much(run, case, "forward", 1, case.in_forward)
    if found is None:
        return None
    rank, step, held, _ = found
    came = f"between forward and backward of step {step} rank {rank} held {held} more than before"
    return f"{came}, though not in the parameters of the module", run.where(rank)


@zero3.holds(
    "kept_after_evaluation",
    expects=HELD,
    usually="without gradients no backward comes that would discard the layers.",
    fix="Discard each layer after its forward, always.",
)
def evaluation_leaves_nothing(run, case):
    found = held_too_much(run, case, "evaluation", 1, case.two)
    if found is None:
        return None
    came = f"after forward without gradients rank {found[0]} held {found[2]} more than before"
    return came, run.where(found[0])


@zero3.holds(
    "kept_after_backward",
    expects=HELD,
    usually="layers were gathered again for backward and then kept; or whole gradients were.",
    fix="A layer can go when the last of its gradients is there, and the gradients can go when they"
    " were sent: register_post_accumulate_grad_hook tells.",
)
def backward_leaves_little(run, case):
    found = held_too_much(run, case, "backward", 1, case.shards + case.two)
    if found is None or views_in(found[3]):
        return None
    rank, step, held, _ = found
    return f"after backward of step {step} rank {rank} held {held} more than before", run.where(
        rank
    )


def views_in(notes):
    """Whether the gradients of shards keep much more memory than they need."""
    own, stored = notes.get("gradients", (0, 0))
    return stored > 1.5 * own


@zero3.holds(
    "gradients_are_views",
    expects="the .grad of a shard is no larger than the shard",
    usually="a slice of a flat tensor keeps all of it alive.",
    fix="clone() the slice, or receive into a tensor of that size.",
)
def gradients_have_their_own_memory(run, case):
    for rank, notes in seen(run, case):
        if case.world > 1 and views_in(notes):
            own, stored = notes["gradients"]
            came = f"on rank {rank} the shards' .grad have {own} elements"
            return f"{came}, but they are views of storages with {stored}", run.where(rank)
    return None


@zero3.holds(
    "more_than_two_layers",
    expects=HELD,
    usually="all layers are gathered together, or one layer is there several times: the list that"
    " was received into, what cat made of it, and a copy in the parameter.",
    fix="Gather a layer when it is its turn. Receive into the slices of one tensor, and let the"
    " parameters be views of it. Discard a layer before the next but one is gathered.",
)
def two_layers_in_forward(run, case):
    for phase in ("forward", "evaluation"):
        found = held_too_much(run, case, phase, 0, case.in_forward)
        if found is not None:
            rank, step, held, _ = found
            when = f"in forward of step {step}" if phase == "forward" else "in eval mode"
            came = f"{when} rank {rank} held {held} elements more than before it"
            return f"{came}; activations and two layers are {case.in_forward}", run.where(rank)
    return None


@zero3.holds(
    "gradients_kept",
    expects=GRADIENTS,
    usually="gradients are reduced only when backward is over, or the whole ones stay in .grad of"
    " the module's parameters; or gathered layers stay during backward.",
    fix="When a layer's gradients are there, discard the layer, reduce-scatter the gradients, and"
    " set .grad of these parameters to None.",
)
def two_layers_in_backward(run, case):
    found = held_too_much(run, case, "backward", 0, case.in_backward)
    if found is None:
        return None
    rank, step, held, _ = found
    came = f"in backward of step {step} rank {rank} held {held} elements more than before the step"
    return f"{came}, and at most {case.in_backward} are allowed", run.where(rank)


# --- what is sent --------------------------------------------------------------------------------

THREE = "one step sends at most 3 Ψ elements per rank, Ψ = {total}"
sends_at_most(
    zero3,
    "all_reduced",
    lambda case: case.total + 16 if case.world > 1 else None,
    ops=("all_reduce",),
    expects=THREE,
    usually="an all-reduce brings the whole sum to every rank, and costs 2 Ψ.",
    fix="A rank needs the sum of its own part only: dist.reduce_scatter costs Ψ.",
)
sends_at_most(
    zero3,
    "sent_too_much",
    lambda case: 3 * case.total + 16 if case.world > 1 else None,
    expects=THREE,
    usually="a layer is gathered more than once in forward or in backward, or its gradients are"
    " sent more than once.",
    fix="Gather each layer once in forward and once in backward. Compare the number of your calls"
    " with the number of layers, which is {layers}.",
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
            self.numbers.append(len(flat))
        self.free()

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
        self.module, self.layers = module, []
        for part in module.modules():
            if own(part):
                self.layers.append(self.Layer(part))
                self.hook(part, self.layers[-1])

    def hook(self, part, layer):
        part.register_forward_pre_hook(lambda *_: layer.before_forward())
        part.register_forward_hook(lambda *_: layer.after_forward())
        part.register_full_backward_pre_hook(lambda *_: layer.before_backward())
        for p in own(part):
            p.register_post_accumulate_grad_hook(layer.gradient_ready)

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
    "gradients_added_up",
    "the gradients of earlier steps are still in the sum. zero_grad() clears the .grad of the"
    " shards, and something else keeps adding up.",
    fix="Clear a tensor of your own in every step, and set .grad of the module's parameters to None"
    " once it is sent.",
)
class adds_to_a_tensor_of_its_own(Wrapper):
    class Layer(Layer):
        def send(self):
            if not hasattr(self, "sums"):
                self.sums = [torch.zeros_like(shard) for shard in self.shards]
            super().send()
            for shard, total in zip(self.shards, self.sums):
                total += shard.grad.clone()
                shard.grad = total.clone()


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
    "the last elements of a parameter are in no shard: // rounds down, and leaves a rest where {n}"
    " does not divide.",
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
    "mode_not_passed_on",
    "in eval mode the outputs are those of training mode: eval() and train() reach a module that"
    " was assigned to self, and none that is in a list or behind a property.",
    fix="Write self.module = module.",
)
class hides_the_module(Wrapper):
    def __setattr__(self, name, value):
        if name == "module":
            self.__dict__["module"] = value
        else:
            super().__setattr__(name, value)


@zero3.mistake(
    "stale_weights",
    "forward uses the weights of before the first step: a gathered layer was kept, or the shard"
    " that is gathered is not the one that the optimizer steps.",
    fix="Gather again before each forward, from what parameters() gives.",
)
class gathers_once(Wrapper):
    class Layer(Layer):
        def gather(self):
            if not hasattr(self, "first"):
                super().gather()
                self.first = [p.tolist() for p in self.params]
                return
            for p, number, values in zip(self.params, self.numbers, self.first):
                p.untyped_storage().resize_(number * p.element_size())
                p.data.copy_(torch.tensor(values, dtype=p.dtype))


@zero3.mistake(
    "rounded",
    "gradients or weights were sent or added up in a smaller dtype.",
    fix="Send them in the dtype that they have.",
)
class sends_float32(Wrapper):
    class Layer(Layer):
        def mean(self, flat):
            return super().mean(flat.float()).to(flat.dtype)


@zero3.breaks("no_output")
class returns_nothing(Wrapper):
    def forward(self, *inputs, **named):
        self.module(*inputs, **named)


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
    "the .grad of a parameter is None until backward has come to it. One parameter of the layer had"
    " its gradient, and another one did not.",
    fix="Send a layer's gradients when the last of them is there: count the calls of"
    " register_post_accumulate_grad_hook.",
    status="crash",
)
class sends_with_the_first_gradient(Wrapper):
    class Layer(Layer):
        def gradient_ready(self, p):
            self.free()
            self.send()
