"""Random programs: valid ones raise no alarm, and of a planted fault the right rank is named.

pytest tests/unit/ranks/test_programs.py                    # a few
MULTIGPU_PROGRAMS=200 pytest tests/unit/ranks/test_programs.py -s   # 200 + 200, and the figures
"""

import pytest
from random_programs import FAULTS, faulty_program, valid_program
from simulated import Simulation

EXPECTED = {"exception": {"exception"}, "os_exit": {"exit"}, "sigkill": {"exit"}}


@pytest.mark.parametrize("part", range(4))
def test_valid_programs_that_are_only_played_raise_no_alarm(part):
    for seed in range(part * 100, part * 100 + 100):
        program = valid_program(seed)
        found = Simulation(program, seed).finding()
        assert found is None, f"seed {seed}: {found.text()}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_only_played_is_found_and_its_rank_named(fault):
    for seed in range(30):
        program, guilty = faulty_program(seed, fault)
        found = Simulation(program, seed).finding()
        assert found is not None, f"seed {seed}: nothing found"
        assert found.kind in EXPECTED.get(fault, {"mismatch", "deadlock"}), found.text()
        assert guilty in found.ranks, f"seed {seed}, rank {guilty}: {found.ranks} {found.text()}"
