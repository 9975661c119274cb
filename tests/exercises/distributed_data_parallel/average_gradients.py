"""``distributed_data_parallel.average_gradients``: every gradient becomes its mean over ranks."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from .given_gradients import a_case, averaged, averages_gradients, trained

average_gradients = exercise(
    "distributed_data_parallel.average_gradients",
    expects="every .grad is the sum over all ranks divided by {n}",
    share_of=lambda case: case.world,
)


@average_gradients.cases
def cases():
    for world in (3, 4, 2, 1):
        yield a_case(world)
        yield a_case(world, dtype=torch.float32)
        if world > 1:
            missing = {
                "encode.bias": [world - 1],
                "decode.bias": range(1, world),
                "encode.weight": [0],
                "gain.scale": range(world),
            }
            yield a_case(world, "some parameters not used on all ranks", missing=missing)
            yield a_case(world, "once more")


@average_gradients.drive
def drive(submission, case, rank):
    return averaged(submission.average_gradients, case, rank)


averages_gradients(average_gradients)


# --- right answers -------------------------------------------------------------------------------


@average_gradients.right
def one_flat_tensor(model):
    parameters = trained(model)
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view(p.shape)


@average_gradients.right
def asks_who_has_one_first(model):
    parameters = list(model.parameters())
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    for p, anybody in zip(parameters, used.tolist()):
        if anybody:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            p.grad = grad / dist.get_world_size()


# --- mistakes ------------------------------------------------------------------------------------


@average_gradients.mistake(
    "summed",
    "all_reduce adds up, and the sum was never divided.",
    fix="Divide by dist.get_world_size(), which is {n} here.",
)
def sums(model):
    for p in trained(model):
        dist.all_reduce(p.grad)


@average_gradients.mistake(
    "none_not_expected",
    "a rank that did not use a parameter has None in its .grad.",
    fix="None counts as zero: put zeros there, so that this rank takes part.",
    status="crash",
)
def forgets_that_grad_can_be_none(model):
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "divided_by_2",
    "the sum was divided by 2, and there are {n} ranks.",
    fix="Divide by dist.get_world_size(), not by a fixed number or by the number of other ranks.",
)
def divides_by_2(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= 2


@average_gradients.mistake(
    "divided_twice",
    "the gradient was divided by {n} twice, for example before the all-reduce and after it.",
    fix="Divide once.",
)
def divides_before_and_after(model):
    for p in trained(model):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "of_one_rank",
    "rank 0's gradient was copied to the other ranks.",
    fix="A mean needs the gradients of all ranks: all_reduce adds them up.",
)
def broadcasts_from_rank_0(model):
    for p in trained(model):
        dist.broadcast(p.grad, src=0)


@average_gradients.mistake(
    "on_one_rank_only",
    "dist.reduce brings the sum to rank 0 alone.",
    fix="Use all_reduce: every rank needs the mean.",
)
def reduces_to_rank_0(model):
    for p in trained(model):
        dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            p.grad /= dist.get_world_size()
