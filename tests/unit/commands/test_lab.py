"""One server for site and lab: what it serves to whom, and that nothing is left of it."""

import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from multigpu.checking.catalog import Course

pytestmark = pytest.mark.slow

SERVE = """
import sys
from pathlib import Path
from multigpu.commands import start
start.serve(Path(sys.argv[1]), port=int(sys.argv[2]), open_browser=False)
"""


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    port: int
    site: str
    lab: str

    @property
    def home(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def token(self) -> str:
        return self.lab.partition("token=")[2]


def launch(folder: Path, port: int) -> Server:
    """Serve a small repository made in ``folder``, and wait until the addresses are printed."""
    pages = Course(folder).pages
    (pages / "lessons").mkdir(parents=True)
    (pages / "index.html").write_text("<h1>the landing page</h1>")
    (pages / "lessons" / "index.html").write_text("<h1>the lessons</h1>")
    (pages / "404.html").write_text("<html><head></head><h1>No page here</h1></html>")
    (folder / "secret.txt").write_text("not a page")
    (folder / "notebooks").mkdir()
    strict = {"ServerApp": {"allow_unauthenticated_access": False}}  # of a careful reader
    (folder / "config").mkdir()
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(strict))
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVE, folder, str(port)],
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(folder / "run"),
             "JUPYTER_CONFIG_DIR": str(folder / "config")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        addresses = re.findall(r"(?:Site|Lab) +(http\S+)", printed)
        if len(addresses) == 2:
            return Server(process, port, *addresses)
    raise AssertionError(f"the server ended: {printed}")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Server]:
    with ending(launch(tmp_path_factory.mktemp("course"), free_port())) as running:
        yield running


@pytest.fixture
def own_server(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Server]:
    """A server for a test that ends it."""
    with ending(launch(tmp_path, free_port())) as running:
        yield running


@contextmanager
def ending(running: Server) -> Iterator[Server]:
    with running.process:
        yield running
        running.process.kill()  # in vain where the test has ended it


class Browser:
    """Fetches addresses and keeps cookies."""

    def __init__(self) -> None:
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(jar)

    def get(self, address: str) -> tuple[int, str, str]:
        """Status, final address and text."""
        try:
            with self._opener.open(address, timeout=30) as reply:
                return reply.status, reply.url, reply.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.url, refusal.read().decode()


def test_both_printed_addresses_answer(server: Server) -> None:
    browser = Browser()
    assert "the landing page" in browser.get(server.site)[2]
    assert browser.get(f"{server.home}/api/contents")[0] == 200, "the token opens the lab, too"
    status, address, text = Browser().get(server.lab)
    assert status == 200
    assert "/lab/tree/notebooks/multi_GPU.ipynb" in address
    assert "jupyter-config-data" in text


def test_the_site_needs_no_token_and_the_lab_does(server: Server) -> None:
    assert "the landing page" in Browser().get(f"{server.home}/site/")[2]
    assert "login" in Browser().get(f"{server.home}/lab")[1]
    assert Browser().get(f"{server.home}/api/contents")[0] == 403


@pytest.mark.parametrize("folder", ["site", "site/lessons"])
def test_a_folder_leads_to_its_page(server: Server, folder: str) -> None:
    status, address, text = Browser().get(f"{server.home}/{folder}")
    assert (status, address) == (200, f"{server.home}/{folder}/")
    assert "<h1>" in text


def test_who_is_lost_gets_the_sites_own_page_whose_links_start_at_its_root(server: Server) -> None:
    status, _, text = Browser().get(f"{server.home}/site/lessons/deep/down/lost.html")
    assert status == 404
    assert '<head><base href="/site/">' in text
    assert "No page here" in text


@pytest.mark.parametrize("path", ["no-such-page.html", "%2e%2e/%2e%2e/%2e%2e/secret.txt"])
def test_nothing_but_pages_is_served(server: Server, path: str) -> None:
    status, _, text = Browser().get(f"{server.home}/site/{path}")
    assert status in (403, 404)
    assert "not a page" not in text


def test_the_lab_asks_the_outside_nothing(server: Server) -> None:
    page = Browser().get(server.lab)[2]
    config = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert config["disabledExtensions"] == ["@jupyterlab/apputils-extension:announcements"]


def test_a_signal_ends_the_server_and_its_kernels(own_server: Server) -> None:
    running, kernels = own_server, f"/api/kernels?token={own_server.token}"
    request = urllib.request.Request(running.home + kernels, data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 201
    family = psutil.Process(running.process.pid).children(recursive=True)
    assert family, "the kernel is a process of its own"
    running.process.send_signal(signal.SIGHUP)
    running.process.communicate(timeout=60)
    assert running.process.returncode == 0
    assert psutil.wait_procs(family, timeout=30)[1] == []
