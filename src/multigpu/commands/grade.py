"""``multigpu grade DIR``: the verdicts on a whole class, as a table, a JUnit file and a page.

DIR holds one folder per learner.  Results are saved in the output folder, so that an interrupted
run resumes and only answers in files that have changed are checked again.
"""

import argparse
import contextlib
import csv
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from jinja2 import Environment, StrictUndefined

from multigpu.checking.catalog import Catalog, Course, Exercise
from multigpu.checking.learner import WarmServer
from multigpu.checking.source import digest_of, digest_of_checks
from multigpu.checking.verdicts import Verdict, printable
from multigpu.ranks.errors import counted

FIELDS = ("learner", "exercise", "status", "message_id", "passed", "total", "points")
DEFAULT_POINTS = 1.0
SIGNS = {"pass": "✓", "not_started": "·", "missing_file": "·", "checker_fault": "!"}
Results = dict[str, list[Verdict]]  # by learner, in the order of the folders


def grade_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu grade``."""
    parser.add_argument("class_folder", metavar="DIR", type=Path, help="one folder per learner")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="exercises or modules (default: all of them)"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, default=Path("grades"), help="default: grades"
    )
    parser.add_argument(
        "--points", metavar="FILE", type=Path, help='points per exercise: "data_parallel.split" = 2'
    )


def run_grade(options: argparse.Namespace) -> int:
    """Check every learner, write the results, say where they are.  2 for wrong usage."""
    catalog = Catalog(options.course)
    exercises = catalog.find_all(options.names or ["all"])
    try:
        learners = learners_in(options.class_folder)
        points = points_in(options.points, catalog.exercises)
        options.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    graded = Classroom(options.course, exercises, learners, options.out, points)
    graded.write(graded.check())
    return 0


def learners_in(folder: Path) -> list[Path]:
    """The folders of the learners, by name.  Raises ValueError where there is none."""
    if not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder}: give the one that contains a folder per learner."
        )
    found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    if not found:
        hint = " Give its parent folder." if any(folder.glob("*.py")) else ""
        raise ValueError(f"{folder} does not contain a learner's folder.{hint}")
    return found


def points_in(path: Path | None, exercises: Iterable[Exercise]) -> dict[str, float]:
    """Points per exercise, 1 where the file says nothing.

    The file gives them by exercise or by module.  Raises ValueError for a name that is neither, or
    for a value that is not a number.
    """
    given = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    names = [name for e in exercises for name in (e.name, e.chapter.module)]
    flat: dict[str, object] = {}
    for name, value in given.items():  # split = 2 below [data_parallel] is a table in a table
        inner = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"{name}.{own}".rstrip("."): points for own, points in inner}
    for name, value in flat.items():
        if name not in names:
            raise ValueError(f"{path}: {name} is not an exercise or a module of the course")
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{path}: {name} = {value!r} is not a number of points")
    return {
        e.name: float(flat.get(e.name, flat.get(e.chapter.module, DEFAULT_POINTS)))  # type: ignore[arg-type]
        for e in exercises
    }


@dataclass
class Classroom:
    """Learners, the exercises that they are graded in, and where the results go."""

    course: Course
    exercises: Sequence[Exercise]
    learners: Sequence[Path]
    out: Path
    points: dict[str, float]

    def check(self) -> Results:
        """Check every answer whose verdict is not there yet, and keep each as it comes."""
        from tqdm import tqdm

        from multigpu.checking.session import check_with

        (self.out / "learners").mkdir(exist_ok=True)
        answers = [(learner, exercise) for learner in self.learners for exercise in self.exercises]
        found: dict[tuple[Path, Exercise], Verdict] = {}
        waiting = []
        for learner, exercise in answers:
            digest = self.digest(learner, exercise)
            if verdict := self.known(learner, exercise, digest):
                found[learner, exercise] = verdict
            else:
                waiting.append((learner, exercise, digest))
        if found:
            print(f"{len(found)} of {len(answers)} answers have been checked before")
        server = WarmServer()
        try:
            for learner, exercise, digest in tqdm(waiting, unit="answer", disable=not waiting):
                (verdict,) = check_with(
                    server,
                    [exercise],
                    self.course,
                    submission=learner,
                    out_of_reach=[learner.resolve().parent],
                )
                found[learner, exercise] = verdict
                if verdict.status != "checker_fault":
                    self.keep(learner, verdict, digest)
                    continue
                server.close()  # whatever went wrong, the next one gets a fresh server
                server = WarmServer()
        finally:
            server.close()
        return {
            printable(each.name): [found[each, e] for e in self.exercises] for each in self.learners
        }

    # --- what is known --------------------------------------------------------------------------

    @cached_property
    def chapters(self) -> list[str]:
        """The modules of the course, of which each may have a file of every learner."""
        return [chapter.module for chapter in Catalog(self.course).chapters]

    def digest(self, learner: Path, exercise: Exercise) -> str:
        """A hash of an answer's file, of the helpers beside it, and of its checks.

        The file counts as a whole: messages name its lines, and some checks of one function also
        call another. Another chapter's file counts if this one mentions its name.
        """
        own, helpers = learner / exercise.file, []
        with contextlib.suppress(OSError):
            text = own.read_bytes()
            unused = {f"{name}.py" for name in self.chapters if name.encode() not in text}
            beside = (path for path in learner.rglob("*.py") if path != own)
            helpers = [path for path in beside if path.name not in unused]
        return digest_of([own, *helpers]) + digest_of_checks(self.course, exercise.chapter.module)

    def known(self, learner: Path, exercise: Exercise, digest: str) -> Verdict | None:
        """The verdict of an earlier run, if it is on the same answer and checks."""
        noted = self.noted(learner).get(exercise.name, {})
        with contextlib.suppress(KeyError, TypeError):  # by a later version of the course
            if noted["digest"] == digest:
                return Verdict(**noted["verdict"])
        return None

    def noted(self, learner: Path) -> dict[str, dict[str, Any]]:
        """What is kept of a learner, by exercise."""
        try:
            record = json.loads(self.place(learner).read_text(encoding="utf-8"))
            return {name: entry for name, entry in record.items() if isinstance(entry, dict)}
        except (OSError, ValueError, AttributeError):  # none yet, or not ours
            return {}

    def keep(self, learner: Path, verdict: Verdict, digest: str) -> None:
        """Remember a verdict."""
        entry = {"digest": digest, "verdict": vars(verdict)}
        record = self.noted(learner) | {verdict.exercise: entry}
        partial = self.place(learner).with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(self.place(learner))

    def place(self, learner: Path) -> Path:
        """The file with a learner's verdicts."""
        return self.out / "learners" / f"{learner.name}.json"

    # --- what is written ------------------------------------------------------------------------

    def earned(self, verdict: Verdict) -> float:
        """The points for one answer: all or nothing."""
        return self.points[verdict.exercise] if verdict.status == "pass" else 0.0

    def write(self, results: Results) -> None:
        """The table, the JUnit file and the page."""
        with (self.out / "grades.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            for learner, verdicts in results.items():
                for v in verdicts:
                    writer.writerow(
                        {"learner": learner, "points": f"{self.earned(v):g}"} | v.record()
                    )
        self.junit(results).write(self.out / "junit.xml", encoding="utf-8", xml_declaration=True)
        (self.out / "index.html").write_text(self.page(results), encoding="utf-8")
        learners = counted(len(results), "learner")
        print(f"{learners}: {self.out / 'index.html'}, grades.csv and junit.xml")

    def junit(self, results: Results) -> "ElementTree[Element]":
        """One suite per learner, one test case per exercise."""
        root = Element("testsuites")
        for learner, verdicts in results.items():
            failed = [v for v in verdicts if v.status not in ("pass", "checker_fault")]
            faults = [v for v in verdicts if v.status == "checker_fault"]
            suite = SubElement(
                root,
                "testsuite",
                name=learner,
                tests=str(len(verdicts)),
                failures=str(len(failed)),
                errors=str(len(faults)),
            )
            for v in verdicts:
                case = SubElement(
                    suite, "testcase", classname=learner, name=v.exercise, time=f"{v.seconds:.3f}"
                )
                if v.status != "pass":
                    kind = "error" if v.status == "checker_fault" else "failure"
                    text = SubElement(case, kind, message=v.message_id or v.status)
                    text.text = v.message
        indent(root)
        return ElementTree(root)

    def page(self, results: Results) -> str:
        """One static page: learners × exercises, and below it what each one was told."""
        most = sum(self.points[exercise.name] for exercise in self.exercises)
        template = Path(__file__).with_name("grades.html").read_text(encoding="utf-8")
        pages = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
        return pages.from_string(template).render(
            results=results,
            exercises=self.exercises,
            modules=Counter(exercise.chapter.module for exercise in self.exercises),
            signs=SIGNS,
            points=lambda verdicts: f"{sum(map(self.earned, verdicts)):g} of {most:g}",
            by_message=by_message,
            counted=counted,
        )


def by_message(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Verdicts with the same message, which the page shows once for all of them."""
    groups: dict[tuple[str, str, str], list[Verdict]] = defaultdict(list)
    for v in verdicts:
        message = "" if v.status == "not_started" else v.message
        groups[v.status, message, v.output.strip()].append(v)
    return [*groups.values()]
