"""Gloo's threads have let go of Python when a rank leaves."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Pairs of ranks that end as a script ends. The last message of each is done while the main thread
# has Python's lock, so gloo's thread still asks for it when the main thread comes to its end. Where
# nobody waits for that thread, half of these ranks abort. What backward sends is done when backward
# returns, since DDP and FSDP wait for it. So does each rank here, but without giving up the lock:
# it reads the sum, and memory that the two share, until both have it.
ENDING = """
import mmap, os, signal, sys, time
import torch
from torch import distributed as dist
from multigpu.training.distributed import join_group
from multigpu.training.distributed import Launch

def live(rank, store, summed):
    signal.alarm(200)  # nobody is left behind, whatever happens
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    join_group(Launch.here(), None)
    weight = torch.ones(3, requires_grad=True)
    weight.register_post_accumulate_grad_hook(send)
    sys.setswitchinterval(100)  # no other thread gets the lock unless this one sleeps
    weight.sum().backward()
    sums = weight.grad.numpy()
    while not (summed[0] and summed[1]):
        summed[rank] = int(sums[0] == 2)
    done = time.monotonic() + 0.2
    while time.monotonic() < done:
        pass

def send(weight):
    dist.all_reduce(weight.grad, async_op=True)

pids = []
for pair in range(3):
    summed = mmap.mmap(-1, 2)
    for rank in (0, 1):
        pids.append(os.fork())
        if not pids[-1]:
            live(rank, f"{sys.argv[1]}/{pair}", summed)
            sys.exit()
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_no_rank_aborts_whose_last_message_still_asks_for_pythons_lock(tmp_path):
    command = [sys.executable, "-c", ENDING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "terminate called" not in done.stderr
    assert done.stdout.strip() == str([0] * 6)
