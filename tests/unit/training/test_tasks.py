"""The tasks: everything in one of them fits together, and one step of each trains."""

import math

import pytest
import torch

from multigpu.training.tasks import TASKS
from multigpu.training.trainer import Trainer

every_task = pytest.mark.parametrize("name", TASKS)


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
