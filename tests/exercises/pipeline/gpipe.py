"""``pipeline.gpipe``: the schedule in which each stage does all its forwards first."""

from multigpu.checking.comparing import Rule
from multigpu.checking.declaration import exercise

from .tables import all_sizes, differs, forwards_first, shortest, shown

gpipe = exercise(
    "pipeline.gpipe",
    expects="on each of {stages} stages every forward, then every backward, in {shortest} units of"
    " time",
    everywhere=True,
)


@gpipe.cases
def cases():
    yield from all_sizes("gpipe")


@gpipe.drive
def drive(submission, case, devices):
    return submission.gpipe(case.stages, case.micro)


@gpipe.words
def words(case):
    return {"shortest": shortest(case)}


@gpipe.expected
def expected(case):
    return Rule(lambda came: differs(case, came, backward_too_early))


def backward_too_early(case, table):
    for stage, row in enumerate(table):
        if not forwards_first(row):
            return f"stage {stage} does a backward before its last forward: {shown(row)}"
    return None


# --- right answers -------------------------------------------------------------------------------


@gpipe.right
def back_from_the_last(num_stages, num_microbatches):
    forwards = [("forward", m) for m in range(num_microbatches)]
    backwards = [("backward", m) for m in reversed(range(num_microbatches))]
    return [forwards + backwards] * num_stages


@gpipe.right
def tuples_all_over(num_stages, num_microbatches):
    row = tuple((kind, m) for kind in ("forward", "backward") for m in range(num_microbatches))
    return (row,) * num_stages


# --- mistakes ------------------------------------------------------------------------------------


def table_of(num_stages, forwards, backwards):
    row = [("forward", m) for m in forwards] + [("backward", m) for m in backwards]
    return [list(row) for _ in range(num_stages)]


@gpipe.mistake(
    "one_at_a_time",
    "one micro-batch goes all the way forward and back before the next one begins, so only one"
    " stage works at a time.",
    fix="Do all forwards first.",
)
def one_microbatch_after_the_other(num_stages, num_microbatches):
    row = []
    for m in range(num_microbatches):
        row += [("forward", m), ("backward", m)]
    return [list(row) for _ in range(num_stages)]


@gpipe.mistake(
    "one_f_one_b",
    "that is the schedule of one_f_one_b, in which a backward comes as early as it can.",
    fix="Here each stage does all its forwards before its first backward.",
)
def that_is_one_f_one_b(num_stages, num_microbatches):
    table = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table


@gpipe.mistake(
    "list_per_microbatch",
    "there is a list for each micro-batch, with the stages in it.",
    fix="Turn the table on its side: a list for each stage, with the micro-batches in it.",
)
def by_microbatch(num_stages, num_microbatches):
    return table_of(num_microbatches, range(num_stages), range(num_stages))


@gpipe.mistake(
    "counted_from_one",
    "the micro-batches were counted from 1.",
    fix="Count them from 0 to num_microbatches - 1 = {last}.",
)
def counts_from_one(num_stages, num_microbatches):
    numbers = range(1, num_microbatches + 1)
    return table_of(num_stages, numbers, numbers)


@gpipe.mistake(
    "stages_for_microbatches",
    "the loop over micro-batches runs to the number of stages.",
    fix="There are {micro} micro-batches and {stages} stages.",
)
def counts_stages_for_microbatches(num_stages, num_microbatches):
    return table_of(num_stages, range(num_stages), range(num_stages))


@gpipe.mistake(
    "no_backwards",
    "the forwards are all there, and the backwards were left out.",
    fix="After its forwards each stage does the backward of each micro-batch.",
)
def forwards_only(num_stages, num_microbatches):
    return table_of(num_stages, range(num_microbatches), [])


@gpipe.mistake(
    "backward_first",
    "each stage begins with backwards, which need what the forwards have computed.",
    fix="Begin with the forwards.",
)
def backwards_first(num_stages, num_microbatches):
    kinds = ("backward", "forward")
    return [[(kind, m) for kind in kinds for m in range(num_microbatches)]] * num_stages


@gpipe.mistake(
    "directions_differ",
    "every other stage goes back in the other direction, and its neighbors wait for it.",
    fix="Go back in one order on all stages: 0, 1, 2, ... or the reverse.",
)
def every_other_stage_goes_back_from_the_last(num_stages, num_microbatches):
    there = range(num_microbatches)
    return [table_of(1, there, there[::-1] if s % 2 else there)[0] for s in range(num_stages)]
