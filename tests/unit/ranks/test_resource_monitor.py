"""Hanging, slow and starved workers are told apart by what they do, not by the clock."""

import pytest

from multigpu.ranks.resource_monitor import Limits, ResourceMonitor, ResourceUse

LIMITS = Limits(cpu=6, idle=3, wall=60, host_memory=1000, processes=4)


def life(seconds, *, cpu_per_second=0.0, runnable=False, memory=0, members=1, talks=False):
    """The first limit that a worker of this kind passes, and when."""
    monitor = ResourceMonitor(LIMITS, 0.0, own_memory=500)
    for tick in range(int(seconds / 0.05)):
        now = tick * 0.05
        signs = ResourceUse(cpu_per_second * now, memory, runnable, members)
        if excess := monitor.judge(now, signs, heard=tick // 20 if talks else 0):
            return excess, now
    return None


@pytest.mark.parametrize(
    ("worker", "excess"),
    [
        ({"cpu_per_second": 1.0, "runnable": True}, "busy"),
        ({"cpu_per_second": 4.0, "runnable": True}, "busy"),
        ({}, "blocked"),
        ({"cpu_per_second": 0.01}, "blocked"),
        ({"cpu_per_second": 0.09}, "slow"),  # it does something, but too little
        ({"memory": 1600}, "memory"),
        ({"memory": 5 * 450, "members": 5}, "processes"),
    ],
)
def test_each_kind_of_excess(worker, excess):
    assert life(100, **worker)[0] == excess


def test_who_fills_its_memory_slowly_is_told_that_and_not_of_processor_time():
    """On a busy machine each page may cost a multiple of the time; here the limit of that is 6."""
    monitor = ResourceMonitor(LIMITS, 0.0, own_memory=0)
    signs = [ResourceUse(float(second), 50 * second, True, 1) for second in range(60)]
    excess = [monitor.judge(float(second), use, 0) for second, use in enumerate(signs)]
    assert next(filter(None, excess)) == "memory"


def test_a_starved_worker_is_not_blocked():
    assert life(50, cpu_per_second=0.0, runnable=True) is None


def test_a_worker_that_waits_for_its_output_to_be_read_is_not_blocked():
    assert life(50, talks=True) is None


def test_a_blocked_worker_is_found_after_the_idle_time():
    assert life(100)[1] == pytest.approx(LIMITS.idle, abs=0.1)


def test_a_pause_is_no_block():
    monitor = ResourceMonitor(LIMITS, 0.0, own_memory=0)
    cpu = 0.0
    for tick in range(200):
        working = tick % 50 < 10  # half a second of work, two seconds of rest
        cpu += 0.05 * working
        assert monitor.judge(tick * 0.05, ResourceUse(cpu, 0, working, 1), 0) is None
