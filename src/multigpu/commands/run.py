"""``multigpu run`` and ``multigpu trace``: a program as it is.

``multigpu run --gpus 4 script.py`` runs it in one process that has four virtual GPUs, ``multigpu
run --nproc 4 train.py`` on four ranks as torchrun does, each with a virtual GPU, where "nccl" works
without NCCL.  ``multigpu trace --nproc 4 train.py`` leaves the GPUs as they are.  On ranks every
call of torch.distributed is recorded, so that a deadlock is proven with ranks and lines.
"""

import argparse
import html
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.devices.machine import VirtualMachine
    from multigpu.ranks.trace import Trace

TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# What os.environ and PyTorch say of a variable that only torchrun sets
OF_TORCHRUN = re.compile(
    r"(^'|environment variable )(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)('$| )"
)


def run_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu run``."""
    parser.usage = (
        "%(prog)s --gpus N [OPTIONS] PROGRAM [ARGUMENTS]\n"
        "       %(prog)s --nproc N [OPTIONS] PROGRAM [ARGUMENTS]"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpus", type=int, metavar="N", help="one process with N virtual GPUs")
    where.add_argument(
        "--nproc", type=int, metavar="N", help="N ranks, as torchrun starts them, each with its GPU"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", default="16 GiB", help="of each virtual GPU (%(default)s)"
    )
    common_options(parser)


def trace_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu trace``."""
    parser.usage = (
        "%(prog)s --nproc N [OPTIONS] PROGRAM [ARGUMENTS]\n"
        "       %(prog)s [OPTIONS] -- torchrun --nproc_per_node N PROGRAM [ARGUMENTS]"
    )
    parser.add_argument("--nproc", type=int, metavar="N", help="N ranks, as torchrun starts them")
    common_options(parser)


def common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=600.0,
        help="end ranks that make no call and print nothing for so long (%(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write what the ranks sent: a page (.html), or for Perfetto and Chrome (.json)",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a script, with its arguments after it")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments.required = False  # argparse would name it where only PROGRAM is missing


def run_run(options: argparse.Namespace) -> int:
    """Run the program.  Returns its exit code, 1 if it failed, 2 for wrong usage."""
    wrong = not_usable(options)
    if after_torchrun(options) is not None:
        wrong = "multigpu run takes the place of torchrun: multigpu run --nproc N PROGRAM"
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    if options.gpus is None:
        return on_ranks(options, virtual=True)
    return in_one_process(options)


def run_trace(options: argparse.Namespace) -> int:
    """Run the program on ranks and record what they send.  Returns the exit code."""
    arguments = after_torchrun(options)
    if arguments is not None:
        options = from_torchrun(options, arguments)
    wrong = not_usable(options)
    if not wrong and not options.nproc:
        wrong = "multigpu trace --nproc N PROGRAM, or multigpu trace -- torchrun … PROGRAM"
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    return on_ranks(options, virtual=False)


def not_usable(options: argparse.Namespace) -> str:
    """What is wrong with the options; empty if nothing is."""
    for name in ("gpus", "nproc"):
        count = getattr(options, name, None)
        if count is not None and count < 1:
            return f"--{name} {count}: give a whole number from 1."
    if options.out and getattr(options, "gpus", None):
        return "--out: only ranks have calls to write. Give --nproc instead of --gpus."
    if options.out and options.out.suffix not in (".html", ".json"):
        return f"--out {options.out}: a name that ends in .html or .json."
    if options.out and not options.out.parent.is_dir():  # the run would have been for nothing
        return f"--out {options.out}: there is no folder {options.out.parent}."
    if not options.timeout > 0:
        return f"--timeout {options.timeout:g}: give seconds, more than 0."
    if not options.is_module and not Path(options.program).is_file():
        return f"There is no file {options.program}."
    return ""


def after_torchrun(options: argparse.Namespace) -> list[str] | None:
    """The arguments of torchrun, if the program is torchrun itself."""
    command = [options.program, *options.arguments]
    if re.fullmatch(r"python[\d.]*", Path(command[0]).name) and command[1:2] == ["-m"]:
        command = command[2:]
    return command[1:] if command and Path(command[0]).name in TORCHRUN else None


def from_torchrun(options: argparse.Namespace, arguments: Sequence[str]) -> argparse.Namespace:
    """What torchrun's own command line says.  Raises SystemExit for more than one machine."""
    from torch.distributed.run import parse_args

    asked: Any = parse_args(arguments)  # type: ignore[no-untyped-call]
    if str(asked.nnodes) not in ("1", "1:1"):
        print(f"--nnodes {asked.nnodes}: multigpu trace works on one machine.", file=sys.stderr)
        raise SystemExit(2)
    if not str(asked.nproc_per_node).isdecimal():
        word = f"--nproc_per_node {asked.nproc_per_node}"
        print(f"{word}: multigpu trace needs the number of ranks.", file=sys.stderr)
        raise SystemExit(2)
    named = vars(options) | {
        "nproc": int(asked.nproc_per_node),
        "is_module": asked.module,
        "program": asked.training_script,
        "arguments": asked.training_script_args,
    }
    return argparse.Namespace(**named)


# --- one process ---------------------------------------------------------------------------------


def in_one_process(options: argparse.Namespace) -> int:
    """Run the program here, with virtual GPUs on before its first line."""
    from multigpu.devices.machine import virtual_gpus
    from multigpu.ranks.errors import traceback_text
    from multigpu.ranks.torchrun import run_program

    try:
        machine = virtual_gpus(options.gpus, memory=options.memory)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began, before = time.monotonic(), set(threading.enumerate())
    with machine:
        try:
            code = run_program(options.program, options.arguments, is_module=options.is_module)
        except Exception as error:
            print("\n".join(["", traceback_text(error)]), file=sys.stderr)
            if OF_TORCHRUN.search(str(error)):
                instead = f"--nproc {options.gpus} instead of --gpus {options.gpus}"
                print(f"\nThis program is for torchrun: give {instead}.", file=sys.stderr)
            code = 1
        for thread in set(threading.enumerate()) - before:  # as Python ends a program
            if not thread.daemon:
                thread.join()
        sys.stdout.flush()
        for line in summary(machine, time.monotonic() - began):
            print(line, file=sys.stderr)
    return code


def summary(machine: "VirtualMachine", seconds: float) -> Iterator[str]:
    """What the virtual GPUs held and what went between devices."""
    from multigpu.pictures.units import human_bytes, human_seconds

    yield f"\n{len(machine.gpus)} virtual GPUs, {human_seconds(seconds)}"
    for index in range(len(machine.gpus)):
        memory = machine.memory(index)
        yield (
            f"  cuda:{index}  held at most {human_bytes(memory.peak)} of "
            f"{human_bytes(memory.limit)}"
        )
    copies = Counter((copy.source, copy.target) for copy in machine.traffic)
    for (source, target), size in sorted(machine.traffic.by_link().items()):
        yield f"  {source} to {target}  {human_bytes(size)}, copies: {copies[source, target]}"


# --- ranks ---------------------------------------------------------------------------------------


def on_ranks(options: argparse.Namespace, *, virtual: bool) -> int:
    """Run the program on ranks."""
    from multigpu.devices.meters import parse_bytes
    from multigpu.ranks.errors import RankError
    from multigpu.ranks.nccl import differences
    from multigpu.ranks.run import Printer, make_job, pickled_call, run_job

    program = options.program
    try:
        job = make_job(
            pickled_call(on_a_rank, (program, tuple(options.arguments), options.is_module)),
            options.nproc,
            joins=False,
            timeout=options.timeout,
            backend=None,
            memory=parse_bytes(options.memory) if virtual else None,
            gpus="virtual" if virtual else None,
            threads=1,
            trace=True,
        )
        results = run_job(job, Printer(options.nproc, show=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except RankError as error:
        print(f"\n{error.kind}: {error}", file=sys.stderr)
        if options.out and error.trace is not None:
            write_trace(error.trace, options.out)
        return status_of(error)
    for line in told(results.trace, results.memory, results.seconds):
        print(line, file=sys.stderr)
    if "gloo" in results.backend or virtual:
        for sentence in differences(results.trace):
            print(f"on real GPUs: {sentence}", file=sys.stderr)
    if options.out:
        write_trace(results.trace, options.out)
    return 0


def on_a_rank(program: str, arguments: Sequence[str], is_module: bool) -> None:
    """Run the program in a rank; another exit code than 0 ends all ranks."""
    from multigpu.ranks.torchrun import run_program

    code = run_program(program, arguments, is_module=is_module)
    if code:
        raise SystemExit(code)


def status_of(error: Any) -> int:
    """The exit code of the rank to blame, where it left with one; else 1."""
    details = error.finding.details if error.finding else {}
    raised = details.get("raised", {}).get(str(error.ranks[0]), {})
    left = details.get("exit", {}).get("left") or {}  # through os._exit
    code = str(raised.get("status") or left.get("status", 1))
    # As the system shows it: -1 is 255; but a run that failed does not end with 0.
    return (int(code) if code.lstrip("-").isdigit() else 1) % 256 or 1


def told(trace: "Trace", memory: Sequence[int] | None, seconds: float) -> Iterator[str]:
    """What each rank held, and what all of them sent."""
    from multigpu.pictures.units import human_bytes, human_seconds
    from multigpu.ranks.errors import counted

    yield f"\n{counted(trace.world_size, 'rank')}, {human_seconds(seconds)}"
    for rank, peak in enumerate(memory or []):
        yield f"  rank {rank}  held at most {human_bytes(peak)}"
    kinds: Counter[str] = Counter(call.op for call in trace.of(0))
    for op, count in kinds.most_common():
        size = sum(call.bytes for call in trace.of(0) if call.op == op)
        yield f"  {op}  {human_bytes(size)}, calls of rank 0: {count}"


def write_trace(trace: "Trace", path: Path) -> None:
    """The timeline as a page, or all calls in Chrome's trace format."""
    if path.suffix == ".json":
        path.write_text(json.dumps({"traceEvents": list(events(trace))}), encoding="utf-8")
    else:
        pictures = (trace.timeline().svg(), trace.traffic().svg(), trace.table().html())
        title = html.escape(f"{trace.world_size} ranks")
        page = f'<!doctype html><meta charset="utf-8"><title>{title}</title>\n'
        path.write_text("\n".join([page, *pictures, ""]), encoding="utf-8")
    print(f"{path}: written", file=sys.stderr)


def events(trace: "Trace") -> Iterator[dict[str, Any]]:
    """Each call as one event: a process is a rank, times are in microseconds."""
    first = trace.calls[0].time if trace.calls else 0.0
    last = max((call.end or call.time for call in trace.calls), default=0.0)
    for call in trace.calls:
        yield {
            "name": call.op,
            "cat": call.group,
            "ph": "X",
            "pid": call.rank,
            "tid": call.thread,
            "ts": (call.time - first) * 1e6,
            "dur": ((call.end or last) - call.time) * 1e6,
            "args": {"bytes": call.bytes, "line": call.place, "ended": call.end is not None},
        }
