"""``multigpu run`` with programs as people write them for torchrun and real GPUs.

Each ends with an assertion about its own result, so a wrong one fails.
"""

from pathlib import Path

import pytest

from multigpu.cli import main

PROGRAMS = Path(__file__).parents[2] / "programs"
RANKS = {"collectives": 4, "fsdp_tp_mesh": 4}  # else 2
FAST = ("collectives", "point_to_point")  # less than 3 s


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[] if path.stem in FAST else [pytest.mark.slow])
        for path in sorted(PROGRAMS.glob("*.py"))
    ],
)
def test_a_program_runs_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "--nproc", str(RANKS.get(name, 2)), str(PROGRAMS / f"{name}.py")])
    out, told = capsys.readouterr()
    assert code == 0, told
    assert "rank 0 | " in out
    assert "on real GPUs:" not in told
