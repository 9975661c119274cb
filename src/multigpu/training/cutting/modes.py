"""One program out of two: what a model calls in training, and what it calls in evaluation.

Dropout and BatchNorm of torch.nn switch by themselves. But `F.dropout(x, 0.1, self.training)` has
another argument in each mode, and stochastic depth calls what evaluation does not call at all.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from torch.fx.node import map_aggregate

from multigpu.training.cutting.program import ByMode, Constant, Program, Step, Value


def merge(training: Program, evaluation: Program) -> Program:
    """The steps of both modes in one list; those of one mode alone say so."""
    same = difflib.SequenceMatcher(
        a=[_key(step) for step in training.steps],
        b=[_key(step) for step in evaluation.steps],
        autojunk=False,
    )
    merger = _Merger(training, evaluation)
    for kind, a, a_end, b, b_end in same.get_opcodes():
        if kind == "equal":
            for offset in range(a_end - a):
                merger.both(a + offset, b + offset)
            continue
        for place in range(a, a_end):
            merger.training_only(place)
        for place in range(b, b_end):
            merger.evaluation_only(place)
    return merger.program()


def _key(step: Step) -> tuple[Any, ...]:
    return step.module, step.name, step.where, len(step.made)


class _Merger:
    """Numbers the values of evaluation as training numbers them, where both have them."""

    def __init__(self, training: Program, evaluation: Program) -> None:
        self.one, self.two = training, evaluation
        self.shapes = dict(training.shapes)
        self.numbers = dict(zip(evaluation.inputs, training.inputs, strict=True))
        self.steps: list[Step] = []
        self.saved: list[dict[int, Any]] = []
        self.apart: set[int] = set()  # values that one mode alone has
        self.joined: set[int] = set()

    def both(self, a: int, b: int) -> None:
        one, two = self.one.steps[a], self._renumbered(self.two.steps[b])
        self.numbers.update(zip(self.two.steps[b].made, one.made, strict=True))
        self._add(
            dataclasses.replace(
                one, args=_joined(one.args, two.args), kwargs=_joined(one.kwargs, two.kwargs)
            ),
            self.one.saved[a],
            joined=a in self.one.joined or b in self.two.joined,
        )

    def training_only(self, a: int) -> None:
        step = dataclasses.replace(self.one.steps[a], only="training")
        self.apart.update(step.made)
        self._add(step, self.one.saved[a], joined=a in self.one.joined)

    def evaluation_only(self, b: int) -> None:
        old = self.two.steps[b]
        for number in old.made:
            self.numbers[number] = len(self.shapes)
            self.shapes[len(self.shapes)] = self.two.shapes[number]
        made = tuple(self.numbers[number] for number in old.made)
        self.apart.update(made)
        step = dataclasses.replace(self._renumbered(old), made=made, only="evaluation")
        self._add(step, {}, joined=b in self.two.joined)

    def program(self) -> Program:
        returned = _joined(self.one.outputs, map_aggregate(self.two.outputs, self._renumber))
        program = dataclasses.replace(
            self.one,
            steps=tuple(self.steps),
            outputs=returned,
            shapes=self.shapes,
            constants=self.one.constants + self.two.constants,
            saved=tuple(self.saved),
        )
        # What one mode alone has cannot be handed on: a neighbour expects the same in both.
        split = {
            place
            for place in range(len(self.steps) + 1)
            if self.apart.intersection(program.crossing(place))
        }
        return dataclasses.replace(program, joined=frozenset(self.joined | split))

    def _add(self, step: Step, saved: dict[int, Any], *, joined: bool) -> None:
        if joined:
            self.joined.add(len(self.steps))
        self.steps.append(step)
        self.saved.append(saved)

    def _renumbered(self, step: Step) -> Step:
        args, kwargs = map_aggregate((step.args, step.kwargs), self._renumber)
        return dataclasses.replace(step, args=tuple(args), kwargs=dict(kwargs))

    def _renumber(self, note: Any) -> Any:
        if isinstance(note, Value):
            return Value(self.numbers[note.number])
        if isinstance(note, Constant):
            return Constant(note.number + len(self.one.constants))
        return note


def _joined(one: Any, two: Any) -> Any:
    """One tree of notes; where the two differ, a note that says so."""
    alike = type(one) is type(two)
    if alike and isinstance(one, tuple | list) and len(one) == len(two):
        return type(one)(_joined(a, b) for a, b in zip(one, two, strict=True))
    if alike and isinstance(one, dict) and one.keys() == two.keys():
        return {name: _joined(one[name], two[name]) for name in one}
    if alike and isinstance(one, Constant):
        return one  # the same tensor, seen twice; see recording.py
    same = alike and (one is two or one == two)
    return one if same else ByMode(one, two)
