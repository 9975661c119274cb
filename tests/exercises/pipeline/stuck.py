"""Stages that wait for ever: who waits for what, in the words of a pipeline."""

from multigpu.checking import Wrong

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


def in_own_words(refused):
    """The refusal of a run; better said where it is about messages between neighbours."""
    finding = refused.finding
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
