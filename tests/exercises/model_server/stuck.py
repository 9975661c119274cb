"""A server and a worker that wait for each other: which of the two sends more than is taken."""

from multigpu.checking.verdicts import Refused, explain

USUALLY = {
    "recv": (
        "both_receive",
        "the server expects more messages than the worker sends, or the worker expects more than"
        " the server sends. Both sides must go through the same parameters, equally often.",
    ),
    "send": (
        "both_send",
        "the worker sends more messages than the server receives, or one side never receives what"
        " the other sends. Both sides must go through the same parameters, equally often.",
    ),
}


def in_own_words(refused, function):
    """The refusal of a run; better said where server and worker stand in the same operation."""
    finding = getattr(refused, "finding", None)
    if finding is None or finding.kind != "deadlock":
        return refused
    server, *workers = (state["waits"] for state in finding.details["ranks"])
    for op, (mistake, usually) in USUALLY.items():
        for rank, waits in enumerate(workers, 1):
            if stands_in(server, op, rank) and stands_in(waits, op, 0):
                text = explain("", finding.message, usually, None)
                return Refused("hang", f"{function}.{mistake}", text, output=refused.output)
    return refused


def stands_in(waits, op, peer):
    """Whether a rank waits in this operation for that rank."""
    return any(wait["op"] == op and wait["peer"] in (peer, None) for wait in waits)
