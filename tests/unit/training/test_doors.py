"""What a user may pass to the Trainer: functions, loaders, dicts, callbacks; in every mode."""

import functools

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

from multigpu import run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer
from multigpu.training.checkpoint import CheckpointError

ROWS = 22  # with batches of 8: the last one has 6 rows
COMMON = {"batch_size": 8, "epochs": 2, "accumulation_steps": 2}


def model_of() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(rows: int = ROWS) -> TensorDataset:
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 3, (rows,), generator=generator))


def trained(mode, how, *, model=model_of, train=None, settings=None):
    """The weights and the history's rows after training with `how`, arguments of the Trainer."""
    config = TrainConfig(mode=mode, **COMMON | (settings or {}))
    trainer = Trainer(model(), config, train or data(), data(9), **how)
    history = trainer.fit()
    return trainer.strategy.model_state(), history.rows


def assert_same_in_every_mode(how, *, modes=("dp", "ddp", "zero3"), **more):
    """On two GPUs or ranks training computes what one process does; returns the latter's rows."""
    weights, rows = trained("single", how, **more)

    def on_a_rank():
        return [trained(mode, how, **more) for mode in modes if mode != "dp"]

    found = [each for rank in run_ranks(on_a_rank, 2, show=False) for each in rank]
    if "dp" in modes:
        with virtual_gpus(2):
            found.append(trained("dp", how, **more))
    for theirs, their_rows in found:
        for name, value in weights.items():
            if not theirs[name].is_meta:  # as on a pipeline's rank 1
                torch.testing.assert_close(theirs[name].cpu(), value, rtol=0, atol=1e-6, msg=name)
        for mine, other in zip(rows, their_rows, strict=True):
            figures = [name for name in mine if name.startswith(("eval_", "learning", "loss"))]
            assert {name: other[name] for name in figures} == pytest.approx(
                {name: mine[name] for name in figures}, abs=1e-6
            )
    return rows


# --- optimizer and schedule ----------------------------------------------------------------------


def sgd_in_two_groups(parameters):
    matrices = [each for each in parameters if each.dim() > 1]
    vectors = [each for each in parameters if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
    return SGD(groups, lr=0.2, momentum=0.8)


def cosine(optimizer, total_steps):
    return CosineAnnealingLR(optimizer, total_steps)


def warm_up_then_fall(optimizer, total_steps):
    parts = [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, total_steps - 2)]
    return SequentialLR(optimizer, parts, milestones=[2])


def one_cycle(optimizer, total_steps):
    return OneCycleLR(optimizer, 0.3, total_steps=total_steps + 1)


def stopped_and_resumed(mode, folder, schedule, stop, kind="full"):
    how = {"optimizer": sgd_in_two_groups, "schedule": schedule}
    for interrupted in (True, False):
        config = TrainConfig(mode=mode, folder=folder, save_every=1, checkpoints=kind, **COMMON)
        callbacks = [StopsAt(stop)] if interrupted else []
        trainer = Trainer(model_of(), config, data(), data(9), callbacks=callbacks, **how)
        try:
            history = trainer.fit()
        except KeyboardInterrupt:
            assert interrupted
            del trainer
    return trainer.strategy.model_state(), history.rows


class StopsAt:
    """A callback that ends the run in the middle, as Ctrl-C would."""

    def __init__(self, step):
        self.step = step

    def on_step(self, trainer, loss):
        if trainer.position.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("schedule", [warm_up_then_fall, one_cycle])
def test_a_run_that_resumes_has_their_state(schedule, tmp_path):
    weights, rows = trained("single", {"optimizer": sgd_in_two_groups, "schedule": schedule})
    again, their_rows = stopped_and_resumed("single", tmp_path, schedule, 5)
    for name, value in weights.items():
        assert torch.equal(again[name], value), name
    rates = [row["learning_rate"] for row in rows]
    assert [row["learning_rate"] for row in their_rows] == rates


@pytest.mark.slow
def test_ranks_resume_with_their_state(tmp_path):
    weights, _ = trained("single", {"optimizer": sgd_in_two_groups, "schedule": cosine})
    resumed = functools.partial(stopped_and_resumed, "zero3", tmp_path, cosine, 5, "sharded")
    for again, _ in run_ranks(resumed, 2, show=False):
        for name, value in weights.items():
            torch.testing.assert_close(again[name], value, rtol=0, atol=1e-6, msg=name)


def test_a_checkpoint_of_another_kind_of_optimizer_is_refused(tmp_path):
    settings = {"folder": tmp_path, "max_steps": 2}
    trained("single", {}, settings=settings)
    with pytest.raises(CheckpointError, match=r"optimizer='adamw' \(now 'a function'\)"):
        trained("single", {"optimizer": sgd_in_two_groups}, settings=settings)


@pytest.mark.parametrize(
    ("how", "setting"),
    [
        ({"optimizer": sgd_in_two_groups}, {"optimizer": "sgd"}),
        ({"schedule": cosine}, {"warmup_steps": 3}),
    ],
)
def test_a_setting_that_a_function_replaces_is_refused(how, setting):
    [what], [name] = how, setting
    with pytest.raises(ValueError, match=rf"^{name}=.* together with the function {what}="):
        trained("single", how, settings=setting)


def test_what_is_not_an_optimizer_of_these_parameters_is_refused():
    other = SGD(model_of().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="other parameters than those it was given"):
        trained("single", {"optimizer": lambda parameters: other})


# --- metrics -------------------------------------------------------------------------------------


def margin(outputs, targets):
    """A value for each row: how far the right class is from the mean of all."""
    return outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(dim=1)


def share_of_class_1(outputs, targets):
    """A sum and its weight: of the rows of class 1, how many are found."""
    of_class = targets == 1
    return (outputs.argmax(dim=1)[of_class] == 1).sum(), of_class.sum()


def shifted(rows):
    inputs, targets = zip(*rows, strict=True)
    return torch.stack(inputs) + 1, (torch.stack(targets) + 1) % 3


METRICS = {"margin": margin, "found": share_of_class_1}


class Counter:
    """A metric as torchmetrics has them, which counts the rows of all ranks."""

    def __init__(self):
        self.rows = 100

    def reset(self):
        self.rows = 0

    def update(self, outputs, targets):
        self.rows += len(targets)

    def compute(self):
        rows = torch.tensor(self.rows)
        if dist.is_initialized():
            dist.all_reduce(rows)
        return rows


@pytest.mark.slow
def test_all_of_ones_own_trains_and_evaluates_alike_in_every_mode():
    """With batches of 4 the last one of the 9 rows to evaluate has one row."""
    metrics = {"rows": Counter(), **METRICS}
    how = {"optimizer": sgd_in_two_groups, "schedule": cosine, "metrics": metrics}
    settings = {"batch_size": 4, "monitor": "margin"}
    rows = assert_same_in_every_mode(how | {"collate_fn": shifted}, settings=settings)
    assert [row["eval_rows"] for row in rows] == [9, 9]
    inputs, targets = data().tensors
    by_hand = TensorDataset(inputs + 1, (targets + 1) % 3)
    loader = DataLoader(data(), batch_size=5, shuffle=True, collate_fn=shifted)
    for train in (by_hand, loader):
        weights, same = trained("single", how, train=train, settings=settings)
        assert [row["loss"] for row in same] == pytest.approx([row["loss"] for row in rows])
    model = model_of()
    model.load_state_dict(weights)
    inputs, targets = data(9).tensors
    with torch.no_grad():
        outputs = model(inputs)
    found, of_class = share_of_class_1(outputs, targets)
    assert same[-1]["eval_margin"] == pytest.approx(float(margin(outputs, targets).mean()))
    assert same[-1]["eval_found"] == pytest.approx(float(found / of_class))


@pytest.mark.parametrize(
    ("metrics", "error", "said"),
    [
        ({"m": lambda outputs, targets: outputs.mean()}, ValueError, r"returned a Tensor \(\) for"),
        ({"m": Counter}, TypeError, r"give a function \(outputs, targets\)"),
        ({"loss": margin}, ValueError, "cannot be called 'loss'"),
    ],
)
def test_metrics_of_another_kind_are_refused(metrics, error, said):
    with pytest.raises(error, match=said):
        trained("single", {"metrics": metrics})


def test_metrics_by_name_say_that_a_dict_is_not_scores():
    class Named(nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    def loss_fn(outputs, targets):
        return F.cross_entropy(outputs["logits"], targets)

    model = Named(5, 3, dtype=torch.float64)
    trainer = Trainer(model, TrainConfig(mode="single"), data(), data(9), loss_fn=loss_fn)
    with pytest.raises(
        TypeError, match=r"the model returned a dict .*metrics=\{'name': function\}"
    ):
        trainer.fit()


# --- callbacks -----------------------------------------------------------------------------------


class Notes:
    """Notes what it is told."""

    def __init__(self):
        self.steps, self.epochs = [], []

    def on_step(self, trainer, loss):
        self.steps.append((trainer.position.step, float(loss)))

    def on_epoch(self, trainer, row):
        assert row == trainer.history.last
        self.epochs.append((row["epoch"], row["loss"], row["eval_accuracy"]))


def noted_on_ranks(mode):
    notes = Notes()
    _, rows = trained(mode, {"callbacks": [notes]})
    return notes.steps, notes.epochs, rows


def test_callbacks_are_called_on_every_rank():
    (first, epochs, rows), (second, others, _) = run_ranks(noted_on_ranks, 2, "ddp", show=False)
    assert epochs == others
    assert [step for step, _ in first] == [step for step, _ in second] == [1, 2, 3, 4, 5, 6]
    sizes = [4, 4, 3]  # of each rank
    pairs = zip(first, second, sizes, strict=False)
    mean = sum((mine + theirs) * size for (_, mine), (_, theirs), size in pairs) / ROWS
    assert mean == pytest.approx(rows[0]["loss"])


@pytest.mark.parametrize("callback", [print, Notes])
def test_a_callback_that_would_never_be_called_is_refused(callback):
    with pytest.raises(TypeError, match=r"callbacks has .*on_step\(trainer, loss\)"):
        trained("single", {"callbacks": [callback]})


# --- settings ------------------------------------------------------------------------------------


def test_evaluations_within_an_epoch_change_nothing_else(tmp_path):
    plain, few = trained("single", {})
    rows = assert_same_in_every_mode({}, modes=("ddp",), settings={"evaluate_every": 2})
    settings = {"folder": tmp_path, "evaluate_every": 2}
    trained("single", {}, settings=settings | {"max_steps": 5})
    weights, resumed = trained("single", {}, settings=settings)
    for name, value in plain.items():
        assert torch.equal(weights[name], value)
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 2), (1, 3), (2, 4), (2, 6)]
    assert [row["step"] for row in resumed] == [2, 3, 4, 6]
    ends = [row for row in rows if row["step"] in (3, 6)]
    for row, wanted in zip(ends, few, strict=True):
        assert row["loss"] == wanted["loss"]
        assert row["eval_accuracy"] == wanted["eval_accuracy"]
    assert torch.load(tmp_path / "best.pt")["step"] in (3, 6), "only an epoch's end can be the best"


def test_the_last_batch_is_left_out_if_it_is_smaller():
    rows = assert_same_in_every_mode({}, modes=("ddp",), settings={"drop_last": True})
    assert [row["step"] for row in rows] == [2, 4]
    _, rows = trained("single", {}, settings={"drop_last": True, "batch_size": 2, "epochs": 1})
    assert rows[-1]["step"] == 11  # none is left out
    with pytest.raises(ValueError, match=r"drop_last with 22 rows and batch_size=24"):
        trained("single", {}, settings={"drop_last": True, "batch_size": 24})


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_the_latest_checkpoints_are_kept_under_their_steps(tmp_path, kind):
    settings = {"folder": tmp_path, "save_every": 1, "checkpoints": kind}
    trained("single", {}, settings=settings | {"keep_last": 2, "max_steps": 5})
    assert {path.stem for path in tmp_path.glob("step-*")} == {"step-4", "step-5"}
    trained("single", {}, settings=settings | {"keep_last": 2})
    found = {path.name for path in tmp_path.glob("step-*")}
    assert found == ({"step-5.pt", "step-6.pt"} if kind == "full" else {"step-5", "step-6"})
    if kind == "full":
        assert torch.load(tmp_path / "step-5.pt")["step"] == 5
    else:
        assert (tmp_path / "step-5" / "run.pt").exists()
        assert len(list(tmp_path.glob(".shards-*"))) <= 3  # two by step, and best
    trained("single", {}, settings=settings | {"resume": False, "max_steps": 1})
    assert not list(tmp_path.glob("step-*"))


def single_model_of():
    return model_of().float()


def float_data():
    inputs, targets = data().tensors
    return TensorDataset(inputs.float(), targets)


def in_float16(mode, **settings):
    """Weights, the types of the outputs and the factor of the loss after training."""
    kinds = []
    model = single_model_of()
    model.register_forward_hook(lambda _, __, outputs: kinds.append(outputs.dtype))
    common = COMMON | {"precision": "float16", "optimizer": "sgd", "clip_norm": 0.5}
    trainer = Trainer(model, TrainConfig(mode=mode, **common | settings), float_data())
    trainer.fit()
    return trainer.strategy.model_state(), set(kinds), trainer.strategy.scaler.get_scale()


def test_float16_trains_nearly_as_float32_does_on_every_rank():
    wanted, _, _ = in_float16("single", precision="float32")
    alone, kinds, scale = in_float16("single")
    assert kinds == {torch.float16}
    assert scale > 1
    on_ranks = run_ranks(in_float16, 2, "ddp", show=False)
    assert [kinds for _, kinds, _ in on_ranks] == [{torch.float16}] * 2
    for weights in (alone, *(each[0] for each in on_ranks)):
        for name, value in wanted.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=2e-3, msg=name)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_float16_skips_a_step_with_infinite_gradients_and_resumes_with_its_factor(tmp_path):
    first = single_model_of().state_dict()
    scales = []
    for max_steps in (1, 2):
        config = TrainConfig(
            mode="single", precision="float16", folder=tmp_path, max_steps=max_steps, batch_size=8
        )
        trainer = Trainer(
            single_model_of(), config, float_data(), loss_fn=lambda *of: F.cross_entropy(*of) * 1e9
        )
        trainer.fit()
        scales.append(trainer.strategy.scaler.get_scale())
        for name, value in trainer.strategy.model_state().items():
            assert torch.equal(value, first[name]), name
    assert scales == [2.0**15, 2.0**14]  # halved each time, from PyTorch's 2 ** 16


def test_what_some_modes_do_not_support_is_refused():
    def on_a_rank():
        for mode in ("zero2", "zero3", "pipeline"):  # where the loss is not scaled
            with pytest.raises(ValueError, match=rf"precision='float16' with mode='{mode}'"):
                in_float16(mode)
        with pytest.raises(ValueError, match=r"optimizer= with mode='pipeline'"):
            trained("pipeline", {"optimizer": sgd_in_two_groups})

    run_ranks(on_a_rank, 2, show=False)


def test_a_metric_and_a_schedule_of_ones_own_in_a_pipeline():
    how = {"metrics": METRICS, "schedule": cosine}
    settings = {"accumulation_steps": 1, "optimizer": "sgd", "learning_rate": 0.1}
    assert_same_in_every_mode(how, modes=("pipeline",), settings=settings)
