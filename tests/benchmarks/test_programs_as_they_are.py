"""What `multigpu run` and `multigpu trace` cost a program. Run with `make bench`.

One DDP training on two ranks, started in turn by torchrun (gloo on the CPU), by ``multigpu trace``
(the same, with a record of its calls) and by ``multigpu run`` (virtual GPUs). The program takes the
time of its own steps, so starting is not in it.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .interleaved import table

ROUNDS, RANKS = 5, 2
PROGRAM = """
    import os
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else "cpu"
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear({width}, {width}), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.rand({rows}, {width}, device=device)

    def step():
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range({steps}):
        step()
    dist.barrier()
    if dist.get_rank() == 0:
        print("seconds a step:", (time.perf_counter() - start) / {steps})
    dist.destroy_process_group()
"""
STARTS = {
    "torchrun, gloo on the CPU": ("torch.distributed.run", "--standalone", "--nproc_per_node"),
    "multigpu trace": ("multigpu", "trace", "--nproc"),
    "multigpu run, virtual GPUs": ("multigpu", "run", "--nproc"),
}


@pytest.mark.parametrize(
    ("width", "rows", "steps"), [(64, 64, 200), (512, 256, 20)], ids=["small", "large"]
)
def test_steps_of_a_program(tmp_path: Path, width: int, rows: int, steps: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(width=width, rows=rows, steps=steps))
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(ROUNDS):
        for name, start in STARTS.items():
            command = [sys.executable, "-m", *start, str(RANKS), str(program)]
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            )
            times[name].append(float(done.stdout.split("seconds a step:")[1].split()[0]))
    title = f"a DDP step on {RANKS} ranks, 4 layers of {width} × {width}, {rows} rows"
    print(table(title, times, against="torchrun, gloo on the CPU"))
