"""``mesh.groups_of``: the ranks of each dp, tp and pp group, tp neighbors fastest."""

import itertools
from typing import Any

import numpy
import torch

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe
from multigpu.ranks.errors import counted

groups_of = exercise("mesh.groups_of", expects="{right}", everywhere=True)

DIRECTIONS = ("dp", "tp", "pp")
MESHES = [
    *((8, 2, 2), (4, 2, 1), (4, 1, 2), (4, 2, 2), (12, 2, 3), (24, 4, 2), (18, 3, 3)),
    *((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 1, 2), (3, 3, 1), (3, 1, 3), (6, 1, 2), (6, 3, 1)),
    *((8, 1, 1), (8, 8, 1), (8, 1, 8), (30, 2, 5), (64, 8, 4)),
]
UNEVEN = [(6, 4, 1), (8, 1, 3), (8, 2, 3), (12, 4, 6), (12, 2, 4), (8, 4, 4), (4, 8, 1), (1, 1, 2)]


@groups_of.cases
def cases():
    for mesh in (*MESHES, *UNEVEN):
        world_size, tp, pp = mesh
        title = f"groups_of({world_size}, tp={tp}, pp={pp})"
        yield case(title, ranks=world_size, tp=tp, pp=pp, even=mesh in MESHES)


@groups_of.drive
def drive(submission, case, devices):
    try:
        return with_ints(submission.groups_of(case.ranks, tp=case.tp, pp=case.pp))
    except ValueError:
        if case.even:
            raise
        return "ValueError"


def with_ints(came):
    """Integers of NumPy are as good as those of Python."""
    if isinstance(came, dict):
        return {name: with_ints(groups) for name, groups in came.items()}
    if isinstance(came, list | tuple):
        return [with_ints(each) for each in came]
    return int(came) if isinstance(came, numpy.integer) else came


def right_groups(case):
    """Written as the definition says: all ranks that differ in one index only."""
    dp = case.ranks // case.tp // case.pp
    places = list(itertools.product(range(case.pp), range(dp), range(case.tp)))
    groups = {}
    for direction, index in (("pp", 0), ("dp", 1), ("tp", 2)):
        by_rest = {}
        for rank, place in enumerate(places):
            by_rest.setdefault(place[:index] + place[index + 1 :], []).append(rank)
        groups[direction] = sorted(by_rest.values())
    return groups


@groups_of.words
def words(case):
    if not case.even:
        return {"right": f"ValueError, because {case.tp} * {case.pp} does not divide {case.ranks}"}
    dp = case.ranks // case.tp // case.pp
    right = f"all groups of a mesh of pp {case.pp}, dp {dp} and tp {case.tp}, tp fastest"
    return {"right": right, "dp": dp, "stage": dp * case.tp}


@groups_of.expected
def expected(case):
    right = right_groups(case) if case.even else {}

    def examine(came):
        if not case.even:
            if came == "ValueError":
                return None
            return Difference("no_error", f"{describe(came)}, and not a ValueError")
        if not isinstance(came, dict):
            return Difference("wrong_type", f"{describe(came)} and not a dict")
        for direction in DIRECTIONS:
            if direction not in came:
                return Difference("missing", f"the dict has no {direction!r}")
            found = came[direction]
            if not is_lists_of_ints(found):
                what = f"{describe(found)} and not a list of lists of ints"
                return Difference("wrong_type", f"the result's {direction!r} is {what}")
            if sorted(found) != right[direction]:
                there, due = shortened(found), shortened(right[direction])
                return Difference("wrong_values", f"{direction!r} is {there} and not {due}")
        return None

    return Rule(examine)


def is_lists_of_ints(groups):
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        return False
    return all(type(rank) is int for group in groups for rank in group)


def shortened(groups):
    if sum(map(len, groups)) <= 32:
        return str(groups)
    return f"{counted(len(groups), 'group')} that begin with {groups[0][:8]}"


# --- right answers -------------------------------------------------------------------------------


@groups_of.right
def an_array_that_refuses_by_itself(world_size, *, tp, pp):
    mesh = numpy.arange(world_size).reshape(pp, -1, tp)  # raises ValueError
    return {
        name: [list(group) for group in numpy.moveaxis(mesh, dim, -1).reshape(-1, mesh.shape[dim])]
        for dim, name in enumerate(("pp", "dp", "tp"))
    }


# --- mistakes ------------------------------------------------------------------------------------


def refused(world_size, tp, pp):
    if world_size % (tp * pp):
        raise ValueError(f"{world_size} ranks cannot be divided by tp {tp} * pp {pp}")
    return world_size // (tp * pp)


def numbered(order, sizes):
    """The groups of a mesh whose directions are in another order, the slowest first."""
    mesh = torch.arange(sizes[0] * sizes[1] * sizes[2]).view(sizes)
    return {
        name: mesh.movedim(i, -1).flatten(0, 1).sort().values.tolist()
        for i, name in enumerate(order)
    }


@groups_of.mistake(
    "dp_and_pp_swapped",
    "the ranks are numbered with pp between dp and tp: the stages of a pipeline are {tp} apart.",
    fix="pp changes slowest: the stages of a pipeline are dp * tp = {stage} apart.",
)
def stages_closer_than_copies(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("dp", "pp", "tp"), (dp, pp, tp))


TP_NOT_FASTEST: Any = {
    "name": "tp_not_fastest",
    "usually": "the ranks are numbered with another direction than tp as the fastest one.",
    "fix": "tp changes fastest: rank = (pp_index * dp + dp_index) * tp + tp_index.",
}


@groups_of.mistake(**TP_NOT_FASTEST)
def copies_are_neighbors(world_size, *, tp, pp):
    return numbered(("pp", "tp", "dp"), (pp, tp, refused(world_size, tp, pp)))


@groups_of.mistake(**TP_NOT_FASTEST)
def pp_changes_fastest(world_size, *, tp, pp):
    return numbered(("dp", "tp", "pp"), (refused(world_size, tp, pp), tp, pp))


def right(world_size, tp, pp):
    refused(world_size, tp, pp)
    return rounds_down(world_size, tp=tp, pp=pp)


@groups_of.mistake(
    "dp_across_stages",
    "a dp group has all ranks with the same tp index, also those of other pipeline stages.",
    fix="Stages hold different layers: a dp group has the {dp} ranks of one stage and tp index.",
)
def every_tp_th_rank(world_size, *, tp, pp):
    dp = [list(range(first, world_size, tp)) for first in range(tp)]
    return right(world_size, tp, pp) | {"dp": dp}


@groups_of.mistake(
    "not_transposed",
    "the ranks of dp and pp groups follow each other, as after view() without a transpose.",
    fix="The ranks of a dp group are {tp} apart, those of a pp group dp * tp = {stage}. Of a tensor"
    " with the shape (pp, dp, tp), move the direction to the end before you reshape.",
)
def all_follow_each_other(world_size, *, tp, pp):
    ranks, sizes = torch.arange(world_size), {"dp": refused(world_size, tp, pp), "tp": tp, "pp": pp}
    return {name: ranks.view(-1, size).tolist() for name, size in sizes.items()}


@groups_of.mistake(
    "not_refused",
    "tp * pp = {tp} * {pp} does not divide the {ranks} ranks, so some of them are in no group.",
    fix="Raise ValueError if world_size % (tp * pp) is not 0.",
)
def rounds_down(world_size, *, tp, pp):
    return numbered(("pp", "dp", "tp"), (pp, world_size // (tp * pp), tp))
