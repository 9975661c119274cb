"""Cases of training with a learner's sharded optimizer: what to run, and how it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from multigpu.checking import Wrong
from multigpu.checking.verdicts import Refused

from .driving import drive
from .one_process import slots_of

MEASURED_BETTER = ("state_not_sharded", "gradients_not_freed")
OUT_OF_STEP_KINDS = ("mismatch", "deadlock")


@dataclass(frozen=True)
class Case:
    """One training run: ``model_of()``, a torch optimizer and its options, the rows of every step.

    ``rates[s]`` is the learning rate from step s on.  With ``measured`` the model is large enough
    that what is sent, and what is held on to, can be told from what fills up unequal parts.
    """

    model_of: Callable[[], Any]
    kind: str
    options: dict[str, Any]
    steps: list[Any]
    rates: dict[int, float] = field(default_factory=dict)
    measured: bool = False

    def sent(self, look):
        """What the drive needs to know."""
        slots = slots_of(self.kind, self.options)
        return self.model_of, self.kind, self.options, slots, self.steps, self.rates, look

    @property
    def title(self):
        """For example "Adam, lr=0.1, eps=1e-06"."""
        return ", ".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])


def check(learner, report, world, cases):
    """Train all cases in one run of ``world`` ranks, and look at each."""
    sent = [case.sent(report.most_gradients(case, world)) for case in cases]
    answer = learner.run_ranks(drive, report.function, sent, world=world)
    reports = [
        report(world, case, [own[i] for own in answer.results], answer)
        for i, case in enumerate(cases)
    ]
    for i, each in enumerate(reports):
        try:
            notes = each.examine()
        except Wrong as refused:
            raise clearest(refused, reports[i + 1 :]) from None
        for note in notes:
            learner.note(note)


def clearest(refused, later):
    """The same mistake in a model so large that the bound is far below the whole."""
    if refused.message_id.rpartition(".")[2] not in MEASURED_BETTER:
        return refused
    for report in later:
        if report.case.measured:
            try:
                report.examine()
            except Wrong as other:
                if other.message_id == refused.message_id:
                    return other
    return refused


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
            usually="a gradient is None where this rank did not use the parameter, and a tensor on"
            " another rank. Leaving it out here keeps the others waiting: put zeros there first.",
            status=refused.status,
        ) from None
