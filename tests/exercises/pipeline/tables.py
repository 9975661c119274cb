"""Schedules as tables: the sizes that are tried, and the rules that every table keeps to."""

from itertools import product

from multigpu.checking.comparing import Difference
from multigpu.checking.declaration import case
from multigpu.checking.encoding import describe
from multigpu.ranks.errors import counted, listed
from multigpu.scaling.pipeline_times import steps_of

KINDS = ("forward", "backward")
NO_ACTION = (
    'an action is a pair, ("forward", m) or ("backward", m). There are no pauses in the table: a'
    " stage waits by itself until its next action is possible."
)
# As in real training first; then one of either, fewer micro-batches than stages, and all others.
SIZES = [(3, 5), (2, 3), (4, 8), (2, 2), (1, 1), (1, 4), (4, 1), (3, 2), (6, 5)]


def all_sizes(function):
    """A case for each of 1 to 6 stages and 1 to 9 micro-batches."""
    for stages, micro in dict.fromkeys([*SIZES, *product(range(1, 7), range(1, 10))]):
        yield case(f"{function}({stages}, {micro})", stages=stages, micro=micro, last=micro - 1)


def shortest(case):
    """The time of the quickest schedule, if each action takes one unit."""
    return 2 * (case.micro + case.stages - 1)


def differs(case, came, own_rule):
    """How a result differs from a table that keeps to all rules; ``own_rule(case, table)`` is one
    that is the exercise's own.
    """
    wrong = not_a_table(case, came)
    if wrong is not None:
        return wrong
    for find in (wrong_actions, own_rule, orders_differ, too_slow):
        found = find(case, came)
        if found is not None:
            return Difference("wrong_values", found)
    return None


def not_a_table(case, came):
    if not isinstance(came, list | tuple) or not all(map(is_row, came)):
        return Difference("wrong_type", f"{describe(came)}, and not a list with a list per stage")
    if len(came) != case.stages:
        usually = f"{len(came)} is the number of time units." * (len(came) == shortest(case))
        found = f"{counted(len(came), 'list')}, and not {case.stages}"
        return Difference("wrong_count", found, usually)
    for stage, row in enumerate(came):
        for action in row:
            if not is_action(action):
                words = action if isinstance(action, tuple | str) else describe(action)
                return Difference("wrong_type", f"{words} on stage {stage}", NO_ACTION)
    return None


def is_row(row):
    """Whether it could be the actions of one stage, and is not an action itself."""
    return isinstance(row, list | tuple) and (not row or row[0] not in KINDS)


def is_action(action):
    pair = isinstance(action, tuple) and len(action) == 2
    return pair and action[0] in KINDS and type(action[1]) is int


def wrong_actions(case, table):
    """Each action is there once."""
    due = set(product(KINDS, range(case.micro)))
    for stage, row in enumerate(table):
        for action in row:
            if action not in due:
                return f"{action} on stage {stage}: the micro-batches are 0 to {case.last}"
            if row.count(action) > 1:
                return f"{action} is there {row.count(action)} times on stage {stage}: {shown(row)}"
    for stage, row in enumerate(table):
        missing = sorted(due - set(row), key=lambda action: (KINDS.index(action[0]), action[1]))
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            return f"{listed(missing)} {verb} missing on stage {stage}: {shown(row)}"
    return None


def orders_differ(case, table):
    """Messages carry no number, so neighbors take the micro-batches in one order."""
    for kind in KINDS:
        orders = [[m for each, m in row if each == kind] for row in table]
        for stage, order in enumerate(orders):
            if order != orders[0]:
                return (
                    f"the {kind}s come in other orders on stage 0 and on stage {stage}:"
                    f" {shown(table[0])} and {shown(table[stage])}"
                )
    return None


def too_slow(case, table):
    """With actions of one unit, no schedule is quicker."""
    try:
        end = max(step.end for step in steps_of(table, forward=1, backward=1))
    except ValueError as error:
        return str(error).partition(". Change")[0].replace("rank", "stage")
    if end <= shortest(case):
        return None
    rows = f"stage 0: {shown(table[0])}; stage {case.stages - 1}: {shown(table[-1])}"
    return f"it takes {end:g} units of time where {shortest(case)} are enough; {rows}"


def shown(row):
    """For example "F0 F1 B0 B1"; the beginning of a long row."""
    words = [f"{kind[0].upper()}{m}" for kind, m in row]
    if len(words) > 14:
        words = [*words[:12], "..."]
    return " ".join(words) or "nothing"
