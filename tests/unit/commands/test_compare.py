"""``multigpu compare``: what it asks for, shows, keeps, and refuses.  The measuring is made up."""

import json

import pytest

from multigpu import scaling
from multigpu.cli import main
from multigpu.ranks import RankError
from multigpu.scaling import Comparison
from multigpu.scaling.comparison import Candidate, Machine, Row, Settings

MACHINE = Machine("AMD", 2, (), "Linux", "3.11", "2.13.0")
ROWS = tuple(
    Row(each, MACHINE.where(each), (ms / 1e3,) * 3, {"loss": 1.0, "accuracy": 0.5}, first=1.0,
        peak_bytes=(2**20,) * each.gpus, communication=share)
    for each, ms, share in [(Candidate("single", 1), 10, None), (Candidate("ddp", 2), 40, 0.6)]
)  # fmt: skip
LEFT = {Candidate("dp", 1): "no reason"}
MADE_UP = Comparison(
    Settings("tiny", "2026-11-21", 64, steps=20, warmup=5, seed=0, threads=1), MACHINE, ROWS, LEFT
)


@pytest.fixture
def asked(monkeypatch):
    """What ``compare`` was called with; it returns made-up results."""
    calls = []

    def compare(workload, **options):
        calls.append({"work": workload.name, "batch": workload.config.batch_size, **options})
        return MADE_UP

    monkeypatch.setattr(scaling, "compare", compare, raising=False)
    return calls


def test_options_are_passed_on(asked):
    arguments = "--data tiny --modes single,DDP --gpus 1,2,4 --steps 7 --warmup 2 --repeats 9"
    assert main(["compare", *arguments.split(), "--batch-size", "32", "--threads", "2"]) == 0
    (call,) = asked
    assert (call["work"], call["batch"], call["threads"]) == ("tiny", 32, 2)
    assert (call["modes"], call["gpus"]) == (["single", "ddp"], [1, 2, 4])
    assert (call["steps"], call["warmup"], call["repeats"]) == (7, 2, 9)


def test_the_table_the_picture_and_what_was_left_out_are_shown(asked, capsys):
    main(["compare", "--data", "tiny"])
    shown = capsys.readouterr().out
    for said in ("10.0 ms", "0.25", "0.5000", "2 gloo processes", "2 cores", "3 rounds",
                 "same loss", "dp on 1", "no reason", "--published", "--output DIR"):  # fmt: skip
        assert said in shown, said


def test_csv_and_figure_are_kept_with_task_and_date(asked, capsys, tmp_path):
    main(["compare", "--data", "tiny", "--output", str(tmp_path / "new")])
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["compare-tiny-2026-11-21.csv", "compare-tiny-2026-11-21.svg"]
    back = scaling.read_csv(tmp_path / "new" / names[0])
    assert back.speed_up(back.row("ddp", 2)) == pytest.approx(0.25)
    assert (tmp_path / "new" / names[1]).read_text().startswith("<svg")
    assert names[0] in capsys.readouterr().out


def test_json_is_all_that_is_printed_when_asked_for(asked, capsys):
    main(["compare", "--data", "tiny", "--json"])
    single, ddp = json.loads(capsys.readouterr().out)
    assert (single["mode"], ddp["speed-up"], ddp["processor"]) == ("single", 0.25, "AMD")
    assert all(isinstance(seconds, float) for seconds in ddp["ms of each round"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--data fligths", "flights"),
        ("--data tiny --modes dpp", "'dpp'"),
        ("--data tiny --gpus 0", "0 GPUs"),
        ("--data tiny --batch-size 65 --gpus 2", "64 or 66"),
        ("--data tiny --steps 0 --gpus 1 --modes single", "--steps 0, --warmup 5: measure"),
        ("--data tiny --threads 0", "--threads 0: each"),
        ("--data tiny --repeats 0", "--repeats 0: measure"),
        ("--data tiny --batch-size 5000 --gpus 1 --modes single", "batch of 5000"),
    ],
)
def test_wrong_usage_is_explained_on_standard_error(capsys, arguments, said):
    assert main(["compare", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_a_training_that_fails_ends_with_1_and_its_error(monkeypatch, capsys):
    def fails(workload, **options):
        raise RankError("exception", [1], "rank 1 ran out of luck")

    monkeypatch.setattr(scaling, "compare", fails, raising=False)
    assert main(["compare", "--data", "tiny"]) == 1
    assert "rank 1 ran out of luck" in capsys.readouterr().err
