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

from . import layers
from .layers import Parts

column = exercise(
    "tensor_parallel.ColumnParallelLinear",
    expects="outputs, gradients and weights on each rank are its part of those of linear, and the"
    " gradient of the inputs is that of linear",
)
handles_are_waited_for(column)


@column.cases
def cases():
    return layers.cases_of(inputs=12, outputs=24)


column.drive(layers.drive_with("ColumnParallelLinear", layers.Column))
column.expected(layers.expected_with(layers.Column))


@column.words
def words(case):
    return {"own": case.outputs // case.world}


layers.sends_at_most(
    column,
    "forward",
    "sends_in_forward",
    lambda case: 0,
    expects="in forward the ranks send nothing",
    usually="inputs were sent, which all ranks have, or outputs, which stay where they are.",
    fix="Forward is F.linear of the inputs and this rank's weights; only backward communicates.",
)
layers.sends_at_most(
    column,
    "backward",
    "too_much_traffic",
    lambda case: layers.all_reduced(case, case.inputs, 1 + case.twice) if case.needs else 0,
    expects="in backward a rank sends no more than an all-reduce of the gradient of the inputs"
    " does, and nothing if the inputs need no gradient",
    usually="gradients of weights were sent, or every rank got all ranks' gradients by all_gather.",
    fix="One all_reduce of the gradient of the inputs is enough.",
)
layers.keeps_its_part(column)
layers.freezes_what_is_frozen(column)


# --- what answers are made of --------------------------------------------------------------------


class Parted(Parts):
    """Right, and each mistake below changes one method."""

    def forward(self, inputs):
        return F.linear(self.entered(inputs), self.weight, self.bias)

    def entered(self, inputs):
        """A view of the inputs: its hook sees the gradient of this layer alone."""
        if not inputs.requires_grad or not torch.is_grad_enabled():
            return inputs
        view = inputs.view_as(inputs)
        view.register_hook(self.total)
        return view


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
class reduces_in_place(Parted):
    """As in picotron."""

    def entered(self, inputs):
        return Identity.apply(inputs)


# --- mistakes ------------------------------------------------------------------------------------


@column.mistake(
    "gradient_not_summed",
    "this is only what the rank's own {own} outputs contribute to the gradient of the inputs.",
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
    def total(self, gradient):
        return super().total(gradient) / dist.get_world_size()


@column.mistake(
    "other_gradients_summed",
    "the hook is on the caller's tensor, so gradients from elsewhere are summed, too.",
    fix="Use a torch.autograd.Function of this layer alone, or a hook on inputs.view_as(inputs).",
)
class hook_on_the_inputs(Parted):
    def entered(self, inputs):
        if inputs.requires_grad and not getattr(inputs, "is_hooked", False):
            inputs.register_hook(self.total)
            inputs.is_hooked = True
        return inputs


@column.mistake(
    "weights_summed",
    "the gradients of the weights were summed over the ranks, too. Each rank has other weights.",
    fix="Sum the gradient of the inputs only.",
)
class sums_gradients_of_weights(Parted):
    def parameter(self, whole, part):
        own = super().parameter(whole, part)
        if own.requires_grad:
            own.register_hook(self.total)
        return own


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
    "the weights were cut along their inputs: nn.Linear keeps its weight as (out, in).",
    fix="Cut weight along dimension 0.",
    status="crash",
)
class cuts_the_inputs(Parted):
    def part(self, whole):
        return whole.chunk(dist.get_world_size(), -1)[dist.get_rank()]


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


@column.breaks("frozen_trained")
class trains_frozen_weights(Parted):
    def parameter(self, whole, part):
        return super().parameter(whole, part).requires_grad_(True)


@column.breaks("keeps_the_whole")
class views_of_the_whole(Parted):
    def parameter(self, whole, part):
        return nn.Parameter(part(whole.detach()), requires_grad=whole.requires_grad)


@column.breaks("sends_in_forward")
class broadcasts_the_inputs(Parted):
    def forward(self, inputs):
        dist.broadcast(inputs.detach().clone(memory_format=torch.contiguous_format), 0)
        return super().forward(inputs)


@column.breaks("too_much_traffic")
class gathers_gradients(Parted):
    def total(self, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return sum(parts)
