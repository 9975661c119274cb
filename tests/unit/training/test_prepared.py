"""A loop of one's own around `prepare` trains as the plain loop does, in every mode."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

from multigpu import run_ranks
from multigpu.training import TrainConfig, prepare
from multigpu.training.checkpoint import CheckpointError
from multigpu.training.models import SmallGPT, next_byte_loss

STEPS, ROWS, LENGTH, CLIP = 4, 8, 16, 0.5


def gpt():
    torch.manual_seed(0)
    return SmallGPT(block=LENGTH, width=16, depth=2, heads=2)


def batch_of(step, rank=0, world=1):
    """This rank's rows of a step: bytes, and the byte that follows each."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, 256, (ROWS, LENGTH + 1), generator=generator).chunk(world)[rank]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def plain_loop(steps=STEPS):
    """The loss of each step, and the weights, without anything of ours."""
    model, losses = gpt(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(steps):
        inputs, targets = batch_of(step)
        loss = next_byte_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.state_dict()


def own_loop(mode, path=None, *, steps=range(STEPS), resume=None, **settings):
    """The loss on this rank's rows, step by step; the state after the last step is saved."""
    config = TrainConfig(mode=mode, clip_norm=CLIP, **settings)
    run = prepare(gpt(), config, example=batch_of(0))
    optimizer = torch.optim.SGD(run.parameters(), lr=0.5, momentum=0.9)
    if resume:
        run.load(resume, optimizer)
    losses = []
    for step in steps:
        inputs, targets = batch_of(step, run.share, run.world_size)
        losses.append(float(run.backward(inputs, targets, loss_fn=next_byte_loss)))
        run.step(optimizer)
    if path:
        run.save(path, optimizer)
    return losses


def assert_trained_as_by_hand(path, *, steps=STEPS):
    state = torch.load(path, weights_only=True)["model"]
    for name, value in plain_loop(steps)[1].items():
        torch.testing.assert_close(state[name].cpu(), value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("parts", [1, 3])
def test_one_process_trains_as_the_loop_by_hand(tmp_path, parts):
    losses = own_loop("single", tmp_path / "model.pt", accumulation_steps=parts)
    assert losses == pytest.approx(plain_loop()[0], rel=1e-5)
    assert_trained_as_by_hand(tmp_path / "model.pt")


def own_loops(folder, modes):
    return [own_loop(mode, folder / f"{mode}.pt") for mode in modes]


@pytest.mark.parametrize(
    "modes", [("ddp", "zero3"), pytest.param(("zero2", "pipeline"), marks=pytest.mark.slow)]
)
def test_ranks_train_as_the_loop_by_hand(tmp_path, modes):
    ranks = run_ranks(own_loops, 2, tmp_path, modes, show=False)
    for mode, *losses in zip(modes, *ranks, strict=True):
        mean = [sum(both) / 2 for both in zip(*losses, strict=True)]
        mean = losses[1] if mode == "pipeline" else mean  # the last stage has the loss
        assert mean == pytest.approx(plain_loop()[0], rel=1e-5)
        assert_trained_as_by_hand(tmp_path / f"{mode}.pt")


def resumed(mode, first, last):
    own_loop(mode, last, steps=range(2, STEPS), resume=first)


@pytest.mark.slow
def test_a_loop_goes_on_in_another_mode_and_on_other_ranks(tmp_path):
    first, second, last = (tmp_path / f"{name}.pt" for name in "abc")
    own_loop("single", first, steps=range(2))
    run_ranks(resumed, 2, "zero3", first, second, show=False)
    assert_trained_as_by_hand(second)
    run_ranks(lambda: own_loop("zero3", first, steps=range(2)), 2, show=False)
    own_loop("single", last, steps=range(2, STEPS), resume=first)
    assert_trained_as_by_hand(last)


def test_a_file_that_is_missing_or_damaged_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    with pytest.raises(CheckpointError, match="does not exist"):
        own_loop("single", resume=path)
    own_loop("single", path, steps=range(1))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="broken"):
        own_loop("single", resume=path)


def test_a_frozen_part_stays_in_evaluation_mode():
    frozen = nn.BatchNorm1d(3).requires_grad_(False).eval()
    rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    how = {"example": (rows, torch.ones(8, 1))}
    run = prepare(nn.Sequential(frozen, nn.Linear(3, 1)), TrainConfig(mode="single"), **how)
    assert frozen.training, "prepare itself puts all of the model into training mode"
    frozen.eval()
    run.backward(*how["example"], loss_fn=F.mse_loss)
    assert not frozen.training
    assert frozen.running_mean.tolist() == [0, 0, 0]


def uneven(rank_rows):
    """One step of a rank with fewer rows than another."""
    rank = dist.get_rank()
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    rows = torch.full((rank_rows[rank], 3), float(rank + 1))
    targets = torch.ones(len(rows), 1)
    run = prepare(model, TrainConfig(mode="ddp"), example=(rows, targets))
    run.backward(rows, targets, loss_fn=F.mse_loss, global_rows=sum(rank_rows))
    return next(run.parameters()).grad.clone()


def test_ranks_with_different_numbers_of_rows_average_over_all_rows():
    for gradient in run_ranks(uneven, 2, (1, 3), show=False):
        # d/dw mean (w·x - 1)² at w = 0 is the mean of -2x: one row of ones, three of twos
        torch.testing.assert_close(gradient, torch.full((1, 3), -2 * (1 + 3 * 2) / 4))
