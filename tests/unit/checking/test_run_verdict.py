"""From how a run ended to what is said: several ranks, and torch's own messages."""

import operator
from pathlib import Path

import pytest
import torch

from multigpu.checking.catalog import Chapter, Exercise, Signature
from multigpu.checking.run_verdict import Ending, explanation, refuse_bad_endings
from multigpu.checking.verdicts import CheckerFault, Refused
from multigpu.ranks.errors import Finding
from multigpu.ranks.resource_monitor import Limits
from multigpu.ranks.trace import Trace

CHAPTER = Chapter("distributed_data_parallel", "DistributedDataParallel by hand")
EXERCISE = Exercise(CHAPTER, "average", Signature(("tensor",), (), "average(tensor)"), "")


def ending(rank, *said, status):
    phases = [{"phase": "started"}, *said]
    report = {"said": phases, "status": status, "output": "", "stack": "", "excess": None}
    return Ending(report, EXERCISE, Path("average.py"), Limits(), who=f"rank {rank}")


def refuse(endings):
    finding = Finding("exit", (0,), "rank 0 ended")
    refuse_bad_endings(endings, finding, Trace([], world_size=len(endings)))


def test_who_has_said_that_it_leaves_has_left_also_while_its_process_is_there_still():
    left = {"phase": "left", "status": 0, "where": ["average.py", 7]}
    slow = ending(0, {"phase": "importing"}, left, status=None)
    with pytest.raises(Refused, match=r"os\._exit\(0\)") as refused:
        refuse([slow, ending(1, {"phase": "importing"}, status=None)])
    assert (refused.value.status, refused.value.message_id) == ("crash", "exit")


def test_a_signal_without_a_name_is_told_by_its_number():
    killed = [ending(rank, {"phase": "importing"}, status=-40) for rank in range(2)]
    with pytest.raises(Refused, match=r"died of signal 40\.") as refused:
        refuse(killed)
    assert (refused.value.status, refused.value.message_id) == ("crash", "killed")


def test_a_rank_that_cannot_start_is_a_fault_of_the_checker():
    broken = {"phase": "fault", "traceback": "OSError: too many open files"}
    with pytest.raises(CheckerFault):
        refuse([ending(0, broken, status=70), ending(1, status=-9)])


PARAMETER = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))


def give_gradient(value):
    PARAMETER.grad = value


@pytest.mark.parametrize(
    ("mistake", "means"),
    [
        (lambda: torch.ones(3) in [torch.zeros(3), PARAMETER], "compare the"),
        (lambda: sorted([torch.ones(3), torch.zeros(3)]), "compare the"),
        (lambda: give_gradient(sum([])), "sum([])"),
        (lambda: give_gradient(torch.zeros(3)), "zeros_like(parameter)"),
        (lambda: give_gradient(torch.zeros(4, dtype=torch.float64)), "zeros_like(parameter)"),
        (lambda: PARAMETER.add_(1), "no_grad"),
        (lambda: operator.itruediv(PARAMETER.grad, 2), "register_post_accumulate_grad_hook"),
        (lambda: 2 * PARAMETER.grad, "register_post_accumulate_grad_hook"),
        (lambda: PARAMETER.numpy(), None),
    ],
)
def test_an_error_is_explained(mistake, means):
    with pytest.raises(Exception) as raised:  # noqa: PT011, each has its own type
        mistake()
    found = explanation(str(raised.value))
    assert found is None if means is None else means in found
