"""What is read from a module's text: its starter, and the forbidden names that it uses."""

import ast

import pytest
from starters import write_starters

from multigpu.checking.catalog import CHAPTERS, IN_ALL_RANKS, Course
from multigpu.checking.source import (
    definitions,
    first_refused_name,
    is_written,
    put_back,
    starter_for,
    starter_of,
    text_of,
    written_in,
)
from multigpu.checking.verdicts import Refused

from .conftest import COURSE

SOLUTION = '''"""Module."""

import copy  # solution only
from math import (  # solution only
    ceil,
)

import torch

LIMIT = 3  # stays


def split(batch, devices):
    """Cut.

    Long.
    """
    # a comment of the answer
    return _cut(batch)  # more


def _cut(batch):
    return batch


@torch.no_grad()
def bare(a, *, b=1) -> int:
    # only the answer says so
    x = a
    return x


class Sharded(torch.nn.Module):
    """A class."""

    def __init__(self, module):
        """Wrap."""
        super().__init__()
        self.module = module

    def forward(self, x):
        return self._inner(x)

    def _inner(self, x):
        return x


if __name__ == "__main__":
    print(split(1, 2))
'''

STARTER = '''"""Module."""


import torch

LIMIT = 3  # stays


def split(batch, devices):
    """Cut.

    Long.
    """
    raise NotImplementedError


@torch.no_grad()
def bare(a, *, b=1) -> int:
    raise NotImplementedError


class Sharded(torch.nn.Module):
    """A class."""

    def __init__(self, module):
        """Wrap."""
        raise NotImplementedError

    def forward(self, x):
        raise NotImplementedError


if __name__ == "__main__":
    print(split(1, 2))
'''


def test_a_starter_keeps_the_task_and_loses_the_answer():
    assert starter_of(SOLUTION) == STARTER


def test_a_starter_of_a_starter_is_itself():
    assert starter_of(STARTER) == STARTER


def test_what_is_written_and_what_is_not():
    assert [is_written(node) for node in definitions(STARTER).values()] == [False] * 3
    assert [is_written(node) for node in definitions(SOLUTION).values()] == [True] * 4


def test_putting_one_function_back_leaves_the_others():
    mine = SOLUTION.replace("return x\n\n\nclass", "return 5  # mine\n\n\nclass")
    result = put_back(mine, STARTER, "split")
    assert "raise NotImplementedError" in text_of(result, definitions(result)["split"])
    for other in ("bare", "_cut", "Sharded"):
        before, after = definitions(mine)[other], definitions(result)[other]
        assert text_of(result, after) == text_of(mine, before)
    assert "a comment of the answer" not in result


def test_a_deleted_function_comes_back_above_the_main_part():
    mine = STARTER.replace(text_of(STARTER, definitions(STARTER)["split"]), "")
    result = put_back(mine, STARTER, "split")
    assert not is_written(definitions(result)["split"])
    assert result.index("def split") < result.index("if __name__")


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "data_parallel.py").write_text(SOLUTION)
    return Course(tmp_path)


def test_starters_are_written_but_never_over_an_answer(course):
    path = course.exercises / "data_parallel.py"
    assert write_starters(course) == ["data_parallel.py: written"]
    assert path.read_text() == STARTER
    (said,) = write_starters(course)
    assert said.endswith("up to date")
    path.write_text(STARTER.replace("    raise NotImplementedError\n\n\n@", "    return 1\n\n\n@"))
    (said,) = write_starters(course)
    assert said.endswith("(split)")
    assert "return 1" in path.read_text()


@pytest.mark.parametrize("path", sorted(COURSE.solutions.glob("*.py")), ids=lambda path: path.stem)
def test_the_exercises_come_from_the_solutions(path):
    """Functions that are not written yet are as the course hands them out."""
    starter = starter_for(path.stem, COURSE)
    exercise = (COURSE.exercises / path.name).read_text(encoding="utf-8")
    written = written_in(exercise, path.stem, COURSE)
    for name, node in definitions(exercise).items():
        if name not in written:
            assert text_of(exercise, node) == text_of(starter, definitions(starter)[name])


BROKEN = '''"""Module."""

import torch.distributed as dist


def split(batch, devices):
    """Cut.

    Long.
    """
    dist.barrier()
    return _cut(batch)


def _cut(batch):
    return batch[1:]
'''


def test_broken_code_is_handed_out_as_it_is_and_counts_as_written_once_it_is_changed(course):
    course.broken("data_parallel").parent.mkdir()
    course.broken("data_parallel").write_text(BROKEN)
    assert write_starters(course) == ["data_parallel.py: written"]
    path = course.exercises / "data_parallel.py"
    assert path.read_text() == BROKEN
    assert written_in(BROKEN, "data_parallel", course) == []
    mended = BROKEN.replace("    dist.barrier()\n", "    # no barrier\n")
    assert written_in(mended, "data_parallel", course) == ["split"]
    path.write_text(mended)
    (said,) = write_starters(course)
    assert said.endswith("(split)")
    assert path.read_text() == mended
    commented = BROKEN.replace("dist.barrier()", "dist.barrier()  # why?")
    assert written_in(commented, "data_parallel", course) == []


@pytest.mark.parametrize(
    "path", sorted(COURSE.solutions.glob("broken/*.py")), ids=lambda path: path.stem
)
def test_broken_code_has_the_tasks_and_signatures_of_the_solution(path):
    broken = definitions(path.read_text(encoding="utf-8"))
    solved = definitions((COURSE.solutions / path.name).read_text(encoding="utf-8"))
    public = {name: node for name, node in solved.items() if not name.startswith("_")}
    assert {name for name in broken if not name.startswith("_")} == set(public)
    for name, node in public.items():
        assert ast.get_docstring(broken[name]) == ast.get_docstring(node)
        assert ast.unparse(broken[name].args) == ast.unparse(node.args)


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
