"""The notebook of lesson 9 shows what its text says."""

import re

import pytest

NOTEBOOK = "trainer"


def test_the_rules_reach_what_is_known_of_them(printed):
    found = dict(re.findall(r"^(\S.*?) +recall@10 ([\d.]+)", printed("rules"), re.MULTILINE))
    assert (found["popular"], found["markov"], found["own"]) == ("0.422", "0.667", "0.771")


def test_little_training_is_enough_to_beat_the_rules(printed):
    recall = float(re.search(r"one process, rank 0, rank 1: ([\d.]+)", printed("starts"))[1])
    assert recall > 0.779


def test_the_mode_came_from_the_start_and_the_recall_is_one(printed):
    threads, ranks, recalls = printed("starts").splitlines()
    assert re.match(r"dp\D*2\b", threads)
    assert re.match(r"ddp\D*2 ranks", ranks)
    found = [float(number) for number in re.findall(r"0\.\d+", recalls)]
    assert len(found) == 3
    assert max(found) - min(found) < 1e-4


def test_a_global_batch_has_the_same_steps_on_all_ranks(printed):
    lines = printed("shares").splitlines()
    assert [re.match(r"ddp\D*(\d)", line)[1] for line in lines] == ["1", "2", "4"]
    assert re.search(r"\b512\D*\b2\D*\b256 rows", lines[1])
    assert re.search(r"\b512\D*\b4\D*\b128 rows", lines[2])
    assert len({line.rpartition(", ")[2] for line in lines}) == 1


def test_each_rule_has_its_learning_rate(printed):
    found = re.findall(
        r"batch +(\d+), (\w+) +→ rate ([\d.]+): +recall@10 ([\d.]+)", printed("rates")
    )
    assert [(size, rule, rate) for size, rule, rate, _ in found] == [
        ("512", "none", "0.0030"),
        ("4096", "none", "0.0030"),
        ("4096", "sqrt", "0.0085"),
        ("4096", "linear", "0.0240"),
    ]
    recalls = [float(recall) for *_, recall in found]
    assert recalls[0] == max(recalls)  # the answer says that none may reach the small batch


def test_the_global_mean_is_not_the_mean_of_means(printed):
    assert re.search(r"^mean\D*0\.583$", printed("metric"), re.MULTILINE)
    assert re.search(r"^global\D*0\.600 0\.600$", printed("metric"), re.MULTILINE)


def test_a_killed_run_ends_with_the_same_bits(printed):
    assert re.search(r"[Rr]ank 1\b.*SIGKILL", printed("killed"))
    assert re.search(r"checkpoint.*\b35$", printed("killed"), re.MULTILINE)
    assert "same bits: True" in printed("killed")


def test_all_ranks_stop_after_the_same_epoch(printed):
    ranks = re.findall(r"rank \d: (\d+) epochs, losses (.*)", printed("stop"))
    assert len(ranks) == 2
    assert ranks[0] == ranks[1]
    assert int(ranks[0][0]) < 30


def test_an_own_ddp_trains_the_same(printed):
    assert "distributed_data_parallel.py" in printed("own")
    mine, pytorchs = re.search(
        r"recall@10 ([\d.]+), with PyTorch's ([\d.]+)", printed("own")
    ).groups()
    assert float(mine) == pytest.approx(float(pytorchs), abs=1e-4)
