"""Make ``.venv`` and install the course into it; do nothing where that is done already.

    sh tools/python.sh tools/install.py course          # to read, run and solve
    sh tools/python.sh tools/install.py course test     # to change the course as well

Uses the standard library alone, because nothing else is there yet. Exit code 2 and one line mean
that something has to be changed first.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path

import torch_build
import venv_state
from pip_progress import run_pip
from venv_state import Venv

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
GIGABYTES = {False: 4, True: 11}  # what .venv, pip's cache and a build take; without CUDA and with
ANSWER_WITHIN = 15  # seconds; an index that needs longer counts as out of reach


class Refused(Exception):
    """The machine is not ready; the message is one line that says what to do."""


def main(extras: Sequence[str]) -> int:
    """Bring ``.venv`` up to date."""
    try:
        venv = venv_state.look(ROOT)
        if venv is Venv.USABLE and venv_state.is_complete(ROOT, extras):
            return 0
        has_gpu = torch_build.has_nvidia_gpu()
        require_machine(
            system=platform.system(),
            machine=platform.machine(),
            free_bytes=shutil.disk_usage(ROOT).free,
            has_gpu=has_gpu,
        )
        if venv is not Venv.USABLE:
            make_venv(venv)
        install(extras, has_gpu=has_gpu)
    except Refused as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130
    venv_state.write_stamp(ROOT, extras)
    return 0


def require_machine(*, system: str, machine: str, free_bytes: int, has_gpu: bool) -> None:
    """Raise :class:`Refused` where the installation cannot end well."""
    if system == "Windows":
        raise Refused("The course runs on Linux and macOS. On Windows, run it inside WSL2.")
    if system == "Darwin" and machine == "x86_64":
        raise Refused("PyTorch is no longer made for Macs with an Intel processor; use Linux.")
    needed = GIGABYTES[has_gpu]
    if free_bytes < needed * 10**9:
        raise Refused(
            f"Only {free_bytes / 10**9:.1f} GB are free in {ROOT}, and the installation needs "
            f"about {needed} GB: make room and try again."
        )


def make_venv(now: Venv) -> None:
    """Make ``.venv`` with the Python that runs this program (or the one that this came from)."""
    version = platform.python_version()
    if now is Venv.FOREIGN:
        raise Refused(
            f"{VENV} is of another Python than {version} and not of this course: move it away, or "
            "use it (pip install -e '.[course]' -c constraints.txt, then multigpu start)."
        )
    if find_spec("ensurepip") is None:
        name = "python{}.{}-venv".format(*sys.version_info)
        raise Refused(f"Python {version} here cannot make environments: sudo apt install {name}")
    if VENV.is_symlink():  # Python would empty what it leads to, and then refuse to go on
        raise Refused(
            f"{VENV} is a link to {VENV.readlink()}, which does not serve this repository: remove "
            "the link (rm .venv) and try again."
        )
    base = getattr(sys, "_base_executable", sys.executable)
    print(f"Making .venv with Python {version}")
    emptied = ["--clear"] if now is Venv.WORN_OUT else []
    made = subprocess.run([base, "-m", "venv", *emptied, VENV], capture_output=True, text=True)
    if made.returncode != 0:
        words = (made.stdout + made.stderr).strip().splitlines() or ["no reason was given"]
        raise Refused(f"Python {version} at {base} could not make .venv: {words[-1]}")


def install(extras: Sequence[str], *, has_gpu: bool) -> None:
    """Install pip as pinned, PyTorch, and then everything else at the pinned versions."""
    log = VENV / "install.log"
    log.unlink(missing_ok=True)
    constraints = ["-c", str(ROOT / "constraints.txt"), "--no-compile"]
    if not is_installed("pip") and not run_pip(PYTHON, [*constraints, "-U", "pip"], log=log):
        raise failure(log)
    constraints += ["--progress-bar=raw"]  # numbers that pip_progress reads; the old pip had none
    install_torch(constraints, has_gpu=has_gpu, log=log)
    print(f"Compiling PyTorch, and installing the other packages ({', '.join(extras)})")
    course = f"{ROOT}[{','.join(extras)}]"
    with compiling_torch():
        installed = run_pip(PYTHON, [*constraints, "--editable", course], log=log)
    if not installed:
        raise failure(log)


def compiling_torch() -> AbstractContextManager[object]:
    """Compile PyTorch's modules on one core, beside something else; wait for the end of it.

    Other packages are compiled when they are imported first. Those of PyTorch are too many for
    that: a check writes no compiled files, so each would compile what its answer imports.
    """
    if sys.dont_write_bytecode:
        return nullcontext()
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([PYTHON, "-c", where], capture_output=True, text=True, check=True)
    packages = [Path(found.stdout.strip()) / name for name in ("torch", "sympy")]
    command = [str(PYTHON), "-m", "compileall", "-q", *map(str, packages)]
    # Not the exit code: some files are templates, which are not Python.
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def install_torch(constraints: Sequence[str], *, has_gpu: bool, log: Path) -> None:
    """Install PyTorch, from the first place that has a fitting build."""
    if is_installed("torch"):
        return
    said = ""
    for attempt in torch_build.attempts(
        venv_state.pinned(ROOT, "torch"),
        system=platform.system(),
        has_gpu=has_gpu,
        index=os.environ.get("TORCH_INDEX"),
    ):
        version = attempt.requirement.partition("==")[2]
        if attempt.index == torch_build.CPU_INDEX and not offers(attempt.index, version):
            continue
        if attempt.says != said:
            print(f"Installing {attempt.says}")
            said = attempt.says
        if run_pip(PYTHON, [*constraints, *attempt.options, attempt.requirement], log=log):
            return
    raise failure(log)


def is_installed(package: str) -> bool:
    """Whether the pinned version of ``package``, in any build, is in ``.venv``."""
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    found = subprocess.run([PYTHON, "-c", code, package], capture_output=True, text=True)
    return found.stdout.strip().partition("+")[0] == venv_state.pinned(ROOT, package)


def offers(index: str, version: str) -> bool:
    """Whether pip, with the reader's own settings, soon finds ``version`` in ``index``."""
    question = [str(PYTHON), "-m", "pip", "index", "versions", "torch", "--index-url", index]
    patience = ["--timeout", "5", "--retries", "0"]
    try:
        reply = subprocess.run(
            [*question, *patience], capture_output=True, text=True, timeout=ANSWER_WITHIN
        )
    except subprocess.TimeoutExpired:
        return False
    # Not the exit code: pip is content when another place of the reader's settings has any torch.
    return version in re.split(r"[\s,()]+", reply.stdout)


def failure(log: Path) -> Refused:
    """What to say when pip failed: the error of its last run, and where the rest is."""
    lines = re.split(r"^\$ .*\n", log.read_text(), flags=re.MULTILINE)[-1].splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing."]
    return Refused(f"The installation stopped. {errors[-1]} (everything pip said: {log})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
