"""Checks of ``distributed_data_parallel.save_checkpoint``: one writer, one whole file."""

import os
import signal

import pytest

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused

from .explain_resumed import examine as examine_resumed
from .explain_save_checkpoint import examine, examine_complete, examine_killed, in_own_words
from .resuming import CASES, load_all, save_all, save_and_die

OLD = b"an older checkpoint " * 100


def save(learner, folder, world):
    """Save all cases, the last one over an old file."""
    (folder / CASES[-1].file).write_bytes(OLD)
    try:
        return learner.run_ranks(save_all, str(folder), CASES, world=world)
    except Refused as refused:
        raise in_own_words(refused) from None


def examine_files(folder, answer, look):
    """Look at the file of each case."""
    for case, *notes in zip(CASES, *answer.results, strict=True):
        old = OLD if case is CASES[-1] else None
        look(case, folder, notes, old, answer.wheres)


def load(learner, folder, world):
    """Load all cases in new processes."""
    try:
        return learner.run_ranks(load_all, str(folder), CASES, world=world)
    except Refused as refused:
        if refused.status != "not_started":
            raise
        raise Refused("wrong", "save_checkpoint.load_missing", LOAD_MISSING) from None


LOAD_MISSING = """\
came: the file is in order, but load_checkpoint, which is to read it, is not written yet.
usually: the two are judged as a pair, because the format of the file is yours. Write both."""


@exercise("distributed_data_parallel.save_checkpoint")
def test_the_file_is_complete_on_every_rank(learner, tmp_path):
    examine_files(tmp_path, save(learner, tmp_path, 3), examine_complete)


@exercise("distributed_data_parallel.save_checkpoint")
def test_killed_while_it_writes(learner, tmp_path):
    case = CASES[0]
    save(learner, tmp_path, 1)
    path = tmp_path / case.file
    size = os.path.getsize(path)
    path.write_bytes(OLD)
    try:
        learner.run_ranks(save_and_die, str(tmp_path), case, size // 2, world=1)
    except Refused as refused:
        if not was_killed(refused):
            raise
        examine_killed(case, tmp_path, OLD, size, size // 2)


def was_killed(refused):
    """Whether the run ended as it was meant to: the kernel stopped the rank in the middle."""
    if refused.finding is None or refused.finding.kind != "exit":
        return False
    return refused.finding.details["exit"]["status"] == -signal.SIGXFSZ


@exercise("distributed_data_parallel.save_checkpoint")
@pytest.mark.parametrize("world", [2, 4, 1])
def test_at_every_moment_there_is_a_whole_file(learner, tmp_path, world):
    examine_files(tmp_path, save(learner, tmp_path, world), examine)


@exercise("distributed_data_parallel.save_checkpoint")
def test_training_goes_on_from_the_file(learner, tmp_path):
    saved = save(learner, tmp_path, 3).results
    answer = load(learner, tmp_path, 3)
    for i, case in enumerate(CASES):
        before, after = ([rank[i] for rank in results] for results in (saved, answer.results))
        examine_resumed("save_checkpoint", case, before, after, answer.wheres)
