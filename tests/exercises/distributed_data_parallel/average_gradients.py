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
    "unused_out_of_step",
    "a gradient that is None was skipped on one rank, while other ranks wait for it.",
    fix="Every rank makes every call: put zeros where there is no gradient.",
    status="mismatch",
)
def skips_none(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "unused_out_of_step",
    "the flat tensor holds the gradients that this rank has, so it is shorter on a rank that did"
    " not use a parameter.",
    fix="Put zeros where there is no gradient.",
    status="mismatch",
)
def flattens_what_is_there(model):
    there = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.reshape(-1) for p in there])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, piece in zip(there, flat.split([p.numel() for p in there])):
        p.grad = piece.view_as(p)


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
    "missing_stays_none",
    "this rank took part with zeros, but threw away what the others sent.",
    fix="Put the mean into .grad here too, or the weights of the ranks drift apart.",
)
def takes_part_but_keeps_none(model):
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


@average_gradients.mistake(
    "divided_by_users",
    "the sum was divided by the number of ranks that used the parameter.",
    fix="A rank that did not use it counts as zero: divide by all {n} ranks.",
)
def divides_by_those_that_have_one(model):
    for p in model.parameters():
        if p.requires_grad:
            users = torch.tensor([float(p.grad is not None)])
            dist.all_reduce(users)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= max(1.0, users.item())


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
    "not_averaged",
    "this is the rank's own gradient: the mean was computed in another tensor and never came into"
    " .grad. Perhaps the loop that writes it back has nothing left to go through, because it uses"
    " the same generator of parameters as a loop before it.",
    fix="Reduce into .grad itself, or copy the result back; make a list of model.parameters() if"
    " you go through it twice.",
)
def throws_the_result_away(model):
    for p in trained(model):
        total = p.grad.clone()
        dist.all_reduce(total)
        total /= dist.get_world_size()


@average_gradients.mistake(
    "first_left_out",
    "next() took the first parameter out of the generator, and the loop starts with the second"
    " one.",
    fix="Ask for model.parameters() again in the loop, or make a list of it once.",
)
def takes_the_first_out_of_the_generator(model):
    parameters = iter(trained(model))
    count = torch.ones((), device=next(parameters).device)
    dist.all_reduce(count)
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@average_gradients.breaks("nothing_sent")
def goes_through_a_generator_twice(model):
    parameters = (p for p in model.parameters() if p.requires_grad)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "generator_used_up",
    "the generator of parameters was used up by a loop before, so torch.cat gets an empty list.",
    fix="Ask for model.parameters() again, or make a list of it once.",
    status="crash",
)
def flattens_a_generator_that_is_used_up(model):
    parameters = (p for p in model.parameters() if p.requires_grad)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    dist.all_reduce(torch.cat([p.grad.reshape(-1) for p in parameters]))


@average_gradients.mistake(
    "only_divided",
    "this is the rank's own gradient divided by {n}: it was divided, and the sum over the ranks is"
    " not in .grad.",
    fix="Reduce .grad itself: all_reduce writes the sum into the tensor that it is given.",
)
def divides_and_reduces_a_copy(model):
    for p in trained(model):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad.clone())


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


@average_gradients.mistake(
    "on_one_rank_only",
    "dist.reduce brings the sum to rank 0 alone.",
    fix="Use all_reduce: every rank needs the mean.",
)
def rank_0_alone_has_the_sum(model):
    for p in trained(model):
        total = p.grad.clone()
        dist.reduce(total, dst=0)
        if dist.get_rank() == 0:
            p.grad = total
        p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "largest", "ReduceOp.MAX takes the largest number of all ranks.", fix="The mean needs the sum."
)
def takes_the_largest(model):
    for p in trained(model):
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)


@average_gradients.mistake(
    "tied_twice",
    "encode.weight and decode.weight are one tied parameter, which was reduced once under each of"
    " its two names and divided once.",
    fix="model.parameters() gives every parameter once.",
)
def reduces_tied_parameters_under_both_names(model):
    trained(model)
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            dist.all_reduce(p.grad)
    for p in trained(model):
        p.grad /= dist.get_world_size()


@average_gradients.mistake(
    "reduced_twice",
    "the gradient was reduced twice: the second all-reduce adds up sums that are equal on all"
    " ranks.",
    fix="Reduce every gradient once.",
)
def reduces_twice(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        dist.all_reduce(p.grad)


@average_gradients.breaks("weights_changed")
def averages_the_weights(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
