"""The notebook of lesson 8 shows what its text says."""

import re

import pytest

from .conftest import numbers

NOTEBOOK = "data"


def test_padding_changes_the_accuracy_and_the_exact_one_is_the_same_everywhere(printed):
    lines = printed("evaluate").splitlines()
    counted, accuracy = zip(*(numbers(line)[1:] for line in lines), strict=True)
    assert counted == (360, 364, 363, 368)
    assert all(other != accuracy[0] for other in accuracy[1:])
    exact = re.findall(r"([\d.]+) % right, on every rank the same: True", printed("exact"))
    assert [float(one) for one in exact] == [accuracy[0]] * 3


def test_a_seed_for_each_rank_misses_about_a_third(printed):
    same, own = (numbers(line)[-2] for line in printed("seeds").splitlines()[-2:])
    assert same == 768
    assert own == pytest.approx(768 * (1 - 0.75**4), rel=0.05)


def test_one_row_group_becomes_eight(printed):
    assert numbers(printed("partition").splitlines()[-1]) == [1, 274_376, 8, 34_297]


def test_blocks_starve_a_rank_and_dealing_does_not(printed):
    in_blocks, dealt, _ = printed("plan").split("rank 0 ")[1:]
    assert re.search(r"rank 3\D*\b0 rows", in_blocks)
    assert "nothing" not in dealt


def test_three_ranks_and_eight_row_groups_are_uneven_and_it_is_said(printed):
    shown = printed("feed")
    assert shown.count("WARNING") == 1
    assert "--partitions 12" in " ".join(shown.split())
    batches = re.findall(r"first batch of rank \d: \((\d+), 34\)", shown)
    assert sorted(map(int, batches)) == [128, 192, 192]


def test_memory_grows_with_the_file_only_where_all_of_it_is_read(printed):
    megabytes = dict(
        re.findall(r"^ *([\d,]+ rows, [\w ]+?) +[█▒░]+ +([\d.]+) MiB", printed("memory"), re.M)
    )
    whole, groups = (
        [float(megabytes[f"{rows} rows, {how}"]) for rows in ("50,000", "100,000", "200,000")]
        for how in ("the whole file", "row groups")
    )
    assert whole[2] - whole[0] > 3 * (groups[2] - groups[0])
    assert groups[2] < whole[2] / 2


def test_more_row_groups_and_more_ranks_mix_better(printed):
    months = [numbers(line)[-1] for line in printed("mix").splitlines()]
    assert months[0] < months[1] < months[2] == 10
    assert months[3] > months[0]


def test_the_hang_names_the_rank_that_has_nothing(printed):
    assert printed("hang").lower().startswith("rank 3 ")


def test_join_asks_in_every_step(printed):
    plain, even, uneven = (numbers(line)[-1] for line in printed("join").splitlines())
    assert plain == 2
    assert even == uneven > plain


def test_only_the_weight_is_exact(printed):
    off = {
        way: float(error)
        for way, error in re.findall(r"^(\S.*?) *: off by ([\d.]+) %", printed("remedies"), re.M)
    }
    assert [error for way, error in off.items() if way.startswith("weight")] == [0, 0]
    assert min(off["drop"], off["pad"]) > 5
