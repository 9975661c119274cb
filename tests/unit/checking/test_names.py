"""Forbidden names are found where the exercise uses them, and nowhere else."""

import pytest

from multigpu.checking.catalog import CHAPTERS, IN_ALL_RANKS
from multigpu.checking.source import first_refused_name
from multigpu.checking.verdicts import Refused

REFUSED = CHAPTERS[0].refused

USES = {
    "import torch\ndef split(b, d):\n    return torch.nn.parallel.scatter(b, d)": 3,
    "import torch.nn.parallel as p\ndef split(b, d):\n    return p.scatter(b, d)": 3,
    "from torch.nn import parallel\ndef split(b, d):\n    return parallel.scatter(b, d)": 3,
    "from torch.nn.parallel import scatter as s\ndef split(b, d):\n    return s(b, d)": 3,
    "from torch import nn\ndef split(b, d):\n    return getattr(nn, 'DataParallel')(b)": 3,
    "def split(b, d):\n    from torch.nn import DataParallel\n    return DataParallel(b)": 2,
    "def split(b, d):\n    import torch.cuda.comm\n    return torch.cuda.comm.scatter(b, d)": 2,
    "import importlib\ndef split(b, d):\n"
    "    return importlib.import_module('torch.nn.parallel').scatter(b, d)": 3,
    "import torch as t\ndef cut(b, d):\n    return t.nn.parallel.scatter(b, d)\n"
    "def split(b, d):\n    return cut(b, d)": 3,
    "import torch\nscatter = torch.nn.parallel.scatter\ndef split(b, d):\n"
    "    return scatter(b, d)": 2,
    "from torch import nn\ndef split(b, d):\n    return isinstance(nn.DataParallel(b), list)": 3,
    "from torch.nn import parallel\nclass split:\n    def f(self, parallel): ...\n"
    "    def g(self):\n        return parallel.scatter(self)": 5,
    "import torch\nclass My(torch.nn.DataParallel): pass\ndef split(b, d):\n    return My(b)": 2,
}

HARMLESS = [
    "def split(b, d):\n    return b  # like nn.DataParallel",
    "def split(b, d):\n    'Not torch.nn.parallel.'\n    return b",
    "from torch.nn import DataParallel\ndef split(b, d):\n    return b",
    "from torch import nn\ndef split(b, d):\n    return b\ndef compare(m):\n"
    "    return nn.DataParallel(m)",
    "from torch import nn\ndef split(b, d):\n    return b\nif __name__ == '__main__':\n"
    "    split(nn.DataParallel(None), 0)",
    "def split(b, d):\n    parallel = b\n    return parallel",
    "import parallel\ndef split(b, d):\n    return parallel.scatter(b)",
    "from torch.cuda import comm\ndef split(b, d):\n    comm = b\n    return comm",
    "from torch.cuda import comm\ndef split(b, comm):\n    return [b.to(c) for c in comm]",
    "from torch import nn\ndef split(b, d):\n    assert not isinstance(b, nn.DataParallel)\n"
    "    return b",
    "from torch.nn import Parameter\ndef split(b, d):\n    return Parameter(b)",
    "from torch.nn import parallel\nclass split:\n    def f(self, parallel):\n"
    "        return parallel.x",
]


@pytest.mark.parametrize(("source", "line"), USES.items())
def test_uses_are_found_with_their_line(source, line):
    assert first_refused_name(source, "split", REFUSED)[1] == line


@pytest.mark.parametrize("source", HARMLESS)
def test_mentions_are_harmless(source):
    assert first_refused_name(source, "split", REFUSED) is None


HIDDEN = {
    "from torch.nn import parallel\ndef split(b, d):\n    f = lambda parallel: 0\n"
    "    return parallel.scatter(b, d)": 4,
    "import torch\ndef split(b, d):\n    return getattr(torch.nn, 'Data' + 'Parallel')(b)": 3,
    "import sys\ndef split(b, d):\n    return sys.modules['torch.nn.parallel'].scatter(b, d)": 3,
    "import torch, threading\nname = 'paral' + 'lel'\ndef split(b, d):\n"
    "    f = getattr(torch.nn, name).scatter\n"
    "    work = lambda: f(b, d)\n"
    "    t = threading.Thread(target=work); t.start(); t.join()": 5,
    "import torch, functools\nname = 'paral' + 'lel'\ndef split(b, d):\n"
    "    f = functools.partial(getattr(torch.nn, name).scatter, b)\n    return f(d)": 5,
}


@pytest.mark.parametrize(("source", "line"), HIDDEN.items())
def test_a_hidden_name_is_found_when_it_is_called(run, source, line):
    with pytest.raises(Refused) as refused:
        run(source)
    assert (refused.value.status, refused.value.message_id) == ("wrong", "refused_name")
    assert f"where: data_parallel.py:{line}" in refused.value.message


def test_torch_may_use_its_own_functions(run):
    """Only calls from the learner's code count, not those that torch or a check makes."""

    def drive(submission, devices, batch):
        import torch

        return submission.split(torch.nn.parallel.scatter(batch, devices), devices)

    assert len(run("def split(b, d):\n    return b\n", drive).result) == 2


NO_COLLECTIVES = ("group", "default_pg_timeout", "record_comm", "reduce_op", "supports_complex")
CHAPTER = {chapter.module: chapter.refused for chapter in CHAPTERS}


@pytest.mark.parametrize(
    ("module", "body", "name"),
    [
        ("collectives", "dist.all_reduce(t)", "torch.distributed.all_reduce"),
        ("collectives", "dist.all_gather_object([], t)", "torch.distributed.all_gather_object"),
        ("collectives", "dist.nn.functional.broadcast(t, 0)", "torch.distributed.nn"),
        ("collectives", "dist.barrier()", "torch.distributed.barrier"),
        ("hangs", "dist.algorithms.join.Join([])", "torch.distributed.algorithms"),
        ("distributed_data_parallel", "data.DistributedSampler(t)", "torch.utils.data.Distributed"),
        ("distributed_data_parallel", "data.distributed", "torch.utils.data.distributed"),
        ("distributed_data_parallel", "DDP(t)", "torch.nn.parallel"),
        ("sharding", "fully_shard(t)", "torch.distributed.fsdp"),
        ("pipeline", "dist.pipelining.pipe(t)", "torch.distributed.pipelining"),
    ],
)
def test_each_chapter_refuses_what_it_builds(module, body, name):
    source = (
        "import torch.distributed as dist\nfrom torch.utils import data\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        f"from torch.distributed.fsdp import fully_shard\ndef f(t):\n    {body}"
    )
    found = first_refused_name(source, "f", CHAPTER[module])
    assert found is not None
    assert found[0].startswith(name)
    assert found[1] == 6


@pytest.mark.parametrize(
    "body",
    [
        "dist.send(t, 1)",
        "dist.irecv(t)",
        "dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1)])",
        "dist.get_rank() + dist.get_world_size()",
        "broadcast(t)",
        "dist.send_object_list([t], 1)",
    ],
)
def test_collectives_may_be_made_of_messages_and_of_each_other(body):
    source = f"import torch.distributed as dist\ndef broadcast(t): ...\ndef f(t):\n    {body}"
    assert first_refused_name(source, "f", CHAPTER["collectives"]) is None


def test_torch_has_what_is_refused():
    import torch.distributed as dist

    missing = [name for name in IN_ALL_RANKS if not hasattr(dist.distributed_c10d, name)]
    assert len(missing) <= 4, missing  # each torch has some of them under another name
    asking = ("get_", "is_", "init_", "send", "recv", "isend", "irecv", "batch_isend", "destroy_")
    known = {*IN_ALL_RANKS, *NO_COLLECTIVES}
    public = [name for name in dist.distributed_c10d.__all__ if name[0].islower()]
    assert [name for name in public if not name.startswith(asking) and name not in known] == []
