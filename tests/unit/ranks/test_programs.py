"""Random programs: valid ones raise no alarm, and of a planted fault the right rank is named.

pytest tests/unit/ranks/test_programs.py                                 # a few of them
MULTIGPU_PROGRAMS=200 pytest tests/unit/ranks/test_programs.py -k on_ranks -s      # 200 + 200
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from interpreter import carry_out
from random_programs import FAULTS, faulty_program, valid_program
from simulated import Simulation

from multigpu.ranks import RankError, run_ranks

FEW = 6
AT_ONCE = 3
PROGRAMS = int(os.environ.get("MULTIGPU_PROGRAMS", "0"))
EXPECTED = {"exception": {"exception"}, "os_exit": {"exit"}, "sigkill": {"exit"}}


def finding_on_ranks(program):
    """What is found on real ranks; None if all is well."""
    try:
        done = run_ranks(carry_out, program["world"], program, show=False)
    except RankError as error:
        return error.finding
    assert done == [len(steps) for steps in program["ranks"]]
    return None


def findings_on_ranks(programs):
    """Some at a time: most of the time goes by waiting."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(finding_on_ranks, programs))


def check_fault(fault, guilty, found):
    assert found is not None, "nothing was found"
    assert found.kind in EXPECTED.get(fault, {"mismatch", "deadlock"}), found.text()
    assert guilty in found.ranks, f"rank {guilty} has the fault: {found.ranks} {found.text()}"


@pytest.mark.parametrize("part", range(4))
def test_valid_programs_that_are_only_played_raise_no_alarm(part):
    for seed in range(part * 100, part * 100 + 100):
        found = Simulation(valid_program(seed), seed).finding()
        assert found is None, f"seed {seed}: {found.text()}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_only_played_is_found_and_its_rank_named(fault):
    for seed in range(30):
        program, guilty = faulty_program(seed, fault)
        check_fault(fault, guilty, Simulation(program, seed).finding())


@pytest.mark.slow
def test_valid_programs_on_ranks_raise_no_alarm():
    programs = [valid_program(seed) for seed in range(PROGRAMS or FEW)]
    alarms = {}
    for seed, found in enumerate(findings_on_ranks(programs)):
        if found is not None:
            alarms[seed] = found.text()
    print(f"\n{len(programs)} valid programs on ranks, {len(alarms)} false alarms")
    assert not alarms


@pytest.mark.slow
def test_faults_on_ranks_are_found_and_the_right_rank_is_named():
    kinds = [FAULTS[number % len(FAULTS)] for number in range(PROGRAMS or len(FAULTS))]
    planted = [faulty_program(seed, fault) for seed, fault in enumerate(kinds)]
    missed = {}
    findings = findings_on_ranks([program for program, _ in planted])
    for seed, (fault, (_, guilty), found) in enumerate(zip(kinds, planted, findings, strict=True)):
        try:
            check_fault(fault, guilty, found)
        except AssertionError as error:
            missed[seed, fault] = str(error)
    print(f"\n{len(kinds)} programs with a planted fault, {len(missed)} missed or misjudged")
    assert not missed
