"""``multigpu start``: build the site if it is stale, then open site and JupyterLab on one port.

The site is open to every program of this machine, because it only shows what the repository
contains; the lab asks for a token. Anyone who reaches the lab can run commands as you, and on a
shared GPU machine everyone who is logged in can reach "localhost", so a server without a token is
not a safe default. To keep the token out of your way it is part of both printed addresses: opening
either one leaves a cookie, and from then on the "open the notebook" buttons need no token.
"""

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

# jsonschema would build a grammar of international addresses from it, which takes two seconds on a
# slow machine and which no schema of Jupyter's needs. Where it is not installed, it does without.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

import zmq  # noqa: E402 (after the line above, as all below)
from jupyter_server.auth.decorator import allow_unauthenticated  # noqa: E402
from jupyter_server.base.handlers import JupyterHandler  # noqa: E402
from jupyter_server.serverapp import ServerApp  # noqa: E402
from tornado.web import RedirectHandler, StaticFileHandler  # noqa: E402
from traitlets.config import Config  # noqa: E402

from multigpu.checking.catalog import Course, this_course  # noqa: E402
from multigpu.commands import site  # noqa: E402
from multigpu.commands.doctor import port_is_free  # noqa: E402
from multigpu.ranks.process_tree import ENDING_SIGNALS, leaving_no_process  # noqa: E402

ANNOUNCEMENTS = "@jupyterlab/apputils-extension:announcements"
NOTEBOOK = "notebooks/multi_GPU.ipynb"


def start_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu start``."""
    parser.add_argument("--port", type=int, default=8888, help="port on localhost (default 8888)")
    parser.add_argument("--no-browser", action="store_true", help="only print the addresses")


def run_start(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Returns 0 then, or 2 after one line that says what to change first."""
    root = this_course().root
    if not port_is_free(args.port):
        print(
            f"Port {args.port} is in use (is the course already open in another terminal?). "
            f'Choose another: make start ARGS="--port {args.port + 1}" or '
            f"multigpu start --port {args.port + 1}",
            file=sys.stderr,
        )
        return 2
    try:
        with leaving_no_process():
            prepare_site(root)
            print("Starting JupyterLab", flush=True)
            # The course's command is on the notebooks' PATH.
            commands = str(Path(sys.executable).parent)
            os.environ["PATH"] = os.pathsep.join([commands, os.environ.get("PATH", os.defpath)])
            serve(root, port=args.port, open_browser=not args.no_browser)
    except site.CannotBuild as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the server took the signal over
        print("\nStopped.")
    return 0


def prepare_site(root: Path) -> None:
    """Build the pages if they are stale; the lab opens even when they fail to build."""
    if not site.is_stale(root):
        return
    if site.failed_before(root):
        print("The site is not up to date: its last build failed. make site says why.")
        return
    print("Building the site from its records: less than a minute.", flush=True)
    if not site.build(root):
        print("The site did not build cleanly (see above). The lab opens anyway.")


def serve(root: Path, *, port: int, open_browser: bool) -> None:
    """Serve site and lab of the repository ``root`` until Ctrl-C; kernels end with the server."""
    token = secrets.token_hex(16)
    config = Config()  # it goes before what a user's own Jupyter files say
    config.ServerApp.jpserver_extensions = {"jupyterlab": True}
    config.ServerApp.root_dir = str(root)
    config.ServerApp.default_url = f"/lab/tree/{NOTEBOOK}"
    config.ServerApp.ip = "localhost"
    config.ServerApp.port = port
    config.ServerApp.port_retries = 0
    config.ServerApp.open_browser = open_browser
    config.ServerApp.allow_root = os.geteuid() == 0  # in a container one often is
    config.Application.log_level = "ERROR"
    # Which notebooks were open is kept in this copy of the course, not in the home folder for all.
    config.LabApp.workspaces_dir = str(root / "docs" / "_build" / "lab")
    config.IdentityProvider.token = token
    config.ServerApp.tornado_settings = {"page_config_hook": without_announcements}
    # Kernels talk to the server through ports that every user of this machine can reach.
    config.KernelManager.transport_encryption = "auto" if zmq.has("curve") else "disabled"
    server = ServerApp(config=config)
    server.initialize(argv=[], find_extensions=True)
    base, files = f"{server.base_url}site", {"path": str(Course(root).pages)}
    rules = [
        (base, RedirectHandler, {"url": f"{base}/"}),
        (f"{base}/(.*)", SitePages, files | {"default_filename": "index.html"}),
    ]
    server.web_app.add_handlers(".*$", rules)  # type: ignore[no-untyped-call]
    home, login = f"http://localhost:{port}", urlencode({"token": token})
    opened = f"  Site  {home}/site/?{login}\n  Lab   {home}/lab/tree/{NOTEBOOK}?{login}"
    words = f"\n  The course is open.  Ctrl-C here ends it.\n\n{opened}\n"
    server.io_loop.add_callback(print, words)  # once the server answers
    for ending in ENDING_SIGNALS:
        signal.signal(ending, lambda *_: server.stop(from_signal=True))
    server.start()


def without_announcements(_: JupyterHandler, page: dict[str, Any]) -> dict[str, Any]:
    """Switch off the lab's news and updates: no question to a learner, no request to outside."""
    page.setdefault("disabledExtensions", []).append(ANNOUNCEMENTS)
    return page


class SitePages(JupyterHandler, StaticFileHandler):
    """The files of the built site, for everyone; a token in the address also logs in to the lab."""

    @allow_unauthenticated
    def get(self, path: str, include_body: bool = True) -> Coroutine[Any, Any, None]:
        """Send one file; JupyterHandler has turned a token into a cookie by now."""
        return StaticFileHandler.get(self, path, include_body)

    @allow_unauthenticated
    def head(self, path: str) -> Awaitable[None]:
        """Send one file's headers."""
        return StaticFileHandler.head(self, path)

    def write_error(self, status_code: int, **details: Any) -> None:
        """Send the site's own page for an address that does not exist; its links start here."""
        lost = Path(self.root) / "404.html"
        if status_code != 404 or not lost.is_file():
            return super().write_error(status_code, **details)
        page = lost.read_text(encoding="utf-8")
        self.finish(page.replace("<head>", f'<head><base href="{self.base_url}site/">', 1))

    def set_extra_headers(self, path: str) -> None:
        """Let the browser ask each time: the next build may have changed the page."""
        self.set_header("Cache-Control", "no-cache")
