"""``distributed_data_parallel.weighted_average_gradients``: every row counts the same."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from .given_gradients import a_case, all_rows, averaged, averages_gradients, trained

weighted_average_gradients = exercise(
    "distributed_data_parallel.weighted_average_gradients",
    expects="every .grad is the sum over ranks of num_samples * gradient, divided by the {total}"
    " rows of all ranks",
    share_of=lambda case: case.world * sum(case.rows),
)

ROWS = [  # of each rank; shares of 2, 4 or 8 rows on 2 or 4 ranks are exact, in float32 too
    *([4, 0, 1], [3, 3, 3], [0, 0, 2], [2, 6, 4]),
    *([1, 2, 3, 4], [0, 5, 0, 3], [2, 2, 2, 2]),
    *([3, 1], [5, 2], [0, 3], [4, 4]),
    *([3], [2]),
]


@weighted_average_gradients.cases
def cases():
    yield a_case(3, rows=[5, 1, 2])
    about = "each rank uses one of two layers"
    for rows in ([2, 3, 1], [1, 4, 2], [3, 0, 2]):
        missing = {"idle": range(3), "layers.narrow": [1], "layers.wide": [0, 2]}
        yield a_case(3, about, rows=rows, model="fork", missing=missing)
    for rows in ROWS:
        yield a_case(len(rows), rows=rows)
    for rows in ([4, 1, 2], [0, 3, 1]):
        yield a_case(3, rows=rows, dtype=torch.float32)


@weighted_average_gradients.drive
def drive(submission, case, rank):
    def call(model):
        submission.weighted_average_gradients(model, case.rows[rank])

    return averaged(call, case, rank)


@weighted_average_gradients.words
def words(case):
    return {"total": sum(case.rows)}


averages_gradients(weighted_average_gradients)


# --- right answers -------------------------------------------------------------------------------


@weighted_average_gradients.right
def one_flat_tensor_with_the_rows_in_it(model, num_samples):
    parameters = trained(model)
    pieces = [p.grad.flatten() * num_samples for p in parameters]
    flat = torch.cat([*pieces, parameters[0].new_tensor([num_samples])])
    dist.all_reduce(flat)
    pieces = (flat[:-1] / flat[-1]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.grad = piece.view_as(p).detach()


@weighted_average_gradients.right
def unused_ones_stay_none(model, num_samples):
    total = all_rows(num_samples)
    for p in model.parameters():
        used = torch.tensor(int(p.grad is not None))
        dist.all_reduce(used)
        if used > 0:
            part = torch.zeros_like(p) if p.grad is None else p.grad * (num_samples / total)
            dist.all_reduce(part)
            p.grad = part.detach()


# --- mistakes ------------------------------------------------------------------------------------


@weighted_average_gradients.mistake(
    "ranks_count_equally",
    "this is the plain mean over ranks: a row counts more on a rank with few rows.",
    fix="Multiply each gradient by num_samples, and divide the sum by the {total} rows of all"
    " ranks.",
)
def the_plain_mean(model, num_samples):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@weighted_average_gradients.mistake(
    "returns_without_rows",
    "a rank without rows returns before the other ranks' calls, and they wait for it.",
    fix="Every rank makes every call: a rank without rows takes part with zeros.",
    status="mismatch",
)
def returns_without_rows(model, num_samples):
    if num_samples == 0:
        return
    total = all_rows(num_samples)
    for p in trained(model):
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


@weighted_average_gradients.mistake(
    "none_not_expected",
    "a gradient of what this rank did not use is None, and without rows all gradients are.",
    fix="None counts as zero: put zeros there, so that this rank takes part.",
    status="crash",
)
def knows_that_frozen_ones_are_none(model, num_samples):
    total = all_rows(num_samples)
    for p in model.parameters():
        if p.requires_grad:
            p.grad *= num_samples / total
            dist.all_reduce(p.grad)


@weighted_average_gradients.mistake(
    "only_added",
    "this is the plain sum of the ranks' gradients, each of which is a mean over its rank's rows.",
    fix="Multiply each by its rank's share, num_samples / {total}, before you add them up.",
)
def adds_them_up(model, num_samples):
    for p in trained(model):
        dist.all_reduce(p.grad)


@weighted_average_gradients.mistake(
    "never_divided",
    "this is the sum of num_samples * gradient, which was never divided.",
    fix="Divide by the {total} rows of all ranks, which an all-reduce of num_samples gives.",
)
def weights_and_never_divides(model, num_samples):
    for p in trained(model):
        p.grad *= num_samples
        dist.all_reduce(p.grad)


@weighted_average_gradients.mistake(
    "times_ranks",
    "this is {n} times the right gradient: each share was multiplied by {n}, the number of ranks,"
    " as if a mean over the ranks would follow, but all_reduce only adds up.",
    fix="Leave the factor {n} out, or divide the sum by {n}.",
)
def prepares_a_mean_and_adds_up(model, num_samples):
    share = num_samples * dist.get_world_size() / all_rows(num_samples)
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad)


@weighted_average_gradients.mistake(
    "divided_by_ranks",
    "the sum of num_samples * gradient was divided by {n}, the number of ranks.",
    fix="Divide by the {total} rows of all ranks, which an all-reduce of num_samples gives.",
)
def divides_by_the_ranks(model, num_samples):
    for p in trained(model):
        p.grad *= num_samples
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@weighted_average_gradients.mistake(
    "divided_by_own_rows",
    "the sum of num_samples * gradient was divided by this rank's own rows.",
    fix="Divide by the {total} rows of all ranks: all-reduce num_samples too.",
)
def divides_by_its_own_rows(model, num_samples):
    for p in trained(model):
        p.grad *= num_samples
        dist.all_reduce(p.grad)
        p.grad /= max(num_samples, 1)


@weighted_average_gradients.mistake(
    "divided_twice",
    "the shares num_samples / {total} add up to 1, and the sum was then divided by {n} ranks.",
    fix="Do not divide again: the share is the whole weight of a rank.",
)
def divides_by_rows_and_by_ranks(model, num_samples):
    share = num_samples / all_rows(num_samples)
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
