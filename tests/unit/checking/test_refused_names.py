"""What a chapter refuses is found when it is called, under whatever name."""

import pytest

from multigpu.checking.learner import WarmServer
from multigpu.checking.verdicts import Refused
from multigpu.checking.worker import forbidden_code

from .conftest import CHAPTER


@pytest.fixture(scope="module")
def server():
    """One of this file's own: it learns to import the ready-made trainings beforehand."""
    with WarmServer() as server:
        yield server


USES = {
    "return torch.nn.parallel.scatter(b, d)": "torch.nn.parallel.scatter",
    "return getattr(torch.nn, 'Data' + 'Parallel')(b)": "torch.nn.parallel.DataParallel",
    "from torch.cuda import comm; return comm.scatter(b, [0, 1])": "torch.cuda.comm.scatter",
    "return functools.partial(scatter, b)(d)": "torch.nn.parallel.scatter",
    "return isinstance(My(b), list)": "torch.nn.parallel.DataParallel",
    "return cut(b, d)": "torch.nn.parallel.scatter",
}
HARMLESS = (
    "return b  # like nn.DataParallel",
    "return b if not isinstance(b, nn.DataParallel) else None",
    "scatter = b\n    return scatter",
)
HEAD = """from concurrent import futures
import functools, sys, threading, torch
from torch import nn
from torch.nn.parallel import scatter
class My(nn.DataParallel): pass
def cut(b, d): return scatter(b, d)
def split(b, d):
    """


@pytest.mark.parametrize(("body", "name"), USES.items())
def test_what_a_chapter_builds_is_refused_where_it_is_called(run, body, name):
    with pytest.raises(Refused) as refused:
        run(HEAD + body)
    assert (refused.value.status, refused.value.message_id) == ("wrong", "refused_name")
    assert f"came: {name}" in refused.value.message
    line = 6 if "cut" in body else 8
    assert f"where: data_parallel.py:{line}" in refused.value.message


@pytest.mark.parametrize("answer", ["scatter", "functools.partial(scatter)"])
def test_what_is_the_answer_itself_is_refused(run, answer):
    with pytest.raises(Refused) as refused:
        run(HEAD.partition("def split")[0] + f"split = {answer}\n")
    assert refused.value.message_id == "refused_name"
    assert "came: torch.nn.parallel.scatter" in refused.value.message


@pytest.mark.parametrize(
    "ready_made", ["torch.distributed.all_reduce", "torch.distributed.nn.functional.all_reduce"]
)
def test_a_collective_of_torch_as_the_answer_is_refused_by_its_name(run_ranks, ready_made):
    module, _, name = ready_made.rpartition(".")
    with pytest.raises(Refused) as refused:
        run_ranks(f"from {module} import {name} as average", module="collectives", world=2)
    assert refused.value.message_id == "refused_name"
    assert "came: torch.distributed.all_reduce is used" in refused.value.message
    assert "where: average in collectives.py" in refused.value.message


def test_an_answer_that_only_bears_the_name_of_a_collective_is_not_refused(run_ranks):
    source = """
        import functools
        @functools.wraps(dist.all_reduce)
        def average(tensor):
            return tensor
    """
    run_ranks(source, module="collectives", world=2)


def test_what_is_given_to_a_thread_is_refused(run):
    with pytest.raises(Refused) as refused:
        run(f"{HEAD}return futures.ThreadPoolExecutor(1).submit(scatter, b, d).result()")
    assert refused.value.message_id == "refused_name"
    assert "came: torch.nn.parallel.scatter" in refused.value.message
    assert "where: data_parallel.py:7" in refused.value.message


def test_torch_has_what_chapters_refuse():
    for chapter in CHAPTER.values():
        assert all(forbidden_code([name]) for name in chapter.refused), chapter.module


@pytest.mark.parametrize("body", HARMLESS)
def test_mentions_are_harmless(run, body):
    assert run(HEAD + body).results[0] is not None


def test_torch_may_use_its_own_functions(run):
    """Only calls from the learner's code count, not those that torch or a check makes."""

    def drive(submission, devices, batch):
        import torch

        return submission.split(torch.nn.parallel.scatter(batch, devices), devices)

    assert len(run("def split(b, d):\n    return b\n", drive).results[0]) == 2


@pytest.mark.parametrize(
    ("module", "body", "name"),
    [
        ("collectives", "dist.all_reduce(tensor)", "all_reduce"),
        ("collectives", "functional.all_reduce(tensor, 'sum', [0, 1])", "all_reduce"),
        ("collectives", "torch.nn.parallel.DistributedDataParallel(nn.Linear(1, 1))", ""),
        ("hangs", "Join([])", "torch.distributed.algorithms.Join"),
        ("distributed_data_parallel", "data.DistributedSampler([1])", "torch.utils.data.dist"),
        ("distributed_data_parallel", "DDP(nn.Linear(1, 1))", "torch.nn.parallel.Distributed"),
        ("sharding", "FullyShardedDataParallel(nn.Linear(1, 1))", "torch.distributed.fsdp"),
        ("pipeline", "dist.pipelining.pipeline(nn.Linear(1, 1), (tensor,))", "torch.distributed"),
    ],
)
def test_each_chapter_refuses_what_it_builds(run_ranks, module, body, name):
    source = (
        "from torch import nn\nfrom torch.utils import data\n"
        "import torch.distributed._functional_collectives as functional\n"
        "import torch.distributed.nn, torch.distributed.pipelining\n"
        "from torch.distributed.algorithms.join import Join\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard\n"
        f"def average(tensor):\n    {body}\n"
    )
    with pytest.raises(Refused) as refused:
        run_ranks(source, module=module, world=2)
    assert refused.value.message_id == "refused_name", refused.value.message
    assert f"came: {name}" in refused.value.message
    assert f"where: {module}.py:11" in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        "other = 1 - dist.get_rank()\n"
        "    kinds = {dist.isend: tensor, dist.irecv: tensor + 1}\n"
        "    ops = [dist.P2POp(kind, buffer, other) for kind, buffer in kinds.items()]\n"
        "    [work.wait() for work in dist.batch_isend_irecv(ops)]",
        "dist.isend(tensor, 1 - dist.get_rank())\n    dist.recv(tensor)",
        "broadcast(tensor)",
    ],
)
def test_collectives_may_be_made_of_messages_and_of_each_other(run_ranks, body):
    source = f"def broadcast(t): ...\ndef average(tensor):\n    {body}\n"
    assert run_ranks(source, module="collectives", world=2).results
