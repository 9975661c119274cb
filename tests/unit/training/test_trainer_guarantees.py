"""What a training run promises beside its result: seeds, precision, buffers, when it ends."""

import contextlib
import os

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.randomness import CUBLAS


def data(rows=37, *, inputs=5):
    generator = torch.Generator().manual_seed(rows)
    return TensorDataset(
        torch.randn(rows, inputs, generator=generator),
        torch.randint(0, 3, (rows,), generator=generator),
    )


def model_of(*layers):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.Tanh(), nn.Linear(8, 3))


def config(**settings):
    usual = {"batch_size": 12, "epochs": 2, "optimizer": "sgd", "learning_rate": 0.1}
    return TrainConfig(**usual | settings)


class Masks(nn.Module):
    """Dropout that keeps its masks."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, hidden):
        if self.training:
            self.seen.append(F.dropout(torch.ones(8), 0.5))
            hidden = hidden * self.seen[-1]
        return hidden


def with_dropout(seed):
    """This process's masks, and the weights after training with them."""
    masks = Masks()
    model = model_of(masks)
    Trainer(model, config(seed=seed), data()).fit()
    return torch.stack(masks.seen), model.state_dict()


def test_dropout_differs_from_rank_to_rank_and_the_weights_do_not():
    def on_a_rank():
        return with_dropout(3), with_dropout(3), with_dropout(4)

    (one, again, other), (second, *_) = run_ranks(on_a_rank, 2, show=False)
    assert not torch.equal(one[0], second[0])
    torch.testing.assert_close(one[1], second[1], rtol=0, atol=0)
    torch.testing.assert_close(one, again, rtol=0, atol=0)  # the same seed: the same run
    assert not torch.equal(one[0], other[0])


# Where the loss is computed: autocast lets a layer's outputs stay in 16 bits, FSDP casts them.
SCORES = {"single": torch.bfloat16, "ddp": torch.bfloat16, "zero2": torch.float32,
          "zero3": torch.float32}  # fmt: skip


@pytest.mark.slow
def test_bfloat16_computes_in_16_bits_and_keeps_weights_and_statistics_in_32():
    def train(mode):
        model, kinds, scores = model_of(nn.BatchNorm1d(8)), set(), set()
        model[-1].register_forward_hook(lambda _, taken, outputs: kinds.add(taken[0].dtype))

        def loss_fn(outputs, targets):
            scores.add(outputs.dtype)
            return F.cross_entropy(outputs, targets)

        settings = config(mode=mode, precision="bfloat16", epochs=8)
        trainer = Trainer(model, settings, data(36), loss_fn=loss_fn)
        losses = [row["loss"] for row in trainer.fit().rows]
        kept = {each.dtype for each in trainer.strategy.model_state().values()}
        return kinds, scores, kept, losses[-1] < losses[0]

    def on_a_rank():
        return [train(mode) for mode in [*SCORES][1:]]

    for found in run_ranks(on_a_rank, 2, show=False):
        for (kinds, *others), kind in zip([train("single"), *found], SCORES.values(), strict=True):
            assert torch.bfloat16 in kinds
            assert others == [{kind}, {torch.float32, torch.int64}, True]


@pytest.mark.parametrize("fails", [False, True])
def test_deterministic_holds_during_training_and_not_after_it(fails):
    seen, workspace = [], os.environ.get(CUBLAS)

    def loss_fn(scores, targets):
        seen.append(torch.are_deterministic_algorithms_enabled())
        if fails:
            raise ArithmeticError
        return F.cross_entropy(scores, targets)

    trainer = Trainer(model_of(), config(deterministic=True), data(), loss_fn=loss_fn)
    with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
        trainer.fit()
    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ.get(CUBLAS) == workspace


def test_all_ranks_stop_early_at_the_same_epoch():
    def on_a_rank():
        # Targets that no input tells: what is learnt from 37 rows is wrong for the 8 others.
        settings = config(mode="ddp", epochs=60, learning_rate=0.5, patience=2, monitor="loss")
        history = Trainer(model_of(), settings, data(), data(8)).fit()
        return [row["eval_loss"] for row in history.rows]

    first, other = run_ranks(on_a_rank, 2, show=False)
    assert 3 <= len(first) < 60
    best = first.index(min(first))
    assert len(first) == best + 1 + 2
    assert other == first


def test_max_steps_ends_within_an_epoch():
    history = Trainer(model_of(), config(epochs=9, max_steps=6), data()).fit()
    assert [(row["epoch"], row["step"]) for row in history.rows] == [(1, 4), (2, 6)]


@pytest.mark.parametrize("mode", ["ddp", "zero3"])
def test_ranks_begin_with_rank_0s_weights_and_end_with_its_statistics(mode):
    def on_a_rank():
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
        first = model[0].weight.detach().clone()
        trainer = Trainer(model, config(mode=mode), data(36))  # no evaluation, no checkpoint
        begun = trainer.strategy.model_state()["0.weight"].clone()
        trainer.fit()
        return first, begun, trainer.strategy.model_state()

    one, two = run_ranks(on_a_rank, 2, show=False)
    assert not torch.equal(one[0], two[0])
    assert torch.equal(one[0], one[1])
    assert torch.equal(one[0], two[1])
    assert int(one[2]["1.num_batches_tracked"]) == 6
    torch.testing.assert_close(one[2], two[2], rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_trains_as_the_cpu_does(precision):
    settings = config(mode="single", precision=precision)
    trainer = Trainer(model_of(), settings, data(), data(8))
    history = trainer.fit()
    assert trainer.strategy.device.type == "cuda"
    assert history.last["gpu0_gib"] > 0
    assert history.last["loss"] < history.rows[0]["loss"]
