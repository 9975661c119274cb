"""Declared exercises: what is judged, which mistake is named, and what never passes."""

import pytest

from multigpu.checking.catalog import Catalog
from multigpu.checking.declaration import load
from multigpu.checking.judging import check
from multigpu.checking.learner import Learner, Submission
from multigpu.checking.verdicts import Refused

from .conftest import COURSE

SPLIT = load(COURSE.check_file("data_parallel", "split"))
GPUS = {cases[0].gpus: cases for cases in SPLIT.runs}
RIGHT = "chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)"


@pytest.fixture
def judge(server, submission):
    """``judge(source)``: the refusal of a ``split`` on 3 GPUs; None where it passes."""

    def judge(source, *, declaration=SPLIT, cases=GPUS[3]):
        exercise = Catalog(COURSE).one(declaration.name)
        (submission / exercise.file).write_text(source)
        try:
            check(declaration, Learner(server, exercise, Submission(submission)), cases)
        except Refused as refused:
            return refused
        return None

    return judge


@pytest.mark.slow
def test_who_raises_at_every_second_call_does_not_pass_case_by_case(judge):
    counting = "CALLS = []\n\ndef split(batch, devices):\n    CALLS.append(1)\n"
    source = f"{counting}    assert len(CALLS) % 2\n    return [{RIGHT}]\n"
    assert judge(source).status == "crash"


def test_wrong_values_are_told_before_an_exception_in_a_later_case(judge):
    source = "def split(batch, devices):\n    assert len(batch) > 1\n    return [batch]\n"
    refused = judge(source)
    assert (refused.status, refused.message_id) == ("wrong", "wrong_count")


def test_a_case_that_is_not_written_is_a_crash_that_names_what_worked(judge):
    unwritten = "    if len(batch) % len(devices):\n        raise NotImplementedError\n"
    refused = judge(f"def split(batch, devices):\n{unwritten}    return [{RIGHT}]\n")
    assert (refused.status, refused.message_id) == ("crash", "exception")
    assert "this worked" in refused.message


def test_a_mistake_in_other_words_is_diagnosed_by_what_it_does(judge):
    source = (
        "def split(batch, devices):\n"
        "    chunks, size = [], max(1, len(batch) // len(devices))\n"
        "    for i in range(len(devices)):\n"
        "        rows = batch.narrow(0, min(i * size, len(batch)), min(size, len(batch) - i * size)"
        " if i * size < len(batch) else 0)\n"
        "        if rows.size(0):\n"
        "            chunks += [rows.to(devices[i])]\n"
        "    return chunks\n"
    )
    assert judge(source).message_id == "split.remainder_dropped"


def test_what_no_mistake_does_is_told_without_a_guess(judge):
    refused = judge(f"def split(batch, devices):\n    return [-{RIGHT}]\n")
    assert refused.message_id == "wrong_values"
    assert "usually" not in refused.message


def test_an_argument_that_is_changed_is_told(judge):
    source = f"def split(batch, devices):\n    chunks = [{RIGHT}]\n    batch.zero_()\n"
    source += "    return chunks\n"
    refused = judge(source)
    assert refused.message_id == "input_changed"
    assert refused.where == "split in data_parallel.py"  # no line is known to be at fault


def test_where_is_the_return_statement_of_the_case_that_failed(judge):
    early = "    if len(batch) == 7:\n        return [batch]\n"
    cases = sorted(GPUS[3], key=lambda each: len(each.batch) != 7)
    refused = judge(f"def split(batch, devices):\n{early}    return [{RIGHT}]\n", cases=cases)
    assert refused.where == "data_parallel.py:3"


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ("None", "returned_nothing"),
        (f"({RIGHT})", "wrong_type"),
        ("{i: chunk for i, chunk in enumerate(batch.chunk(3))}", "wrong_type"),
        (f"[str({RIGHT.split(' for')[0]}) for{RIGHT.split(' for', 1)[1]}]", "not_a_tensor"),
        (f"[{RIGHT}] + [batch]", "wrong_count"),
        (f"[{RIGHT.replace('chunk.to', 'chunk.double().to')}]", "wrong_dtype"),
        (f"[{RIGHT.replace('chunk.to', 'chunk[None].to')}]", "wrong_shape"),
        (f"[{RIGHT.replace('to(device)', 'to(devices[len(devices) // 2])')}]", "wrong_device"),
    ],
)
def test_what_is_of_another_kind_is_named(returned, kind, judge):
    assert judge(f"def split(batch, devices):\n    return {returned}\n").message_id == kind


def test_several_mistakes_that_fit_are_told_apart_by_the_cases_before_an_exception(judge):
    """On 4 rows both programs give one row each; on 7 rows only one of them is the answer's."""
    source = (
        "def split(batch, devices):\n"
        "    assert len(batch) != 7\n"
        "    rows = len(batch) // len(devices)\n"
        "    chunks = [batch[i * rows : (i + 1) * rows] for i in range(len(devices))]\n"
        "    return [chunk.to(device) for chunk, device in zip(chunks, devices) if len(chunk)]\n"
    )
    cases = [each for each in GPUS[3] if len(each.batch) in (4, 7) and each.batch.ndim == 2]
    cases.sort(key=lambda each: len(each.batch))
    assert judge(source, cases=cases).status == "wrong"


@pytest.mark.slow
def test_ranks_tell_the_first_step_that_went_wrong(judge):
    exercise = load(COURSE.check_file("model_server", "worker_step"))
    (stale,) = [m.program for m in exercise.mistakes if m.id.endswith("weights_not_kept")]
    source = stale.module((COURSE.solutions / "model_server.py").read_text())
    refused = judge(source, declaration=exercise, cases=exercise.runs[0][:1])
    assert "came: on rank 1, step 1" in refused.message  # and not rank 0, step 2
