"""Kernels that begin with torch imported: forked from a process that has imported it once.

    with WarmKernels(execution.environment()) as kernels:
        execution.run(notebook, ..., manager=kernels.manager)

For tests that run one page after the other, where starting costs as much as most pages. A kernel
gets the modules of that process and nothing else: it has its own memory, environment and folder,
and so has the server of its ``run_ranks``, which is forked before the kernel has threads.
"""

import atexit
import math
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from jupyter_client.manager import AsyncKernelManager

# --- the caller's side ---------------------------------------------------------------------------


class WarmKernels:
    """The process that imports and forks; at the end of the block it ends, and its kernels too."""

    def __init__(self, environment):
        self.environment = environment | {"OMP_NUM_THREADS": "1"}

    def __enter__(self):
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=self.environment,
            )
        return self

    def __exit__(self, *_):
        self.connection.close()
        self.process.wait()

    @property
    def manager(self):
        """A class of kernel managers whose kernels are forked here."""
        connection = self.connection

        class ForkedKernelManager(AsyncKernelManager):
            async def _async_launch_kernel(self, kernel_cmd, **kw):  # Jupyter's place for this
                arguments = kernel_cmd[kernel_cmd.index("ipykernel_launcher") + 1 :]
                connection.send((arguments, kw["cwd"], kw["env"]))
                local = self.provisioner
                local.process = Forked(connection.recv())
                local.pid = local.pgid = local.process.pid

        return ForkedKernelManager


class Forked:
    """What Jupyter asks of a ``subprocess.Popen``, for a process that the forking one collects."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return 0

    def send_signal(self, number):
        os.kill(self.pid, number)


# --- the process that forks ----------------------------------------------------------------------


def main(descriptor):
    """Fork kernels until the caller is gone."""
    with warnings.catch_warnings(action="ignore"):
        import ipykernel.kernelapp  # noqa: F401 (kernels need it at once)

        from multigpu.ranks import rank, warming

        rank.warm_up()
        warming.import_costly(warming.COSTLY)  # without a thread: what forks may have none
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system collects kernels that have ended
    caller = Connection(descriptor)
    while True:
        try:
            arguments, folder, environment = caller.recv()
        except EOFError:
            return
        pid = os.fork()
        if not pid:
            caller.close()
            become_kernel(arguments, folder, environment)
        caller.send(pid)


def become_kernel(arguments, folder, environment):
    """Be as a new process, but for the modules, and run a kernel."""
    import numpy as np
    import torch
    from ipykernel.kernelapp import launch_new_instance

    from multigpu.ranks.server import RANKS, ServerProcess

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()
    np.random.seed()
    torch.seed()
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", os.cpu_count())))
    RANKS.processes.append(ServerProcess(RANKS.module, start=ForkedServer))
    # It ends with its parent; a new process would read from the environment who that is.
    launch_new_instance([*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])
    atexit._run_exitfuncs()
    os._exit(0)  # without taking torch apart


class ForkedServer:
    """What ``ServerProcess`` asks of a ``subprocess.Popen``."""

    status = None

    def __init__(self, command, *, stdin, stdout, stderr, env, **_):
        from multigpu.ranks import server

        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                os.environ.clear()
                os.environ.update(env)
                os.dup2(stdout.fileno(), 1)
                os.dup2(stderr.fileno(), 2)
                descriptor, module = int(command[-2]), command[-1]
                os.closerange(3, descriptor)  # the kernel's end of the connection among them
                os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
                server.main(descriptor, module)
            finally:
                os._exit(1)

    def poll(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self, timeout=None):
        until = time.monotonic() + (timeout or math.inf)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("server", timeout)
            time.sleep(0.01)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
