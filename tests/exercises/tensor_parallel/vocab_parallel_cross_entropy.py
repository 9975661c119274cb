"""``tensor_parallel.vocab_parallel_cross_entropy``: the loss, without gathering the logits.

The ranks hold different numbers of words, and rank 0 does not always have the first ones.  The loss
is multiplied before backward, so that a gradient which ignores what comes in is seen.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from multigpu.checking.declaration import case, exercise, sized
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import count
from multigpu.ranks import rank_device

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
        ranks = f"on {count(world, 'rank')}"
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
    firsts = [first_of(case, rank) for rank in range(case.world)]
    ends = [f + at for f, size in zip(firsts, case.sizes, strict=True) for at in (0, size - 1)]
    return torch.tensor([ends[(3 * i + 1) % len(ends)] for i in range(case.rows)])


def own_part(case, rank, whole):
    return whole[:, first_of(case, rank) :][:, : case.sizes[rank]]


@loss.drive
def drive(submission, case, rank):
    device = rank_device()
    leaf = own_part(case, rank, whole_logits(case)).clone().to(device).requires_grad_()
    logits = leaf * 1.0  # not a leaf: what writes into it in place raises no exception
    before, targets = logits.detach().clone(), targets_of(case).to(device)
    came = submission.vocab_parallel_cross_entropy(logits, targets, first_of(case, rank))
    found = {"the result": came, "whether the logits are as they were": logits.equal(before)}
    if isinstance(came, torch.Tensor):
        found["the result"] = came.detach().clone()
        found["whether the result has a graph"] = came.requires_grad
        if came.requires_grad and came.dim() == 0:
            (came * FACTOR).backward()
            gradient = None if leaf.grad is None else leaf.grad.clone()
            found[f"the gradient of the logits of {FACTOR:g} times the loss"] = gradient
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
            "whether the logits are as they were": True,
            "whether the targets are as they were": True,
        }
        for rank in range(case.world)
    ]


@loss.words
def words(case):
    return {"numbers": NUMBERS}


@loss.holds(
    "logits_gathered",
    expects="for each row a rank gives at most {numbers} numbers to torch.distributed",
    usually="the logits themselves, or their gradients, were sent.",
    fix="The maximum, the sum of the exponentials and the target's score are three numbers.",
)
def few_numbers_travel(run, case):
    for rank in range(case.world if case.world > 1 else 0):
        given = given_by(run, case, rank)
        if given > NUMBERS:
            largest = max(run.calls(case, rank), key=lambda call: call.numel)
            return f"rank {rank} gave {given:g} numbers per row", largest.place
    return None


def given_by(run, case, rank):
    """The numbers that a rank has given to collectives, for each row."""
    calls = [call for call in run.calls(case, rank) if call.op not in ("recv", "barrier")]
    return sum(call.numel for call in calls) / case.rows


@loss.remark
def three_are_enough(run, case):
    given = given_by(run, case, 0)
    if not getattr(case, "example", False) or given <= 3:
        return None
    return (
        f"vocab_parallel_cross_entropy: {given:g} numbers per row went to collectives."
        " Three are enough: the maximum, the sum of the exponentials and the target's score."
        " Backward needs none, because all ranks have the gradient of these sums."
    )


# --- what answers are made of --------------------------------------------------------------------


class Summed(torch.autograd.Function):
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


def parallel(
    logits,
    targets,
    first,
    *,
    largest=largest_of,
    sums=Summed.apply,
    score=score_of,
    scores=Summed.apply,
    over_rows=torch.mean,
):
    """Right, and most mistakes below change one part."""
    shifted = logits - largest(logits)
    score = scores(score(shifted, targets, first))
    return over_rows(sums(shifted.exp().sum(1)).log() - score)


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
def sums_of_the_graph(logits, targets, first):
    """Torch warns that all_reduce has no backward; what the ranks need is that of a constant."""

    def add(tensor):
        dist.all_reduce(tensor)
        return tensor

    return parallel(logits, targets, first, sums=add, scores=add)


# --- mistakes ------------------------------------------------------------------------------------


@loss.mistake(
    "local_softmax",
    "the exponentials were summed over this rank's words only.",
    fix="Sum them over the ranks with all_reduce before the logarithm.",
)
def sums_of_one_rank(*given):
    return parallel(*given, sums=lambda own: own)


@loss.mistake(
    "local_maximum",
    "each rank subtracted the largest of its own logits, so the exponentials do not add up.",
    fix="Subtract the largest logit of all ranks: all_reduce with ReduceOp.MAX.",
)
def largest_of_one_rank(*given):
    return parallel(*given, largest=lambda logits: logits.detach().amax(1, keepdim=True))


@loss.mistake(
    "overflow",
    "exp of a large logit is infinite, and exp of a very negative one is zero.",
    fix="Subtract the largest logit of the row, over all ranks, before exp.",
)
def without_the_maximum(*given):
    return parallel(*given, largest=lambda logits: 0.0)


@loss.mistake(
    "target_not_masked",
    "a rank that does not have the target word adds the score of another word.",
    fix="Put zero there: multiply by (first <= targets) & (targets < first + logits.shape[1]).",
)
def score_of_another_word(*given):
    def score(shifted, targets, first):
        columns, _ = place_of(targets, first, shifted.shape[1])
        return shifted.gather(1, columns[:, None])[:, 0]

    return parallel(*given, score=score)


@loss.mistake(
    "target_not_summed",
    "only the rank that has the target word knows its score; the others count zero.",
    fix="Sum the scores over the ranks with all_reduce: all but one are zero.",
)
def score_of_one_rank(*given):
    return parallel(*given, scores=lambda own: own)


@loss.mistake(
    "first_ignored",
    "the words of a rank were taken to begin at rank times the number of its words. Ranks may have"
    " different numbers of words, in any order.",
    fix="The words of this rank begin at first.",
)
def rank_times_size(logits, targets, first):
    return parallel(logits, targets, dist.get_rank() * logits.shape[1])


@loss.mistake(
    "targets_not_shifted",
    "target words were used as columns of this rank's logits, whose column 0 is word first.",
    fix="The column is targets - first, where it is one of this rank's.",
)
def words_as_columns(logits, targets, first):
    return parallel(logits, targets, 0)


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
def sum_over_rows(*given):
    return parallel(*given, over_rows=torch.sum)


class SummedTwice(Summed):
    """As torch.distributed.nn.all_reduce has it."""

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


@loss.mistake(
    "gradient_summed",
    "backward summed the gradients over the ranks, as torch.distributed.nn.all_reduce does. Every"
    " rank has the whole gradient of the loss already, so all get {n} times theirs.",
    fix="Write a torch.autograd.Function whose backward returns the gradient that it gets.",
)
def sums_in_backward(*given):
    return parallel(*given, sums=SummedTwice.apply, scores=SummedTwice.apply)


class IgnoresGradient(AsMegatron):
    @staticmethod
    def backward(ctx, gradient):
        return AsMegatron.backward(ctx, torch.ones_like(gradient))


@loss.mistake(
    "incoming_gradient_ignored",
    "backward did not multiply by the gradient that it gets.",
    fix="Multiply the gradient of the logits by it.",
)
def ignores_what_comes_in(logits, targets, first):
    return IgnoresGradient.apply(logits, targets, first)


@loss.mistake(
    "logits_changed",
    "the maximum was subtracted in place. A method with _ at its end and -= do that.",
    fix="shifted = logits - largest makes a new tensor.",
)
def subtracts_in_place(logits, *given):
    with torch.no_grad():
        logits -= largest_of(logits)
    return parallel(logits, *given, largest=lambda logits: 0.0)


@loss.breaks("logits_gathered")
def gathers_the_logits(logits, targets, first):
    end = torch.tensor(first + logits.shape[1])
    dist.all_reduce(end, op=dist.ReduceOp.MAX)
    whole = logits.new_zeros(len(logits), int(end))
    whole[:, first : first + logits.shape[1]] = logits.detach()
    dist.all_reduce(whole)
    whole = torch.cat([whole[:, :first], logits, whole[:, first + logits.shape[1] :]], dim=1)
    return F.cross_entropy(whole, targets)
