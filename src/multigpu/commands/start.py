"""``multigpu start``: build the site if it is stale, then open site and JupyterLab on one port."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from multigpu.checking.catalog import CourseNotFound, this_course
from multigpu.commands import site

USAGE = 2  # exit code: nothing is wrong with the course, something has to be changed first


def start_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``multigpu start``."""
    parser.add_argument("--port", type=int, default=8888, help="port on localhost (default 8888)")
    parser.add_argument("--no-browser", action="store_true", help="only print the addresses")


def run_start(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Returns 0 then, or 2 after one line that says what to change first."""
    try:
        root = this_course().root
        require_lab()
        require_port(args.port)
        with site.leaving_no_process():
            prepare_site(root)
            print("Starting JupyterLab", flush=True)
            open_course(root, port=args.port, open_browser=not args.no_browser)
    except (CannotStart, CourseNotFound, site.CannotBuild) as problem:
        print(problem, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:  # before the server took the signal over
        print("\nStopped.")
    return 0


class CannotStart(Exception):
    """Something has to be changed first; the message says what."""


def require_lab() -> None:
    """Raise :class:`CannotStart` when JupyterLab is not installed."""
    if find_spec("jupyterlab") is None:
        raise CannotStart(
            "JupyterLab is not installed: pip install -e '.[course]' -c constraints.txt"
        )


def require_port(port: int) -> None:
    """Raise :class:`CannotStart` when ``port`` is no port or another program listens on it."""
    from multigpu.commands.lab import port_is_free

    if not 1 <= port <= 65535:
        raise CannotStart(f"{port} is not a port: choose a number from 1024 to 65535.")
    if not port_is_free(port):
        raise CannotStart(
            f"Port {port} is taken (is the course already open in another terminal?). "
            f'Choose another: make start ARGS="--port {port + 1}" or '
            f"multigpu start --port {port + 1}"
        )


def prepare_site(root: Path) -> None:
    """Build the pages if they are stale; the lab opens even when they fail to build."""
    if not site.is_stale(root):
        return
    if site.failed_before(root):
        print("The site is not up to date: its last build failed. make site says why.")
        return
    print("Building the site from its records: less than a minute.")
    sys.stdout.flush()
    if not site.build(root):
        print("The site did not build cleanly (see above). The lab opens all the same.")


def open_course(root: Path, *, port: int, open_browser: bool) -> None:
    """Run the server in this process, with the course's command on the notebooks' PATH."""
    from multigpu.commands.lab import serve

    commands = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([commands, os.environ.get("PATH", os.defpath)])
    serve(root, port=port, open_browser=open_browser)
