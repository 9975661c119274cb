"""``multigpu train``: its options, what it prints, what it refuses, how it ends."""

import dataclasses
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from multigpu import virtual_gpus
from multigpu.cli import main
from multigpu.commands import train
from multigpu.commands.train import docs_of_fields
from multigpu.training import TrainConfig
from multigpu.training.loss import StepLoss
from multigpu.training.single import Single
from multigpu.training.tasks import TASKS

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = ("--max-steps", "3", "--no-progress")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("--data", "digits")``: the exit code, what was printed, and what was said."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(("train", *arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_the_help_says_what_stands_below_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("train", "--help"))
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, words in docs_of_fields(TrainConfig).items():
        assert f"--{name.replace('_', '-')}" in shown
        assert words[:20] in shown  # a longer word may be broken over two lines
    assert "flights: 512" in shown, "a task's own settings stand there, too"


def test_a_run_says_what_runs_each_epoch_and_what_is_kept(command: Command, tmp_path: Path) -> None:
    code, printed, _ = command(
        "--data", "digits", "--max-steps", "25", "--folder", str(tmp_path / "run"), "--mode",
        "single",
    )  # fmt: skip
    lines = printed.splitlines()
    assert code == 0
    assert lines[0] == f"digits: {TASKS['digits'].title}"
    assert lines[1].startswith("single on ")
    assert "batch 64" in lines[1]
    for line, numbers in zip(lines[2:4], (["1", "23", "25"], ["2", "25", "25"]), strict=True):
        assert re.findall(r"\b\d+\b", line)[:3] == numbers
        assert "  loss " in line
    assert " accuracy 0." in lines[3]
    assert lines[4].startswith("done: 25 steps")
    for line, name in zip(lines[5:], ("history.csv", "latest.pt"), strict=True):
        assert str(tmp_path / "run" / name) in line
        assert (tmp_path / "run" / name).is_file()


def test_a_parquet_file_of_flights_is_trained_on_row_group_by_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigpu.data import PartitionedFile
    from multigpu.data.flight_rows import TARGET, flight_columns

    pandas = pytest.importorskip("pandas")
    names = ["month", *flight_columns(), TARGET]
    rows = pandas.DataFrame([[1] * len(names)] * 8, columns=names)
    rows.to_parquet(tmp_path / "few.parquet", row_group_size=4)
    few = dataclasses.replace(TASKS["flights"], load=TASKS["digits"].load)
    monkeypatch.setattr(train, "TASKS", {"flights": few})
    task, found, _ = train.data_of(str(tmp_path / "few.parquet"))
    assert task == few
    assert isinstance(found, PartitionedFile)
    assert tuple(found.sizes) == (4, 4)


def test_dp_trains_on_virtual_gpus_and_with_the_exercises(command: Command) -> None:
    with virtual_gpus(2):
        for own in (), ("--with", "solutions"):
            code, printed, said = command(
                "--data", "digits", "--mode", "dp", "--gpus", "2", *own, *QUICK
            )
            assert code == 0, said
            assert re.search(r"^dp\b.*\b2 virtual GPUs", printed, re.M)
            assert ("solutions/" in printed) == bool(own)


def test_an_exercise_to_be_written_is_named(command: Command, tmp_path: Path) -> None:
    write(tmp_path, "def replicate(module, devices):\n    raise NotImplementedError")
    with virtual_gpus(2):
        code, _, said = command(
            "--data", "digits", "--mode", "dp", "--gpus", "2", "--with", str(tmp_path), *QUICK
        )
    assert code == 2
    assert "multigpu check data_parallel.replicate" in said
    assert said.count("\n") == 1


def test_an_error_in_the_learners_code_is_shown_with_its_line(
    command: Command, tmp_path: Path
) -> None:
    solved = (ROOT / "solutions" / "data_parallel.py").read_text(encoding="utf-8")
    write(tmp_path, solved + "\n\ndef gather(outputs, device):\n    return outputs.cat(device)\n")
    with virtual_gpus(2):
        code, _, said = command(
            "--data", "digits", "--mode", "dp", "--gpus", "2", "--with", str(tmp_path), *QUICK
        )
    assert code == 1
    line = len(solved.splitlines()) + 4
    assert f"data_parallel.py:{line}" in said
    assert "return outputs.cat(device)" in said
    assert "AttributeError" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "digitz"), "'digits'"),
        (("--data", "digits", "--mode", "dpp"), "--mode dpp: choose"),
        (
            ("--data", "digits", "--mode", "ddp", "--max-steps", "3"),
            "torchrun --nproc_per_node 2 -m multigpu train --data digits --mode ddp --max-steps 3",
        ),
        (("--data", "digits", "--batch-size", "0"), "--batch-size 0: give"),
        (("--data", "digits", "--mode", "single", "--with", "solutions"), "choose dp"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    command: Command, arguments: tuple[str, ...], words: str
) -> None:
    code, printed, said = command(*arguments)
    assert code == 2
    assert words in said
    assert said.startswith("multigpu train: ")
    assert said.count("\n") == 1
    assert not printed


def test_a_file_that_cannot_be_imported_is_named_with_its_line(
    command: Command, tmp_path: Path
) -> None:
    write(tmp_path, "def split(batch:\n    pass")
    code, _, said = command(
        "--data", "digits", "--mode", "dp", "--gpus", "2", "--with", str(tmp_path), *QUICK
    )
    assert code == 2
    assert said.startswith(f"multigpu train: {(tmp_path / 'data_parallel.py').resolve()}:1")
    assert "def split(batch:" in said, "the learner's own words"
    assert "SyntaxError: " in said
    assert "Traceback" not in said


def test_under_torchrun_no_other_rank_ends_before_the_first_has_said_why(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("multigpu.commands.train.time.sleep", waited.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for local_rank in "0", "1":
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        assert command("--data", "digitz")[0] == 2
    assert waited == [train.PATIENCE], "rank 1 alone"


def test_ctrl_c_ends_in_one_line_and_the_checkpoint_stays(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, done = Single.forward_backward, list[Any]()

    def interrupted(strategy: Single, *batch: Any) -> StepLoss:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(batch)
        return step(strategy, *batch)

    arguments = ("--data", "digits", "--folder", str(tmp_path), "--no-progress", "--mode", "single")
    monkeypatch.setattr(Single, "forward_backward", interrupted)
    code, printed, _ = command(*arguments, "--save-every", "2", "--max-steps", "8")
    assert code == 130
    last = printed.splitlines()[-1]
    assert "step 5" in last
    assert str(tmp_path / "latest.pt") in last
    monkeypatch.undo()
    code, printed, _ = command(*arguments, "--save-every", "2", "--max-steps", "8")
    assert code == 0
    assert "8 of 8" in printed


def torchrun(*arguments: str, gpus: bool = False) -> subprocess.CompletedProcess[str]:
    """Two processes of ``multigpu train``, on the CPU unless `gpus`."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         "-m", "multigpu", "train", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | ({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_two_ranks_of_torchrun_train_what_one_process_does(
    command: Command, tmp_path: Path
) -> None:
    """With BucketedDDP of the solutions: PyTorch's DDP runs so on two hosts, in test_two_hosts."""
    same = ("--data", "digits", "--max-steps", "30", "--optimizer", "sgd")
    done = torchrun(*same, "--mode", "ddp", "--with", "solutions", "--folder", f"{tmp_path}/ddp")
    assert done.returncode == 0, done.stderr
    assert re.search(r"ddp\b.*\b2 ranks\b.*gloo.*solutions/", done.stdout)
    assert done.stdout.count("epoch 1 ") == 1, "rank 0 alone prints"
    code, _, _ = command(*same, "--mode", "single", "--folder", f"{tmp_path}/one")
    assert code == 0
    two, one = (torch.load(tmp_path / run / "latest.pt")["model"] for run in ("ddp", "one"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-4)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("own", [(), ("--with", "solutions")])
def test_two_ranks_train_on_real_gpus_with_nccl(own: tuple[str, ...]) -> None:
    done = torchrun("--data", "digits", "--max-steps", "30", *own, gpus=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"ddp\b.*\b2 ranks\b.*nccl.*\b2 GPUs", done.stdout)


def write(folder: Path, source: str) -> None:
    (folder / "data_parallel.py").write_text(source, encoding="utf-8")


# --- a model and data of one's own ---------------------------------------------------------------

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def model():
    return nn.Linear(4, 3)

def data():
    rows = TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
    return rows, rows

def no_pair():
    return TensorDataset(torch.randn(12, 4))

def no_model():
    return "a model"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with own_doors.py, from which the command is started."""
    (tmp_path / "own_doors.py").write_text(OWN)
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_doors", "needs_more"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_model_and_data_of_ones_own_are_trained(command: Command, own: Path) -> None:
    code, printed, said = command(
        "--model", "own_doors:model", "--data", "own_doors:data", "--mode", "single",
        "--batch-size", "6", "--epochs", "2",
    )  # fmt: skip
    assert (code, said) == (0, "")
    assert printed.startswith("own_doors:data: train own_doors:model\nsingle on ")
    assert "15 parameters; 12 rows" in printed
    assert "epoch 2  step 4 of 4" in printed
    assert "accuracy" in printed


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        ("own_doors:model", "own_doors:dat", "own_doors has no function 'dat'"),
        ("own_door:model", "digits", "--model own_door:model: No module named 'own_door'"),
        ("needs_more:model", "digits", "No module named 'not_installed_anywhere'"),
        ("own_doors", "digits", "--model own_doors: give MODULE:FUNCTION, for example"),
        ("own_doors:no_model", "digits", "--model own_doors:no_model returned a str"),
        ("own_doors:model", "own_doors:no_pair", "--data own_doors:no_pair returned a Tensor"),
        (None, "own_doors:data", "--data own_doors:data needs a model, too: --model MODULE"),
    ],
)
def test_wrong_names_are_refused(
    command: Command, own: Path, model: str | None, data: str, said: str
) -> None:
    code, printed, told = command("--data", data, *(("--model", model) if model else ()))
    assert (code, printed) == (2, "")
    assert told.startswith("multigpu train: ")
    assert said in told
    assert len(told.splitlines()) == 1


def test_only_warnings_of_the_package_become_notes(capsys: pytest.CaptureFixture[str]) -> None:
    @train.notes()
    def warn() -> None:
        warnings.warn_explicit("ours", UserWarning, train.__file__, 1)
        warnings.warn_explicit("theirs", UserWarning, "/home/ada/multigpu/.venv/torch/nn.py", 1)

    with pytest.warns(UserWarning, match="theirs"):
        warn()
    assert capsys.readouterr().err == "note: ours\n"
