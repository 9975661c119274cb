"""What lesson 6 says of means, unused parameters, uneven inputs, the sampler and the launcher."""

import importlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from multigpu import RankError, run_ranks


def ran(function, world_size, *arguments):
    return run_ranks(function, world_size, *arguments, backend="gloo", show=False)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, rows):
        return self.used(rows)


def test_the_gradient_is_the_sum_over_ranks_divided_by_their_number():
    def gradient():
        ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        ddp(torch.tensor([[10.0 * dist.get_rank()]])).sum().backward()
        return ddp.module.weight.grad.item()

    assert list(ran(gradient, 3)) == [10.0, 10.0, 10.0]


def test_it_is_the_whole_batch_s_only_for_equal_local_batches_or_a_scaled_sum():
    rows = torch.tensor([[1.0], [1.0], [1.0], [1.0], [6.0]])

    def gradient(kind):
        first = 4 if kind != "equal" else 2
        used = rows if kind != "equal" else rows[:4]
        mine = used[:first] if dist.get_rank() == 0 else used[first:]
        ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        loss = ddp(mine).sum() * 2 / len(used) if kind == "sum" else ddp(mine).mean()
        loss.backward()
        return ddp.module.weight.grad.item()

    assert ran(gradient, 2, "equal")[0] == pytest.approx(rows[:4].mean().item())
    assert ran(gradient, 2, "mean")[0] == pytest.approx((1 + 6) / 2)
    assert ran(gradient, 2, "sum")[0] == pytest.approx(rows.mean().item())


@pytest.mark.parametrize(("forward", "sent"), [("inside", 0), ("outside", 1)])
def test_no_sync_is_silent_only_if_forward_is_inside(forward, sent):
    def accumulate():
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        rows = torch.full((3, 2), dist.get_rank() + 1.0)
        if forward == "inside":
            with ddp.no_sync():
                ddp(rows).mean().backward()
        else:
            loss = ddp(rows).mean()
            with ddp.no_sync():
                loss.backward()
        return ddp.module.weight.grad[0, 0].item()

    result = ran(accumulate, 2)
    assert sum(call.op == "all_reduce" for call in result.trace.of(0)) == sent
    assert list(result) == ([1.5, 1.5] if sent else [1.0, 2.0])


def test_gradients_of_no_sync_add_up_and_are_not_divided():
    def accumulate():
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        rows = torch.full((3, 2), dist.get_rank() + 1.0)
        with ddp.no_sync():
            for _ in range(3):
                ddp(rows).mean().backward()
        ddp(rows).mean().backward()
        return ddp.module.weight.grad[0, 0].item()

    assert list(ran(accumulate, 2)) == [4 * 1.5, 4 * 1.5]


def test_an_unused_parameter_stops_the_average_at_once_and_the_error_comes_a_step_later():
    def two_steps():
        ddp = DistributedDataParallel(TwoHeads())
        ddp(torch.full((2, 16), dist.get_rank() + 1.0)).mean().backward()
        own = ddp.module.used.weight.grad[0, 0].item()
        with pytest.raises(RuntimeError, match="finished reduction in the prior"):
            ddp(torch.ones(2, 16))
        return own

    result = ran(two_steps, 2)
    assert list(result) == [1.0, 2.0], "each rank kept its own gradient"
    assert [call for call in result.trace.of(0) if call.op == "all_reduce"] == []


def test_find_unused_parameters_mends_it():
    def two_steps():
        ddp = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
        for _ in range(2):
            ddp.zero_grad()
            ddp(torch.full((2, 16), dist.get_rank() + 1.0)).mean().backward()
        return ddp.module.used.weight.grad[0, 0].item()

    assert list(ran(two_steps, 2)) == [1.5, 1.5]


def uneven(join, **options):
    ddp = DistributedDataParallel(nn.Linear(2, 1))

    def steps():
        for _ in range(2 + (dist.get_rank() > 0)):
            ddp.zero_grad()
            ddp(torch.ones(3, 2)).mean().backward()

    if join:
        with ddp.join(**options):
            steps()
    else:
        steps()
    return ddp.module.weight.grad[0, 0].item()


def test_uneven_inputs_hang_and_the_rank_that_has_finished_is_named():
    with pytest.raises(RankError) as caught:
        ran(uneven, 3, False)
    assert caught.value.kind == "deadlock"
    assert caught.value.ranks == (0,)


def test_join_answers_for_the_rank_that_has_finished_with_zeros():
    assert list(ran(uneven, 2, True)) == [1.0, 0.5], "still divided by all ranks"
    by_those_left = ran(lambda: uneven(True, divide_by_initial_world_size=False), 2)
    assert list(by_those_left) == [1.0, 1.0]


def test_a_forward_of_the_wrapped_model_on_one_rank_only_does_not_match_the_others():
    def evaluate_on_rank_0():
        ddp = DistributedDataParallel(nn.BatchNorm1d(16))
        ddp(torch.rand(8, 16)).mean().backward()
        if dist.get_rank() == 0:
            ddp.eval()
            with torch.no_grad():
                ddp(torch.rand(8, 16))

    with pytest.raises(RankError) as caught:
        ran(evaluate_on_rank_0, 2)
    assert caught.value.kind in ("deadlock", "mismatch")


def shares(rows, ranks, *, epoch=0, **options):
    def of(rank):
        sampler = DistributedSampler(range(rows), ranks, rank, **options)
        sampler.set_epoch(epoch)
        return list(sampler)

    return [of(rank) for rank in range(ranks)]


def test_the_sampler_repeats_rows_from_the_start_or_drops_some():
    padded, dropped = shares(768, 5), shares(768, 5, drop_last=True)
    assert [len(share) for share in padded] == [154] * 5
    assert [len(share) for share in dropped] == [153] * 5
    assert len({row for share in padded for row in share}) == 768, "770 rows, two of them twice"
    in_order = shares(768, 5, shuffle=False)
    assert [in_order[3][-1], in_order[4][-1]] == [0, 1], "filled up from the start"


def test_the_sampler_strides_and_set_epoch_counts_only_with_shuffle():
    in_order = shares(768, 5, shuffle=False)
    assert in_order[1][:3] == [1, 6, 11]
    assert shares(768, 5, shuffle=False, epoch=1) == in_order
    assert shares(768, 5, epoch=1) != shares(768, 5)
    assert shares(768, 5) == shares(768, 5), "without set_epoch every epoch has the same order"


def test_torch_distributed_launch_is_deprecated_for_torchrun():
    launch = importlib.import_module("torch.distributed.launch")
    assert "Use torchrun" in launch.main.__deprecated__
