"""Cases of training with a learner's wrapper: what to run, and how it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from multigpu.checking import Wrong
from multigpu.checking.verdicts import Refused

from .driving import drive
from .forwarding import examine_forward

OUT_OF_STEP_KINDS = ("mismatch", "deadlock")


@dataclass(frozen=True)
class Case:
    """One training run: ``model_of(rank)``, the wrapper's options, the rows of every step.

    ``how`` may have "keep": gradients are zeroed and not set to None; "one_by_one": every layer's
    gradient is ready before the next one, so that overlapping can be seen; "handles": those that a
    rank holds are counted; "interrupted": an exception has come out of no_sync before.
    """

    model_of: Callable[[int], Any]
    steps: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    how: tuple[str, ...] = ()


def check(learner, report, world, cases):
    """Train all cases in one run of ``world`` ranks, and look at each; then at forward."""
    sent = [(case.model_of, case.options, case.steps, case.how) for case in cases]
    answer = learner.run_ranks(drive, report.function, sent, world=world)
    for i, case in enumerate(cases):
        report(world, case, [own["cases"][i] for own in answer.results], answer).examine()
    examine_forward(report.function, world, [own["forward"] for own in answer.results])


def check_unused(learner, report, world, cases):
    """As ``check``, for parameters that some ranks do not use: here ranks can get out of step."""
    try:
        check(learner, report, world, cases)
    except Refused as refused:
        if refused.finding is None or refused.finding.kind not in OUT_OF_STEP_KINDS:
            raise
        raise Wrong(
            f"{report.function}.unused_out_of_step",
            expected="every rank makes the same calls in the same order, also for a parameter that"
            " only some ranks used",
            came=refused.finding.message,
            usually=report.OUT_OF_STEP,
            status=refused.status,
        ) from None
