"""Wrong answers to ``ring_attention``: gradients, and how blocks travel."""

import math

import torch
import torch.distributed as dist

from multigpu.checking.declaration import Shared

from .ring_answers import Ring, finish, in_float32, shifted, start

wrong_rings = Shared()


# --- gradients -----------------------------------------------------------------------------------


@wrong_rings.mistake(
    "not_differentiable",
    "the output does not know how it was made: it was computed under torch.no_grad(), or detached.",
    fix="Write a torch.autograd.Function with a backward.",
)
def detached(q, k, v, *, causal=False):
    return Ring(causal)(q, k, v).detach()


@wrong_rings.mistake(
    "own_queries_only",
    "the gradients of k and v come from the queries of their own rank. What was received has no"
    " history for autograd, so nothing went back to its owner.",
    fix="In backward, compute a part of the gradient for every block, and let it travel with the"
    " block to its owner.",
)
def gradients_of_its_own(q, k, v, *, causal=False):
    def only_own(dk, dv, own):
        return (dk, dv) if own else (dk * 0, dv * 0)

    return Ring(causal, part_of_keys=only_own)(q, k, v)


@wrong_rings.mistake(
    "gradients_stay",
    "the gradients for the blocks of all ranks were added up on the rank that computed them.",
    fix="The gradient of a block must travel with it: add to it what this rank finds, send it on.",
)
def does_not_send_gradients(q, k, v, *, causal=False):
    return Ring(causal, onward=lambda tensor: tensor)(q, k, v)


@wrong_rings.mistake(
    "not_sent_home",
    "the gradients of k and v are those of another rank's block: they are a step away from home.",
    fix="The gradient of a block travels {n} steps, one more than the block itself.",
)
def a_step_from_home(q, k, v, *, causal=False):
    return Ring(causal, at_home=lambda gradient, world: shifted(gradient, -1))(q, k, v)


@wrong_rings.mistake(
    "gradients_averaged",
    "the gradients of k and v were divided by {n}.",
    fix="They are sums over all queries. Each rank has queries of its own here, not a batch.",
)
def mean_of_gradients(q, k, v, *, causal=False):
    return Ring(causal, at_home=lambda gradient, world: gradient / world)(q, k, v)


@wrong_rings.mistake(
    "softmax_of_one_block",
    "in backward, the weights of each block add up to 1. They must do so over all blocks together.",
    fix="Save the log-sum-exp over all blocks in forward: weights = exp(scores - lse).",
)
def lse_of_the_block(q, k, v, *, causal=False):
    return Ring(causal, lse_for_backward=lambda scores, lse: scores.logsumexp(-1))(q, k, v)


@wrong_rings.mistake(
    "softmax_not_differentiated",
    "a score also changes the weights of all other keys, and this part is missing.",
    fix="The gradient of the scores is weights * (g @ v.mT - delta), where g is the gradient of the"
    " output and delta = (g * out).sum(-1, keepdim=True).",
)
def without_delta(q, k, v, *, causal=False):
    return Ring(causal, changes=lambda weights, seen, delta: weights * seen)(q, k, v)


@wrong_rings.mistake(
    "softmax_not_differentiated",
    "a score also changes the weights of the keys in all other blocks. What is subtracted was"
    " summed over one block only.",
    fix="delta = (g * out).sum(-1, keepdim=True) is the sum over all blocks, where g is the"
    " gradient of the output.",
)
def delta_of_the_block(q, k, v, *, causal=False):
    def of_block(weights, seen, delta):
        return weights * (seen - (weights * seen).sum(-1, keepdim=True))

    return Ring(causal, changes=of_block)(q, k, v)


@wrong_rings.mistake(
    "own_block_only_in_backward",
    "the gradient of q comes from the own block only.",
    fix="Add the parts from all {n} blocks.",
)
def one_part_for_queries(q, k, v, *, causal=False):
    return Ring(causal, part_of_queries=lambda dq, own: dq if own else dq * 0)(q, k, v)


@wrong_rings.mistake(
    "gradient_not_scaled",
    "backward left 1 / sqrt(width) out.",
    fix="scores = q @ k.mT / sqrt(width), so the gradients of q and k have this factor, too.",
)
def scale_only_in_forward(q, k, v, *, causal=False):
    return Ring(causal, scale_back=lambda width: 1.0)(q, k, v)


@wrong_rings.mistake(
    "gradients_swapped",
    "k has the gradient of v, and v that of k.",
    fix="backward returns one gradient per argument of forward, in their order.",
)
def other_order(q, k, v, *, causal=False):
    return Ring(causal, part_of_keys=lambda dk, dv, own: (dv, dk))(q, k, v)


@wrong_rings.mistake(
    "not_causal_in_backward",
    "backward computed the weights without the mask.",
    fix="Hide the same keys in backward as in forward.",
)
def masks_in_forward_only(q, k, v, *, causal=False):
    class Forgets(Ring):
        def backward(self, *tensors):
            return Ring().backward(*tensors)

    return Forgets(causal)(q, k, v)


# --- how blocks travel ---------------------------------------------------------------------------


class Traveling(Ring):
    """Blocks travel as ``send_on`` tells."""

    def send_on(self, block, step):
        raise NotImplementedError

    def blocks(self, k, v, visits):
        block = torch.stack((k, v))
        for step in range(visits(dist.get_world_size())):
            yield self.owner(dist.get_rank(), step, dist.get_world_size()), block[0], block[1]
            if step < visits(dist.get_world_size()) - 1:
                block = self.send_on(block, step)


@wrong_rings.mistake(
    "all_send_first",
    "all ranks call dist.send first, and each waits until its receiver takes the message.",
    fix="Start with isend, receive, then wait for the handle; or use batch_isend_irecv.",
    status="hang",
)
def sends_first(q, k, v, *, causal=False):
    class SendsFirst(Traveling):
        def send_on(self, block, step):
            rank, world = dist.get_rank(), dist.get_world_size()
            arrived = torch.empty_like(block)
            dist.send(block, (rank + 1) % world)
            dist.recv(arrived, (rank - 1) % world)
            return arrived

    return SendsFirst(causal)(q, k, v)


@wrong_rings.mistake(
    "not_contiguous",
    "k or v is a view with its dimensions in another order, and messages need contiguous tensors."
    " empty_like(k) is not contiguous either then.",
    fix="Begin with k.contiguous() and v.contiguous().",
    status="crash",
)
def sends_views(q, k, v, *, causal=False):
    class Views(Ring):
        def blocks(self, k, v, visits):
            rank, world = dist.get_rank(), dist.get_world_size()
            for step in range(world):
                yield self.owner(rank, step, world), k, v
                if step < world - 1:
                    next_k, next_v = torch.empty_like(k), torch.empty_like(v)
                    finish(start(k, next_k) + start(v, next_v))
                    k, v = next_k, next_v

    return Views(causal)(q, k, v)


@wrong_rings.breaks("not_waited")
def waits_for_what_comes(q, k, v, *, causal=False):
    class Careless(Traveling):
        def send_on(self, block, step):
            arrived = torch.empty_like(block)
            start(block, arrived)[1].wait()
            return arrived

    return Careless(causal)(q, k, v)


@wrong_rings.breaks("changed_while_sending")
def one_buffer(q, k, v, *, causal=False):
    class OneBuffer(Traveling):
        def send_on(self, block, step):
            sending, receiving = start(block, block)
            receiving.wait()
            sending.wait()
            return block

    return OneBuffer(causal)(q, k, v)


@wrong_rings.breaks("input_changed")
def receives_into_the_arguments(q, k, v, *, causal=False):
    class Overwrites(Ring):
        def blocks(self, k, v, visits):
            rank, world = dist.get_rank(), dist.get_world_size()
            for step in range(world):
                yield self.owner(rank, step, world), k, v
                if step < world - 1:
                    for own in (k, v):
                        own.data.copy_(shifted(own))

    return Overwrites(causal)(q, k, v)


@wrong_rings.breaks("collective")
def gathers_all_keys(q, k, v, *, causal=False):
    class Gathers(Ring):
        def blocks(self, k, v, visits):
            block = torch.stack((k, v))
            everyone = [torch.empty_like(block) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, block)
            for step in range(len(everyone)):
                owner = (dist.get_rank() - step) % len(everyone)
                yield owner, everyone[owner][0], everyone[owner][1]

    return Gathers(causal)(q, k, v)


@wrong_rings.breaks("not_neighbors")
def sends_to_all(q, k, v, *, causal=False):
    class ToAll(Ring):
        def blocks(self, k, v, visits):
            for step in range(dist.get_world_size()):
                keys, values = (shifted(k, step), shifted(v, step)) if step else (k, v)
                yield (dist.get_rank() - step) % dist.get_world_size(), keys, values
                del keys, values

    return ToAll(causal)(q, k, v)


@wrong_rings.breaks("kept_for_backward")
def keeps_all_blocks(q, k, v, *, causal=False):
    class Keeps(Ring):
        def blocks(self, k, v, visits):
            if not hasattr(self, "kept"):
                self.kept = [*super().blocks(k, v, visits)]
            return self.kept

    return Keeps(causal)(q, k, v)


@wrong_rings.breaks("kept_for_backward")
def leaves_it_to_autograd(q, k, v, *, causal=False):
    """Only a step is an operator of its own; autograd saves each block."""

    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return shifted(tensor)

        @staticmethod
        def backward(ctx, gradient):
            return shifted(gradient, -1)

    rank, world, ring = dist.get_rank(), dist.get_world_size(), Ring(causal)
    block, parts = torch.stack((k, v)), []
    for step in range(world):
        scores = ring.scores(q, block[0], (rank - step) % world)
        lse = scores.logsumexp(-1)
        none = (lse == -math.inf).unsqueeze(-1)
        weights = scores.masked_fill(none, 0).softmax(-1)
        parts.append((weights @ in_float32(block[1]), lse))
        if step < world - 1:
            block = Shifted.apply(block)
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    return (lses.softmax(0).unsqueeze(-1) * outs).sum(0).to(q.dtype)


@wrong_rings.breaks("too_many_blocks")
def collects_first(q, k, v, *, causal=False):
    class Collects(Ring):
        def blocks(self, k, v, visits):
            return [*super().blocks(k, v, visits)]

    return Collects(causal)(q, k, v)


@wrong_rings.breaks("too_much_in_backward")
def collects_in_backward(q, k, v, *, causal=False):
    class Collects(Ring):
        def backward(self, gradient, q, k, v, out, lse):
            everything = [*self.blocks(k, v, self.visits)]
            gradients = [torch.zeros_like(in_float32(torch.stack((k, v)))) for _ in everything]
            results = super().backward(gradient, q, k, v, out, lse)
            del everything, gradients
            return results

    return Collects(causal)(q, k, v)


@wrong_rings.breaks("sent_too_much")
def sends_the_last_one_too(q, k, v, *, causal=False):
    class OnceMore(Ring):
        def blocks(self, k, v, visits):
            block = torch.stack((k, v))
            for step in range(dist.get_world_size()):
                yield (dist.get_rank() - step) % dist.get_world_size(), block[0], block[1]
                block = shifted(block)

    return OnceMore(causal)(q, k, v)


@wrong_rings.breaks("sent_too_much_back")
def sends_gradients_twice(q, k, v, *, causal=False):
    return Ring(causal, onward=lambda t: shifted(torch.stack((t, t)))[0])(q, k, v)
