"""Training runs that are killed at random moments, started again until they are done, and compared.

    python tests/unit/training/killing.py --case single ddp --kills 60

starts a training run, kills it with SIGKILL (one rank of it, or all), starts it again, and so on;
then it compares the last checkpoint, the best one and the history with those of the same run left
alone, bit for bit, and prints a JSON summary. test_resume.py does the same with few kills.

Each start is a fork of this process, which has imported everything and computed nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from runs_to_kill import BATCH, CASES, Case, train, write_parquet
from torch import distributed as dist

from multigpu import virtual_gpus

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk's fsync would take longer,
FSYNC = 0.003  # and here takes as many seconds, so that kills strike within it, too
# What a run that was killed may have otherwise than one left alone.
OTHERWISE = ("seconds", "rows_per_second", "gpu0_gib", "gpu1_gib", "saved", "config", "digests")


def in_a_fork(work: Any, *args: Any, said: Path) -> int:
    """The process id of a fork that does `work` and writes what it prints to `said`."""
    if child := os.fork():
        return child
    code = 1
    try:
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        work(*args)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def one_rank(case: Case, folder: Path, rank: int, meeting: str, ready: int) -> None:
    """What each forked process does: join the others, say that it is ready, train."""
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: time.sleep(FSYNC)
    if case.ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=case.ranks,
            timeout=timedelta(seconds=60),
        )
    os.write(ready, b"r")
    if case.mode == "dp":
        with virtual_gpus(2):
            train(case, folder)
    else:
        train(case, folder)


def start(case: Case, folder: Path) -> list[int]:
    """Start every rank, and return their process ids when all of them begin to train."""
    said = folder.parent / f"{folder.name}.log"
    said.unlink(missing_ok=True)
    meeting = tempfile.mktemp(dir=folder.parent, prefix="meeting-")
    reading, writing = os.pipe()
    ranks = [
        in_a_fork(one_rank, case, folder, rank, meeting, writing, said=said)
        for rank in range(case.ranks)
    ]
    os.close(writing)
    for _ in ranks:
        if not os.read(reading, 1):
            raise RuntimeError(said.read_text())
    os.close(reading)
    return ranks


def ended(ranks: list[int]) -> bool:
    """Wait for all ranks; True when each of them came to its end."""
    codes = [os.waitpid(rank, 0)[1] for rank in ranks]
    return not any(codes)


def left_alone(case: Case, folder: Path) -> float:
    """Train without a disturbance; the seconds that it took."""
    ranks = start(case, folder)
    began = time.monotonic()
    if not ended(ranks):
        raise RuntimeError((folder.parent / f"{folder.name}.log").read_text())
    return time.monotonic() - began


def killed_until_done(
    case: Case, folder: Path, *, kills: int, seconds: float, chance: random.Random
) -> list[dict[str, Any]]:
    """Train with up to `kills` kills at random moments; where each of them struck.

    One in four strikes while the ranks begin; before the others a few checkpoints are written.
    """
    struck: list[dict[str, Any]] = []
    saves = case.rows // BATCH * case.epochs
    while len(struck) < kills:
        ranks = start(case, folder)
        wanted = chance.randint(1, 1 + 2 * saves // kills) if chance.random() < 0.75 else 0
        wait_for_saves(folder, wanted, watched=ranks[0])
        time.sleep(chance.uniform(0, 2 * seconds / saves))
        victims = chance.choice([[rank] for rank in ranks] + [ranks])
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        time.sleep(0.02)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)  # those that lost a neighbor; a second one is harmless
        if ended(ranks):
            return struck
        struck.append(where(folder))
    if not ended(start(case, folder)):
        raise RuntimeError((folder.parent / f"{folder.name}.log").read_text())
    return struck


def wait_for_saves(folder: Path, wanted: int, *, watched: int) -> None:
    """Wait until `latest.pt` was replaced so often, or the process `watched` has ended."""
    seen = written(folder)
    over = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while wanted and os.waitid(os.P_PID, watched, over) is None:
        time.sleep(0.001)
        if written(folder) != seen:
            seen, wanted = written(folder), wanted - 1


def written(folder: Path) -> int:
    """When `latest.pt` was written."""
    try:
        return latest(folder).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def latest(folder: Path) -> Path:
    """What is replaced by every save: a file, or the file without tensors of a folder of shares."""
    shares = folder / "latest" / "run.pt"
    return shares if shares.exists() else folder / "latest.pt"


def where(folder: Path) -> dict[str, Any]:
    """Where a run was killed, from what it has left."""
    writing = leftovers(folder)
    found = latest(folder)
    return {"writing": writing, "step": load(found)["step"] if found.exists() else 0}


def leftovers(folder: Path) -> list[str]:
    """What a killed writer has left: half a file, or shares that no link leads to."""
    used = {(folder / name).resolve() for name in ("latest", "best")}
    shares = [path for path in folder.glob(".shares-*") if path.resolve() not in used]
    return [path.name for path in [*folder.glob(".*.partial"), *shares]]


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """The places where two checkpoints differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            if key not in OTHERWISE:
                yield from differences(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}[{i}]")
    elif isinstance(one, torch.Tensor):
        if not torch.equal(one, other):
            yield place
    elif one != other:
        yield f"{place}: {one!r} and {other!r}"


def compare(case: Case, *, kills: int, seed: int) -> dict[str, Any]:
    """The same run left alone and killed again and again: what was done, and what differs."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        alone, killed = Path(place) / "alone", Path(place) / "killed"
        if case.partitions:
            made = in_a_fork(
                write_parquet, Path(place) / "rows.parquet", case.rows, said=Path(place) / "log"
            )
            os.waitpid(made, 0)
        seconds = left_alone(case, alone)
        struck = killed_until_done(
            case, killed, kills=kills, seconds=seconds, chance=random.Random(seed)
        )
        found = [
            f"{name}{difference}"
            for name in ("latest", "best")
            for difference in differences(state(alone, name), state(killed, name))
        ]
        steps = load(latest(killed))["step"]
        left = leftovers(killed)
    return {
        "seed": seed,
        "kills": len(struck),
        "while_writing": sum(bool(point["writing"]) for point in struck),
        "at_steps": [point["step"] for point in struck],
        "steps": steps,
        "seconds_alone": round(seconds, 1),
        "leftovers": left,
        "differences": found,
    }


def state(folder: Path, name: str) -> dict[str, Any]:
    """All of a checkpoint; of shares, the whole tensors."""
    if (folder / f"{name}.pt").exists():
        return load(folder / f"{name}.pt")
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(folder / name, folder / "whole.pt")
    return {**load(folder / name / "run.pt"), "tensors": load(folder / "whole.pt")}


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    for name in options.case:
        began = time.monotonic()
        case = dataclasses.replace(CASES[name], epochs=options.epochs, rows=options.rows)
        summary = compare(case, kills=options.kills, seed=options.seed)
        took = round(time.monotonic() - began, 1)
        print(json.dumps({"case": name, **summary, "took": took}), flush=True)


if __name__ == "__main__":
    main()
