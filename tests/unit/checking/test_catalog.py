"""Which exercises a name means."""

import pytest

from multigpu.checking.catalog import BadSettings, Catalog, Course, UnknownExercise

SOURCE = '''
import torch
CONSTANT = 1
def split(batch: torch.Tensor, devices) -> list:
    """Cut.  Then stop.

    More.
    """
def _private(): ...
def shard(n, *, epoch, seed=0): ...
class DDP:
    def __init__(self, module, bucket_bytes=25): ...
class Bare: ...
'''


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "tests" / "exercises").mkdir(parents=True)
    (tmp_path / "course.toml").write_text("[data_parallel]\ntitle = 'By hand'\n[later]\n")
    (tmp_path / "solutions" / "data_parallel.py").write_text(SOURCE)
    (tmp_path / "solutions" / "collectives.py").write_text("def split(t): ...\ndef shift(t): ...\n")
    return Course(tmp_path)


def names(exercises):
    return [exercise.name for exercise in exercises]


def test_chapters_come_in_the_order_of_the_course_s_file(course):
    (course.solutions / "aside.py").write_text('"""Aside.\n\nMore."""')
    titles = [(chapter.module, chapter.title) for chapter in Catalog(course).chapters]
    assert titles == [
        ("data_parallel", "By hand"), ("aside", "Aside."), ("collectives", "collectives"),
    ]  # fmt: skip


def test_a_key_that_means_nothing_is_named(course):
    (course.root / "course.toml").write_text("[data_parallel]\nrefuses = ['torch.nn.parallel']\n")
    with pytest.raises(BadSettings, match=r"course\.toml.*data_parallel.*\brefuses\b"):
        _ = Catalog(course).chapters


def test_exercises_are_the_public_functions_and_classes_in_order(course):
    assert names(Catalog(course).exercises) == [
        "data_parallel.split",
        "data_parallel.shard",
        "data_parallel.DDP",
        "data_parallel.Bare",
        "collectives.split",
        "collectives.shift",
    ]


def test_an_exercise_knows_its_call_and_its_task(course):
    split, shard, ddp, bare = Catalog(course).exercises[:4]
    assert split.signature.text == "split(batch, devices)"
    assert split.summary == "Cut. Then stop."
    assert shard.signature.positional == ("n",)
    assert shard.signature.keyword_only == ("epoch", "seed")
    assert shard.signature.text == "shard(n, *, epoch, seed=0)"
    assert ddp.signature.text == "DDP(module, bucket_bytes=25)"
    assert ddp.signature.positional == ("module", "bucket_bytes")
    assert bare.signature.text == "Bare()"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("data_parallel.shard", ["data_parallel.shard"]),
        ("shard", ["data_parallel.shard"]),
        ("collectives", ["collectives.split", "collectives.shift"]),
        ("exercises/collectives.py", ["collectives.split", "collectives.shift"]),
    ],
)
def test_a_name_may_be_short(course, name, found):
    assert names(Catalog(course).find(name)) == found


def test_several_names_give_each_exercise_once_and_in_order(course):
    found = Catalog(course).find_all(["shift", "collectives", "DDP"])
    assert names(found) == ["data_parallel.DDP", "collectives.split", "collectives.shift"]
    assert len(Catalog(course).find_all(["all", "shift"])) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("splt", r"\.split"),
        ("data_paralel.split", r"data_parallel\.split"),
        ("colectives", "collectives"),
        ("split", r"data_parallel\.split, collectives\.split"),
        ("xyzzy", "`multigpu list`"),
    ],
)
def test_an_unknown_name_is_answered_with_a_suggestion(course, name, message, monkeypatch):
    monkeypatch.chdir(course.root)
    with pytest.raises(UnknownExercise, match=message):
        Catalog(course).find(name)
