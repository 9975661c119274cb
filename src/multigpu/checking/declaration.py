"""How an exercise is declared: one file tells how it is run, what is right and what goes wrong.

    split = exercise("data_parallel.split", expects="the chunks that torch.chunk makes")

    @split.cases
    def cases(): ...                                # what it is called with
    @split.arguments
    def arguments(case, devices): ...               # as the learner's function gets them
    @split.expected
    def expected(case): ...                         # what must come back
    @split.mistake("remainder_dropped", "{rows} // {n} rounds down ...", fix="Round up.")
    def floor_division(batch, devices): ...         # a wrong program

A mistake is a wrong program.  When an answer is not what was expected, the mistakes run on the same
cases, and the one that gives the same result is the diagnosis.  The same program is the test that
the mistake is refused under its own name, and its sentences are its entry on the troubleshooting
page.  How all of that is judged: ``judging.py``.
"""

import ast
import copy
import importlib
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from multigpu.checking.source import Definition, definitions, first_line, last_line, reached
from multigpu.checking.verdicts import CheckerFault, Status
from multigpu.ranks.errors import listed

Function = TypeVar("Function", bound=Callable[..., Any])
MARKS = ("right", "mistake", "breaks")  # decorators that mark a program
Version = tuple[str | tuple[str, int], ...]  # of a folder of declarations


class Case(SimpleNamespace):
    """One call of the learner's code.

    ``title`` says which in a message ("7 rows on 3 GPUs").  It runs in one process with ``gpus``
    GPUs, which may be none, or on ``world`` ranks.  All else is the exercise's own: what
    ``arguments``, ``expected`` and the sentences of the mistakes need.
    """

    title: str
    gpus: int
    world: int
    alone: bool

    def __eq__(self, other: object) -> bool:
        """A case is itself only: it may hold tensors."""
        return self is other

    __hash__ = object.__hash__  # type: ignore[assignment]

    @property
    def place(self) -> tuple[int, int]:
        """Cases with the same place run together, one after the other."""
        return self.gpus, self.world


def case(title: str, *, gpus: int = 0, world: int = 0, alone: bool = False, **values: Any) -> Case:
    """Make a case, for one process with ``gpus`` GPUs or for ``world`` ranks.

    ``alone`` gives it a run of its own, so that ranks which get stuck do so there: a rank that left
    too early does not go on to another case.

    Raises ValueError for both.
    """
    if gpus and world:
        raise ValueError(f"the case {title!r} needs either gpus=... or world=..., and not both")
    return Case(title=title, gpus=gpus, world=world, alone=alone, **values)


@dataclass(frozen=True)
class Placed:
    """A tensor that must come back on a certain GPU, or up to a certain rounding."""

    value: Any
    device: str | None = None
    size: float = 0.0


def on(device: str, tensor: Any) -> Placed:
    """Expect this tensor on this device: ``on("cuda:1", batch[2:4])``."""
    return Placed(tensor, device)


def sized(size: float, tensor: Any) -> Placed:
    """Expect this tensor, up to the rounding of numbers of this size, which may cancel in it."""
    return Placed(tensor, size=size)


class Broken(Exception):
    """Raised by a drive where the learner's code breaks a property, which cannot go on then.

    ``Broken("every_rank_writes", "rank 1 writes last.pt")``: the name of the property, and what
    came.
    """

    def __init__(self, name: str, came: str) -> None:
        super().__init__(f"{name}: {came}")


@dataclass(frozen=True)
class Program:
    """An answer as text: the definition that takes the place of the solution's."""

    exercise: str
    name: str
    path: Path  # of the file that has the definition

    @cached_property
    def text(self) -> str:
        """Made when it is needed: most runs need no diagnosis."""
        return program_text(self.path, self.name, self.exercise.rpartition(".")[2])

    def module(self, solution: str) -> str:
        """The solution's module with this answer in the place of its own."""
        return answered(solution, self.exercise, self.text)


def answered(solution: str, exercise: str, answer: str) -> str:
    """The solution's module with another answer to an exercise in the place of its own."""
    first, end = _lines_of(exercise.rpartition(".")[2], solution)
    lines = solution.splitlines()
    return "\n".join([*lines[:first], *lines[end:], "", "", answer, ""])


@lru_cache
def _lines_of(name: str, source: str) -> tuple[int, int]:
    """Where a definition is; kept, because all mistakes take the place of the same one."""
    node = definitions(source)[name]
    return first_line(node) - 1, last_line(node)


@dataclass(frozen=True)
class Mistake:
    """A wrong program, and what to say to somebody whose answer does the same."""

    id: str  # "split.remainder_dropped"
    usually: str
    fix: str
    program: Program
    ends: Status | Literal["mismatch", "unusable"] = "wrong"
    roughly: bool | Callable[[Any], bool] = False

    @property
    def status(self) -> Status:
        """Of the verdict on such an answer."""
        return "wrong" if self.ends == "mismatch" or self.ends == "unusable" else self.ends


@dataclass
class Shared:
    """Mistakes that several exercises have in common, in a file beside their declarations.

    ``every_wrapper = Shared()``, marks ``@every_wrapper.mistake(...)``; and in each declaration
    ``every_wrapper.add_to(naive)``.
    """

    marked: list[Callable[["Declaration"], Any]] = field(default_factory=list)

    def mistake(self, name: str, usually: str, **more: Any) -> Callable[[Function], Function]:
        """Mark a wrong program, as ``Declaration.mistake`` does."""

        def mark(function: Function) -> Function:
            self.marked.append(lambda exercise: exercise.mistake(name, usually, **more)(function))
            return function

        return mark

    def breaks(self, name: str) -> Callable[[Function], Function]:
        """Mark a wrong program, as ``Declaration.breaks`` does."""
        return self.mistake(name, "", fix="")

    def add_to(self, exercise: "Declaration") -> None:
        """Declare them all as mistakes of one more exercise."""
        for add in self.marked:
            add(exercise)


@dataclass(frozen=True)
class Property:
    """Something that no returned value shows, such as who sent to whom.

    ``examine(run, case)`` returns None where all is well, else what came in words.  It may instead
    return a pair of these words and the line to blame.
    """

    id: str
    expects: str
    usually: str
    fix: str
    examine: Callable[..., str | tuple[str, str] | None]
    first: bool  # before the values are compared: it explains wrong ones


@dataclass
class Declaration:
    """Everything about one exercise; see the head of this file."""

    name: str
    expects: str
    path: Path
    parts: str = "entry"
    keeps: Sequence[str] = ()
    result: str = "returned"
    fresh: bool = False
    everywhere: bool = False
    works_with: str = ""
    share_of: Callable[[Case], int] = field(default=lambda case: 1)
    options: dict[str, Any] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    rights: list[Program] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)
    remarks: list[Callable[..., str | None]] = field(default_factory=list)
    runs_of_mistakes: dict[Any, Any] = field(default_factory=dict)  # see judging.Diagnosis
    endings_of_mistakes: dict[Any, tuple[Any, ...] | None] = field(default_factory=dict)
    _parts: dict[str, Callable[..., Any]] = field(default_factory=dict)
    _right_results: dict[Case, Any] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """The name of the learner's function or class."""
        return self.name.rpartition(".")[2]

    @cached_property
    def together(self) -> "list[Declaration]":
        """This one, and that of the function that it works with."""
        others = [self.works_with] if self.works_with else []
        return [self, *(load(self.path.with_name(f"{name}.py")) for name in others)]

    # --- what a file says -----------------------------------------------------------------------

    def cases(self, function: Function) -> Function:
        """Mark the generator of all cases.  Those with the same GPUs or ranks run in one go."""
        return self._keep("cases", function)

    def arguments(self, function: Function) -> Function:
        """Mark ``arguments(case, devices)``, for ranks ``arguments(case, rank)``: a tuple.

        It runs where the learner's function runs, just before it.  A case serves several calls, so
        what the function may write into is a clone.
        """
        return self._keep("arguments", function)

    def drive(self, function: Function) -> Function:
        """Mark ``drive(submission, case, devices)``, for ranks ``drive(submission, case, rank)``.

        For an exercise that is more than one call: it returns what came, for example a dict.  In
        one, "the result" is the key for what the learner's function returned, and "watched" that
        for what only properties look at.
        """
        return self._keep("drive", function)

    def expected(self, function: Function) -> Function:
        """Mark ``expected(case)``: what must come back, for ranks a list with one entry per rank.

        Of a dict, only the keys that are expected are compared.
        """
        return self._keep("expected", function)

    def reading(self, function: Function) -> Function:
        """Mark ``reading(case, tensor)``: what a tensor with wrong values is, in words, or None.

        For example "these are the numbers of rank 0".
        """
        return self._keep("reading", function)

    def words(self, function: Function) -> Function:
        """Mark ``words(case)``: a dict for the braces in the sentences of the mistakes."""
        return self._keep("words", function)

    def mistake(
        self,
        name: str,
        usually: str,
        *,
        fix: str,
        status: Status | Literal["mismatch", "unusable"] = "wrong",
        roughly: bool | Callable[[Any], bool] = False,
    ) -> Callable[[Function], Function]:
        """Mark a wrong program; put the likeliest first.

        ``usually`` and ``fix`` may hold names of ``words`` in braces.  ``status`` says how it ends:
        with a wrong result, a "crash", a "hang", with calls of the ranks that do not fit together,
        a "mismatch", or with an "unusable" result, on which the drive fails.  ``roughly`` is for a
        mistake that is the only cause of its ending: it explains every mismatch, or every deadlock
        in which a rank waits for one that has returned, whatever calls they are.  Or
        ``roughly(finding)`` says which of them it explains.
        """

        def mark(function: Function) -> Function:
            program = self._program(function)
            self.mistakes.append(
                Mistake(f"{self.function}.{name}", usually, fix, program, status, roughly)
            )
            return function

        return mark

    def breaks(self, name: str) -> Callable[[Function], Function]:
        """Mark a wrong program that breaks a property of this name, which has the sentences."""
        return self.mistake(name, "", fix="")

    def right(self, function: Function) -> Function:
        """Mark a right answer that is written in another way than the solution."""
        self.rights.append(self._program(function))
        return function

    def holds(
        self, name: str, expects: str, usually: str, *, fix: str, first: bool = False
    ) -> Callable[[Function], Function]:
        """Mark a property: ``examine(run, case)`` tells what is wrong, or returns None.

        Properties are looked at when the values are right, in their order.  With ``first`` one is
        looked at before, since it explains wrong values.
        """

        def mark(function: Function) -> Function:
            self.properties.append(
                Property(f"{self.function}.{name}", expects, usually, fix, function, first)
            )
            return function

        return mark

    def remark(self, function: Function) -> Function:
        """Mark ``remark(run, case)``: something to say to an answer that passes, or None."""
        self.remarks.append(function)
        return function

    # --- what the machinery asks ----------------------------------------------------------------

    @cached_property
    def runs(self) -> list[list[Case]]:
        """The cases, those of one place together, in the order in which places come first."""
        by_place: dict[Any, list[Case]] = {}
        for each in self._parts["cases"]():
            by_place.setdefault((each.place, each.alone and each), []).append(each)
        return list(by_place.values())

    @property
    def example(self) -> Case:
        """The case whose numbers are in the sentences on the troubleshooting page."""
        cases = [case for run in self.runs for case in run]
        return next((case for case in cases if getattr(case, "example", False)), cases[0])

    @property
    def entries(self) -> dict[str, str]:
        """By message id, what it usually means and what to do, for the troubleshooting page."""
        entries: dict[str, list[str]] = {}
        told: list[Mistake | Property] = [*self.mistakes, *self.properties]
        for each in told:
            text = " ".join(
                self.fill(part, self.example) for part in (each.usually, each.fix) if part
            )
            if text and text not in entries.setdefault(each.id, []):
                entries[each.id].append(text)
        return {name: " Or: ".join(texts) for name, texts in sorted(entries.items())}

    def right_result(self, case: Case) -> Any:
        """What must come back; computed once for all answers that one process judges."""
        if case not in self._right_results:
            self._right_results[case] = self._parts["expected"](case)
        return self._right_results[case]

    def read(self, case: Case, came: Any) -> str | None:
        """What a wrong tensor is, in words."""
        reading = self._parts.get("reading")
        return reading(case, came) if reading else None

    @property
    def call(self) -> tuple[str, Callable[..., Any]]:
        """Either "arguments" or "drive", and the function."""
        kind = "drive" if "drive" in self._parts else "arguments"
        return kind, self._parts[kind]

    def fill(self, sentence: str, case: Case) -> str:
        """A sentence with the numbers of a case."""
        own = {key: value for key, value in vars(case).items() if isinstance(value, int | str)}
        more = self._parts["words"](case) if "words" in self._parts else {}
        return sentence.format(**own | {"n": case.gpus or case.world} | more)

    def blames(self, message_id: str) -> str:
        """What an explanation begins with if it is about the function that this one works with."""
        function = message_id.partition(".")[0]
        if function == self.function:
            return ""
        return f"the mistake is in {function}, which {self.function} works with: "

    def _keep(self, part: str, function: Function) -> Function:
        self._parts[part] = function
        return function

    def _program(self, function: Callable[..., Any]) -> Program:
        path = Path(inspect.getfile(inspect.unwrap(function)))
        return Program(self.name, function.__name__, path)


def exercise(
    name: str,
    *,
    expects: str,
    parts: str = "entry",
    keeps: Sequence[str] = (),
    result: str = "returned",
    fresh: bool = False,
    everywhere: bool = False,
    works_with: str = "",
    share_of: Callable[[Case], int] = lambda case: 1,
    **options: Any,
) -> Declaration:
    """Declare an exercise, such as ``data_parallel.split``, in a file of its own.

    * ``expects``: the promise in one sentence, for messages.
    * ``parts``: what one entry of a returned list is called ("chunk").
    * ``keeps``: the arguments, by name, that must be afterwards what they were.
    * ``result``: what is compared with ``expected``: what is ``returned``, or the argument of this
      name, into which the function writes.
    * ``fresh``: whether the result needs memory of its own, as do the entries of a list.
    * ``everywhere``: whether an answer must be like a mistake in all cases, not only in the one
      that failed: for results so small that two of them are often equal by chance.
    * ``works_with``: another function of the learner's, which is declared beside this one and runs
      with it.  Where no mistake of this exercise explains what came, those of the other are tried,
      and its properties must hold too.
    * ``share_of(case)``: right answers multiply by 1/n, which n (see ``comparing.same``).
    * ``options``: for ``learner.run``, such as ``memory="1 GiB"``.
    """
    caller = Path(sys._getframe(1).f_code.co_filename)  # inspect.stack() reads each caller's source
    return Declaration(
        *(name, expects, caller, parts, keeps, result, fresh, everywhere, works_with),
        share_of,
        options,
    )


@cache
def _tree_of(path: Path, version: Version) -> ast.Module:
    """A file without marks, and with what it imports from those beside it instead of imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, Definition):
            node.decorator_list = [d for d in node.decorator_list if _method(d) not in MARKS]
        beside = path.with_name(f"{getattr(node, 'module', None)}.py")
        if not isinstance(node, ast.ImportFrom) or not node.level or not beside.is_file():
            body.append(node)
            continue
        other = _tree_of(beside, version)
        needed = [each for name in node.names for each in reached(other, name.name)]
        known = {ast.dump(each) for each in body}
        body += [n for n in other.body if _is_import(n) and ast.dump(n) not in known]
        body += [n for n in other.body if n in needed and ast.dump(n) not in known]
    tree.body = body
    return tree


def program_text(path: Path, name: str, function: str) -> str:
    """A marked definition as an answer: under the name of the exercise, after the imports of the
    file and the helpers that it needs.
    """
    tree = _tree_of(path, version_of(path.parent))
    definition, *helpers = reached(tree, name)
    assert isinstance(definition, Definition)
    definition = copy.copy(definition)
    definition.name = function
    before = [node for node in tree.body if _is_import(node) or node in helpers]
    return "\n\n".join(ast.unparse(node) for node in [*before, definition])


def _method(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ""


def _is_import(node: ast.stmt) -> bool:
    """Of other libraries: an answer needs nothing of ours, or of the files beside it."""
    if isinstance(node, ast.ImportFrom):
        return not node.level and not (node.module or "").startswith("multigpu.")
    return isinstance(node, ast.Import)


def version_of(folder: Path) -> Version:
    """The folder, and when each of its files was last changed."""
    return str(folder), *sorted((e.name, e.stat().st_mtime_ns) for e in folder.glob("*.py"))


_imported: dict[str, Version] = {}  # by package


def load(path: Path) -> Declaration:
    """The declaration in a file, read again where a file of its folder has changed.

    The files beside it can be imported with a dot.  Raises CheckerFault if there is no such file,
    if it cannot be imported, if it does not declare its exercise, or if a program breaks a property
    that is not declared.
    """
    own = f"{path.parent.name}.{path.stem}"
    if not path.is_file():
        raise CheckerFault(f"{own} has no declaration: there is no {path}")
    name, version = f"exercises_of_{path.parent.name}", version_of(path.parent)
    if _imported.get(name) != version:
        for old in [old for old in sys.modules if f"{old}.".startswith(f"{name}.")]:
            del sys.modules[old]
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path.parent)]
        _imported[name] = version
    try:
        module = importlib.import_module(f"{name}.{path.stem}")
    except Exception as error:
        stack = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in stack if Path(frame.filename).parent == path.parent]
        told = "".join(traceback.format_list(lines) + traceback.format_exception_only(error))
        raise CheckerFault(f"{path} cannot be imported:\n{told.rstrip()}") from error
    found = [value for value in vars(module).values() if isinstance(value, Declaration)]
    if len(found) != 1:
        raise CheckerFault(f"{path} declares {len(found)} exercises; it must be one")
    if found[0].name != own:
        raise CheckerFault(f"{path} declares {found[0].name}; in this file it must be {own}")
    known = [each.id for each in found[0].properties]
    for mistake in found[0].mistakes:
        if not mistake.usually and mistake.id not in known:
            raise CheckerFault(
                f"{path}: {mistake.program.name} breaks {mistake.id}, which is not a property of"
                f" {found[0].name}. It has {listed(known, most=None)}."
            )
    return found[0]
