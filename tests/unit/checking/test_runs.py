"""What comes back from a run, and what may not disturb it."""

import pytest
import torch

from multigpu.checking.encoding import Foreign
from multigpu.checking.verdicts import CheckerFault, Refused

RIGHT = """
def split(batch, devices):
    return [batch[:3].to(devices[0]), batch[3:].to(devices[1])]
"""


def assert_right(answer):
    chunks = answer.results[0]
    assert [chunk.device for chunk in chunks] == ["cuda:0", "cuda:1"]
    assert torch.equal(torch.cat([c.value for c in chunks]), torch.arange(10.0).reshape(5, 2))


@pytest.mark.parametrize(
    "around",
    [
        "",
        "import warnings; warnings.warn('careful')",
        "import sys; sys.stdout.close()",
        "import torch; torch.allclose = torch.equal = lambda *a, **k: True",
        "import safetensors.torch; safetensors.torch.save = None",
        "import json; json.dumps = json.loads = None",
        "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "import sys; sys.settrace(None)",
    ],
)
def test_odd_but_harmless_things_at_import(run, around):
    assert_right(run(f"{around}\n{RIGHT}"))


@pytest.mark.parametrize("module", ["torch", "random", "multigpu"])
def test_a_file_with_the_name_of_a_library_hides_nothing(run, submission, module):
    (submission / f"{module}.py").write_text("raise ImportError('shadowed')\n")
    assert_right(run(f"import {module}\n{RIGHT}"))


def test_a_hundred_megabytes_of_output_are_dropped(run):
    answer = run(f"print('first')\nfor _ in range(100): print('x' * 10**6)\n{RIGHT}")
    assert_right(answer)
    assert answer.output.startswith("first\nxxx")
    assert len(answer.output) == 20_000


@pytest.mark.parametrize(
    "work",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "threading.Thread(target=time.sleep, args=[0.2]).start()",
        "subprocess.Popen(['sleep', '0.05'])",
    ],
)
def test_work_that_python_ends_by_itself(run, work):
    imports = "import subprocess, threading, time\n"
    assert_right(run(imports + RIGHT.replace("    return", f"    {work}\n    return")))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def split(batch, devices):\n    if batch is None:\n        return 1\n    return 2\n", 4),
        (
            "def split(batch, devices):\n    try:\n        return 1\n    finally:\n        x = 2\n",
            3,
        ),
        ("def split(batch, devices):\n    x = 1\n", None),
        ("split = lambda batch, devices: 1\n", None),
        (
            "import torch\n@torch.no_grad()\ndef split(batch, devices):\n    x = 1\n    return 2\n",
            5,
        ),
        (
            "import torch\ndef split(batch, devices):\n    with torch.no_grad():\n"
            "        return batch\n",
            4,
        ),
    ],
)
def test_the_return_statement_is_noted(run, code, line):
    ((_, place),) = run(code).returns[0]
    assert place == (f"data_parallel.py:{line}" if line else "")


def test_the_answer_keeps_structure_numbers_and_placement(run):
    source = """
    import torch
    class Same:
        __eq__ = lambda self, other: True
    class Mine(torch.Tensor): pass
    def split(batch, devices):
        leaf = batch.to(devices[1]).requires_grad_()
        return {
            "leaf": leaf, "twice": (2 * leaf, [None, True, 1, 1.5, float("inf"), "text"]),
            3: torch.ones(2).neg(), "half": torch.ones(2, dtype=torch.bfloat16),
            "view": leaf[:, 1], "empty": torch.empty(0, 2), "scalar": torch.tensor(7),
            "sparse": torch.eye(2).to_sparse(), "parameter": torch.nn.Parameter(torch.ones(1)),
            "weights": list(torch.nn.Linear(2, 1).to(devices[0]).parameters()),
            "foreign": [Same(), Mine(), iter([]), {1}], "device": devices[0],
        }
    """
    result = run(source).results[0]
    leaf, (twice, plain) = result["leaf"], result["twice"]
    assert leaf.device == twice.device == "cuda:1"
    assert plain == [None, True, 1, 1.5, float("inf"), "text"]
    assert torch.equal(result[3].value, -torch.ones(2))
    assert result["half"].dtype == torch.bfloat16
    assert torch.equal(result["view"].value, torch.arange(1.0, 10, 2))
    assert result["empty"].shape == (0, 2)
    assert result["scalar"].value.item() == 7
    assert torch.equal(result["sparse"].value, torch.eye(2))
    assert result["parameter"].device == "cpu"
    assert [w.device for w in result["weights"]] == ["cuda:0"] * 2
    names = ["Same", "Mine", "list_iterator", "set"]
    assert result["foreign"] == [Foreign(name) for name in names]
    assert result["device"] == "cuda:0"


def test_what_python_says_of_a_file_is_in_its_output(run):
    answer = run(f"{RIGHT}\n1 is 1")
    assert_right(answer)
    assert "data_parallel.py:5: SyntaxWarning" in answer.output


def drive_that_fails(submission, devices, batch):
    raise ZeroDivisionError


def drive_that_needs_a_tensor(submission, devices, batch):
    return submission.split(batch, devices).sum()


def test_a_check_that_fails_before_it_calls_the_learner_is_at_fault(run):
    with pytest.raises(CheckerFault, match="ZeroDivisionError"):
        run(RIGHT, drive_that_fails)


def test_a_result_that_the_drive_cannot_use_is_the_learners(run):
    with pytest.raises(Refused) as refused:
        run(RIGHT, drive_that_needs_a_tensor)
    assert (refused.value.status, refused.value.message_id) == ("wrong", "unusable_result")
    assert "where: data_parallel.py:3" in refused.value.message


def test_a_file_left_in_the_working_folder_is_removed(run):
    source = "import os\ndef split(batch, devices):\n    open('x', 'w')\n    return os.getcwd()\n"
    first, second = run(source).results[0], run(source).results[0]
    assert first != second
    from pathlib import Path

    assert not Path(first).exists()


def test_what_an_answer_names_is_imported_before_its_worker_begins(run):
    source = """
        import sys

        def split(batch, devices):
            early = "torch.distributed.optim" in sys.modules
            from torch.distributed.optim import ZeroRedundancyOptimizer
            return early
        """
    assert run(source).results == [True]
