"""Ranks that all do the same, and so wait for each other: the mistake that has a name here."""

NAMES = {"send": "all_send_first", "recv": "all_receive_first"}


def in_own_words(refused, function):
    """The refusal of a run; where all ranks stand in one line, under an id of its own."""
    finding = getattr(refused, "finding", None)
    if finding is None or finding.kind != "deadlock":
        return refused
    states = finding.details["ranks"]
    waits = [wait for state in states for wait in state["waits"]]
    lines = {(wait["op"], wait["place"]) for wait in waits}
    if len(lines) == 1 and waits[0]["op"] in NAMES and all(state["waits"] for state in states):
        refused.message_id = f"{function}.{NAMES[waits[0]['op']]}"
    return refused
