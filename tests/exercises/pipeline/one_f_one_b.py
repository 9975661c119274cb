"""``pipeline.one_f_one_b``: the schedule in which each stage goes back as early as it can."""

from multigpu.checking.comparing import Rule
from multigpu.checking.declaration import exercise

from .given import in_turns
from .tables import all_sizes, differs, shortest, shown

one_f_one_b = exercise(
    "pipeline.one_f_one_b",
    expects="on each of {stages} stages every forward and backward once, on stage s at most"
    " {stages} - s micro-batches in flight, in {shortest} units of time",
    everywhere=True,
)


@one_f_one_b.cases
def cases():
    yield from all_sizes("one_f_one_b")


@one_f_one_b.drive
def drive(submission, case, devices):
    return submission.one_f_one_b(case.stages, case.micro)


@one_f_one_b.words
def words(case):
    return {"shortest": shortest(case), "before": case.stages - 1}


@one_f_one_b.expected
def expected(case):
    return Rule(lambda came: differs(case, came, too_many_in_flight))


def too_many_in_flight(case, table):
    """On stage s at most ``stages - s`` micro-batches are between forward and backward."""
    for stage, row in enumerate(table):
        now, most = 0, 0
        for kind, _ in row:
            now += 1 if kind == "forward" else -1
            most = max(most, now)
        if most > case.stages - stage:
            allowed = f"{case.stages} - {stage} = {case.stages - stage}"
            return f"{most} in flight on stage {stage}, where {allowed} may be: {shown(row)}"
    return None


# --- right answers -------------------------------------------------------------------------------


@one_f_one_b.right
def as_many_as_it_may_hold(num_stages, num_microbatches):
    return in_turns(num_stages, num_microbatches)


# --- mistakes ------------------------------------------------------------------------------------


def table_with(num_stages, num_microbatches, forwards_ahead):
    """On each stage ``forwards_ahead(stage)`` forwards come before the turns."""
    table = []
    for stage in range(num_stages):
        ahead = max(0, min(forwards_ahead(stage), num_microbatches))
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table


@one_f_one_b.mistake(
    "one_forward_too_many",
    "there is a forward too many before the first backward: each turn begins with one more.",
    fix="Let stage s do num_stages - s - 1 forwards before the turns, {before} on stage 0.",
)
def one_forward_too_many(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: num_stages - stage)


@one_f_one_b.mistake(
    "no_forward_ahead",
    "one micro-batch goes forward and back before the next: only one stage works at a time.",
    fix="Let stage s first do num_stages - s - 1 forwards, {before} on stage 0.",
)
def one_microbatch_after_the_other(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: 0)


@one_f_one_b.mistake(
    "all_forwards_first",
    "that is GPipe's schedule, in which all micro-batches are in flight at once.",
    fix="After its first forwards a stage does a forward and a backward in turn.",
)
def that_is_gpipe(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: num_microbatches)


@one_f_one_b.mistake(
    "upside_down",
    "stage s does s forwards before the turns, the number of stages before it.",
    fix="Count the stages after it: num_stages - s - 1.",
)
def ahead_by_stage_number(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: stage)
