"""``run_ranks``: N processes that work together, from one call.

    def hello():
        return dist.get_rank() * 10

    run_ranks(hello, 4)     # [0, 10, 20, 30]

Next: forkserver.py (where the processes come from), leader.py (who watches them), rank.py (what
each of them does), watch.py (what can go wrong with them).
"""

import pickle
import socket
from collections.abc import Callable
from typing import Any

from multigpu.ranks.asking import checked_job, pack
from multigpu.ranks.errors import RankError, stack_text
from multigpu.ranks.findings import Finding
from multigpu.ranks.frames import Closed, from_a_handler, receive, send
from multigpu.ranks.printing import Printer
from multigpu.ranks.rank import Job
from multigpu.ranks.results import Results
from multigpu.ranks.starting import ForkServer, Server
from multigpu.ranks.trace import Trace

GOODBYE = 10.0  # seconds for a leader to end its ranks


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float | None = 60.0,
    backend: str | None = None,
    memory: int | str | None = None,
    threads: int = 1,
    trace: bool = True,
    show: bool = True,
) -> Results:
    """Run ``fn(*args)`` on ``world_size`` ranks, with torch.distributed ready in each of them.

    A rank is a process of its own.  ``fn`` may be defined in a notebook cell; it and ``args`` are
    copied to every rank.  What it returns comes back in rank order, tensors on the CPU.

    * ``timeout``: seconds without progress (no call of torch.distributed begins or ends, and
      nothing is printed) after which the run is given up; None: never.  A deadlock is found much
      earlier.
    * ``backend``: "gloo" or "nccl"; NCCL is chosen where every rank has a GPU of its own.
    * ``memory``: a limit for each rank's tensors, "1 GiB" for example.
    * ``threads``: how many threads an operator may use in each rank.
    * ``trace=False``: PyTorch's own process group without a record of its calls, for
      measurements; deadlocks then count as no progress.
    * ``show``: print each rank's output as it comes, and a line that names the backend.

    Raises RankError when a rank fails or all are stuck, and ValueError for wrong arguments.
    """
    job = checked_job(
        fn,
        world_size,
        timeout=timeout,
        backend=backend,
        memory=memory,
        threads=threads,
        trace=trace,
    )
    payload = pack(fn, args)
    server, connection = ForkServer.connect()
    try:
        return converse(connection, job, payload, Printer(world_size, show=show), server=server)
    finally:
        try:
            say_goodbye(connection)
        finally:
            ForkServer.leave(server)


def converse(
    connection: socket.socket, job: Job, payload: bytes, printer: Printer, *, server: Server
) -> Results:
    """Hand over the job, print what the ranks print, and return what they return."""
    backend, folder = "", ""
    try:
        send(connection, job.header(), payload)
        while True:
            header, blob = receive(connection)
            if header["phase"] == "refused":
                raise ValueError(header["text"])
            if header["phase"] == "begins":
                backend, folder = header["backend"], header["folder"]
                printer.begin(backend)
            if header["phase"] == "output":
                printer.add(header["rank"], blob)
            if header["phase"] == "report":
                printer.end()
                return read_report(header, blob, job, backend)
    except Closed:
        printer.end()
        server.clear_up(folder)
        text = (GONE + server.last_words()).strip()
        raise RankError("exit", range(job.world_size), text) from None


GONE = "the process that watches over the ranks was killed, and the ranks with it. "


def read_report(report: dict[str, Any], blob: bytes, job: Job, backend: str) -> Results:
    """The results of a run that went well.  Raises RankError."""
    members = report["members"]
    frames = [member["said"] for member in members]
    outputs = [member["output"] for member in members]
    if report["finding"]:
        finding = Finding.of(report["finding"])
        if finding.kind == "no_progress":
            stacks = {rank: stack_text(members[rank]["stack"]) for rank in finding.ranks}
            finding = finding.with_stacks(stacks)
        trace = Trace.from_frames(frames)
        raise RankError(
            finding.kind,
            finding.ranks,
            finding.text(),
            trace=trace,
            outputs=outputs,
            finding=finding,
        )
    for rank, said in enumerate(frames):
        for header in said:
            if header["phase"] == "fault":
                raise RuntimeError(f"rank {rank} broke down: {header['traceback']}")
            if header["phase"] == "returned":
                ForkServer.learn(header["costly"])
    values, start = [], 0
    for member in members:
        values.append(pickle.loads(blob[start : start + member["answer"]]))
        start += member["answer"]
    peaks = [header["peak"] for said in frames for header in said if header["phase"] == "memory"]
    return Results(
        values,
        frames=frames,
        outputs=outputs,
        backend=backend,
        memory=peaks if job.memory is not None else None,
        seconds=report["seconds"],
    )


def say_goodbye(connection: socket.socket) -> None:
    """Let the leader end what still runs, and wait until it has."""
    with connection:
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(GOODBYE)
            while connection.recv(1 << 20):
                pass
        except OSError as error:
            if from_a_handler(error):
                raise
