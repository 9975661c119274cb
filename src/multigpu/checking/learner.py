"""What a check holds in its hands: ``learner.run`` runs the learner's code in a worker."""

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from multigpu.checking.answers import Answer, RankAnswer, read
from multigpu.checking.catalog import Exercise
from multigpu.checking.ending import Ending
from multigpu.checking.endings import refuse_bad_ending
from multigpu.checking.rank_endings import refuse_bad_endings
from multigpu.checking.request import Request
from multigpu.checking.submission import Submission
from multigpu.checking.tracing import return_lines
from multigpu.checking.verdicts import Refused
from multigpu.checking.warm import ServerDied, WarmServer
from multigpu.ranks.errors import Finding
from multigpu.ranks.limits import Limits
from multigpu.ranks.trace import Trace

Drive = Callable[..., Any]


@dataclass
class Learner:
    """One submission, seen from one check."""

    server: WarmServer
    exercise: Exercise
    submission: Submission
    backing: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    answers: list[Answer | RankAnswer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, remark: str) -> None:
        """Say something about an answer that passes, such as that less would do."""
        self.notes.append(remark)

    def run(
        self, drive: Drive, *arguments: Any, gpus: int, memory: str = "8 GiB", **limits: float
    ) -> Answer:
        """Run ``drive(submission, devices, *arguments)`` in a worker with ``gpus`` GPUs.

        ``drive`` is a function of the check's own file; it and the arguments travel by value, and
        tensors among them lie on the CPU.  ``limits`` changes fields of Limits for this run.

        Raises Refused with the right status when no answer came: the check goes no further then.
        """
        request = self._request(limits, gpus=gpus, memory=memory)
        report, blob = self._ask(request, drive, arguments)
        (ending,) = self._endings(report, request)
        refuse_bad_ending(ending)
        answer = Answer(read(blob, ending), ending.where, ending.output, report["seconds"])
        self.answers.append(answer)
        return answer

    def run_ranks(
        self,
        drive: Drive,
        *arguments: Any,
        world: int,
        memory: str | None = None,
        **limits: float,
    ) -> RankAnswer:
        """Run ``drive(submission, *arguments)`` on ``world`` ranks, each in its own worker.

        ``torch.distributed`` is initialised before the learner's module is imported, and every call
        of it is traced.  Otherwise as ``run``: an answer and a clean end of every rank, or Refused.
        Where ranks got stuck or disagree the exception has a ``finding``, so that a check which
        knows more can catch it and say so.

        ``memory="1 MiB"`` limits the tensors of each rank and measures them.
        """
        limits = {"cpu": self.limits.cpu * max(1.0, world / 2)} | limits
        request = self._request(limits, ranks=world, memory=memory)
        report, blob = self._ask(request, drive, arguments)
        endings = self._endings(report, request)
        finding = Finding.of(report["finding"]) if report["finding"] else None
        trace = Trace.from_frames([ending.report["said"] for ending in endings])
        refuse_bad_endings(endings, finding, trace)
        blobs, results = io.BytesIO(blob), []
        for ending in endings:
            results.append(read(blobs.read(ending.report["answer"]), ending))
        answer = RankAnswer(
            results=results,
            trace=trace,
            wheres=[ending.where for ending in endings],
            outputs=[ending.output for ending in endings],
            seconds=report["seconds"],
            memory=[e.phases["memory"]["peak"] for e in endings] if memory is not None else None,
        )
        self.answers.append(answer)
        return answer

    def _request(self, limits: dict[str, float], **where: Any) -> Request:
        """What the server needs to know.  Raises Refused when there is no module to run."""
        source = self.submission.source(self.exercise)
        return Request(
            path=str(self.submission.path(self.exercise)),
            source=source,
            return_lines=return_lines(source),
            function=self.exercise.function,
            signature=self.exercise.signature,
            refused=self.exercise.chapter.refused,
            limits=replace(self.limits, **limits),  # type: ignore[arg-type]
            backing=self.backing,
            **where,
        )

    def _endings(self, report: dict[str, Any], request: Request) -> list[Ending]:
        """How each worker ended."""
        path, ranks = self.submission.path(self.exercise), request.ranks
        limits = asdict(request.limits)
        common = {"excess": report["excess"], "left": report["left"]}
        return [
            Ending(
                member | common, self.exercise, path, limits, who=f"rank {rank}" if ranks else None
            )
            for rank, member in enumerate(report["members"])
        ]

    def _ask(
        self, request: Request, drive: Drive, arguments: tuple[Any, ...]
    ) -> tuple[dict[str, Any], bytes]:
        from multigpu.checking.parcel import by_value  # imports torch

        try:
            return self.server.ask(request.header(), by_value(drive, arguments))
        except ServerDied as death:
            raise Refused("crash", "killed_checker", KILLED.format(death=death)) from None


KILLED = """\
came: the process that watches over your code ended while your code ran. {death}
usually: your code sends a signal to its parent process, or to all processes."""
