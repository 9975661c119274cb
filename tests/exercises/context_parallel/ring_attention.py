"""``context_parallel.ring_attention``: attention over a sequence that is split over the ranks."""

import math

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from . import split_sequence
from .ring_answers import Attention, Ring, finish, in_float32, seen_by, shifted, start

ring_attention = exercise(
    "context_parallel.ring_attention",
    expects="the rank's part of attention over the whole sequence, and of its gradients",
)

ring_attention.cases(split_sequence.cases)
ring_attention.drive(split_sequence.drive)
ring_attention.expected(split_sequence.expected)


@ring_attention.words
def words(case):
    return {"width": case.shape[3], "mine": f"rank * {case.queries}"}


split_sequence.travels_as_promised(ring_attention)


# --- right answers -------------------------------------------------------------------------------


@ring_attention.right
def one_operator(q, k, v, *, causal=False):
    return Ring(causal)(q, k, v)


@ring_attention.right
def sends_only_what_is_needed(q, k, v, *, causal=False):
    """Under a mask no block goes to an earlier rank, and the last rank's block goes nowhere."""
    if not causal:
        return Ring()(q, k, v)
    rank, world = dist.get_rank(), dist.get_world_size()
    right_of, left_of = (rank + 1) % world, (rank - 1) % world

    class Forward(Ring):
        def blocks(self, k, v, visits):
            block = torch.stack((k, v))
            for step in range(rank + 1):
                yield rank - step, block[0], block[1]
                if rank < world - 1:
                    handle = dist.isend(block, right_of)
                if step < rank:
                    arrived = torch.empty_like(block)
                    dist.recv(arrived, left_of)
                if rank < world - 1:
                    handle.wait()
                if step < rank:
                    block = arrived

        def backward(self, *args):
            return Ring(True).backward(*args)

    return Attention.apply(Forward(True), q, k, v)


# --- which keys are seen -------------------------------------------------------------------------


@ring_attention.mistake(
    "own_keys_only",
    "no block was received, so the queries saw only the keys of their own rank.",
    fix="Send the block to the next rank, receive one from the rank before, {others} times.",
)
def stays_at_home(q, k, v, *, causal=False):
    def once(world):
        return 1

    return Ring(causal, visits=once, visits_back=once, onward=lambda t: t)(q, k, v)


@ring_attention.mistake(
    "block_missing",
    "the ring is a step short: the last block to come was left out.",
    fix="There are {n} blocks, the own one and {others} that arrive.",
)
def a_step_short(q, k, v, *, causal=False):
    def fewer(world):
        return max(world - 1, 1)

    def last_hop(gradient, world):
        return shifted(gradient) if world > 1 else gradient

    return Ring(causal, visits=fewer, visits_back=fewer, at_home=last_hop)(q, k, v)


@ring_attention.mistake(
    "not_causal",
    "causal was ignored, so queries saw later keys.",
    fix="Hide key j from query i where j > i, before softmax.",
)
def without_a_mask(q, k, v, *, causal=False):
    return Ring()(q, k, v)


@ring_attention.mistake(
    "local_positions",
    "places in the block were compared, not in the whole sequence.",
    fix="Queries begin at {mine}, and the keys of a block at the number of its rank times the local"
    " sequence. So earlier blocks are seen in full, and later ones not at all.",
)
def the_same_mask_for_all(q, k, v, *, causal=False):
    return Ring(causal, seen=lambda rank, owner, queries, keys: seen_by(0, 0, queries, keys))(
        q, k, v
    )


@ring_attention.mistake(
    "later_blocks_seen",
    "only the own block was masked, and blocks of later ranks were seen in full.",
    fix="A block whose owner has a higher rank holds later keys only: leave it out.",
)
def masks_its_own_block_only(q, k, v, *, causal=False):
    def own_only(rank, owner, queries, keys):
        return seen_by(0, 0 if owner == rank else -1, queries, keys)

    return Ring(causal, seen=own_only)(q, k, v)


@ring_attention.mistake(
    "wrong_owner",
    "the mask is for another rank's block than the one that is there.",
    fix="If each rank sends to the next one, rank r has the block of rank (r - step) % {n}.",
)
def counts_the_other_way(q, k, v, *, causal=False):
    return Ring(causal, owner=lambda rank, step, world: (rank + step) % world)(q, k, v)


# --- scores and softmax --------------------------------------------------------------------------


@ring_attention.mistake(
    "not_scaled",
    "the scores were not divided by sqrt(width).",
    fix="q @ k.mT / math.sqrt({width}).",
)
def without_a_scale(q, k, v, *, causal=False):
    return Ring(causal, scale=lambda width: 1.0)(q, k, v)


@ring_attention.mistake(
    "averaged",
    "each block has a softmax of its own, and the mean of the {n} results was taken.",
    fix="A block counts as much as the sum of exp of its scores: merge_partial_attention does it.",
)
def mean_of_blocks(q, k, v, *, causal=False):
    def mean(parts):
        outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
        return outs.mean(0), lses.logsumexp(0)

    return Ring(causal, combine=mean)(q, k, v)


@ring_attention.mistake(
    "not_rescaled",
    "when a block brought a larger score, what was summed before was not scaled down to it.",
    fix="Multiply the old sums by exp(old maximum - new maximum).",
)
def forgets_the_old_maximum(q, k, v, *, causal=False):
    """Online softmax, without that factor."""

    def running(parts):
        out, total = (torch.zeros_like(each) for each in parts[0])
        top = torch.full_like(total, -math.inf)
        for part, lse in parts:
            top = torch.maximum(top, lse)
            share = torch.exp(lse - top)
            total, out = total + share, out + share[..., None] * part
        return out / total[..., None], total.log() + top

    return Ring(causal, combine=running)(q, k, v)


@ring_attention.mistake(
    "overflow",
    "exp of a large score is infinite. No maximum was subtracted before.",
    fix="Subtract the largest score of each query, or keep the log-sum-exp of each block.",
)
def plain_exp(q, k, v, *, causal=False):
    class Plain(Ring):
        def partial(self, q, k, v, owner):
            weights = torch.exp(self.scores(q, k, owner))
            return weights @ self.number(v), weights.sum(-1)

    def divided(parts):
        out, total = (sum(each) for each in zip(*parts, strict=True))
        return out / total.unsqueeze(-1), total.log()

    return Plain(causal, combine=divided)(q, k, v)


@ring_attention.mistake(
    "sixteen_bits",
    "scores, softmax or sums were computed in the 16 bits of q.",
    fix="Convert with .float() first, and the result back to the dtype of q.",
)
def stays_in_bfloat16(q, k, v, *, causal=False):
    return Ring(causal, number=lambda tensor: tensor)(q, k, v)


# --- gradients -----------------------------------------------------------------------------------


@ring_attention.mistake(
    "not_differentiable",
    "the output does not know how it was made: it was computed under torch.no_grad(), or detached.",
    fix="Write a torch.autograd.Function with a backward.",
)
def detached(q, k, v, *, causal=False):
    return Ring(causal)(q, k, v).detach()


@ring_attention.mistake(
    "own_queries_only",
    "the gradients of k and v come from the queries of their own rank. What was received has no"
    " history for autograd, so nothing went back to its owner.",
    fix="In backward, compute a part for every block, which travels with the block to its owner.",
)
def gradients_of_its_own(q, k, v, *, causal=False):
    def only_own(dk, dv, own):
        return (dk, dv) if own else (dk * 0, dv * 0)

    return Ring(causal, part_of_keys=only_own)(q, k, v)


@ring_attention.mistake(
    "gradients_stay",
    "the gradients for the blocks of all ranks were added up on the rank that computed them.",
    fix="The gradient of a block must travel with it: add to it what this rank finds, send it on.",
)
def does_not_send_gradients(q, k, v, *, causal=False):
    return Ring(causal, onward=lambda tensor: tensor)(q, k, v)


@ring_attention.mistake(
    "not_sent_home",
    "the gradients of k and v are those of another rank's block: they are a step away from home.",
    fix="The gradient of a block travels {n} steps, one more than the block itself.",
)
def a_step_from_home(q, k, v, *, causal=False):
    return Ring(causal, at_home=lambda gradient, world: shifted(gradient, -1))(q, k, v)


@ring_attention.mistake(
    "softmax_of_one_block",
    "in backward, the weights of each block add up to 1. They must do so over all blocks together.",
    fix="Save the log-sum-exp over all blocks in forward: weights = exp(scores - lse).",
)
def lse_of_the_block(q, k, v, *, causal=False):
    return Ring(causal, lse_for_backward=lambda scores, lse: scores.logsumexp(-1))(q, k, v)


@ring_attention.mistake(
    "softmax_not_differentiated",
    "a score also changes the weights of all other keys, and this part is missing.",
    fix="The gradient of the scores is weights * (g @ v.mT - delta), where g is the gradient of the"
    " output and delta = (g * out).sum(-1, keepdim=True).",
)
def without_delta(q, k, v, *, causal=False):
    return Ring(causal, changes=lambda weights, seen, delta: weights * seen)(q, k, v)


@ring_attention.mistake(
    "gradient_not_scaled",
    "backward left 1 / sqrt(width) out.",
    fix="scores = q @ k.mT / sqrt(width), so the gradients of q and k have this factor, too.",
)
def scale_only_in_forward(q, k, v, *, causal=False):
    return Ring(causal, scale_back=lambda width: 1.0)(q, k, v)


@ring_attention.mistake(
    "not_causal_in_backward",
    "backward computed the weights without the mask.",
    fix="Hide the same keys in backward as in forward.",
)
def masks_in_forward_only(q, k, v, *, causal=False):
    return Ring(causal, backward=Ring().backward)(q, k, v)


# --- how blocks travel ---------------------------------------------------------------------------


@ring_attention.mistake(
    "all_send_first",
    "all ranks call dist.send first, and each waits until its receiver takes the message.",
    fix="Start with isend, receive, then wait for the handle; or use batch_isend_irecv.",
    status="hang",
)
def sends_first(q, k, v, *, causal=False):
    rank, world = dist.get_rank(), dist.get_world_size()
    if world > 1:
        block = torch.stack((k, v)).detach()
        dist.send(block, (rank + 1) % world)
        dist.recv(torch.empty_like(block), (rank - 1) % world)
    return Ring(causal)(q, k, v)


@ring_attention.mistake(
    "not_contiguous",
    "k or v is a view with its dimensions in another order. Messages need contiguous tensors.",
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


@ring_attention.breaks("input_changed")
def receives_into_the_arguments(q, k, v, *, causal=False):
    out = Ring(causal)(q, k, v)
    k.data.copy_(shifted(k.data))
    return out


@ring_attention.breaks("collective")
def gathers_all_keys(q, k, v, *, causal=False):
    class Gathers(Ring):
        def blocks(self, k, v, visits):
            block = torch.stack((k, v))
            everyone = [torch.empty_like(block) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, block)
            for step in range(len(everyone)):
                owner = (dist.get_rank() - step) % len(everyone)
                yield owner, *everyone[owner]

    return Gathers(causal)(q, k, v)


@ring_attention.breaks("not_neighbors")
def sends_to_all(q, k, v, *, causal=False):
    class ToAll(Ring):
        def blocks(self, k, v, visits):
            for step in range(dist.get_world_size()):
                keys, values = (shifted(k, step), shifted(v, step)) if step else (k, v)
                yield (dist.get_rank() - step) % dist.get_world_size(), keys, values
                del keys, values

    return ToAll(causal)(q, k, v)


@ring_attention.breaks("kept_for_backward")
def keeps_all_blocks(q, k, v, *, causal=False):
    class Keeps(Ring):
        def blocks(self, k, v, visits):
            if not hasattr(self, "kept"):
                self.kept = [*super().blocks(k, v, visits)]
            return self.kept

    return Keeps(causal)(q, k, v)


@ring_attention.breaks("too_many_blocks")
def collects_first(q, k, v, *, causal=False):
    class Collects(Ring):
        def blocks(self, k, v, visits):
            return [*super().blocks(k, v, visits)]

    return Collects(causal)(q, k, v)


@ring_attention.breaks("too_much_in_backward")
def collects_in_backward(q, k, v, *, causal=False):
    class Collects(Ring):
        def backward(self, gradient, q, k, v, out, lse):
            everything = [*self.blocks(k, v, self.visits)]
            gradients = [torch.zeros_like(in_float32(torch.stack((k, v)))) for _ in everything]
            results = super().backward(gradient, q, k, v, out, lse)
            del everything, gradients
            return results

    return Collects(causal)(q, k, v)


@ring_attention.breaks("sent_too_much")
def sends_the_last_one_too(q, k, v, *, causal=False):
    shifted(torch.stack((k, v)).detach())
    return Ring(causal)(q, k, v)


@ring_attention.breaks("sent_too_much_back")
def sends_gradients_twice(q, k, v, *, causal=False):
    return Ring(causal, onward=lambda t: shifted(torch.stack((t, t)))[0])(q, k, v)
