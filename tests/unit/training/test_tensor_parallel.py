"""zero3 with tensor_parallel: layers are divided too, and training is that of one process."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.models import SmallGPT, next_byte_loss

WEIGHTS = 12 * 32 * 32 + 13 * 32  # of a layer of this width
MODEL = {"block": 16, "width": 32, "depth": 2}


def rows(count):
    numbers = torch.randint(0, 256, (count, 17), generator=torch.Generator().manual_seed(count))
    return TensorDataset(numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous())


def trainer(mode, tensor_parallel=1, *, model=None, **settings):
    """A GPT in float64, so that rounding does not grow in Adam."""
    torch.manual_seed(3)
    common = {"batch_size": 8, "epochs": 1, "learning_rate": 1e-2, "clip_norm": 1.0}
    config = TrainConfig(mode=mode, tensor_parallel=tensor_parallel, **common | settings)
    model = SmallGPT(**MODEL).double() if model is None else model
    return Trainer(model, config, rows(28), rows(7), loss_fn=next_byte_loss, metrics=())


def trained(mode, tensor_parallel=1, **settings):
    run = trainer(mode, tensor_parallel, **settings)
    last = run.fit().last
    return run.strategy.model_state(), last["loss"], last["eval_loss"]


def assert_same(found, expected):
    weights, *losses = found
    assert losses == pytest.approx(expected[1:], abs=1e-9)
    assert weights.keys() == expected[0].keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[0][name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.slow
def test_ranks_of_a_mesh_train_and_evaluate_as_one_process_does():
    """In four steps, the last one with four rows, in parts, and clipped."""

    def on_a_rank():
        return trained("zero3", 2, accumulation_steps=2)

    alone = trained("single")
    for found in run_ranks(on_a_rank, 4, show=False, trace=False):
        assert_same(found, alone)


def test_a_rank_keeps_a_quarter_of_each_layer_and_its_group_has_the_same_rows():
    def on_a_rank():
        run = trainer("zero3", 2)
        shapes = {n: tuple(p.to_local().shape) for n, p in run.strategy.plain.named_parameters()}
        layer = sum(p.to_local().numel() for p in run.strategy.plain.layers[0].parameters())
        return shapes, layer, next(iter(run.train_feed.batches(0))).inputs

    found = run_ranks(on_a_rank, 4, show=False, trace=False)
    for shapes, layer, _ in found:
        assert shapes["layers.0.qkv.weight"] == (3 * 32 // 4, 32)
        assert shapes["layers.0.attention_out.weight"] == (32 // 2, 32 // 2)
        assert shapes["bytes.weight"] == (256 // 4, 32)
        assert "head.weight" not in shapes  # still tied
        # A tp group has a whole copy of what is not divided: norms, and biases of RowwiseParallel.
        assert layer == (WEIGHTS + 6 * 32) / 4
    first = [numbers for *_, numbers in found]
    assert first[0].equal(first[1])
    assert first[2].equal(first[3])
    assert not first[0].equal(first[2])


@pytest.mark.slow
def test_a_run_resumes_in_another_mesh_and_in_one_process(tmp_path):
    here = {"folder": tmp_path, "checkpoints": "sharded"}

    def begin():
        trained("zero3", 2, max_steps=2, **here)

    def go_on():
        trained("zero3", 2, max_steps=3, **here)

    run_ranks(begin, 4, show=False, trace=False)
    run_ranks(go_on, 2, show=False, trace=False)
    weights, _, evaluated = trained("single", **here)
    expected, _, due = trained("single")
    assert evaluated == pytest.approx(due, abs=1e-9)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-9, msg=name)


def test_what_cannot_be_divided_is_refused():
    def on_a_rank():
        for mode, tp, model, words in (
            ("ddp", 2, SmallGPT(**MODEL), "only zero3 can also divide layers"),
            ("zero3", 3, SmallGPT(**MODEL), "does not divide the 2 ranks. Start a multiple of 3"),
            ("zero3", 2, SmallGPT(**MODEL, heads=1), "does not divide the model's 1 heads"),
            ("zero3", 2, nn.Linear(2, 2), "with a Linear: only the course's SmallGPT"),
        ):
            with pytest.raises(ValueError, match=words):
                trainer(mode, tp, model=model)

    run_ranks(on_a_rank, 2, show=False, trace=False)
