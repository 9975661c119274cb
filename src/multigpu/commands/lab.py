"""One JupyterLab server that also serves the built site, at ``/site/`` on the same port.

Who may do what: the site is open to every program of this machine (it is what the repository
contains anyway), the lab asks for a token. Whoever reaches the lab can run commands as you, and on
a shared GPU machine "localhost" is everybody who is logged in there, so a server without a token
is no safe default. To keep the token out of your way it is part of both printed addresses: opening
either one leaves a cookie, and from then on the "open the notebook" buttons need no token.
"""

import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import zmq
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.serverapp import ServerApp
from tornado.web import RedirectHandler, StaticFileHandler
from traitlets.config import Config

from multigpu.commands.site import pages

ANNOUNCEMENTS = "@jupyterlab/apputils-extension:announcements"
NOTEBOOK = "notebooks/multi_GPU.ipynb"


def port_is_free(port: int) -> bool:
    """Whether a server may listen on ``port`` of this machine's own interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def addresses(port: int, token: str) -> tuple[str, str]:
    """What to open for the site and for the notebook in the lab."""
    home, login = f"http://localhost:{port}", urlencode({"token": token})
    return f"{home}/site/?{login}", f"{home}/lab/tree/{NOTEBOOK}?{login}"


def serve(root: Path, *, port: int, open_browser: bool) -> None:
    """Serve site and lab of the repository ``root`` until Ctrl-C; kernels end with the server."""
    token = secrets.token_hex(16)
    server = ServerApp(config=settings(root, port=port, open_browser=open_browser, token=token))
    server.initialize(argv=[], find_extensions=True)
    serve_pages(server, pages(root))
    server.io_loop.add_callback(announce, *addresses(port, token))
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: server.stop(from_signal=True))
    server.start()


def settings(root: Path, *, port: int, open_browser: bool, token: str) -> Config:
    """What the server is told; it goes before what a user's own Jupyter files say."""
    config = Config()
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
    return config


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
        """Where there is no such page, send the site's own words for it; its links start here."""
        lost = Path(self.root) / "404.html"
        if status_code != 404 or not lost.is_file():
            return super().write_error(status_code, **details)
        page = lost.read_text(encoding="utf-8")
        self.finish(page.replace("<head>", f'<head><base href="{self.base_url}site/">', 1))

    def set_extra_headers(self, path: str) -> None:
        """Let the browser ask each time: the next build may have changed the page."""
        self.set_header("Cache-Control", "no-cache")


def serve_pages(server: ServerApp, folder: Path) -> None:
    """Add the built site to a server that is initialised but not started."""
    site = f"{server.base_url}site"
    files = {"path": str(folder), "default_filename": "index.html"}
    rules = [(site, RedirectHandler, {"url": f"{site}/"}), (f"{site}/(.*)", SitePages, files)]
    server.web_app.add_handlers(".*$", rules)  # type: ignore[no-untyped-call]


def announce(site: str, lab: str) -> None:
    """Print both addresses; called when the server answers."""
    print(f"\n  The course is open.  Ctrl-C here ends it.\n\n  Site  {site}\n  Lab   {lab}\n")
