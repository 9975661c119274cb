"""zero2 and zero3: a share of the model on every rank. (test_trainer_modes.py compares weights.)"""

import functools
import re
from itertools import pairwise

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import TensorDataset

from multigpu import RankError, run_ranks, virtual_gpus
from multigpu.data.feeds import Batch
from multigpu.training import TrainConfig, Trainer
from multigpu.training.checkpoint import CheckpointError
from multigpu.training.fsdp import UNUSED, blocks_of, filler
from multigpu.training.models import SmallGPT

BOTH = ("zero2", "zero3")


def layers(*more):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), *more, nn.Tanh(), nn.Linear(8, 3))


def rows(count=24):
    generator = torch.Generator().manual_seed(count)
    return TensorDataset(
        torch.rand(count, 5, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


def trainer_of(mode, model=None, **settings):
    usual = {"batch_size": 12, "epochs": 2, "progress": False}
    model = layers() if model is None else model
    return Trainer(model, TrainConfig(mode=mode, **usual | settings), rows(), rows(7))


def test_a_rank_keeps_its_share_alone():
    """Of 5 × 8 + 8 + 8 × 3 + 3 = 75 weights; 3 rows and 3 biases are 2 and 1 on two ranks."""

    def on_a_rank():
        held = []
        for mode in BOTH:
            trainer = trainer_of(mode)
            trainer.fit()
            trainer.strategy.before_evaluation_or_save()  # zero2 still has what it gathered
            weights = [each.to_local().numel() for each in trainer.strategy.plain.parameters()]
            states = trainer.optimizer.state.values()
            means = [state["exp_avg"].to_local().numel() for state in states]
            held.append((sum(weights), sum(means)))
        return held

    assert list(run_ranks(on_a_rank, 2, show=False)) == [[(42, 42)] * 2, [(33, 33)] * 2]


def test_zero3_gathers_twice_in_a_step_and_zero2_once():
    """Two layers: zero3 gathers each for forward and for backward, of every part of a batch."""
    cases = (("zero2", 1, 2), ("zero3", 1, 4), ("zero3", 2, 8))

    def on_a_rank():
        for mode, parts, _ in cases:
            settings = TrainConfig(mode=mode, batch_size=12, accumulation_steps=parts)
            trainer = Trainer(layers(), settings, rows())
            batch = next(iter(trainer.train_feed.batches(0)))
            for _ in range(2):
                dist.barrier()
                trainer.strategy.forward_backward(batch.parts(parts), trainer.loss_fn)
            dist.barrier()

    calls = run_ranks(on_a_rank, 2, show=False).trace.collectives(0)
    marks = [number for number, call in enumerate(calls) if call.op == "barrier"]
    for (_, parts, gathered), first, last in zip(cases, marks[1::3], marks[2::3], strict=True):
        ops = [call.op for call in calls[first:last]]
        assert sum(op.startswith("all_gather") for op in ops) == gathered, ops
        assert sum(op.startswith("reduce_scatter") for op in ops) == 2, ops  # one per layer
        # Ranks compare the order of their calls after forward and before backward, of every part.
        assert ops.count("all_reduce") == 2 * parts, ops


def test_a_filler_keeps_what_has_no_rows():
    inputs = {"rows": torch.ones(2, 5), "scale": torch.tensor(3.0)}
    made = filler(Batch(inputs, torch.ones(2), rows=2, global_rows=4))
    assert (made.rows, len(made.inputs["rows"]), len(made.targets)) == (0, 1, 1)
    assert made.inputs["scale"] == 3


def test_blocks_are_gathered_one_by_one_and_shared_weights_with_the_root():
    gpt = SmallGPT(depth=3)
    assert blocks_of(gpt) == [*gpt.layers], "the head and the embedding share a weight"
    stages = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ReLU(), nn.Linear(2, 2))
    assert blocks_of(stages) == [stages[0], stages[2]]
    stages[2].weight = stages[0][0].weight
    assert blocks_of(stages) == []
    twice = nn.Linear(2, 2)
    assert blocks_of(nn.Sequential(twice, nn.Linear(2, 2), twice))[0] is not twice


@pytest.mark.slow
def test_a_run_goes_on_in_every_mode_on_any_number_of_ranks_from_either_kind(tmp_path, capfd):
    """zero3 on 2 ranks, zero2 on 3, ddp on 2, dp on virtual GPUs, then alone; within epochs."""

    def train(mode, steps, kind):
        trainer_of(mode, max_steps=steps, epochs=4, folder=tmp_path, checkpoints=kind).fit()

    run_ranks(train, 2, "zero3", 1, "sharded")
    run_ranks(train, 3, "zero2", 3, "sharded")
    run_ranks(train, 2, "ddp", 5, "full")
    with virtual_gpus(2):
        train("dp", 7, "sharded")
    alone, moved = trainer_of("single", epochs=4), trainer_of("single", epochs=4, folder=tmp_path)
    alone.fit()
    moved.fit()
    assert moved.position.step == 8
    torch.testing.assert_close(moved.strategy.model_state(), alone.strategy.model_state())
    torch.testing.assert_close(moved.optimizer.state_dict(), alone.optimizer.state_dict())
    assert len([*tmp_path.glob(".shards-*")]) <= 1, "what no link leads to is removed"
    said = "".join(capfd.readouterr())
    for before, now in pairwise(("zero3 on 2", "zero2 on 3", "ddp on 2", "dp on 2", "single on")):
        assert len(re.findall(rf"\b{before}\b.*\b{now}\b", said)) == 1
    assert "twice" not in said, "these feeds give every world the same batches"


@pytest.mark.parametrize(("before", "now"), [("full", "sharded"), ("sharded", "full")])
def test_a_run_that_begins_anew_removes_checkpoints_of_either_kind(tmp_path, before, now):
    trainer_of("single", folder=tmp_path, checkpoints=before).fit()
    trainer = trainer_of("single", folder=tmp_path, checkpoints=now, resume=False, max_steps=1)
    trainer.fit()
    assert trainer.position.step == 1
    ending = ".pt" if now == "full" else ""
    names = {f"latest{ending}", f"best{ending}", "history.csv"}
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == names
    assert len([*tmp_path.glob(".shards-*")]) == (now == "sharded")


@pytest.mark.slow
def test_a_changed_byte_in_any_rank_s_share_is_found_on_any_number_of_ranks(tmp_path):
    """In a weight, where PyTorch reads it without a word."""
    settings = {"folder": tmp_path, "checkpoints": "sharded", "epochs": 1}
    model = functools.partial(nn.Linear, 5, 512)

    def on_a_rank():
        trainer_of("zero3", model(), **settings).fit()

    def refused(mode):
        with pytest.raises(CheckpointError) as found:
            trainer_of(mode, model(), **settings).fit()
        return str(found.value)

    run_ranks(on_a_rank, 2, show=False)
    shares = sorted(tmp_path.glob("latest/*.distcp"))
    assert len(shares) == 2
    for share in shares:
        whole = share.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        share.write_bytes(changed)
        on_ranks = run_ranks(refused, 3, "zero3", show=False) if share == shares[1] else []
        for said in [refused("single"), *on_ranks]:
            assert re.search(rf"latest.*{share.name}.*broken", said)
        share.write_bytes(whole)
    trainer_of("single", model(), **settings).fit()


def test_what_cannot_be_divided_is_refused():
    def on_a_rank():
        with pytest.raises(ValueError, match=r"rank 1\b.*weight\D*\(4, 5\).*\(3, 5\)"):
            trainer_of("zero2", nn.Linear(5, 3 + dist.get_rank()))

    run_ranks(on_a_rank, 2, show=False)
    with pytest.raises(ValueError, match=r"mode='zero3'.*torchrun"):
        trainer_of("zero3")


class Routed(nn.Module):
    """Uses another part on every rank, or an expert that a rank may have no row for."""

    def __init__(self, *, in_blocks):
        super().__init__()
        torch.manual_seed(2)
        parts = [nn.Linear(5, 3), nn.Linear(5, 3)]
        self.one, self.other = parts
        if in_blocks:
            del self.one, self.other
            self.parts = nn.ModuleList(parts)
        self.by_rank = True

    def choose(self, number):
        return self.parts[number] if hasattr(self, "parts") else (self.one, self.other)[number]

    def forward(self, inputs):
        return self.choose(dist.get_rank() if dist.is_initialized() else 0)(inputs)


class FromTheSecondStep(Routed):
    """In the first step all use both, later rank 1 one of them."""

    steps = 0

    def forward(self, inputs):
        self.steps += 1
        outputs = self.choose(0)(inputs)
        if dist.get_rank() and self.steps > 1:
            return outputs
        return outputs + self.choose(1)(inputs)


class OneAnswerUsed(Routed):
    """All ranks call both, and each uses the outputs of another one: backward differs."""

    def forward(self, inputs):
        return [self.choose(0)(inputs), self.choose(1)(inputs)][dist.get_rank()]


class OneAnswerUsedLater(FromTheSecondStep):
    """From the second step on, what the loss depends on differs."""

    def forward(self, inputs):
        self.steps += 1
        answers = [self.choose(0)(inputs), self.choose(1)(inputs)]
        return sum(answers) if self.steps == 1 else answers[dist.get_rank()]


def different_layers(mode, **settings):
    """A trainer whose two ranks use different layers."""
    settings |= {"optimizer": "sgd", "epochs": 1, "max_steps": 1}
    return trainer_of(mode, Routed(in_blocks=False), **settings)


@pytest.mark.skipif(not hasattr(FSDPModule, UNUSED), reason="needs PyTorch 2.13")
@pytest.mark.parametrize("mode", BOTH)
def test_ranks_that_use_different_layers_do_not_mix_up_their_gradients(mode):
    """Outside of blocks all is gathered together: what a rank did not use has the gradient 0."""

    def on_a_rank():
        trainer = different_layers(mode)
        before = trainer.strategy.model_state()
        batch = next(iter(trainer.train_feed.batches(0)))
        plain = Routed(in_blocks=False)
        trainer.loss_fn(plain(batch.inputs), batch.targets).backward()
        used = (plain.one, plain.other)[dist.get_rank()].weight.grad
        trainer.fit()
        after = trainer.strategy.model_state()
        return {name: before[name] - after[name] for name in before}, used

    (moved, of_one), (_, of_other) = run_ranks(on_a_rank, 2, show=False)
    rate = TrainConfig().learning_rate
    torch.testing.assert_close(moved["one.weight"], rate * of_one / 2, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(moved["other.weight"], rate * of_other / 2, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("asked", [None, False])
def test_ranks_that_use_different_layers_are_refused_where_gradients_may_be_missing(asked):
    """Before PyTorch 2.13, or if it is told that no gradient is ever missing."""

    def on_a_rank():
        if asked is None and hasattr(FSDPModule, UNUSED):
            delattr(FSDPModule, UNUSED)
        different_layers("zero3", find_unused_parameters=asked).fit()

    says = "rank 1 reaches the gradient of other.* where rank 0 reaches the gradient of one"
    with pytest.raises(RankError, match=says):
        run_ranks(on_a_rank, 2, show=False)


def test_blocks_that_not_all_ranks_use_are_refused_before_anything_is_mixed_up():
    cases = {
        Routed: r"rank 1 reaches parts\.1 where rank 0 reaches parts\.0",
        FromTheSecondStep: r"rank 1 reaches the end of forward where rank 0 reaches parts\.1",
        OneAnswerUsed: r"rank 1 reaches parts\.1's backward where rank 0 reaches parts\.0's",
        OneAnswerUsedLater: r"rank 1 reaches parts\.1's backward where rank 0 reaches parts\.0's",
    }

    def on_a_rank():
        for kind, words in cases.items():
            with pytest.raises(ValueError, match=words) as found:
                trainer_of("zero3", kind(in_blocks=True), epochs=1).fit()
            assert "mode='ddp'" in str(found.value)

    run_ranks(on_a_rank, 2, show=False, timeout=60)


class StochasticDepth(nn.Module):
    """Huang et al. 2016: in training each block is skipped at random, on all ranks alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.head = nn.Linear(5, 3)
        self.chance = torch.Generator().manual_seed(5)

    def forward(self, inputs):
        for block in self.blocks:
            if not self.training or torch.rand((), generator=self.chance) < 0.5:
                inputs = inputs + block(inputs)
        return self.head(inputs)


@pytest.mark.slow
def test_blocks_that_all_ranks_skip_alike_train_as_on_one_device():
    """A gradient of 0 is not the same as none: with it, the optimizer's momentum moves a weight."""
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 4}
    settings["find_unused_parameters"] = False

    def on_a_rank():
        found = []
        for mode in BOTH:
            usual = {**settings, "find_unused_parameters": None}
            trainer_of(mode, StochasticDepth(), **usual).fit()
            trainer = trainer_of(mode, StochasticDepth(), **settings)
            found.append((trainer.fit().last["eval_loss"], trainer.strategy.model_state()))
        return found

    alone = trainer_of("single", StochasticDepth(), **settings)
    loss = alone.fit().last["eval_loss"]
    for found in run_ranks(on_a_rank, 2, show=False, timeout=20):
        for eval_loss, weights in found:
            assert eval_loss == pytest.approx(loss, rel=1e-5)
            torch.testing.assert_close(weights, alone.strategy.model_state())
