"""``tensor_parallel.ColumnParallelLinear``: whole inputs, and a part of the outputs on each rank.

The inputs are used elsewhere, too, so that a gradient which is summed in the wrong place differs
from one that is summed where it goes back through this layer.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .layers import (
    FROZEN,
    FROZEN_FIX,
    Column,
    all_reduced,
    cases_of,
    drive_with,
    expected_with,
    keeps_its_part,
    sends_at_most,
)

column = exercise(
    "tensor_parallel.ColumnParallelLinear",
    expects="outputs, gradients and weights on each rank are its part of those of linear, and the"
    " gradient of the inputs is that of linear",
)
handles_are_waited_for(column)


@column.cases
def cases():
    return cases_of(inputs=12, outputs=24)


column.drive(drive_with("ColumnParallelLinear", Column))
column.expected(expected_with(Column))


@column.words
def words(case):
    return {"own": case.outputs // case.world}


sends_at_most(
    column,
    "forward",
    "sends_in_forward",
    lambda case: 0,
    expects="in forward the ranks send nothing",
    usually="the inputs were sent, which all ranks have, or the outputs, of which each rank keeps"
    " its own part.",
    fix="Forward is F.linear of the inputs and this rank's weights; only backward communicates.",
)
sends_at_most(
    column,
    "backward",
    "too_much_traffic",
    lambda case: all_reduced(case, case.inputs, 1 + case.twice) if case.needs else 0,
    expects="in backward a rank sends no more than an all-reduce of the gradient of the inputs"
    " does, and nothing if the inputs need no gradient",
    usually="gradients of weights were sent, or all_gather brought every rank's gradient to every"
    " rank.",
    fix="One all_reduce of the gradient of the inputs is enough.",
)
keeps_its_part(column)


# --- what answers are made of --------------------------------------------------------------------


class Parted(nn.Module):
    """Right, and each mistake below changes one method."""

    def __init__(self, linear):
        super().__init__()
        self.weight = self.parameter(linear.weight)
        self.bias = None if linear.bias is None else self.parameter(linear.bias)

    def parameter(self, whole):
        own = self.part(whole.detach()).clone()
        return nn.Parameter(own, requires_grad=whole.requires_grad)

    def part(self, whole):
        return whole.chunk(dist.get_world_size())[dist.get_rank()]

    def forward(self, inputs):
        return F.linear(self.entered(inputs), self.weight, self.bias)

    def entered(self, inputs):
        """A view of the inputs: its hook sees the gradient of this layer alone."""
        if not inputs.requires_grad or not torch.is_grad_enabled():
            return inputs
        view = inputs.view_as(inputs)
        view.register_hook(self.summed)
        return view

    def summed(self, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


# --- right answers -------------------------------------------------------------------------------


@column.right
class hook_on_a_view(Parted):
    pass


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


@column.right
class a_linear_layer_of_its_own(nn.Linear):
    """All-reduce in place, as in picotron."""

    def __init__(self, linear):
        rank, size = dist.get_rank(), dist.get_world_size()
        own, has_bias = linear.out_features // size, linear.bias is not None
        super().__init__(linear.in_features, own, bias=has_bias, dtype=linear.weight.dtype)
        with torch.no_grad():
            self.weight.copy_(linear.weight[rank * own : (rank + 1) * own])
            self.weight.requires_grad_(linear.weight.requires_grad)
            if has_bias:
                self.bias.copy_(linear.bias[rank * own : (rank + 1) * own])
                self.bias.requires_grad_(linear.bias.requires_grad)

    def forward(self, inputs):
        return super().forward(Identity.apply(inputs))


class Overlapped(torch.autograd.Function):
    """The whole layer: the gradient of the inputs travels while that of the weights is computed."""

    @staticmethod
    def forward(ctx, inputs, weight, bias):
        ctx.save_for_backward(inputs, weight)
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        of_inputs = of_weight = of_bias = handle = None
        if needs[0]:
            of_inputs = (gradient @ weight).contiguous()
            handle = dist.all_reduce(of_inputs, async_op=True)
        rows = gradient.reshape(-1, gradient.shape[-1])
        if needs[1]:
            of_weight = rows.T @ inputs.reshape(-1, inputs.shape[-1])
        if needs[2]:
            of_bias = rows.sum(0)
        if handle is not None:
            handle.wait()
        return of_inputs, of_weight, of_bias


@column.right
class overlaps_in_backward(nn.Module):
    """A layer inside, as Megatron's adapters have."""

    def __init__(self, linear):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        parts = {name: p.detach().tensor_split(size)[rank] for name, p in linear.named_parameters()}
        self.inner = nn.Linear(1, 1, bias=linear.bias is not None)
        for name, own in parts.items():
            needs = getattr(linear, name).requires_grad
            setattr(self.inner, name, nn.Parameter(own.clone(), requires_grad=needs))

    @property
    def weight(self):
        return self.inner.weight

    @property
    def bias(self):
        return self.inner.bias

    def forward(self, inputs):
        return Overlapped.apply(inputs, self.weight, self.bias)


class AddedByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        size = dist.get_world_size()
        parts = [t.contiguous() for t in gradient.reshape(-1).tensor_split(size)]
        for owner, own in enumerate(parts):  # a reduce and a broadcast of each n-th
            dist.reduce(own, owner)
            dist.broadcast(own, owner)
        return torch.cat(parts).view(gradient.shape)


@column.right
class reduces_and_broadcasts(Parted):
    def entered(self, inputs):
        return AddedByHand.apply(inputs)


# --- mistakes ------------------------------------------------------------------------------------


@column.mistake(
    "gradient_not_summed",
    "each rank has only what its own {own} outputs contribute to the gradient of the inputs; the"
    " other ranks' contributions were not added.",
    fix="Sum this gradient over the ranks in backward: a torch.autograd.Function whose forward"
    " returns the inputs and whose backward calls all_reduce.",
)
class plain_linear(Parted):
    def entered(self, inputs):
        return inputs


@column.mistake(
    "gradient_averaged",
    "the gradient of the inputs was divided by the number of ranks. Here the ranks do not hold"
    " other rows, as in data parallelism, but other outputs of the same rows.",
    fix="Leave out the division: the contributions of all outputs add up.",
)
class averages(Parted):
    def summed(self, gradient):
        return super().summed(gradient) / dist.get_world_size()


@column.mistake(
    "other_gradients_summed",
    "the hook is on the caller's own tensor, so the gradients that reach it from elsewhere are"
    " summed over the ranks, too.",
    fix="Let the gradient pass a torch.autograd.Function that is part of this layer alone, or put"
    " the hook on inputs.view_as(inputs).",
)
class hook_on_the_inputs(Parted):
    def entered(self, inputs):
        if inputs.requires_grad and not getattr(inputs, "is_hooked", False):
            inputs.register_hook(self.summed)
            inputs.is_hooked = True
        return inputs


@column.mistake(
    "weights_summed",
    "the gradients of the weights were summed over the ranks, too. Each rank has other weights.",
    fix="Sum the gradient of the inputs only.",
)
class sums_gradients_of_weights(Parted):
    def parameter(self, whole):
        own = super().parameter(whole)
        if own.requires_grad:
            own.register_hook(self.summed)
        return own


@column.mistake(
    "other_part",
    "the ranks have other outputs than they should: every n-th one, and not {own} in a row.",
    fix="weight.chunk(n)[rank] is a part in a row.",
)
class every_nth_output(Parted):
    def part(self, whole):
        return whole[dist.get_rank() :: dist.get_world_size()]


@column.mistake(
    "other_part",
    "every rank keeps the first part.",
    fix="Take part dist.get_rank().",
)
class first_part_everywhere(Parted):
    def part(self, whole):
        return whole.chunk(dist.get_world_size())[0]


@column.mistake(
    "other_part",
    "the weights were cut along their inputs. nn.Linear keeps its weight as (out, in), so its"
    " outputs are along dimension 0.",
    fix="Cut weight along dimension 0.",
    status="crash",
)
class cuts_the_inputs(Parted):
    def part(self, whole):
        return whole.chunk(dist.get_world_size(), -1)[dist.get_rank()]


@column.mistake(
    "bias_not_cut",
    "the bias has all outputs, and the weights have {own} of them.",
    fix="Cut the bias like the rows of weight.",
    status="crash",
)
class whole_bias(Parted):
    def part(self, whole):
        return super().part(whole) if whole.dim() == 2 else whole


@column.mistake(
    "outputs_gathered",
    "the parts of all ranks were put together again. The next layer needs only this rank's part.",
    fix="Return what F.linear gives with this rank's weights.",
)
class gathers_outputs(Parted):
    def forward(self, inputs):
        own = super().forward(inputs)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.detach().contiguous())
        parts[dist.get_rank()] = own
        return torch.cat(parts, dim=-1)


@column.mistake(
    "outputs_summed",
    "the outputs of the ranks were added up. They are different outputs of the layer.",
    fix="In forward there is nothing to add; sum the gradient of the inputs in backward.",
)
class sums_outputs(Parted):
    def forward(self, inputs):
        own = super().forward(inputs)
        total = own.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return own + (total - own.detach())


@column.mistake(*FROZEN, fix=FROZEN_FIX)
class trains_frozen_weights(Parted):
    def parameter(self, whole):
        return super().parameter(whole).requires_grad_(True)


@column.mistake(
    "not_parameters",
    "the weights are tensors and not an nn.Parameter, so no optimizer sees them.",
    fix="self.weight = nn.Parameter(part).",
)
class weights_are_tensors(Parted):
    def __init__(self, linear):
        super().__init__(linear)
        for name, parameter in [*self.named_parameters()]:
            delattr(self, name)
            setattr(self, name, parameter.detach().requires_grad_(parameter.requires_grad))


@column.breaks("keeps_the_whole")
class views_of_the_whole(Parted):
    def parameter(self, whole):
        return nn.Parameter(self.part(whole.detach()), requires_grad=whole.requires_grad)


@column.breaks("keeps_the_whole")
class keeps_linear(Parted):
    def __init__(self, linear):
        super().__init__(linear)
        self.whole = [linear]


@column.breaks("keeps_the_whole")
class cuts_in_forward(Parted):
    def parameter(self, whole):
        return nn.Parameter(whole.detach().clone(), requires_grad=whole.requires_grad)

    def forward(self, inputs):
        bias = None if self.bias is None else self.part(self.bias)
        return F.linear(self.entered(inputs), self.part(self.weight), bias)


@column.breaks("sends_in_forward")
class broadcasts_the_inputs(Parted):
    def forward(self, inputs):
        dist.broadcast(inputs.detach().clone(memory_format=torch.contiguous_format), 0)
        return super().forward(inputs)


@column.breaks("too_much_traffic")
class gathers_gradients(Parted):
    def summed(self, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return sum(parts)
