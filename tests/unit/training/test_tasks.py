"""The tasks: everything in one of them fits together, and one step of each trains."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.training.tasks import TASKS, Task
from multigpu.training.trainer import Trainer

every_task = pytest.mark.parametrize("name", TASKS)


def test_the_tasks_of_the_command():
    assert {"digits", "flights", "text", "tiny", "large"} <= set(TASKS)


@pytest.mark.slow
@every_task
def test_the_trainer_takes_a_task_as_it_is(name):
    task = TASKS[name]
    torch.manual_seed(0)
    train, test = task.load()
    little = torch.utils.data.Subset(test, range(50))
    trainer = Trainer(
        task.model(),
        task.config(max_steps=2, progress=False),
        train,
        little,
        loss_fn=task.loss_fn,
        metrics=task.metrics,
    )
    figures = trainer.fit().last
    assert figures["step"] == 2
    assert math.isfinite(figures["eval_loss"])
    assert {f"eval_{metric}" for metric in task.metrics} <= figures.keys()


def test_settings_can_be_changed_and_others_stay():
    config = TASKS["flights"].config(epochs=7)
    assert (config.epochs, config.batch_size) == (7, TASKS["flights"].defaults["batch_size"])
    with pytest.raises(TypeError, match="no_such_field"):
        TASKS["flights"].config(no_such_field=1)


def test_scaling_starts_from_the_batch_size_that_the_rate_was_found_with():
    for task in TASKS.values():
        assert task.config().base_batch_size == task.config().batch_size


def test_a_task_of_your_own_needs_data_and_a_model():
    mine = Task(title="mine", load=TASKS["digits"].load, model=TASKS["tiny"].model)
    assert mine.config(epochs=1).epochs == 1


def train_on_flights(rows, test_rows):
    """Figures of a short training, as one rank or one process."""
    task = TASKS["flights"]
    torch.manual_seed(0)
    config = task.config(epochs=1, batch_size=250, progress=False)
    trainer = Trainer(task.model(), config, rows, test_rows, metrics=task.metrics)
    return trainer.fit().last


@pytest.mark.slow
def test_one_process_and_two_ranks_reach_the_same_figures_on_the_flights():
    train, test = TASKS["flights"].load()
    some = TensorDataset(*(tensor[200_000:210_001] for tensor in train.tensors))
    few = TensorDataset(*(tensor[::20] for tensor in test.tensors))  # 2,708: one is left over
    alone = train_on_flights(some, few)
    assert alone["eval_recall@10"] > 0.6
    for figures in run_ranks(train_on_flights, 2, some, few, backend="gloo", show=False):
        for name in ("loss", "eval_loss", "eval_recall@10", "eval_ndcg@10"):
            assert figures[name] == pytest.approx(alone[name], abs=1e-4), name
