"""``multigpu grade DIR``: the verdicts on a whole class, as a table, a JUnit file and a page.

DIR holds one folder per learner.  Results are saved in the output folder, so that an interrupted
run resumes and only answers in files that have changed are checked again.
"""

import argparse
import contextlib
import csv
import hashlib
import html
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from multigpu.checking.catalog import Catalog, Course, Exercise, this_course
from multigpu.checking.learner import WarmServer
from multigpu.checking.source import digest_of, imports_of
from multigpu.checking.verdicts import Verdict

FIELDS = ("learner", "exercise", "status", "message_id", "passed", "total", "points")
DEFAULT_POINTS = 1.0
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
    parser.add_argument("--course", metavar="DIR", type=Path, help="the course's folder")


def run_grade(options: argparse.Namespace) -> int:
    """Check every learner, write the results, say where they are.  2 for wrong usage."""
    course = this_course(options.course)
    catalog = Catalog(course)
    exercises = catalog.find_all(options.names or ["all"])
    try:
        learners = learners_in(options.class_folder)
        points = points_in(options.points, catalog.exercises)
        options.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    graded = Classroom(course, exercises, learners, options.out, points)
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
        return {each.name: [found[each, e] for e in self.exercises] for each in self.learners}

    # --- what is known --------------------------------------------------------------------------

    def digest(self, learner: Path, exercise: Exercise) -> str:
        """A hash of an answer's file, of those beside it where it imports one, and of its checks.

        The file counts as a whole: messages name its lines, and some checks of one function also
        call another.
        """
        own = learner / exercise.file
        beside = [path for path in learner.rglob("*.py") if path != own]
        names = {path.relative_to(learner).parts[0].removesuffix(".py") for path in beside}
        files = [own] if names.isdisjoint(imports_of(own)) else [own, *beside]
        return digest_of([*files, *self.course.checks_of(exercise.chapter.module)])

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
        print(f"{len(results)} learners: {self.out / 'index.html'}, grades.csv and junit.xml")

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
        by_module = groupby(self.exercises, key=lambda exercise: exercise.chapter.module)
        modules = "".join(f'<th colspan="{len([*own])}">{name}</th>' for name, own in by_module)
        names = "".join(f'<th scope="col"><span>{e.function}</span></th>' for e in self.exercises)
        most = sum(self.points[e.name] for e in self.exercises)
        rows, told = [], []
        for learner, verdicts in results.items():
            name = html.escape(learner)
            anchor = hashlib.sha256(learner.encode()).hexdigest()[:8]
            cells = "".join(
                f'<td class="{v.status}"><a href="#{anchor}-{v.exercise}" '
                f'title="{html.escape(v.exercise)}: {html.escape(v.message_id or v.status)}">'
                f"{SIGNS.get(v.status, '×')}</a></td>"
                for v in verdicts
            )
            total = sum(map(self.earned, verdicts))
            rows.append(
                f'<tr><th scope="row"><a href="#{anchor}">{name}</a></th>'
                f"<td>{total:g} of {most:g}</td>{cells}</tr>"
            )
            told += [f'<h2 id="{anchor}">{name}</h2>', *self._told(verdicts, anchor)]
        return PAGE.format(
            style=STYLE,
            modules=modules,
            names=names,
            rows="\n".join(rows),
            told="\n".join(told),
            learners=len(results),
            exercises=len(self.exercises),
        )

    def _told(self, verdicts: Sequence[Verdict], anchor: str) -> Iterator[str]:
        """Each message once, below all exercises that got it."""
        groups: dict[tuple[str, str, str], list[Verdict]] = defaultdict(list)
        for v in verdicts:
            message = "" if v.status == "not_started" else v.message
            groups[v.status, message, v.output.strip()].append(v)
        for (status, message, output), group in groups.items():
            names = ", ".join(
                f'<span id="{anchor}-{v.exercise}">{v.exercise}</span>' for v in group
            )
            sign = f'<b class="{status}">{SIGNS.get(status, "×")}</b> {status}'
            message_id = group[0].message_id or status
            small = f" <small>{html.escape(message_id)}</small>" if message_id != status else ""
            tag = "h3" if message else "p"
            yield f"<{tag}>{sign} {names}{small}</{tag}>"
            if message:
                yield f"<pre>{html.escape(message)}</pre>"
            if output:
                printed = html.escape(output)
                yield f"<details><summary>printed</summary><pre>{printed}</pre></details>"


SIGNS = {"pass": "✓", "not_started": "·", "missing_file": "·", "checker_fault": "!"}

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
.table { overflow-x: auto }
table { border-collapse: collapse }
th, td { border: 1px solid #8886; padding: .2rem .5rem; text-align: center; white-space: nowrap }
thead th { font-size: .8rem; vertical-align: bottom }
thead th span { writing-mode: vertical-rl; transform: rotate(180deg); font-weight: normal }
tbody th { text-align: left; position: sticky; left: 0; background: Canvas }
td a { display: block; text-decoration: none; color: inherit }
.pass { color: #1a7f37 } .wrong, .crash, .hang { color: #b35900 } .checker_fault { color: #8250df }
h2, h3, p { overflow-wrap: anywhere }
:target { background: #fc08 }
pre { background: #8882; padding: .6rem; overflow-x: auto; white-space: pre-wrap }
small { color: #777; font-weight: normal }
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Grades</title>
<style>{style}</style></head><body>
<h1>Grades</h1>
<p>{learners} learners, {exercises} exercises. ✓ pass, × wrong, crash or hang, · not started or no
file, ! a fault of the checker. Each mark links to the message that the learner got.</p>
<div class="table"><table>
<thead><tr><th scope="col" rowspan="2">learner</th><th scope="col" rowspan="2">points</th>
{modules}</tr>
<tr>{names}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
{told}
</body></html>
"""
