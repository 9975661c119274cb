"""Every mode computes the same: weights and history of one device, of all others, and by hand.

That includes losses that are not a mean over rows: they return a sum and a weight. Rows with the
target 0 are ignored, or classes have weights. With reduction="mean" PyTorch divides by the weights
of the rows that it is given, and each rank and each part of a batch has others.
"""

import functools
import math

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from multigpu import RankError, run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer

ROWS, BATCH, EPOCHS = 37, 12, 2  # in each epoch 12, 12, 12 rows and one row: ranks without a row
COMMON = {"batch_size": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": 0.2}
OF_CLASSES = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)


def plain(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="sum"), len(targets)


def ignoring(outputs, targets):
    return F.cross_entropy(outputs, targets, ignore_index=0, reduction="sum"), (targets != 0).sum()


def weighted(outputs, targets):
    loss = F.cross_entropy(outputs, targets, weight=OF_CLASSES, reduction="sum")
    return loss, OF_CLASSES[targets].sum()


MEANS = {  # of a whole batch: NaN where all of its rows are ignored, which shall count nothing
    plain: F.cross_entropy,
    ignoring: functools.partial(F.cross_entropy, ignore_index=0),
    weighted: functools.partial(F.cross_entropy, weight=OF_CLASSES),
}
SCENARIOS = {
    "plain": {},
    "parts": {"accumulation_steps": 3, "weight_decay": 0.01},
    "clipped": {"clip_norm": 0.1},
    "scheduled": {
        "warmup_steps": 3,
        "schedule": "cosine",
        "lr_scaling": "sqrt",
        "base_batch_size": 48,
    },
    "ignoring": {"loss_fn": ignoring, "accumulation_steps": 3},
    "weighted": {"loss_fn": weighted},
}


class Small(nn.Module):
    """Two layers that share a weight, one that is frozen, one to train; all in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.one, self.other = nn.Linear(5, 7), nn.Linear(5, 7)
        self.other.weight = self.one.weight
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.head = nn.Linear(7, 3)
        self.double()

    def forward(self, left, right):
        return self.head(self.frozen(torch.tanh(self.one(left)) + torch.tanh(self.other(right))))


def data(rows=ROWS):
    generator = torch.Generator().manual_seed(rows)
    left, right = torch.randn(2, rows, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(left, right, torch.randint(0, 3, (rows,), generator=generator))


def trained(mode, scenario, **settings):
    """Whole weights, and the history without what is measured in seconds."""
    settings = COMMON | SCENARIOS[scenario] | settings
    how = {"loss_fn": settings.pop("loss_fn")} if "loss_fn" in settings else {}
    trainer = Trainer(Small(), TrainConfig(mode=mode, **settings), data(), data(7), **how)
    history = trainer.fit()
    weights = trainer.strategy.model_state()
    measured = ("seconds", "rows_per_second", "gpu")
    rows = [
        {name: value for name, value in row.items() if not name.startswith(measured)}
        for row in history.rows
    ]
    return {name: value if value.is_meta else value.cpu() for name, value in weights.items()}, rows


@functools.cache
def on_one_device(scenario):
    """What every mode is compared with."""
    return trained("single", scenario)


def by_hand(scenario):
    """The same as a loop of a few lines: the whole batch at once, nothing of the package."""
    settings = COMMON | SCENARIOS[scenario]
    loss_fn = settings.pop("loss_fn", plain)
    settings = TrainConfig(**settings)
    left, right, targets = data().tensors
    model, total, losses = Small(), EPOCHS * math.ceil(ROWS / BATCH), []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.2, momentum=0.9, weight_decay=settings.weight_decay)
    step = 0
    for epoch in range(EPOCHS):
        mixed = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
        lost = torch.zeros(2, dtype=torch.float64)
        for rows in mixed.split(BATCH):
            if scenario == "scheduled":
                done = max(0, step - 3) / (total - 3)
                falling = (1 + math.cos(math.pi * done)) / 2
                rising = (step + 1) / 4
                rate = 0.2 * math.sqrt(12 / 48) * (rising if step < 3 else falling)
                optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            outputs = model(left[rows], right[rows])
            lost += torch.tensor([float(part) for part in loss_fn(outputs.detach(), targets[rows])])
            mean = MEANS[loss_fn](outputs, targets[rows])
            (outputs.sum() * 0 if mean.isnan() else mean).backward()
            if settings.clip_norm:
                norm = math.sqrt(sum(float((each.grad**2).sum()) for each in trained))
                assert norm > settings.clip_norm  # else the scenario says nothing
                for each in trained:
                    each.grad *= settings.clip_norm / (norm + 1e-6)
            optimizer.step()
            step += 1
        *inputs, held_out = data(7).tensors
        losses.append([float(lost[0] / lost[1]), float(MEANS[loss_fn](model(*inputs), held_out))])
    return model.state_dict(), losses


def assert_same(found, expected):
    weights, rows = found
    assert weights.keys() == expected[0].keys()
    for name, value in expected[0].items():
        if not weights[name].is_meta:  # as on a pipeline's rank 1
            torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-11, msg=name)
    assert [list(row) for row in rows] == [list(row) for row in expected[1]]
    for row, wanted in zip(rows, expected[1], strict=True):
        assert row == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_one_device_trains_as_a_loop_by_hand_does(scenario):
    weights, rows = on_one_device(scenario)
    expected, losses = by_hand(scenario)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-11, msg=name)
    for row, both in zip(rows, losses, strict=True):
        assert [row["loss"], row["eval_loss"]] == pytest.approx(both, rel=1e-6)


@pytest.mark.parametrize(("gpus", "scenario"), [(2, "ignoring"), (3, "clipped")])
def test_dp_trains_and_evaluates_as_one_device_does(gpus, scenario):
    with virtual_gpus(gpus):
        found = trained("dp", scenario)
    assert_same(found, on_one_device(scenario))


@pytest.mark.parametrize(
    ("world_size", "modes"),
    [
        (4, ["ddp"]),
        pytest.param(1, ["ddp", "zero3"], marks=pytest.mark.slow),
        pytest.param(2, ["zero2", "zero3"], marks=pytest.mark.slow),
        pytest.param(3, ["ddp", "zero2"], marks=pytest.mark.slow),
    ],
)
def test_ranks_train_and_evaluate_as_one_device_does(world_size, modes):
    divides = [
        name
        for name, settings in SCENARIOS.items()
        if BATCH % (world_size * settings.get("accumulation_steps", 1)) == 0
    ]

    def on_a_rank():
        return [trained(mode, scenario) for mode in modes for scenario in divides]

    ranks = run_ranks(on_a_rank, world_size, show=False)
    for found in ranks:
        for each, scenario in zip(found, divides * len(modes), strict=True):
            assert_same(each, on_one_device(scenario))
        assert [rows for _, rows in found] == [rows for _, rows in ranks[0]]  # to the last bit


@pytest.mark.slow
def test_a_pipeline_trains_by_sum_and_weight_as_one_device_does():
    def on_a_rank():
        how = {"accumulation_steps": 1, "micro_batches": 3, "balance": "layers"}
        return [trained("pipeline", scenario, **how) for scenario in ("ignoring", "weighted")]

    for ignores, weighs in run_ranks(on_a_rank, 2, show=False):
        assert_same(ignores, on_one_device("ignoring"))
        assert_same(weighs, on_one_device("weighted"))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["ddp", "zero2", "zero3"])
def test_with_a_gpu_for_each_rank_a_mode_trains_as_one_device_does(mode):
    def on_a_rank(scenario):
        return trained(mode, scenario)

    for scenario in ("plain", "parts") if mode == "ddp" else ("plain",):
        expected = on_one_device(scenario)
        for found in run_ranks(on_a_rank, torch.cuda.device_count(), scenario, show=False):
            if mode == "ddp":
                assert_same(found, expected)
            else:
                assert found[1][-1] == pytest.approx(expected[1][-1], rel=1e-6)


@pytest.mark.gpu
def test_ranks_that_share_a_gpu_train_with_ddp_and_are_told_that_other_modes_need_nccl():
    def on_a_rank(mode):
        return trained(mode, "plain")

    ranks = torch.cuda.device_count() + 1
    for found in run_ranks(on_a_rank, ranks, "ddp", show=False):
        assert_same(found, on_one_device("plain"))
    for mode in ("zero2", "zero3", "pipeline"):
        with pytest.raises(RankError, match=rf"mode='{mode}' on gloo.*nccl"):
            run_ranks(on_a_rank, ranks, mode, show=False)


def test_what_is_frozen_or_shared_stays_so():
    weights, _ = on_one_device("plain")
    assert torch.equal(weights["frozen.weight"], Small().frozen.weight)
    assert torch.equal(weights["one.weight"], weights["other.weight"])
    assert not torch.equal(weights["one.weight"], Small().one.weight)


def test_gradients_travel_once_a_step_however_many_parts_there_are():
    def on_a_rank():
        trained("ddp", "parts")
        return dist.get_rank()

    trace = run_ranks(on_a_rank, 2, show=False).trace
    sent = [call for call in trace.collectives(0) if call.via == "DistributedDataParallel"]
    steps = EPOCHS * math.ceil(ROWS / BATCH)
    assert len([call for call in sent if call.op == "all_reduce"]) == steps
