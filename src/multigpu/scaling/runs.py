"""The runs of a comparison: each in processes of its own, timed ones and others that count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from multigpu.ranks import run_ranks
from multigpu.ranks.run import Results
from multigpu.scaling.communication import all_reduce_share, bytes_between_ranks
from multigpu.scaling.measuring import Sample, measure
from multigpu.scaling.plan import ONE_PROCESS, Candidate
from multigpu.scaling.workload import Workload

METERED = 2  # steps with the meters on; the optimizer's state is there from the first one on
TRACED = 10  # steps with the trace on


@dataclass(frozen=True)
class Runs:
    """Makes runs that differ in nothing but their candidate."""

    workload: Workload  # ready
    steps: int
    warmup: int
    threads: int  # of each process; ranks have one each, so it is also that of each GPU

    def timed(self, candidate: Candidate, *, evaluate: bool) -> list[Sample]:
        """One measurement: what each rank saw. `evaluate`: also on the test rows, afterwards."""
        workload = self.workload if evaluate else self._untested
        return list(self._run(candidate, workload, self.steps, self.warmup))

    def counts(self, candidate: Candidate) -> dict[str, Any]:
        """What a candidate holds and sends: fields of a Row."""
        metered = self._run(candidate, self._untested, METERED, 0, meters=True)
        counted: dict[str, Any] = {
            "peak_bytes": tuple(peak for sample in metered for peak in sample.peak_bytes)
        }
        copied = metered[0].copied_bytes
        if candidate.mode == "dp" and copied is not None:
            counted["traffic"] = copied // METERED
        if candidate.ranks > 1:
            traced = self._run(candidate, self._untested, TRACED, self.warmup, trace=True)
            windows = [sample.window for sample in traced]
            if candidate.mode != "pipeline":  # whose ranks wait for messages
                counted["communication"] = all_reduce_share(traced.trace, windows)
            counted["traffic"] = bytes_between_ranks(traced.trace, windows[0], steps=TRACED)
        return counted

    @property
    def _untested(self) -> Workload:
        return replace(self.workload, test=None)

    def _run(
        self,
        candidate: Candidate,
        workload: Workload,
        steps: int,
        warmup: int,
        *,
        meters: bool = False,
        trace: bool = False,
    ) -> Results:
        """A Sample from each rank."""

        def work() -> Sample:
            return measure(candidate, workload, steps, warmup, meters=meters)

        return run_ranks(
            work,
            candidate.ranks,
            timeout=None,  # a long measurement is not a hang
            backend="gloo" if candidate.mode in ONE_PROCESS else None,
            threads=self.threads,
            trace=trace,
            show=False,
        )
