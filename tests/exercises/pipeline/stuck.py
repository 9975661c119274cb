"""Stages that do not come to an end: who waits for what, in the words of a pipeline."""

import re

from multigpu.checking import Wrong
from multigpu.checking.verdicts import Refused

USUALLY = {
    "both_send": "a stage sends forward while the next one sends back, and dist.send waits until"
    " the other side receives. Send with isend, go on, and wait for its handle later.",
    "both_receive": "two neighbours wait for each other's message: one of them did not send what it"
    " has before it waits, or it does not follow the schedule.",
    "gradient_not_sent": "after backward, every stage but the first sends the gradient of what it"
    " was given to the stage before.",
    "activation_not_sent": "after forward, every stage but the last sends what it has returned to"
    " the stage after.",
    "not_received": "more is sent than the other side receives. Both must know which messages make"
    " up an activation, and a gradient.",
}
EXPECTED = {
    "both_send": "no stage waits for a neighbour that waits for it",
    "both_receive": "no stage waits for a neighbour that waits for it",
    "gradient_not_sent": "each stage gets the gradients of what it has sent",
    "activation_not_sent": "each stage gets what the stage before has returned",
    "not_received": "every message is received",
}
SHAPES = (
    "the shape changes from stage to stage: send it before the tensor; a gradient has the shape of"
    " your output. Or the messages are in another order on one side."
)
NOT_NEIGHBOURS = "a stage talks to the one before, rank - 1, and to the one after, rank + 1."
NO_GRADIENT = (
    "what was received has no .grad: call requires_grad_() on it before the stage takes it."
)


def in_own_words(refused):
    """The refusal of a run; better said where it is about messages between neighbours."""
    finding = refused.finding
    if finding is not None and finding.kind == "mismatch":
        return instead(refused, unequal(finding))
    if "NoneType" in refused.message and ".grad" in refused.message:
        return instead(refused, NO_GRADIENT)
    if finding is None or finding.kind != "deadlock":
        return refused
    mistake = mistake_of(finding.details["ranks"])
    if mistake is None:
        return refused
    own = Wrong(
        f"run.{mistake}",
        expected=EXPECTED[mistake],
        came=finding.message,
        usually=USUALLY[mistake],
        status="hang",
    )
    own.output, own.finding = refused.output, finding
    return own


def unequal(finding):
    """Why a message does not fit; None if it is no message, or one of another type."""
    if finding.details["difference"] != "bytes" or "dtype" in finding.usually:
        return None
    first, last = min(finding.ranks), max(finding.ranks)
    return SHAPES if last - first == 1 else NOT_NEIGHBOURS


def instead(refused, usually):
    """The same refusal with another explanation."""
    if usually is None:
        return refused
    line = f"usually: {usually}"
    message = re.sub("^usually: .*$", line, refused.message, flags=re.MULTILINE)
    if line not in message:
        message += f"\n{line}"
    return Refused(
        refused.status,
        refused.message_id,
        message,
        output=refused.output,
        finding=refused.finding,
    )


def mistake_of(states):
    """The mistake at the end of the chain: of ranks that wait for each other, or for one over."""
    waits = [
        (state["rank"], wait["op"], wait["peer"])
        for state in states
        for wait in state["waits"]
        if wait["op"] in ("send", "recv") and wait["peer"] is not None
    ]
    for rank, op, peer in waits:
        if (peer, op, rank) in waits:
            return f"both_{'send' if op == 'send' else 'receive'}"
    for rank, op, peer in waits:
        if states[peer]["state"] == "returned":
            if op == "send":
                return "not_received"
            return "gradient_not_sent" if peer > rank else "activation_not_sent"
    return None
