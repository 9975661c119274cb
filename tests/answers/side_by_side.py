"""Declared mistakes, several in one run, as the diagnosis of an answer runs them, too.

Most of the time of a run goes into starting processes, and a result is as wrong in a process that
has run other programs.  What raises there, or gets stuck, needs a run of its own, and so does a
right answer, because the clean end of every process is a part of the evidence.
"""

from collections.abc import Callable, Iterator, Sequence

from multigpu.checking.catalog import Catalog
from multigpu.checking.declaration import Mistake
from multigpu.checking.judging import Diagnosis, examine
from multigpu.checking.learner import Learner, WarmServer
from multigpu.checking.running import Run, perform_programs
from multigpu.checking.session import Check, Session
from multigpu.checking.verdicts import Refused
from multigpu.ranks.resource_monitor import Limits

from .stored import COURSE

AT_A_TIME = 4  # if one gets stuck, the run tells nothing about the others


def ids_side_by_side(
    exercise: str,
    mistakes: Sequence[Mistake],
    server: WarmServer,
    *,
    choose: Callable[[list[Check]], list[Check]],
) -> dict[Mistake, str]:
    """The ids of the messages that these mistakes get, as far as such runs tell."""
    found = Catalog(COURSE).one(exercise)
    session = Session(COURSE, submission=COURSE.solutions, server=server, backing="cpu")
    several = Limits(cpu=AT_A_TIME * Limits.cpu, wall=AT_A_TIME * Limits.wall)
    learner = Learner(server, found, session.submission, limits=several)
    left, ids = list(mistakes), {}
    for check in choose(session.checks_of(found)):
        runs = {
            mistake: run
            for start in range(0, len(left), AT_A_TIME)
            for mistake, run in runs_of(left[start : start + AT_A_TIME], check, learner)
        }
        diagnosis = Diagnosis(check.declaration, learner, check.cases)
        known = check.declaration.runs_of_mistakes
        known |= {diagnosis.key(m, check.cases): run.without_trace() for m, run in runs.items()}
        ids |= {each: id for each, run in runs.items() if (id := id_of(run, diagnosis))}
        left = [mistake for mistake in runs if mistake not in ids]
    return ids


def runs_of(
    mistakes: Sequence[Mistake], check: Check, learner: Learner
) -> Iterator[tuple[Mistake, Run]]:
    """What they come to in one run, without those that raise; nothing if one gets stuck."""
    solution = learner.submission.source(check.exercise)
    texts = [mistake.program.module(solution) for mistake in mistakes]
    try:
        runs = perform_programs(check.declaration, learner, check.cases, texts)
    except Refused:
        return
    yield from ((mistake, run) for mistake, run in zip(mistakes, runs, strict=True) if run)


def id_of(run: Run, diagnosis: Diagnosis) -> str | None:
    """The id of the message on what came; None if it is right."""
    try:
        diagnosis.examine_values(run)
        examine(run, diagnosis.learner, first=False)
    except Refused as refused:
        return refused.message_id
    return None
