"""From how a run ended to what is said: several ranks, and torch's own messages."""

import operator
from pathlib import Path

import pytest
import torch

from multigpu.checking.catalog import CHAPTERS, Exercise, Signature
from multigpu.checking.run_verdict import Ending, explanation, refuse_bad_endings
from multigpu.checking.verdicts import CheckerFault, Refused
from multigpu.ranks.errors import Finding
from multigpu.ranks.resource_monitor import Limits
from multigpu.ranks.trace import Trace

EXERCISE = Exercise(CHAPTERS[3], "average", Signature(("tensor",), (), "average(tensor)"), "")
NOT_JOINED = "RuntimeError: Gloo connectFullMesh failed: Connection closed by peer"


def ending(rank, *said, status):
    phases = [{"phase": "started"}, *said]
    report = {"said": phases, "status": status, "output": "", "stack": "", "excess": None}
    return Ending(report, EXERCISE, Path("average.py"), Limits(), who=f"rank {rank}")


def fault(text):
    return {"phase": "fault", "traceback": text}


def refuse(endings, ended=0):
    finding = Finding("exit", (ended,), f"rank {ended} ended")
    refuse_bad_endings(endings, finding, Trace.from_frames([[] for _ in endings]))


@pytest.mark.parametrize("status", [None, -9])
def test_who_cuts_off_a_rank_that_is_joining_is_refused(status):
    busy = ending(1, {"phase": "importing"}, status=status)
    with pytest.raises(Refused, match="joining") as refused:
        refuse([ending(0, fault(NOT_JOINED), status=70), busy])
    assert (refused.value.status, refused.value.message_id) == ("crash", "broke_checker")


def test_the_death_of_the_other_rank_is_told_where_it_is_known():
    dead = ending(1, {"phase": "importing"}, status=-11)
    with pytest.raises(Refused, match=r"rank 1\b.*SIGSEGV") as refused:
        refuse([ending(0, fault(NOT_JOINED), status=70), dead])
    assert (refused.value.status, refused.value.message_id) == ("crash", "segfault")


def test_who_leaves_while_others_join_has_left_also_with_status_0():
    left = {"phase": "left", "status": 0, "where": ["average.py", 7]}
    gone = ending(1, {"phase": "importing"}, left, status=0)
    with pytest.raises(Refused, match=r"os\._exit\(0\)") as refused:
        refuse([ending(0, fault(NOT_JOINED), status=70), gone])
    assert (refused.value.status, refused.value.message_id) == ("crash", "exit")


def test_who_has_said_that_it_leaves_has_left_also_while_its_process_is_there_still():
    left = {"phase": "left", "status": 0, "where": ["average.py", 7]}
    slow = ending(0, {"phase": "importing"}, left, status=None)
    with pytest.raises(Refused, match=r"os\._exit\(0\)") as refused:
        refuse([slow, ending(1, {"phase": "importing"}, status=None)])
    assert (refused.value.status, refused.value.message_id) == ("crash", "exit")


def test_a_rank_that_was_killed_is_told_and_not_what_others_noticed_of_it():
    killed = ending(1, {"phase": "importing"}, status=-9)
    closed = {"phase": "raised", "type": "RuntimeError", "text": "Connection closed by peer"}
    noticed = ending(2, {"phase": "importing"}, closed, status=None)
    with pytest.raises(Refused, match=r"rank 1\b.*SIGKILL") as refused:
        refuse([ending(0, fault(NOT_JOINED), status=70), killed, noticed], ended=1)
    assert (refused.value.status, refused.value.message_id) == ("crash", "killed")


@pytest.mark.parametrize("text", [NOT_JOINED, "OSError: too many open files"])
def test_a_rank_that_cannot_start_is_a_fault_of_the_checker_where_no_code_ran(text):
    with pytest.raises(CheckerFault):
        refuse([ending(0, fault(text), status=70), ending(1, status=-9)])


def test_another_fault_while_joining_is_never_the_learners():
    busy = ending(1, {"phase": "importing"}, status=-9)
    with pytest.raises(CheckerFault):
        refuse([ending(0, fault("OSError: too many open files"), status=70), busy])


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
