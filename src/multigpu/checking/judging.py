"""Judges an answer by the exercise's declaration: run, compare, look at the properties, diagnose.

All cases of one place run in one go (``Run``).  The first difference between what came and what was
expected decides.  What it usually means is found by running the declared mistakes on the same
cases: the one that gives the same result is the diagnosis, and if none does the message says what
came and stops.
"""

import re
import time
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

from multigpu.checking.catalog import Course, find_course
from multigpu.checking.comparing import (
    Difference,
    Either,
    ResultComparison,
    alike_results,
    compare_one,
    is_of_result,
    likeliest,
    overview,
)
from multigpu.checking.declaration import Case, Declaration, Mistake, Program, Property
from multigpu.checking.learner import Learner, Submission
from multigpu.checking.run_verdict import place_of
from multigpu.checking.running import DONE, IN_CASE, Run, perform, perform_programs
from multigpu.checking.verdicts import Refused, Wrong

SECONDS = 1.0  # for the diagnosis of one answer, after the first run of all mistakes
UNUSABLE = "unusable_result"  # the id of a refusal where the drive failed on what it was given
TRIES = 4  # mistakes that are run one by one even if it takes longer


def check(
    declaration: Declaration, learner: Learner, cases: Sequence[Case], *, explain: bool = True
) -> None:
    """Judge one run of the learner's code.  Raises Refused, or Wrong with a diagnosis.

    Without ``explain`` no mistake is looked for, which saves the time of a diagnosis.
    """
    diagnosis = Diagnosis(declaration, learner, cases, explain)
    try:
        run = perform(declaration, learner, cases)
        diagnosis.examine_values(run)
    except Refused as refused:
        if isinstance(refused, Wrong) and refused.message_id != UNUSABLE:
            raise
        if before := stuck_in(refused, cases):  # what came before may be wrong already
            diagnosis.examine_values_of(cases[:before])
            if refused.status == "not_started":
                refused = refused.half_written(f"this worked: {cases[before - 1].title}")
        raise diagnosis.of_refusal(refused) from None
    examine(run, learner, first=False)
    for remark in declaration.remarks:
        for said in filter(None, (remark(run, case) for case in run.cases)):
            learner.notes.append(said)


def examine(run: Run, learner: Learner, *, first: bool) -> None:
    """Raise Wrong where a property does not hold; of those that are looked at first, or later."""
    for declaration in run.declaration.together:
        own = [each for each in declaration.properties if each.first == first]
        for each, case in product(own, run.cases):
            found = each.examine(run, case)
            if found is None:
                continue
            came, where = (found, "") if isinstance(found, str) else found
            raise broken_property(
                run.declaration, each, case, came, where or place_of(each.id, learner.exercise)
            )


def broken_property(
    declaration: Declaration, broken: Property, case: Case, came: str, where: str
) -> Wrong:
    """What to raise for a property that does not hold."""
    fill = declaration.fill
    usually = " ".join(fill(text, case) for text in (broken.usually, broken.fix) if text)
    return Wrong(
        broken.id,
        expected=f"{fill(broken.expects, case)} ({case.title})",
        came=came,
        usually=declaration.blames(broken.id) + usually,
        where=where,
    )


def compare(run: Run, case: Case) -> Difference | None:
    """The first difference in one case; for ranks the earliest in a dict, of the first rank."""
    declaration = run.declaration
    right, came = declaration.right_result(case), run.came(case)
    read = partial(declaration.read, case)
    comparison = ResultComparison(declaration.parts, declaration.share_of(case), read)
    if not case.world:
        return compare_one(declaration, comparison, came, right)
    if isinstance(right, Either):  # all ranks have the same one of several results
        all_found = [_compare_ranks(declaration, comparison, came, each) for each in right.results]
        return likeliest(all_found)
    return _compare_ranks(declaration, comparison, came, right)


def _compare_ranks(
    declaration: Declaration, comparison: ResultComparison, came: Any, right: Any
) -> Difference | None:
    found = [
        compare_one(declaration, comparison, own, expected)
        for own, expected in zip(came, right, strict=True)
    ]
    there = [replace(each, rank=rank) for rank, each in enumerate(found) if each is not None]
    if not there:
        return None
    first = min(there, key=lambda each: (each.of_numbers, each.entry))
    return replace(first, came=f"on rank {first.rank}, {first.came}")


# --- which mistake it is -------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """Looks for the declared mistake that does what an answer did."""

    declaration: Declaration
    learner: Learner
    cases: Sequence[Case]
    explain: bool = True

    def examine_values(self, run: Run) -> None:
        """Raise Wrong where a case is not right, or where a property explains why it may not be."""
        examine(run, self.learner, first=True)
        for case in run.cases:
            difference = compare(run, case)
            if difference is not None:
                raise self.of_difference(difference, run, case)

    def examine_values_of(self, cases: Sequence[Case]) -> None:
        """Run these cases, which went through, and raise Wrong as ``examine_values`` does."""
        try:
            run = perform(self.declaration, self.learner, cases)
        except Refused:
            return
        self.examine_values(run)

    def of_difference(self, difference: Difference, run: Run, case: Case) -> Wrong:
        """What to raise for a wrong result."""
        mistake = self.mistake_like(run, case) if self.explain else None
        usually = difference.usually
        if mistake is not None:
            usually = self._sentences(mistake, case)
        where = ""
        if is_of_result(difference, self.declaration):
            where = run.where(case, difference.rank)
        if not where or (mistake and self.declaration.blames(mistake.id)):
            about = mistake.id if mistake else self.declaration.function
            where = place_of(about, self.learner.exercise)
        return Wrong(
            mistake.id if mistake else difference.kind,
            expected=self._expected(case),
            came=difference.came,
            usually=usually,
            where=where,
        )

    def of_refusal(self, refused: Refused) -> Refused:
        """The same refusal, under the name of the mistake that ends in the same way."""
        broken = self._broken(refused)
        if broken is not None:
            return broken
        finding = refused.finding
        ends: str = "mismatch" if finding and finding.kind == "mismatch" else refused.status
        ends = "unusable" if refused.message_id == UNUSABLE else ends
        if not self.explain or ends not in ("crash", "hang", "mismatch", "unusable"):
            return refused
        done = stuck_in(refused, self.cases)
        noted = is_exception(refused) and refused.message_id != UNUSABLE  # shown with the exception
        if done is not None and done < len(self.cases) and not noted:
            refused.came += f"\n{IN_CASE}{self.cases[done].title}"
        began = time.monotonic()
        together = self.declaration.together
        mistakes = [each for own in together for each in own.mistakes if each.ends == ends]
        alike_by_running = [mistake for mistake in mistakes if not mistake.roughly]
        for number, mistake in enumerate(alike_by_running):
            if number >= TRIES and time.monotonic() - began > SECONDS:
                break
            if self._ending_of(mistake) == ending(refused, self.cases):
                return self._renamed(refused, mistake)
        for mistake in mistakes:
            if explains(mistake, refused):
                return self._renamed(refused, mistake)
        return refused

    def mistake_like(self, run: Run, case: Case) -> Mistake | None:
        """The first mistake with the same result in the case that failed.

        Where several with other sentences have it, one that has the same results in all other
        cases too comes first.
        """
        cases = run.cases if self.declaration.everywhere else [case]
        for declaration in self.declaration.together:
            shown = {each.id for each in declaration.properties}
            mistakes = [m for m in declaration.mistakes if m.ends == "wrong" and m.id not in shown]
            mistakes = self._alike(run, mistakes, cases)
            if len({mistake.usually for mistake in mistakes}) > 1:
                mistakes = self._alike(run, mistakes, run.cases) or mistakes
            if mistakes:
                return mistakes[0]
        return None

    def _alike(self, run: Run, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Mistake]:
        """Those mistakes that give in these cases what the answer gave.

        One that is right in all of them explains nothing: alike means up to rounding.
        """
        return [
            mistake
            for mistake, other in zip(mistakes, self.results(mistakes, cases), strict=True)
            if other is not None
            and all(
                alike_results(run.came(each), other.came(each), self._right(each)) for each in cases
            )
            and any(compare(other, each) is not None for each in cases)
        ]

    def _right(self, case: Case) -> Any:
        """What is right, in the form in which it came."""
        right, (kind, _) = self.declaration.right_result(case), self.declaration.call
        if kind == "drive":
            return right
        if not case.world:
            return {"result": right}
        if isinstance(right, Either):
            return Either(*([{"result": each} for each in own] for own in right.results))
        return [{"result": each} for each in right]

    def results(self, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Run | None]:
        """What each mistake gives on these cases: all in one run, or each in its own.

        None for one that raises, and for those that there was no time for.
        """
        runs = self.declaration.runs_of_mistakes
        whole = {mistake: self.key(mistake, self.cases) for mistake in mistakes}
        keys = {m: k if k in runs else self.key(m, cases) for m, k in whole.items()}
        missing = [mistake for mistake in mistakes if keys[mistake] not in runs]
        together = self._together(missing, cases)
        runs.update(zip((keys[mistake] for mistake in missing), together, strict=False))
        began = time.monotonic()
        for mistake in missing[len(together) :]:  # one raised what ends all
            if time.monotonic() - began > SECONDS:
                break
            (runs[keys[mistake]],) = self._together([mistake], cases) or [None]
        return [runs.get(keys[mistake]) for mistake in mistakes]

    def key(self, mistake: Mistake, cases: Sequence[Case]) -> tuple[Any, ...]:
        """A run of a mistake, which serves all answers that this process judges.

        It is written into the solution, which its author may change meanwhile.
        """
        return self._solution, self.learner.backing, tuple(cases), mistake

    def _ending_of(self, mistake: Mistake) -> tuple[Any, ...] | None:
        """How a run of this mistake ends; None if it goes through."""
        known, key = self.declaration.endings_of_mistakes, self.key(mistake, self.cases)
        if key not in known:
            try:
                perform(self.declaration, self._with(mistake.program), self.cases)
                known[key] = None
            except Refused as refused:
                known[key] = ending(refused, self.cases)
        return known[key]

    def _together(self, mistakes: Sequence[Mistake], cases: Sequence[Case]) -> list[Run | None]:
        """What each mistake gives; an empty list if they do not get through."""
        if not mistakes:
            return []
        texts = [mistake.program.module(self._solution) for mistake in mistakes]
        try:
            runs = perform_programs(self.declaration, self._with(None), cases, texts)
        except Refused:
            return []
        return [run and run.without_trace() for run in runs]

    @cached_property
    def _course(self) -> Course:
        return find_course(self.declaration.path)

    @cached_property
    def _solution(self) -> str:
        return (self._course.solutions / self.learner.exercise.file).read_text(encoding="utf-8")

    def _with(self, program: Program | None) -> Learner:
        """A learner who hands in the solution, with ``program`` in its place."""
        submission = Submission(self._course.solutions)
        if program is not None:
            submission.replace(self.learner.exercise, program.module(self._solution))
        return replace(self.learner, submission=submission, answers=[], notes=[])

    def _expected(self, case: Case) -> str:
        """The promise, the case, and what a list of results looks like if it is right."""
        declaration = self.declaration
        right = declaration.right_result(case)
        words = declaration.fill(declaration.expects, case)
        if isinstance(right, list | tuple) and not case.world:
            words += f": {overview(right, declaration.parts)}"
        return f"{words} ({case.title})"

    def _sentences(self, mistake: Mistake, case: Case) -> str:
        parts = (mistake.usually, mistake.fix)
        words = " ".join(self.declaration.fill(part, case) for part in parts if part)
        return self.declaration.blames(mistake.id) + words

    def _broken(self, refused: Refused) -> Wrong | None:
        """What to raise where the drive itself found that a property is broken."""
        found = re.match(r".*\bBroken: (\w+): (.*)", refused.came)
        if refused.message_id != "exception" or found is None:
            return None
        done = stuck_in(refused, self.cases) or 0
        own = f"{self.declaration.function}.{found[1]}"
        broken = [each for each in self.declaration.properties if each.id == own]
        if not broken:
            return None
        return broken_property(
            self.declaration, broken[0], self.cases[done], found[2], refused.where
        )

    def _renamed(self, refused: Refused, mistake: Mistake) -> Refused:
        """The refusal of this run, explained by a mistake."""
        done = stuck_in(refused, self.cases) or 0
        case = self.cases[min(done, len(self.cases) - 1)]
        refused.message_id, refused.usually = mistake.id, self._sentences(mistake, case)
        return refused


def stuck_in(refused: Refused, cases: Sequence[Case]) -> int | None:
    """The number of the case in which a run went wrong; None if it is not known.

    On ranks it is the first one in which they did not make the same number of collectives: one that
    leaves a call out can go on for many cases.  Else it is the first that is not done, where two
    ranks' calls do not fit together the first that is not done by these two.
    """
    trace = refused.trace
    if trace is None:
        titles = [f"{IN_CASE}{case.title}" for case in cases]
        return next((titles.index(note) for note in refused.notes if note in titles), None)
    ranks = range(trace.world_size)
    ends = [[s.end for s in trace.spans if (s.rank, s.label) == (r, DONE)] for r in ranks]
    if is_exception(refused) and refused.finding is not None:
        return len(ends[refused.finding.ranks[0]])
    of_all = [call for call in trace.collectives() if len(call.members) == len(ranks)]
    made = Counter((bisect(ends[call.rank], call.time), call.rank) for call in of_all)
    by_case = [[made[i, rank] for rank in ranks] for i in range(max(map(len, ends)))]
    uneven = [i for i, counts in enumerate(by_case) if len(set(counts)) > 1]
    finding = refused.finding
    there = finding.ranks if finding and finding.kind == "mismatch" else ranks
    return min([*uneven, *(len(ends[rank]) for rank in there)])


def is_exception(refused: Refused) -> bool:
    """Whether a run ended with an exception, and ranks did not get stuck."""
    return refused.finding is None or refused.finding.kind in ("exception", "exit")


def explains(mistake: Mistake, refused: Refused) -> bool:
    """Whether a mistake is known as the cause of such an ending without being run."""
    finding = refused.finding
    if not mistake.roughly or finding is None or finding.kind not in ("deadlock", "mismatch"):
        return False
    if mistake.roughly is not True:
        return mistake.roughly(finding)
    states = [rank["state"] for rank in finding.details.get("ranks", [])]
    return finding.kind == "mismatch" or "returned" in states


def ending(refused: Refused, cases: Sequence[Case]) -> tuple[Any, ...]:
    """How a run ended, without lines, ranks and ports: the same for the same mistake."""
    finding, done = refused.finding, None
    if refused.trace is not None:  # one process may raise in any case that shows the mistake
        done = stuck_in(refused, cases)
    if finding is None or is_exception(refused):
        came = (refused.came or refused.text).partition("\n")[0]
        # `None * 2` and `None *= 2.0` are the same mistake
        unlike = r"(?<=operand type\(s\)) for \S+:|'int'|'float'|:\d+"
        who = r"(every rank|ranks? -?\d+(, \d+)*( and \d+)?):?"
        return refused.message_id, done, re.sub(f"{who}|{unlike}", "", came)
    if finding.kind == "mismatch":  # which ranks wait already when it shows is chance
        # how many calls there were before is not the mistake, nor is the dtype of a single number
        unlike = r", \S+:\d+|\d+(th|st|[nr]d) |(?<= of 1) \w+( \[[1, ]*\])?"
        return refused.message_id, done, re.sub(unlike, "", finding.message)
    ranks = finding.details.get("ranks", [])
    waits = [[(w["op"], w.get("peer")) for w in rank["waits"]] for rank in ranks]
    return refused.message_id, done, waits
