"""``pipeline.one_f_one_b``: the schedule in which each stage goes back as early as it can."""

from multigpu.checking.comparing import Rule
from multigpu.checking.declaration import exercise

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
    table = []
    for stage in range(num_stages):
        row, back = [], 0
        for m in range(num_microbatches):
            if m - back == num_stages - stage:
                row.append(("backward", back))
                back += 1
            row.append(("forward", m))
        table.append(row + [("backward", m) for m in range(back, num_microbatches)])
    return table


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
    "one micro-batch goes all the way forward and back before the next one begins, so only one"
    " stage works at a time.",
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


@one_f_one_b.mistake(
    "same_on_every_stage",
    "every stage does as many forwards before the turns as stage 0.",
    fix="Let stage s do num_stages - s - 1: later stages need fewer.",
)
def as_many_on_every_stage(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: num_stages - 1)


@one_f_one_b.mistake(
    "one_forward_too_few",
    "there is a forward too few before the turns, so each stage waits for the next one.",
    fix="Let stage s do num_stages - s - 1 forwards before the turns, {before} on stage 0.",
)
def one_forward_too_few(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda stage: num_stages - stage - 2)


@one_f_one_b.mistake(
    "last_backwards_missing",
    "the turns end with the last forward, and the backwards of the first stages are not over then.",
    fix="After the turns do the backwards that are left.",
)
def forgets_the_last_backwards(num_stages, num_microbatches):
    table = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        table.append(row)
    return table


@one_f_one_b.mistake(
    "turns_begin_at_zero",
    "the turns begin with forward 0 again, although the first forwards are done.",
    fix="Let the turns go on where the first forwards end.",
)
def begins_the_turns_at_zero(num_stages, num_microbatches):
    table = []
    for stage in range(num_stages):
        row = [("forward", m) for m in range(min(num_stages - stage - 1, num_microbatches))]
        for m in range(num_microbatches):
            row += [("forward", m), ("backward", m)]
        table.append(row)
    return table


FEW = (
    "there are fewer micro-batches than stages, and num_stages - s - 1 forwards come first all the"
    " same."
)


def always_so_many_ahead(num_stages, num_microbatches, first_left):
    table = []
    for stage in range(num_stages):
        ahead = num_stages - stage - 1
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        left = range(first_left(num_microbatches - ahead), num_microbatches)
        table.append(row + [("backward", m) for m in left])
    return table


@one_f_one_b.mistake(
    "too_few_microbatches", FEW, fix="Let at most num_microbatches forwards come first: min(...)."
)
def forgets_that_there_may_be_few(num_stages, num_microbatches):
    return always_so_many_ahead(num_stages, num_microbatches, lambda left: left)


@one_f_one_b.mistake(
    "too_few_microbatches", FEW, fix="Let at most num_microbatches forwards come first: min(...)."
)
def fewer_microbatches_than_stages(num_stages, num_microbatches):
    return always_so_many_ahead(num_stages, num_microbatches, lambda left: max(left, 0))


@one_f_one_b.mistake(
    "backward_first_in_a_turn",
    "a turn begins with its backward, so the last stage goes back before it has gone forward.",
    fix="Let each turn be a forward, then a backward.",
)
def backward_first_in_a_turn(num_stages, num_microbatches):
    table = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("backward", m), ("forward", m + ahead)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table
