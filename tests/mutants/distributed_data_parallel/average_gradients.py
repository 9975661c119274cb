"""Answers to ``average_gradients``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


@wrong("average_gradients.summed")
def sums(model):
    for p in trained(model):
        dist.all_reduce(p.grad)


@wrong("average_gradients.divided_by_2")
def divides_by_2(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= 2


@wrong("average_gradients.divided_twice")
def divides_before_and_after(model):
    for p in trained(model):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("average_gradients.divided_by_2")
def divides_by_the_others(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= max(1, dist.get_world_size() - 1)


@wrong("average_gradients.unused_out_of_step")
def skips_none(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("exception", status="crash")
def forgets_that_grad_can_be_none(model):
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("average_gradients.divided_by_users")
def divides_by_those_that_have_one(model):
    for p in model.parameters():
        if p.requires_grad:
            users = torch.tensor([float(p.grad is not None)])
            dist.all_reduce(users)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= max(1.0, users.item())


@wrong("average_gradients.missing_stays_none")
def takes_part_but_keeps_none(model):
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


@wrong("average_gradients.weights_changed")
def averages_the_weights(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@wrong("average_gradients.not_averaged")
def throws_the_result_away(model):
    for p in trained(model):
        total = p.grad.clone()
        dist.all_reduce(total)
        total /= dist.get_world_size()


@wrong("average_gradients.only_divided")
def does_not_wait(model):
    for p in trained(model):
        dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()


@wrong("average_gradients.of_one_rank")
def broadcasts_from_rank_0(model):
    for p in trained(model):
        dist.broadcast(p.grad, src=0)


@wrong("average_gradients.largest")
def takes_the_largest(model):
    for p in trained(model):
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)


@wrong("average_gradients.only_divided")
def rank_0_alone_has_the_sum(model):
    for p in trained(model):
        total = p.grad.clone()
        dist.reduce(total, dst=0)
        if dist.get_rank() == 0:
            p.grad = total
        p.grad /= dist.get_world_size()


@wrong("mismatch")
def in_another_order_on_every_rank(model):
    parameters = list(trained(model))
    first = dist.get_rank() % len(parameters)
    for p in parameters[first:] + parameters[:first]:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("average_gradients.gradient_lost")
def clears_too_early(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad = p.grad.div_(dist.get_world_size()) if dist.get_rank() == 0 else None


@wrong("average_gradients.multiplied")
def reduces_twice(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        dist.all_reduce(p.grad)


@wrong("average_gradients.other_gradient")
def mixes_the_pieces(model):
    parameters = list(trained(model))
    flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += 1


@wrong("average_gradients.other_gradient")
def mean_of_all_numbers(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad[...] = p.grad.mean()


@wrong("refused_name")
def borrows_a_hook(model):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for p in trained(model):
        default_hooks.allreduce_hook(None, p.grad)


@wrong("average_gradients.rounded")
def travels_as_float32(model):
    for p in trained(model):
        arrived = p.grad.float()
        dist.all_reduce(arrived)
        p.grad = arrived.to(p.grad.dtype) / dist.get_world_size()


@right
def one_flat_tensor(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat(
        [(p.new_zeros(p.shape) if p.grad is None else p.grad).reshape(-1) for p in parameters]
    )
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view(p.shape)


@right
def asks_who_has_one_first(model):
    parameters = list(model.parameters())
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    for p, anybody in zip(parameters, used.tolist()):
        if anybody:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            p.grad = grad / dist.get_world_size()


@right
def all_started_at_once(model):
    handles = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        handles.append(dist.all_reduce(p.grad.div_(dist.get_world_size()), async_op=True))
    for handle in handles:
        handle.wait()


@right
def gathers_and_adds_up(model):
    for p in trained(model):
        grads = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(grads, p.grad)
        p.grad = torch.stack(grads).mean(dim=0)


@right
def tied_ones_twice_which_does_no_harm(model):
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)


@right
def a_share_in_float32(model):
    """A quotient of whole-number tensors."""
    share = 1 / torch.tensor(dist.get_world_size())
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad)
