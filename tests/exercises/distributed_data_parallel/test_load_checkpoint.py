"""Checks of ``distributed_data_parallel.load_checkpoint``: training goes on as if never stopped."""

import pytest

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused

from .explain_resumed import examine
from .explain_save_checkpoint import in_own_words
from .resuming import CASES, load_all, save_all

SAVE_MISSING = """\
came: save_checkpoint, which is to write the file, is not written yet.
usually: the two are judged as a pair, because the format of the file is yours. Write both."""


def save(learner, folder, world):
    """Save all cases, as the learner's save_checkpoint does it."""
    try:
        return learner.run_ranks(save_all, str(folder), CASES, world=world).results
    except Refused as refused:
        if refused.status != "not_started":
            raise in_own_words(refused, "load_checkpoint") from None
        raise Refused("wrong", "load_checkpoint.save_missing", SAVE_MISSING) from None


@exercise("distributed_data_parallel.load_checkpoint")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_training_goes_on_in_new_processes(learner, tmp_path, world):
    saved = save(learner, tmp_path, world)
    answer = learner.run_ranks(load_all, str(tmp_path), CASES, world=world)
    for i, case in enumerate(CASES):
        before, after = ([rank[i] for rank in results] for results in (saved, answer.results))
        examine("load_checkpoint", case, before, after, answer.wheres)
