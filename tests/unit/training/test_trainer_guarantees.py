"""What a training run promises beside its result: seeds, precision, buffers, when it ends."""

import contextlib
import os
import subprocess
import sys

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


def test_every_rank_ends_with_rank_0s_batch_norm_statistics():
    def on_a_rank():
        model = model_of(nn.BatchNorm1d(8))
        Trainer(model, config(mode="ddp"), data(36)).fit()  # no evaluation, no checkpoint
        return model.state_dict()

    first, *others = run_ranks(on_a_rank, 3, show=False)
    assert int(first["1.num_batches_tracked"]) == 6
    for each in others:
        torch.testing.assert_close(each, first, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["single", "ddp"])
def test_bfloat16_computes_in_16_bits_and_keeps_weights_in_32(mode):
    def train():
        model, kinds = model_of(), set()

        def loss_fn(scores, targets):
            kinds.add(scores.dtype)
            return F.cross_entropy(scores, targets)

        settings = config(mode=mode, precision="bfloat16", epochs=8)
        history = Trainer(model, settings, data(), loss_fn=loss_fn).fit()
        weights = {each.dtype for each in model.parameters()}
        return kinds, weights, [row["loss"] for row in history.rows]

    for kinds, weights, losses in [train()] if mode == "single" else run_ranks(train, 2):
        assert (kinds, weights) == ({torch.bfloat16}, {torch.float32})
        assert losses[-1] < losses[0]


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


def test_ranks_that_begin_with_other_weights_train_rank_0s():
    def on_a_rank():
        torch.manual_seed(dist.get_rank())
        model = nn.Linear(5, 3)
        first = model.weight.detach().clone()
        trainer = Trainer(model, config(mode="ddp"), data())
        return first, model.weight.detach().clone(), trainer.fit() and model.state_dict()

    one, two = run_ranks(on_a_rank, 2, show=False)
    assert not torch.equal(one[0], two[0])
    assert torch.equal(one[0], two[1])
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


ONE_STEP = """
import sys
import torch
from torch import nn
from multigpu.training import TrainConfig, Trainer

data = [(torch.rand(3), 0)] * 4
Trainer(nn.Linear(3, 2), TrainConfig(mode="single", batch_size=4, epochs=1), data, data).fit()
print(all(name not in sys.modules or sys.modules[name].__file__ for name in
          ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "scipy.signal")))
"""


@pytest.mark.slow
def test_a_process_that_trains_has_torchs_own_modules():
    """And nothing in the place of the compiler, which would be wrong when it is used later."""
    done = subprocess.run([sys.executable, "-c", ONE_STEP], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
