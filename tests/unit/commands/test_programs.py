"""``multigpu run`` with programs as people write them for torchrun and real GPUs.

Each ends with an assertion about its own result, so a wrong one fails.
"""

from pathlib import Path

import pytest
import torch

from multigpu.cli import main

PROGRAMS = Path(__file__).parents[2] / "programs"
RANKS = {"collectives": 4, "fsdp_tp_mesh": 4}  # else 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_program_runs_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "collectives" and torch.__version__.startswith("2.11."):
        pytest.skip("gloo has no all_to_all of lists in PyTorch 2.11")
    code = main(["run", "--nproc", str(RANKS.get(name, 2)), str(PROGRAMS / f"{name}.py")])
    out, told = capsys.readouterr()
    assert code == 0, told
    assert "rank 0 | " in out
    assert "on real GPUs:" not in told


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["amp_imagenet", "ddp_checkpoint", "dcp", "fsdp2", "nanogpt_ddp", "collectives"]
)
def test_a_program_runs_on_real_gpus_with_its_calls_recorded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = str(torch.cuda.device_count())
    code = main(["trace", "--nproc", ranks, str(PROGRAMS / f"{name}.py")])
    out, told = capsys.readouterr()
    assert code == 0, told
    assert "nccl" in out
