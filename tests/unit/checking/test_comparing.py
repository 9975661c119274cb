"""What checks share: tensors compared, the model handed over, messages under way."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from multigpu.checking.comparing import (
    WIDTH,
    Specimen,
    alike,
    all_alike,
    all_same,
    examine_handles,
    factor_between,
    is_rounded,
    largest_difference,
    recognise,
    same,
    snapshot,
    spoken,
)
from multigpu.checking.verdicts import Wrong
from multigpu.ranks.calls import Call

VALUES = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
ROUNDED = VALUES * (1 + 1e-7)  # as if it went through float32


def test_another_order_of_addition_is_the_same():
    assert same(VALUES + 1e-12, VALUES)
    assert not same(VALUES + 1e-5, VALUES)


@pytest.mark.parametrize("n", [3, 6, 7])
def test_a_share_in_float32_is_right_where_the_call_says_so(n):
    share = torch.tensor(1) / torch.tensor(n)
    assert share.dtype is torch.float32
    assert same(VALUES * share, VALUES / n, share_of=n)
    assert not same(VALUES * share, VALUES / n)
    assert all_same({"a": VALUES * share}, {"a": VALUES / n}, share_of=n)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_a_share_that_float32_holds_exactly_loses_nothing(n):
    assert same(VALUES * (torch.tensor(1) / torch.tensor(n)), VALUES / n)
    assert not same(ROUNDED / n, VALUES / n, share_of=n)


def test_float64_numbers_keep_their_digits():
    assert not same(ROUNDED, VALUES)
    assert not all_same({"a": ROUNDED}, {"a": VALUES})


def test_float32_numbers_may_be_added_in_another_order():
    assert same(VALUES.float() * (1 + 1e-6), VALUES.float())
    assert not same(VALUES.float() * (1 + 1e-4), VALUES.float())


def test_what_went_through_float32_is_alike():
    assert alike(ROUNDED, VALUES)
    assert all_alike({"a": ROUNDED}, {"a": VALUES})
    assert not alike(VALUES + 1e-5, VALUES)
    assert not alike(torch.tensor([2**53 + 1]), torch.tensor([2**53]))


def test_a_cause_is_found_although_it_is_rounded():
    assert recognise(2 * ROUNDED, {"right": VALUES, "twice": 2 * VALUES}) == "twice"
    assert factor_between(2 * ROUNDED, VALUES) == 2


def test_two_numbers_are_told_until_they_differ():
    ones = torch.ones(1, dtype=torch.float64)
    said = largest_difference(ones + 1e-8, ones)
    assert re.findall(r"[\d.]+", said) == ["0", "1.00000001", "1"]


def test_rounding_counts_beside_the_numbers_that_cancel():
    left_over = VALUES * (1 + 1e-10) - VALUES
    assert not same(left_over, torch.zeros(2, 2).double())
    assert same(left_over, torch.zeros(2, 2).double(), size=3.0)


def test_small_numbers_are_not_all_the_same():
    assert not same(torch.full((2,), 1e-8, dtype=torch.float64), torch.zeros(2).double())


def test_integers_must_be_equal():
    assert not same(torch.tensor([2**53 + 1]), torch.tensor([2**53]))


@pytest.mark.parametrize("other", [VALUES.float(), VALUES[:1], VALUES.flatten()])
def test_type_and_shape_count(other):
    assert not same(other, VALUES)


def test_nan_is_not_the_same_as_a_number():
    assert not same(VALUES * torch.nan, VALUES)


def test_a_missing_name_is_a_difference():
    assert not all_same({"a": VALUES}, {"a": VALUES, "b": VALUES})
    assert all_same({"a": VALUES}, {"a": VALUES.clone()})


@pytest.mark.parametrize("factor", [Fraction(2), Fraction(1, 3), Fraction(3, 4), Fraction(4)])
def test_a_constant_factor_is_found(factor):
    assert factor_between(VALUES * float(factor), VALUES) == factor


@pytest.mark.parametrize(
    "came", [VALUES, VALUES + 1, VALUES * 0, -VALUES, VALUES * torch.nan, VALUES[:1], VALUES * 2j]
)
def test_nothing_else_is_called_a_factor(came):
    assert factor_between(came, VALUES) is None


def test_a_known_value_is_recognised():
    known = {"twice": 2 * VALUES, "last": VALUES[[1, 1]]}
    assert recognise(VALUES[[1, 1]], known) == "last"
    assert recognise(VALUES[[0, 0]], known) is None


def test_the_largest_difference_names_place_and_numbers():
    came = VALUES.clone()
    came[1, 0] = 7
    assert re.findall(r"\d+", largest_difference(came, VALUES)) == ["1", "0", "7", "3"]
    assert re.findall(r"\d+", largest_difference(torch.tensor(1), torch.tensor(2))) == ["1", "2"]
    assert re.findall(r"\(.*?\)", largest_difference(VALUES[0], VALUES)) == ["(2,)", "(2, 2)"]


SENT = Call.of(
    1,
    {
        "id": 0,
        "op": "send",
        "via": "isend",
        "group": "world",
        "members": [0, 1, 2],
        "peer": 2,
        "is_async": True,
        "thread": 1,
        "file": "/course/collectives.py",
        "line": 41,
        "function": "shift",
        "time": 1.0,
    },
)
RECEIVED = replace(SENT, op="recv", via="irecv", end=2.0)


def wrong(mistake, came, usually, *, where):
    return Wrong(f"shift.{mistake}", expected="", came=came, usually=usually, where=where)


def test_messages_that_were_waited_for_are_right():
    examine_handles([replace(SENT, end=2.0), RECEIVED], wrong)


@pytest.mark.parametrize(
    ("call", "mistake"),
    [
        (SENT, "not_waited"),
        (replace(SENT, end=2.0, changed=True), "changed_while_sending"),
        (replace(RECEIVED, changed=True), "changed_while_receiving"),
    ],
)
def test_each_mistake_has_its_name_and_its_line(call, mistake):
    with pytest.raises(Wrong) as caught:
        examine_handles([call], wrong)
    assert caught.value.message_id == f"shift.{mistake}"
    assert "where: collectives.py:41" in caught.value.message


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (SENT, ["1", "isend", "2"]),
        (replace(RECEIVED, peer=None), ["1", "irecv"]),
        (replace(SENT, op="all_reduce", via="all_reduce"), ["1", "all_reduce"]),
    ],
)
def test_a_call_in_words_names_its_rank_its_function_and_its_peer(call, named):
    assert re.findall(r"\d|isend|irecv|all_reduce", spoken(call)) == named


def test_a_seed_fixes_every_number_and_none_are_random():
    first, second, other = (snapshot(Specimen(seed)) for seed in (1, 1, 2))
    for kind in ("parameters", "buffers"):
        for name, tensor in first[kind].items():
            assert torch.equal(tensor, second[kind][name])
            assert not torch.equal(tensor, other[kind][name])
    random = [Specimen().encode.weight for _ in range(2)]
    assert not torch.equal(*random)


def test_it_has_everything_that_a_copy_can_lose():
    model = Specimen(seed=1)
    buffers, state = dict(model.named_buffers()), model.state_dict()
    assert model.decode.weight is model.encode.weight
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
        "frozen.weight"
    ]
    assert [name for name, p in model.named_parameters() if p.ndim == 0] == ["gain.scale"]
    assert set(buffers) - set(state) == {"position"}
    assert [name for name, b in buffers.items() if not b.is_floating_point()] == ["batches"]
    assert [name for name, part in model.named_modules() if not part.training] == ["frozen"]


def test_every_trained_parameter_matters():
    model = Specimen(seed=1)
    model(torch.ones(2, WIDTH, dtype=torch.float64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name == "frozen.weight"), name
        assert parameter.grad is None or parameter.grad.abs().min() > 0, name


def test_rows_do_not_see_each_other():
    model, rows = Specimen(seed=1), torch.randn(3, WIDTH, dtype=torch.float64)
    apart = torch.cat([model(row[None]) for row in rows])
    torch.testing.assert_close(model(rows), apart)


def test_a_snapshot_shows_what_is_one_object():
    objects = snapshot(Specimen(seed=1))["objects"]
    assert objects["encode.weight"] == objects["decode.weight"] != objects["encode.bias"]


@pytest.mark.parametrize("smaller", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_went_through_a_smaller_dtype_are_rounded(smaller):
    exact = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert is_rounded(exact.to(smaller).double(), exact)


def test_other_numbers_are_not_rounded():
    exact = torch.tensor([0.01, 0.5, 3.0])
    assert not is_rounded(exact * 1.1, exact)
    assert not is_rounded(exact + 0.05, exact)
    assert not is_rounded(torch.tensor([1, 2]), torch.tensor([1, 3]))
