"""``mesh.groups_of``: the ranks of each dp, tp and pp group, tp neighbors fastest."""

import itertools

import numpy
import torch

from multigpu.checking.comparing import Difference, Rule
from multigpu.checking.declaration import case, exercise
from multigpu.checking.encoding import describe

groups_of = exercise("mesh.groups_of", expects="{right}", everywhere=True)

DIRECTIONS = ("dp", "tp", "pp")
MESHES = [
    *((8, 2, 2), (4, 2, 1), (4, 1, 2), (4, 2, 2), (12, 2, 3), (24, 4, 2), (18, 3, 3)),
    *((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 1, 2), (3, 3, 1), (3, 1, 3), (6, 1, 2), (6, 3, 1)),
    *((8, 1, 1), (8, 8, 1), (8, 1, 8), (30, 2, 5), (64, 8, 4), (512, 8, 16)),
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
        return submission.groups_of(case.ranks, tp=case.tp, pp=case.pp)
    except ValueError:
        if case.even:
            raise
        return "ValueError"


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
            found = plain(came[direction])
            if found is None:
                it = f"the result's {direction!r}"
                return Difference("wrong_type", f"{it} is not a list of lists of integers")
            if sorted(found) != right[direction]:
                there, due = shortened(found), shortened(right[direction])
                return Difference("wrong_values", f"{direction!r} is {there} and not {due}")
        return None

    return Rule(examine)


def plain(groups):
    """Lists of lists of integers, also where one of them is a tuple; None for anything else."""
    if not isinstance(groups, list | tuple):
        return None
    if not all(isinstance(group, list | tuple) for group in groups):
        return None
    if not all(type(rank) is int for group in groups for rank in group):
        return None
    return [list(group) for group in groups]


def shortened(groups):
    if sum(map(len, groups)) <= 32:
        return str(groups)
    first = [group if len(group) <= 8 else [*group[:3], "...", group[-1]] for group in groups[:2]]
    return f"{first}".replace("'...'", "...")[:-1] + f", ...], {len(groups)} groups"


# --- right answers -------------------------------------------------------------------------------


@groups_of.right
def ranges(world_size, *, tp, pp):
    dp, left_over = divmod(world_size, tp * pp)
    if left_over:
        raise ValueError(f"tp {tp} * pp {pp} does not divide {world_size}")
    stage = dp * tp
    return {
        "tp": [list(range(first, first + tp)) for first in range(0, world_size, tp)],
        "dp": [
            list(range(p * stage + t, (p + 1) * stage, tp)) for t in range(tp) for p in range(pp)
        ],
        "pp": [list(range(place, world_size, stage)) for place in range(stage)],
    }


@groups_of.right
def by_the_place_of_each_rank(world_size, *, tp, pp):
    if world_size < tp * pp or world_size % (tp * pp) != 0:
        raise ValueError("does not divide")
    dp = world_size // (tp * pp)
    groups = {name: {} for name in ("dp", "tp", "pp")}
    for rank in range(world_size):
        tp_index, dp_index, pp_index = rank % tp, rank // tp % dp, rank // (tp * dp)
        groups["dp"].setdefault((pp_index, tp_index), []).append(rank)
        groups["tp"].setdefault((pp_index, dp_index), []).append(rank)
        groups["pp"].setdefault((dp_index, tp_index), []).append(rank)
    return {name: list(found.values()) for name, found in groups.items()}


@groups_of.right
def three_loops(world_size, *, tp, pp):
    dp = world_size // (tp * pp)
    if dp * tp * pp != world_size:
        raise ValueError((world_size, tp, pp))

    def number(p, d, t):
        return (p * dp + d) * tp + t

    stages, copies, parts = range(pp), range(dp), range(tp)
    return {
        "pp": [tuple(number(p, d, t) for p in stages) for t in parts for d in copies],
        "dp": [[number(p, d, t) for d in copies] for t in parts for p in stages],
        "tp": [[number(p, d, t) for t in parts] for d in copies for p in stages],
    }


@groups_of.right
def an_array_that_refuses_by_itself(world_size, *, tp, pp):
    mesh = numpy.arange(world_size).reshape(pp, -1, tp)  # raises ValueError
    return {
        name: numpy.moveaxis(mesh, dim, -1).reshape(-1, mesh.shape[dim]).tolist()
        for dim, name in enumerate(("pp", "dp", "tp"))
    }


@groups_of.right
def an_error_of_view(world_size, *, tp, pp):
    try:
        mesh = torch.arange(world_size).view(pp, -1, tp)
    except RuntimeError as error:
        raise ValueError(f"{world_size} ranks, tp={tp}, pp={pp}") from error
    return {
        "dp": [group.tolist() for stage in mesh for group in stage.unbind(1)],
        "tp": mesh.reshape(-1, tp).tolist(),
        "pp": mesh.reshape(pp, -1).t().tolist(),
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
    fix="pp changes slowest: with {ranks} ranks the stages of a pipeline are dp * tp = {stage}"
    " apart.",
)
def stages_closer_than_copies(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("dp", "pp", "tp"), (dp, pp, tp))


@groups_of.mistake(
    "tp_not_fastest",
    "the ranks are numbered with dp as the fastest direction.",
    fix="tp changes fastest: the ranks of a tp group have numbers that follow each other.",
)
def copies_are_neighbors(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("pp", "tp", "dp"), (pp, tp, dp))


@groups_of.mistake(
    "tp_not_fastest",
    "the ranks are numbered in the order tp, dp, pp, with pp as the fastest direction.",
    fix="tp changes fastest: rank = (pp_index * dp + dp_index) * tp + tp_index.",
)
def stages_are_neighbors(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("tp", "dp", "pp"), (tp, dp, pp))


@groups_of.mistake(
    "tp_not_fastest",
    "the ranks are numbered in the order tp, pp, dp, with dp as the fastest direction.",
    fix="tp changes fastest: rank = (pp_index * dp + dp_index) * tp + tp_index.",
)
def tp_changes_slowest(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("tp", "pp", "dp"), (tp, pp, dp))


@groups_of.mistake(
    "tp_not_fastest",
    "the ranks are numbered in the order dp, tp, pp, with pp as the fastest direction.",
    fix="tp changes fastest: rank = (pp_index * dp + dp_index) * tp + tp_index.",
)
def pp_changes_fastest(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    return numbered(("dp", "tp", "pp"), (dp, tp, pp))


@groups_of.mistake(
    "dp_across_stages",
    "a dp group has all ranks with the same tp index, also those of other pipeline stages.",
    fix="Stages hold different layers, so their gradients cannot be averaged: a dp group has the"
    " {dp} ranks of one stage with one tp index.",
)
def every_tp_th_rank(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {**right, "dp": [list(range(first, world_size, tp)) for first in range(tp)]}


@groups_of.mistake(
    "dp_with_tp",
    "a dp group has all ranks of a stage, also those with other parts of the layers.",
    fix="The ranks of a tp group hold different weights: a dp group has one of each tp group, so"
    " its ranks are {tp} apart.",
)
def the_whole_stage(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    size = world_size // pp
    return {**right, "dp": [[*range(at, at + size)] for at in range(0, world_size, size)]}


@groups_of.mistake(
    "dp_with_tp",
    "the ranks of a dp group follow each other, so some of them are also in one tp group.",
    fix="The ranks of a dp group are {tp} apart.",
)
def consecutive_copies(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    right = numbered(("pp", "dp", "tp"), (pp, dp, tp))
    return {**right, "dp": [list(range(at, at + dp)) for at in range(0, world_size, dp)]}


@groups_of.mistake(
    "stages_next_to_each_other",
    "the ranks of a pp group follow each other, but these are ranks of one stage.",
    fix="The stages of a pipeline are dp * tp = {stage} ranks apart.",
)
def consecutive_stages(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {**right, "pp": [list(range(at, at + pp)) for at in range(0, world_size, pp)]}


@groups_of.mistake(
    "stages_next_to_each_other",
    "the ranks of a pp group are tp = {tp} apart, but these are copies of one stage.",
    fix="The stages of a pipeline are dp * tp = {stage} ranks apart.",
)
def a_tp_group_apart(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    blocks = [range(at, at + tp * pp) for at in range(0, world_size, tp * pp)]
    return {**right, "pp": [list(block[i::tp]) for block in blocks for i in range(tp)]}


@groups_of.mistake(
    "number_for_size",
    "there are as many groups as one of them should have ranks: the number of groups and their"
    " size are mixed up.",
    fix="A tp group has tp ranks, and there are world_size / tp of them.",
)
def as_many_as_ranks_in_one(world_size, *, tp, pp):
    dp = refused(world_size, tp, pp)
    ranks = torch.arange(world_size)
    return {
        name: ranks.view(size, -1).tolist() for name, size in (("dp", dp), ("tp", tp), ("pp", pp))
    }


@groups_of.mistake(
    "rows_for_columns",
    "the groups of two directions are under each other's names.",
    fix="In a tp group the ranks follow each other; in a dp group they are {tp} apart.",
)
def dp_and_tp_by_the_wrong_name(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {"dp": right["tp"], "tp": right["dp"], "pp": right["pp"]}


@groups_of.mistake(
    "rows_for_columns",
    "the groups of dp and pp are under each other's names.",
    fix="In a dp group the ranks are {tp} apart; in a pp group they are dp * tp = {stage} apart.",
)
def dp_and_pp_by_the_wrong_name(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {"dp": right["pp"], "tp": right["tp"], "pp": right["dp"]}


@groups_of.mistake(
    "one_group_per_rank",
    "a group is listed once for each of its ranks.",
    fix="List each group once.",
)
def the_group_of_every_rank(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {
        name: [group for rank in range(world_size) for group in groups if rank in group]
        for name, groups in right.items()
    }


@groups_of.mistake(
    "groups_of_one_left_out",
    "a direction of size 1 has no groups.",
    fix="Each rank is in one group of each direction, if necessary alone.",
)
def without_groups_of_one(world_size, *, tp, pp):
    right = numbered(("pp", "dp", "tp"), (pp, refused(world_size, tp, pp), tp))
    return {name: [g for g in groups if len(g) > 1] for name, groups in right.items()}


@groups_of.mistake(
    "not_refused",
    "tp * pp = {tp} * {pp} does not divide the {ranks} ranks, so some of them are in no group.",
    fix="Raise ValueError if world_size % (tp * pp) is not 0.",
)
def rounds_down(world_size, *, tp, pp):
    return numbered(("pp", "dp", "tp"), (pp, world_size // (tp * pp), tp))


@groups_of.mistake(
    "not_refused",
    "tp and pp each divide the {ranks} ranks, but their product does not.",
    fix="Raise ValueError if world_size % (tp * pp) is not 0.",
)
def looks_at_each_alone(world_size, *, tp, pp):
    if world_size % tp or world_size % pp:
        raise ValueError(f"{world_size} ranks cannot be divided by tp {tp} and pp {pp}")
    return rounds_down(world_size, tp=tp, pp=pp)


@groups_of.mistake(
    "assert_for_error",
    "an assert raises AssertionError, and python -O leaves it out.",
    fix="Raise ValueError.",
    status="crash",
)
def asserts(world_size, *, tp, pp):
    assert world_size % (tp * pp) == 0
    return numbered(("pp", "dp", "tp"), (pp, world_size // (tp * pp), tp))
