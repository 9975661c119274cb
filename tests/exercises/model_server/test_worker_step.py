"""Checks of ``model_server.worker_step``, together with the learner's own server."""

import pytest

from multigpu.checking import exercise

from .pair import check_bytes, check_missing_gradients, check_training


@exercise("model_server.worker_step")
@pytest.mark.parametrize("world", [3, 2, 4])
def test_training_equals_one_process(learner, world):
    check_training(learner, world)


@exercise("model_server.worker_step")
@pytest.mark.parametrize("world", [4, 2])
def test_losses_that_do_not_use_every_layer(learner, world):
    check_missing_gradients(learner, world)


@exercise("model_server.worker_step")
def test_bytes_on_the_servers_link(learner):
    check_bytes(learner, 3)
