"""From how the ranks of a run ended to what the learner is told."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from multigpu.checking.answers import by_rank
from multigpu.checking.ending import Ending
from multigpu.checking.endings import died, excess, fault, forbidden, refused_name, unclean
from multigpu.checking.raised import explain_exception
from multigpu.checking.verdicts import Refused, Status
from multigpu.ranks.errors import Finding, ranks_in_words
from multigpu.ranks.trace import Trace

CUT_OFF = """\
came: your code ran on one rank while another was still joining the group, and cut the connection.
usually: the code closed file descriptors that belong to torch, or ended the process."""
BY_PEER = ("closed by peer", "reset by peer")  # in what gloo says
OF_A_FINDING: dict[str, Status] = {"deadlock": "hang", "mismatch": "wrong"}


def refuse_bad_endings(endings: Sequence[Ending], finding: Finding | None, trace: Trace) -> None:
    """Return only if every rank gave an answer and ended cleanly, else raise Refused."""
    refused = (
        first_of(endings, forbidden)
        or forbidden_call(endings[0], trace)
        or cut_off(endings, finding)
        or of_finding(endings, finding)
        or first_of(endings, fault)
        or first_of(by_waiting(endings), excess)
        or first_of(by_time(endings), explain_exception)
        or first_of(endings, died)
        or first_of(endings, unclean)
    )
    if refused is not None:
        refused.output = by_rank([ending.output for ending in endings])
        refused.finding = finding
        raise refused


def first_of(
    endings: Sequence[Ending], judge: Callable[[Ending], Refused | None]
) -> Refused | None:
    """The first refusal of a rank, with the rank in it."""
    return next((refused for ending in endings if (refused := judge(ending))), None)


def by_time(endings: Sequence[Ending]) -> list[Ending]:
    """The rank that raised first comes first: what others raise then is often a consequence."""

    def moment(ending: Ending) -> float:
        return float(ending.phases.get("raised", {}).get("time", "inf"))

    return sorted(endings, key=moment)


def by_waiting(endings: Sequence[Ending]) -> list[Ending]:
    """The ranks that others wait for come first: not over, and in no call themselves."""

    def waits(ending: Ending) -> bool:
        waiting = set()
        for header in ending.report["said"]:
            if header["phase"] == "wait":
                waiting.add(header["id"])
            elif header["phase"] in ("done", "failed"):
                waiting.discard(header["id"])
        return bool(waiting)

    return sorted(endings, key=lambda ending: (ending.report["status"] is not None, waits(ending)))


def forbidden_call(ending: Ending, trace: Trace) -> Refused | None:
    """Where only messages are allowed: the first other call that the learner's code made."""
    if not ending.exercise.chapter.messages_only:
        return None
    for call in trace.collectives():
        if ending.is_learners(call.file):
            return refused_name(call.via, call.place, ending.exercise)
    return None


def cut_off(endings: Sequence[Ending], finding: Finding | None) -> Refused | None:
    """Where a rank could not join, because on another the learner's code had broken something.

    If that other one is known to have died, the finding says so, and this is no case for here.
    """
    texts = [e.phases["fault"]["traceback"] for e in endings if "fault" in e.phases]
    begun = [ending for ending in endings if "importing" in ending.phases]
    alone = len(begun) < len(endings) and any(peer in text for text in texts for peer in BY_PEER)
    dead = finding is not None and finding.kind == "exit" and finding.ranks
    if not begun or not alone or (dead and all(endings[rank] in begun for rank in dead)):
        return None
    ours = (None, -signal.SIGKILL)  # still there, or ended by the leader
    by_itself = [ending for ending in begun if ending.report["status"] not in ours]
    told = first_of(begun, explain_exception) or first_of(by_itself, died)
    return told or replace(begun[0], who=None).refused("crash", "broke_checker", CUT_OFF)


def of_finding(endings: Sequence[Ending], finding: Finding | None) -> Refused | None:
    """The verdict on ranks that got stuck, or do not agree."""
    if finding is None:
        return None
    if finding.kind in ("exception", "exit"):
        all_of_them = len(finding.ranks) == len(endings) > 1
        who = "every rank" if all_of_them else ranks_in_words(finding.ranks)
        blamed = [replace(endings[rank], who=who) for rank in finding.ranks]
        # Not of the others: a rank cannot join a group that another one has left already.
        return (
            first_of(blamed, explain_exception) or first_of(blamed, fault) or first_of(blamed, died)
        )
    lines = [f"came: {finding.message}"]
    lines += [f"usually: {finding.usually}"] if finding.usually else []
    return Refused(OF_A_FINDING[finding.kind], finding.kind, "\n".join(lines))
