"""Says of ranks that got stuck what it means in this exercise."""

from multigpu.checking import Wrong


def in_own_words(refused, message_id, *, kind, expected, usually, situation=""):
    """The refusal of a run, in the words of the exercise if the ranks got stuck in this way.

    ``kind`` is ``deadlock``: some ranks wait for one that has returned; or ``mismatch``: ranks made
    different calls.  Whatever else went wrong keeps the general message.  ``situation`` says what
    the ranks were given, where that is one thing.
    """
    finding = refused.finding
    if finding is None or finding.kind != kind:
        return refused
    states = {rank["state"] for rank in finding.details["ranks"]}
    if kind == "deadlock" and "returned" not in states:  # all wait: that has another reason
        return refused
    own = Wrong(
        message_id,
        expected=f"{expected} ({situation})" if situation else expected,
        came=finding.message,
        usually=usually,
        status="hang" if kind == "deadlock" else "wrong",
    )
    own.output, own.finding = refused.output, finding
    return own
