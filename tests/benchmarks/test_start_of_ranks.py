"""How long it takes until ranks have made their first all_reduce and are gone again.

Run with `make bench`. ``run_ranks`` against torchrun and ``mp.spawn``, one after the other in the
same run, each with the same few lines on 4 ranks. "first" is the very first call, which starts the
process server and imports torch; "warm" are the later ones.
"""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from statistics import median

from multigpu import run_ranks
from multigpu.ranks import server

RANKS, ROUNDS, WARM_RUNS = 4, 3, 10

TORCHRUN = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones.tolist() == [dist.get_world_size()] * 4
    dist.destroy_process_group()
"""

SPAWN = """
    import sys
    import tempfile
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank, world_size, file):
        store = dist.FileStore(file, world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        ones = torch.ones(4)
        dist.all_reduce(ones)
        assert ones.tolist() == [world_size] * 4
        dist.destroy_process_group()

    if __name__ == "__main__":
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, args=(int(sys.argv[1]), folder + "/store"), nprocs=int(sys.argv[1]))
"""


def add_up() -> list[float]:
    """What a rank of run_ranks does."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(4)
    dist.all_reduce(ones)
    return ones.tolist()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_starting_four_ranks(tmp_path):
    scripts = {"torchrun": TORCHRUN, "spawn": SPAWN}
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))

    def warm() -> None:
        assert run_ranks(add_up, RANKS, show=False) == [[RANKS] * 4] * RANKS

    def python(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path, capture_output=True)

    server.RANKS.close()
    first = seconds(warm)
    times: dict[str, list[float]] = {"run_ranks, warm": [], "torchrun": [], "mp.spawn": []}
    for _ in range(ROUNDS):
        times["run_ranks, warm"] += [seconds(warm) for _ in range(WARM_RUNS)]
        times["torchrun"].append(
            seconds(
                lambda: python(
                    *("-m", "torch.distributed.run", "--standalone"),
                    *("--nproc_per_node", str(RANKS), "torchrun.py"),
                )
            )
        )
        times["mp.spawn"].append(seconds(lambda: python("spawn.py", str(RANKS))))
    ours = median(times["run_ranks, warm"])
    print(f"\n{RANKS} ranks, from the call to the end, one all_reduce (median of runs)")
    print(f"{'run_ranks, first':20}{first:8.3f} s{first / ours:8.1f} ×")
    for name, taken in times.items():
        print(f"{name:20}{median(taken):8.3f} s{median(taken) / ours:8.1f} ×")
