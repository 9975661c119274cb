"""Record what "Many machines" shows of two hosts: a training log, and steps over several cables.

    python docs/measurements/two_hosts.py     writes docs/reference/two_hosts/

Needs Linux, iproute2, and root or namespaces for every user (scripts/two_hosts.sh says why). Takes
some minutes. The page shows what is stored, so that it can be built anywhere.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from writer import DOCS, write

from multigpu.scaling.comparison import Machine

TWO_HOSTS = [str(DOCS / "scripts" / "two_hosts.sh")]
MEET = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "host-a:29400"]
RATES = ("", "1gbit", "100mbit", "10mbit")  # "": as fast as the kernel copies
REPEATS = 3
STEP = """
import time
import torch
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from multigpu.training.models import NextDestination

dist.init_process_group("gloo")
model = DistributedDataParallel(NextDestination())
optimizer = torch.optim.AdamW(model.parameters())
rows, targets = torch.randint(0, 3, (256, 34)), torch.randint(0, 104, (256,))
for step in range(40):
    began = time.perf_counter()
    optimizer.zero_grad()
    F.cross_entropy(model(rows), targets).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print("seconds", time.perf_counter() - began, flush=True)
dist.destroy_process_group()
"""


def torchrun(
    *command: str, hosts: int, ranks: int, rate: str = ""
) -> subprocess.CompletedProcess[str]:
    """A program on one host or two, with so many ranks on each."""
    where = MEET if hosts == 2 else ["--standalone"]
    start = ["torchrun", *where, "--nproc_per_node", str(ranks)]
    return subprocess.run(
        [*(TWO_HOSTS if hosts == 2 else []), *start, *command],
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RATE": rate}
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )


def log() -> str:
    """The digits on two hosts with two ranks each, and on one host with four."""
    lines = [f"# {date.today()}, {Machine.here()}, gloo"]
    with tempfile.TemporaryDirectory() as folder:
        for hosts, ranks in ((2, 2), (1, 4)):
            lines.append(f"\n# {hosts} host{'s'[: hosts > 1]}, {ranks} ranks on each")
            done = torchrun(
                "-m", "multigpu", "train", "--data", "digits", "--mode", "ddp", "--epochs", "3",
                "--folder", f"{folder}/{hosts}", hosts=hosts, ranks=ranks,
            )  # fmt: skip
            for line in done.stdout.splitlines():
                if folder not in line and "done:" not in line:
                    lines += without_times(line)
    return "\n".join(lines) + "\n"


def without_times(line: str) -> list[str]:
    """A line of the log as the page can show it: its times say how busy the machine was."""
    host = re.match(r"(host-. \| )?", line)[0]
    line = re.sub(r"  [\d.]+ s  [\d,]+ rows/s$", "", line)
    return line.replace("; learning rate", f";\n{host}    learning rate").splitlines()


def steps(hosts: int, rate: str) -> list[float]:
    """Seconds of each step of the flights' model on two ranks, without the first ones."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(STEP)
        file.flush()
        done = torchrun(file.name, hosts=hosts, ranks=2 // hosts, rate=rate)
    words = [line.split() for line in done.stdout.splitlines()]
    return [float(line[-1]) for line in words if "seconds" in line][5:]


def cables() -> Iterator[dict[str, str]]:
    """One row for each cable. The runs are taken in turn, for the machine may be busy."""
    kinds = [(1, ""), *((2, rate) for rate in RATES)]
    runs = [[steps(*kind) for kind in kinds] for _ in range(REPEATS)]
    for (hosts, rate), *times in zip(kinds, *runs, strict=True):
        cable = rate or ("loopback" if hosts == 1 else "unlimited")
        yield {"hosts": str(hosts), "cable": cable, "seconds_per_step": f"{fast(times):.4f}"}


def fast(times: Sequence[list[float]]) -> float:
    """Of all steps a tenth is faster: what a step takes when nothing else is going on."""
    return statistics.quantiles([each for run in times for each in run], n=10)[0]


if __name__ == "__main__":
    write("two_hosts/cables.csv", f"gloo; fastest tenth of {REPEATS} runs", cables())
    (DOCS / "reference" / "two_hosts" / "log.txt").write_text(log(), encoding="utf-8")
