"""The notebook on pipelines shows what its text says.  How fast it was is not asserted."""

import re

import pytest

from .conftest import numbers

NOTEBOOK = "pipeline"


def test_the_network_fits_two_ranks_and_not_one(printed):
    assert re.search(r"\b16,939,018 parameters\D*\b258 MiB", printed("memory"))
    one, two = printed("run").splitlines()[-2:]
    assert "OutOfMemoryError" in one
    peaks = re.findall(r"'(\d+) MiB'", two)
    assert len(peaks) == 2
    assert all(int(peak) < 256 for peak in peaks)


def test_without_micro_batches_a_rank_computes_at_most_half_of_the_time(printed):
    share = re.search(r"a rank computes (\d+)% of the time", printed("wait"))
    assert int(share[1]) <= 50


def test_the_predicted_schedule_has_the_bubble_of_the_formula(printed):
    assert re.search(r"done\D*\b15\b\D*bubble\D*\b20%", printed("schedule"))


def test_the_bubble_stands_beside_its_formula_for_each_number_of_micro_batches(printed):
    rows = [numbers(line) for line in printed("bubbles").splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [(1, 50), (2, 33), (4, 20), (8, 11), (16, 6)]
    assert all(len(row) == 4 for row in rows)


def test_one_forward_one_backward_holds_less(printed):
    assert "[4, 3, 2, 1]" in printed("1f1b")
    gpipe, one_f_one_b = (
        numbers(line.partition("peaks")[2]) for line in printed("peaks").splitlines()
    )
    assert len(gpipe) == len(one_f_one_b) == 4
    assert all(less < more for less, more in zip(one_f_one_b, gpipe, strict=True))
    assert printed("peaks").count("bubble 27%") == 2


def test_gradients_are_those_of_the_uncut_model(printed):
    gaps = re.findall(r"gradients off by (\S+)", printed("proof"))
    assert len(gaps) == 2
    assert all(float(gap) < 1e-6 for gap in gaps)


def test_the_gpt_is_cut_with_its_tied_weights(cells, printed):
    table = next(o.data["text/html"] for o in cells["cut"].outputs if "data" in o)
    assert table.count("<tr>") == 3
    assert "[('bytes.weight', (0, 1))]" in printed("tied")
    assert "scores: True" in printed("tied")


def test_all_schedules_train_to_the_loss_of_one_process(printed):
    losses = dict(re.findall(r"^(\S+(?: process)?) +loss ([\d.]+)$", printed("trainer"), re.M))
    assert list(losses) == ["one process", "gpipe", "1f1b", "interleaved"]
    alone = float(losses["one process"])
    assert all(float(loss) == pytest.approx(alone, abs=1e-3) for loss in losses.values())


def test_the_formula_is_within_5_percent_of_the_published_seconds(printed):
    rows = re.findall(r"(\d) GPUs: +(\d+) s, .* s \(([+-][\d.]+)%\)", printed("published"))
    assert [int(gpus) for gpus, _, _ in rows] == [2, 3, 4, 5, 6, 7, 8]
    assert (rows[0][1], rows[-1][1]) == ("2270", "1632")
    assert all(abs(float(off)) < 5 for _, _, off in rows)
