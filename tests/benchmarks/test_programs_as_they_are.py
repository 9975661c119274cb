"""What `multigpu run` and `multigpu trace` cost a program. Run with `make bench`.

The whole command, a training step and one collective, against plain torchrun, side by side. The aim
is 1.3 × for `multigpu run` and 1.05 × for `multigpu trace`. docs/measurements/own_program.py, which
has the program, writes the same down for docs/own_program.rst.
"""

from pathlib import Path

import pytest

from .interleaved import table

MEASUREMENTS = str(Path(__file__).resolve().parents[2] / "docs" / "measurements")


@pytest.mark.parametrize("number", [0, 1], ids=["small", "large"])
def test_programs_as_they_are(number, monkeypatch):
    monkeypatch.syspath_prepend(MEASUREMENTS)
    import own_program  # type: ignore[import-not-found]

    model = list(own_program.MODELS)[number]
    for what, times in own_program.measured(model).items():
        print(table(f"{model}: {what}", times, against="torchrun"))
