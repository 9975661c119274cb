"""``tensor_parallel.RowParallelLinear``: a part of the inputs on each rank, and whole outputs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from . import layers
from .layers import Parts

row = exercise(
    "tensor_parallel.RowParallelLinear",
    expects="every rank gets the outputs of linear, and its part of the gradients and weights",
)
handles_are_waited_for(row)


@row.cases
def cases():
    return layers.cases_of(inputs=24, outputs=12)


row.drive(layers.drive_with("RowParallelLinear", layers.Row))
row.expected(layers.expected_with(layers.Row))


@row.words
def words(case):
    return {"own": case.inputs // case.world}


layers.sends_at_most(
    row,
    "forward",
    "too_much_traffic",
    lambda case: layers.all_reduced(case, case.outputs),
    expects="in forward a rank sends no more than an all-reduce of the outputs does",
    usually="all_gather brought every rank's share to every rank, or inputs or weights were sent.",
    fix="One all_reduce of this rank's share of the outputs is enough.",
)
layers.sends_at_most(
    row,
    "backward",
    "sends_in_backward",
    lambda case: 0,
    expects="in backward the ranks send nothing",
    usually="gradients were sent that every rank has already.",
    fix="Backward of the sum returns the gradient that it gets.",
)
layers.keeps_its_part(row)
layers.freezes_what_is_frozen(row)


# --- what answers are made of --------------------------------------------------------------------


class Parted(Parts):
    """Right, and each mistake below changes one method."""

    dim = 1

    def part_of_bias(self, whole):
        return whole

    def forward(self, inputs):
        outputs = self.summed(F.linear(inputs, self.weight))
        return outputs if self.bias is None else outputs + self.bias

    def summed(self, share):
        """Straight through: what the other ranks add is a constant."""
        return share + (self.total(share) - share.detach())


# --- right answers -------------------------------------------------------------------------------


@row.right
class straight_through(Parted):
    pass


@row.right
class sums_a_tensor_of_the_graph(Parted):
    """Torch warns that all_reduce has no backward; what the ranks need is that of a constant."""

    def summed(self, share):
        dist.all_reduce(share)
        return share


class Whole(torch.autograd.Function):
    """The whole layer, with the bias in it."""

    @staticmethod
    def forward(ctx, inputs, weight, bias):
        ctx.save_for_backward(inputs, weight)
        outputs = inputs @ weight.T
        dist.all_reduce(outputs)
        return outputs if bias is None else outputs.add_(bias)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_weight = rows.T @ inputs.reshape(-1, inputs.shape[-1])
        needs_bias = ctx.needs_input_grad[2]
        return gradient @ weight, of_weight, rows.sum(0) if needs_bias else None


@row.right
class one_operator(Parted):
    def forward(self, inputs):
        return Whole.apply(inputs, self.weight, self.bias)


# --- mistakes ------------------------------------------------------------------------------------


@row.mistake(
    "bias_counted_again",
    "every rank adds the bias before the sum, so it is in the outputs {n} times.",
    fix="Add the bias after the sum over the ranks.",
)
class bias_before_the_sum(Parted):
    def forward(self, inputs):
        return self.summed(F.linear(inputs, self.weight, self.bias))


@row.mistake(
    "not_summed",
    "each rank returns only what its own {own} inputs contribute to the outputs.",
    fix="Sum the products over the ranks: all_reduce in the forward of a torch.autograd.Function.",
)
class own_share(Parted):
    def summed(self, share):
        return share


@row.mistake(
    "averaged",
    "the sum over the ranks was divided by their number. The ranks hold other inputs of the same"
    " rows, and the contributions of all inputs add up.",
    fix="Leave out the division.",
)
class averages_in_forward(Parted):
    def total(self, share):
        return super().total(share) / dist.get_world_size()


class SummedTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, share):
        total = share.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


@row.mistake(
    "gradient_summed",
    "backward summed the gradient of the outputs over the ranks, as torch.distributed.nn.all_reduce"
    " does. Every rank has the whole of it already, so weights and inputs get {n} times theirs.",
    fix="Write a torch.autograd.Function whose backward returns the gradient that it gets.",
)
class sums_in_backward(Parted):
    def summed(self, share):
        return SummedTwice.apply(share)


@row.mistake(
    "graph_lost",
    "the sum was made of a tensor without its graph (detach(), .data or torch.no_grad()), so no"
    " gradient reaches the weights and the inputs.",
    fix="Sum in the forward of a torch.autograd.Function, whose backward passes the gradient on.",
)
class sums_detached(Parted):
    def summed(self, share):
        return self.total(share)


@row.mistake(
    "bias_on_one_rank",
    "only rank 0 adds the bias, so on the other ranks it gets no gradient and is never trained.",
    fix="Every rank adds the bias after the sum.",
)
class bias_on_rank_0(Parted):
    def forward(self, inputs):
        bias = self.bias if dist.get_rank() == 0 else None
        return self.summed(F.linear(inputs, self.weight, bias))


@row.mistake(
    "other_part",
    "the weights were cut along their outputs: nn.Linear keeps its weight as (out, in).",
    fix="Cut weight along dimension 1.",
    status="crash",
)
class cuts_the_outputs(Parted):
    def part(self, whole):
        return whole.chunk(dist.get_world_size())[dist.get_rank()]


@row.breaks("frozen_trained")
class trains_frozen_weights(Parted):
    def parameter(self, whole, part):
        return super().parameter(whole, part).requires_grad_(True)


@row.breaks("keeps_the_whole")
class views_of_the_whole(Parted):
    def parameter(self, whole, part):
        return nn.Parameter(part(whole.detach()), requires_grad=whole.requires_grad)


@row.breaks("too_much_traffic")
class gathers_shares(Parted):
    def total(self, share):
        parts = [torch.empty_like(share) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, share.detach())
        return sum(parts)


@row.breaks("sends_in_backward")
class sends_without_need(Parted):
    def summed(self, share):
        outputs = super().summed(share)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self.total(gradient) / dist.get_world_size())
        return outputs
