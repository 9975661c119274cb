"""Record what `multigpu run` and `multigpu trace` cost a program, against plain torchrun.

    python docs/measurements/own_program.py     writes docs/reference/own_program/overhead.csv

One DDP training on two ranks, in the manner of PyTorch's DDP tutorial (ddp-tutorial-series in
pytorch/examples). torchrun starts it with gloo on the CPU, ``multigpu trace`` starts the same with
a record of its calls, and ``multigpu run`` starts it on virtual GPUs. The three are run in turn,
round after round, so that a busy machine slows all alike. About four minutes of two free cores.

There is one line per thing that is timed and way to start it:

    measured          the command from start to end, a training step, or one collective
    started by        torchrun, multigpu trace or multigpu run
    ms                the median of the rounds
    against torchrun  the median of the rounds' ratios
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from writer import write

ROUNDS, RANKS = 7, 2
MODELS = {  # the layers, and how many rows a rank gets in a step
    "the tutorial's Linear(20, 1), 32 rows per rank": ("nn.Linear(20, 1)", 32),
    "4 layers of 512 × 512, 256 rows per rank": (
        "nn.Linear(20, 512), *[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)], "
        "nn.Linear(512, 1)",
        256,
    ),
}
STARTS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc_per_node"),
    "multigpu trace": ("multigpu", "trace", "--nproc"),
    "multigpu run": ("multigpu", "run", "--nproc"),
}
PROGRAM = """
    import json
    import os
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    EPOCHS, CALLS = 5, 200

    class Trainer:
        def __init__(self, model, train_data, optimizer, device):
            self.model, self.train_data = DistributedDataParallel(model.to(device)), train_data
            self.optimizer, self.device = optimizer, device

        def run_epoch(self, epoch):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                source, targets = source.to(self.device), targets.to(self.device)
                self.optimizer.zero_grad()
                functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()

    def seconds_each(calls, work):
        dist.barrier()
        start = time.perf_counter()
        work()
        dist.barrier()
        return (time.perf_counter() - start) / calls

    def main():
        has_gpu = torch.cuda.is_available()
        dist.init_process_group("nccl" if has_gpu else "gloo")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else "cpu"
        rows = TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
        data = DataLoader(rows, batch_size={rows}, sampler=DistributedSampler(rows))
        model = nn.Sequential({layers})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainer = Trainer(model, data, optimizer, device)
        trainer.run_epoch(0)  # warm-up

        def train():
            for epoch in range(1, EPOCHS + 1):
                trainer.run_epoch(epoch)

        def send(numbers):
            tensor = torch.ones(numbers, device=device)
            return lambda: [dist.all_reduce(tensor) for _ in range(CALLS)]

        times = {{
            "a training step": seconds_each(EPOCHS * len(data), train),
            "an all-reduce of 4 bytes": seconds_each(CALLS, send(1)),
            "an all-reduce of 1 MiB": seconds_each(CALLS, send(2**18)),
        }}
        if dist.get_rank() == 0:
            print("times:", json.dumps(times))
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


def measured(model: str, *, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """For each thing that is timed the seconds of each start, round by round."""
    layers, rows = MODELS[model]
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(textwrap.dedent(PROGRAM).format(layers=layers, rows=rows))
        for _ in range(rounds):
            for name, start in STARTS.items():
                for what, seconds in times_of([*start, str(RANKS), str(program)]):
                    times.setdefault(what, {}).setdefault(name, []).append(seconds)
    return times


def times_of(command: list[str]) -> Iterator[tuple[str, float]]:
    """What one start of the program took, and what the program says of its parts."""
    for _ in range(5):  # now and then a rank of torchrun aborts as Python ends: see training.rst
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
        if done.returncode == 0:
            break
    done.check_returncode()
    yield "the whole command", time.perf_counter() - began
    yield from json.loads(done.stdout.split("times:")[1].splitlines()[0]).items()


def ratio(taken: list[float], base: list[float]) -> float:
    """The median of the rounds' ratios: what disturbs a round disturbs both."""
    return statistics.median(mine / theirs for mine, theirs in zip(taken, base, strict=True))


def rows() -> Iterator[dict[str, str]]:
    """Measure one model after the other."""
    for model in MODELS:
        for what, times in measured(model).items():
            for name, taken in times.items():
                ms = 1e3 * statistics.median(taken)
                yield {
                    "model": model,
                    "measured": what,
                    "started by": name,
                    "ms": f"{ms:.0f}" if ms > 100 else f"{ms:.3g}",
                    "against torchrun": f"{ratio(taken, times['torchrun']):.2f}",
                }


if __name__ == "__main__":
    about = f"{RANKS} ranks, gloo on the CPU, {ROUNDS} rounds"
    write("own_program/overhead.csv", about, rows())
