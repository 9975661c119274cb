"""``tensor_parallel.vocab_parallel_cross_entropy``: the loss, without gathering the logits.

The ranks hold different numbers of words, and rank 0 does not always have the first ones.  The loss
is multiplied before backward, so that a gradient which ignores what comes in is seen.
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from multigpu.checking.declaration import case, exercise, sized
from multigpu.checking.probes import handles_are_waited_for
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted

loss = exercise(
    "tensor_parallel.vocab_parallel_cross_entropy",
    expects="every rank returns the loss of the whole logits, and its logits get their part of the"
    " gradient",
)
handles_are_waited_for(loss)

FACTOR = 3.0  # of the loss before backward
NUMBERS = 8  # for each row, that a rank may give to collectives


@loss.cases
def cases():
    for world in (3, 2, 4, 1):
        ranks = f"on {counted(world, 'rank')}"
        sizes = [16 + 5 * rank for rank in range(world)]  # of the words of each rank
        alike = [16] * world

        def a_case(title, sizes, rows=6, ranks=ranks, world=world, **more):
            options = {"dtype": torch.float64, "turned": False, "scale": 1.0, "offset": 0.0, **more}
            return case(f"{title} {ranks}", world=world, sizes=sizes, rows=rows, **options)

        yield a_case("6 rows, as many words on each rank", alike, example=world == 3)
        yield a_case("7 rows, different numbers of words", sizes, 7)
        yield a_case("rank 0 has the last words", sizes, turned=True)
        yield a_case("logits around 200, float32", sizes, dtype=torch.float32, offset=200.0)
        yield a_case("logits around -1000", sizes, offset=-1e3)
        yield a_case("logits that differ by thousands", sizes, 9, scale=2e3)
        yield a_case("one row, one word on the last rank", [*sizes[:-1], 1], 1)


def first_of(case, rank):
    """The first word of a rank."""
    before = case.sizes[rank + 1 :] if case.turned else case.sizes[:rank]
    return sum(before)


def whole_logits(case):
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(case.rows, sum(case.sizes), generator=generator, dtype=torch.float64)
    logits = case.offset + case.scale * drawn
    if case.scale > 1:  # a rank may have only scores whose exp is zero
        logits[:, : case.sizes[0]] -= 1e4
    return logits.to(case.dtype)


def targets_of(case):
    """Words of all ranks in turn; each rank's first and last ones among them."""
    ends = [first_of(case, rank) + place for rank in range(case.world)
            for place in (0, case.sizes[rank] - 1)]  # fmt: skip
    return torch.tensor([ends[(3 * i + 1) % len(ends)] for i in range(case.rows)])


def own_part(case, rank, whole):
    return whole[:, first_of(case, rank) :][:, : case.sizes[rank]]


@loss.drive
def drive(submission, case, rank):
    device = rank_device()
    leaf = own_part(case, rank, whole_logits(case)).clone().to(device).requires_grad_()
    logits = leaf * 1.0  # not a leaf: what writes into it in place raises no exception
    before, targets = logits.detach().clone(), targets_of(case).to(device)
    began = time.monotonic()
    came = submission.vocab_parallel_cross_entropy(logits, targets, first_of(case, rank))
    found = {"the result": came, "watched": {"untouched": torch.equal(logits, before)}}
    if isinstance(came, torch.Tensor):
        found["the result"] = came.detach().clone()
        found["whether the result has a graph"] = came.requires_grad
        if came.requires_grad and came.dim() == 0:
            (came * FACTOR).backward()
            gradient = None if leaf.grad is None else leaf.grad.clone()
            found[f"the gradient of the logits of {FACTOR:g} times the loss"] = gradient
        found["watched"]["span"] = began, time.monotonic()
    same = torch.equal(targets.cpu(), targets_of(case))
    return found | {"whether the targets are as they were": same}


@loss.expected
def expected(case):
    whole = whole_logits(case).requires_grad_()
    right = F.cross_entropy(whole, targets_of(case))
    (right * FACTOR).backward()
    # The logarithm of a sum of exponentials may be as large as the logits, and rounded like them.
    size = 0.05 * case.offset if case.dtype == torch.float32 else 0.0
    return [
        {
            "the result": sized(size, right.detach()),
            "whether the result has a graph": True,
            f"the gradient of the logits of {FACTOR:g} times the loss": sized(
                size, own_part(case, rank, whole.grad)
            ),
            "whether the targets are as they were": True,
        }
        for rank in range(case.world)
    ]


@loss.words
def words(case):
    return {"numbers": NUMBERS}


@loss.holds(
    "logits_changed",
    expects="the logits stay as they are",
    usually="the maximum was subtracted in place. A method with _ at its end and -= do that.",
    fix="shifted = logits - largest makes a new tensor.",
    first=True,
)
def logits_stay(run, case):
    for rank, came in enumerate(run.came(case)):
        if not came["watched"]["untouched"]:
            return f"after the call the logits of rank {rank} hold other numbers"
    return None


@loss.holds(
    "logits_gathered",
    expects="for each row a rank gives at most {numbers} numbers to torch.distributed",
    usually="the logits themselves, or their gradients, were sent.",
    fix="The maximum, the sum of the exponentials and the target's score are three numbers.",
)
def few_numbers_travel(run, case):
    for rank, came in enumerate(run.came(case)):
        if "span" not in came["watched"] or case.world == 1:
            continue
        began, ended = came["watched"]["span"]
        calls = [call for call in run.calls(case, rank) if began <= call.time <= ended]
        given = sum(call.numel for call in calls if call.op not in ("recv", "barrier"))
        if given > NUMBERS * case.rows:
            each = given / case.rows
            return f"rank {rank} gave {each:g} numbers per row", max(
                calls, key=lambda call: call.numel
            ).place
    return None


@loss.remark
def three_are_enough(run, case):
    if not getattr(case, "example", False):
        return None
    given = sum(call.numel for call in run.calls(case, 0) if call.op != "barrier")
    if given <= 3 * case.rows:
        return None
    return (
        f"vocab_parallel_cross_entropy: {given / case.rows:g} numbers per row went to collectives."
        " Three are enough: the maximum, the sum of the exponentials and the target's score."
        " Backward needs none, because all ranks have the gradient of these sums."
    )


# --- what answers are made of --------------------------------------------------------------------


class Constants(torch.autograd.Function):
    """The sum over the ranks; its backward passes the gradient on."""

    @staticmethod
    def forward(ctx, tensor):
        return summed(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def summed(tensor):
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def largest_of(logits):
    largest = logits.detach().max(dim=1).values
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.unsqueeze(1)


def place_of(targets, first, size):
    """The column of each target, and whether this rank has it."""
    here = (first <= targets) & (targets < first + size)
    return (targets - first).where(here, torch.zeros_like(targets)), here


def score_of(shifted, targets, first):
    columns, here = place_of(targets, first, shifted.shape[1])
    return shifted.gather(1, columns[:, None])[:, 0] * here


def losses(logits, targets, first, *, largest=largest_of, add=Constants.apply, score=score_of):
    """Of each row; right, and most mistakes below change one part."""
    shifted = logits - largest(logits)
    return add(shifted.exp().sum(1)).log() - add(score(shifted, targets, first))


# --- right answers -------------------------------------------------------------------------------


class AsMegatron(torch.autograd.Function):
    """With a backward by hand: softmax minus one at the target."""

    @staticmethod
    def forward(ctx, logits, targets, first):
        shifted = logits - largest_of(logits)
        exponentials = shifted.exp()
        sums = summed(exponentials.sum(1))
        score = summed(score_of(shifted, targets, first))
        columns, here = place_of(targets, first, logits.shape[1])
        ctx.save_for_backward(exponentials / sums[:, None], columns, here)
        return (sums.log() - score).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, columns, here = ctx.saved_tensors
        of_logits = softmax.clone()
        of_logits[torch.arange(len(columns)), columns] -= here.to(softmax.dtype)
        return of_logits * (gradient / len(columns)), None, None


@loss.right
def backward_by_hand(logits, targets, first):
    return AsMegatron.apply(logits, targets, first)


@loss.right
def gathers_what_the_ranks_have_summed(logits, targets, first):
    """The log-sum-exp of each rank; of the others' it is a constant."""
    own = logits.logsumexp(dim=1)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.detach())
    parts[dist.get_rank()] = own
    whole = torch.stack(parts).logsumexp(dim=0)
    score = score_of(logits, targets, first)
    return (whole - score - (summed(score) - score.detach())).mean()


@loss.right
def sums_of_the_graph(logits, targets, first):
    """Torch warns that all_reduce has no backward; what the ranks need is that of a constant."""
    shifted = logits - largest_of(logits)
    sums, score = shifted.exp().sum(1), score_of(shifted, targets, first)
    dist.all_reduce(sums)
    dist.all_reduce(score)
    return sums.log().sub(score).mean()


# --- mistakes ------------------------------------------------------------------------------------


@loss.mistake(
    "local_softmax",
    "the exponentials were summed over this rank's words only.",
    fix="Sum them over the ranks with all_reduce before the logarithm.",
)
def sums_of_one_rank(logits, targets, first):
    shifted = logits - largest_of(logits)
    score = Constants.apply(score_of(shifted, targets, first))
    return (shifted.exp().sum(1).log() - score).mean()


@loss.mistake(
    "local_maximum",
    "each rank subtracted the largest of its own logits, so the exponentials do not add up.",
    fix="Subtract the largest logit of all ranks: all_reduce with ReduceOp.MAX.",
)
def largest_of_one_rank(logits, targets, first):
    def largest(logits):
        return logits.detach().amax(1, keepdim=True)

    return losses(logits, targets, first, largest=largest).mean()


@loss.mistake(
    "overflow",
    "exp of a large logit is infinite, and exp of a very negative one is zero.",
    fix="Subtract the largest logit of the row, over all ranks, before exp.",
)
def without_the_maximum(logits, targets, first):
    return losses(logits, targets, first, largest=lambda logits: 0.0).mean()


@loss.mistake(
    "maximum_forgotten",
    "the exponentials are of logits minus the maximum, and the target's score is not.",
    fix="Subtract the maximum from the target's score, too, or add it to the logarithm.",
)
def score_without_the_maximum(logits, targets, first):
    def score(shifted, targets, first):
        return score_of(logits, targets, first)

    return losses(logits, targets, first, score=score).mean()


@loss.mistake(
    "target_not_masked",
    "a rank that does not have the target word adds the score of another word.",
    fix="Put zero there: multiply by (first <= targets) & (targets < first + logits.shape[1]).",
)
def score_of_another_word(logits, targets, first):
    def score(shifted, targets, first):
        columns, _ = place_of(targets, first, shifted.shape[1])
        return shifted.gather(1, columns[:, None])[:, 0]

    return losses(logits, targets, first, score=score).mean()


@loss.mistake(
    "target_not_summed",
    "only the rank that has the target word knows its score; the others count zero.",
    fix="Sum the scores over the ranks with all_reduce: all but one are zero.",
)
def score_of_one_rank(logits, targets, first):
    shifted = logits - largest_of(logits)
    sums = Constants.apply(shifted.exp().sum(1))
    return (sums.log() - score_of(shifted, targets, first)).mean()


@loss.mistake(
    "first_ignored",
    "the words of a rank were taken to begin at rank times the number of its words. Ranks may have"
    " different numbers of words, in any order.",
    fix="The words of this rank begin at first.",
)
def rank_times_size(logits, targets, first):
    return losses(logits, targets, dist.get_rank() * logits.shape[1]).mean()


@loss.mistake(
    "targets_not_shifted",
    "target words were used as columns of this rank's logits, whose column 0 is word first.",
    fix="The column is targets - first, where it is one of this rank's.",
)
def words_as_columns(logits, targets, first):
    return losses(logits, targets, 0).mean()


@loss.mistake(
    "targets_not_shifted",
    "target words were used as columns of this rank's logits, which has fewer.",
    fix="The column is targets - first, where it is one of this rank's.",
    status="crash",
)
def cross_entropy_of_one_rank(logits, targets, first):
    return F.cross_entropy(logits, targets)


@loss.mistake(
    "not_averaged",
    "the losses of the rows were added up and not divided by their number.",
    fix="Return the mean over the rows.",
)
def sum_over_rows(logits, targets, first):
    return losses(logits, targets, first).sum()


@loss.mistake(
    "not_differentiable",
    "the loss was computed without a graph.",
    fix="Sum in the forward of a torch.autograd.Function, or let one compute the gradient.",
)
def without_a_graph(logits, targets, first):
    return losses(logits, targets, first).mean().detach()


class Shared(torch.autograd.Function):
    """The sum over the ranks, also of the gradient, as torch.distributed.nn has it."""

    @staticmethod
    def forward(ctx, tensor):
        return summed(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


@loss.mistake(
    "gradient_summed",
    "backward summed the gradients over the ranks, as torch.distributed.nn.all_reduce does. Every"
    " rank has the whole gradient of the loss already, so all get {n} times theirs.",
    fix="Write a torch.autograd.Function whose backward returns the gradient that it gets.",
)
def sums_in_backward(logits, targets, first):
    return losses(logits, targets, first, add=Shared.apply).mean()


@loss.mistake(
    "sum_masked",
    "the logarithm of the sum was masked, too, and then its gradient is missing.",
    fix="Mask the target's score alone. The logarithm belongs to every row on every rank.",
)
def masks_the_log_softmax(logits, targets, first):
    shifted = logits - largest_of(logits)
    log_softmax = shifted - Constants.apply(shifted.exp().sum(1)).log()[:, None]
    return -Constants.apply(score_of(log_softmax, targets, first)).mean()


class Alone(AsMegatron):
    @staticmethod
    def backward(ctx, gradient):
        return AsMegatron.backward(ctx, torch.ones_like(gradient))


@loss.mistake(
    "incoming_gradient_ignored",
    "backward did not multiply by the gradient that it gets.",
    fix="Multiply the gradient of the logits by it.",
)
def ignores_what_comes_in(logits, targets, first):
    return Alone.apply(logits, targets, first)


@loss.breaks("logits_changed")
def subtracts_in_place(logits, targets, first):
    with torch.no_grad():
        logits -= largest_of(logits)
    return losses(logits, targets, first, largest=lambda logits: 0.0).mean()


@loss.breaks("logits_gathered")
def gathers_the_logits(logits, targets, first):
    end = torch.tensor(first + logits.shape[1])
    dist.all_reduce(end, op=dist.ReduceOp.MAX)
    whole = logits.new_zeros(len(logits), int(end))
    whole[:, first : first + logits.shape[1]] = logits.detach()
    dist.all_reduce(whole)
    whole = torch.cat([whole[:, :first], logits, whole[:, first + logits.shape[1] :]], dim=1)
    return F.cross_entropy(whole, targets)
