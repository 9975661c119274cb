"""``pipeline.gpipe``: the schedule in which each stage does all its forwards first."""

from multigpu.checking.comparing import Rule
from multigpu.checking.declaration import exercise

from .given import in_turns
from .tables import all_sizes, differs, shortest, shown

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
        kinds = [kind for kind, _ in row]
        if kinds != sorted(kinds, reverse=True):
            return f"stage {stage} does a backward before its last forward: {shown(row)}"
    return None


# --- right answers -------------------------------------------------------------------------------


@gpipe.right
def back_from_the_last(num_stages, num_microbatches):
    forwards = [("forward", m) for m in range(num_microbatches)]
    backwards = [("backward", m) for m in reversed(range(num_microbatches))]
    return [forwards + backwards] * num_stages


# --- mistakes ------------------------------------------------------------------------------------


@gpipe.mistake(
    "one_at_a_time",
    "one micro-batch goes forward and back before the next: only one stage works at a time.",
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
    return in_turns(num_stages, num_microbatches)
