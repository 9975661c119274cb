"""A schedule as a learner's function returned it: is it a table, and is each action there once?"""

from multigpu.checking import describe
from multigpu.checking.verdicts import count, listed

KINDS = ("forward", "backward")


# Words for a unit of time in which a stage does nothing.
PAUSES = (None, "", "bubble", "idle", "none", "pause", "wait")


def examine_table(came, num_stages, num_microbatches, wrong, *, too_few=None):
    """Raise unless it is a list with one list of actions per stage, each action once.

    ``wrong(mistake, came, usually)`` makes the verdict.  ``too_few`` says what is usual where a
    number is too large and there are fewer micro-batches than stages.
    """
    if came is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if not isinstance(came, list | tuple) or not all(map(is_row, came)):
        raise wrong(
            "not_a_table",
            describe(came),
            "the result is a list with one list of pairs per stage.",
        )
    if len(came) != num_stages:
        raise wrong(
            "wrong_number_of_stages",
            count(len(came), "list"),
            why_so_many(len(came), num_stages, num_microbatches),
        )
    if num_microbatches >= num_stages:
        too_few = None
    for stage, row in enumerate(came):
        for action in row:
            examine_action(stage, action, num_microbatches, wrong, too_few)
    for stage, row in enumerate(came):
        examine_once(stage, row, num_microbatches, wrong)


def why_so_many(lists, num_stages, num_microbatches):
    """What was taken for a stage."""
    if lists == num_microbatches:
        return "there is one list for each stage, and micro-batches are inside of them."
    if lists == 2 * (num_microbatches + num_stages - 1):
        return f"{lists} is the number of time units: a list belongs to a stage, not to a moment."
    return "there is one list for each stage."


def is_row(row):
    """Whether it could be the actions of one stage, and is not an action itself."""
    return isinstance(row, list | tuple) and row[:1] not in ((KINDS[0],), (KINDS[1],))


def examine_action(stage, action, num_microbatches, wrong, too_few):
    pair = isinstance(action, tuple) and len(action) == 2
    if not pair or action[0] not in KINDS or type(action[1]) is not int:
        raise wrong(
            "not_an_action",
            f"{action if isinstance(action, tuple | str) else describe(action)} on stage {stage}",
            "pauses do not stand in the table: a stage waits by itself until its next action is"
            " possible."
            if is_pause(action)
            else 'an action is a pair: ("forward", m) or ("backward", m).',
        )
    if not 0 <= action[1] < num_microbatches:
        raise wrong(
            "no_such_microbatch",
            f"{action} on stage {stage}",
            (too_few if action[1] > 0 else None) or counted(num_microbatches),
        )


def is_pause(action):
    word = action[0] if isinstance(action, list | tuple) and action else action
    return word == () or (word.lower() if isinstance(word, str) else word) in PAUSES


def counted(num_microbatches):
    if num_microbatches == 1:
        return "the only micro-batch is 0."
    return f"micro-batches are counted from 0 to {num_microbatches - 1}."


def examine_once(stage, row, num_microbatches, wrong):
    for action in dict.fromkeys(row):
        if row.count(action) > 1:
            raise wrong(
                "action_twice",
                f"{action} is there {row.count(action)} times on stage {stage}: {shown(row)}",
                "two loops overlap. Forwards at the beginning are not to be done again later.",
            )
    missing = [(kind, m) for kind in KINDS for m in range(num_microbatches) if (kind, m) not in row]
    if missing:
        raise wrong(
            "action_missing",
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing on stage {stage}:"
            f" {shown(row)}",
            "a loop ends too early, or a part is left out where there are few micro-batches.",
        )


def shown(row):
    """For example "F0 F1 B0 B1"; the beginning of a long row."""
    words = [f"{kind[0].upper()}{m}" for kind, m in row]
    if len(words) > 14:
        words = [*words[:12], "..."]
    return " ".join(words) or "nothing"
