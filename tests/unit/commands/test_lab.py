"""One server for site and lab: what it serves to whom, and that nothing is left of it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

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
    running = launch(tmp_path_factory.mktemp("course"), free_port())
    with running.process:
        yield running
        running.process.kill()  # in vain where the last test has ended it


def test_both_printed_addresses_answer_and_open_the_lab(server: Server) -> None:
    browser = requests.Session()  # it keeps the cookie
    assert "the landing page" in browser.get(server.site).text
    assert browser.get(f"{server.home}/api/contents").status_code == 200
    reply = requests.get(server.lab)
    assert reply.status_code == 200
    assert "/lab/tree/notebooks/multi_GPU.ipynb" in reply.url
    config = json.loads(
        re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', reply.text, re.S)[1]
    )
    # Nothing is asked of the outside.
    assert config["disabledExtensions"] == ["@jupyterlab/apputils-extension:announcements"]


def test_the_site_needs_no_token_and_the_lab_does(server: Server) -> None:
    assert "the landing page" in requests.get(f"{server.home}/site/").text
    assert "login" in requests.get(f"{server.home}/lab").url
    assert requests.get(f"{server.home}/api/contents").status_code == 403


@pytest.mark.parametrize("folder", ["site", "site/lessons"])
def test_a_folder_leads_to_its_page(server: Server, folder: str) -> None:
    reply = requests.get(f"{server.home}/{folder}")
    assert (reply.status_code, reply.url) == (200, f"{server.home}/{folder}/")
    assert "<h1>" in reply.text


def test_who_is_lost_gets_the_sites_own_page_whose_links_start_at_its_root(server: Server) -> None:
    reply = requests.get(f"{server.home}/site/lessons/deep/down/lost.html")
    assert reply.status_code == 404
    assert '<head><base href="/site/">' in reply.text
    assert "No page here" in reply.text


def test_nothing_but_pages_is_served(server: Server) -> None:
    reply = requests.get(f"{server.home}/site/%2e%2e/%2e%2e/%2e%2e/secret.txt")
    assert reply.status_code in (403, 404)
    assert "not a page" not in reply.text


def test_a_signal_ends_the_server_and_its_kernels(server: Server) -> None:
    """The last test: no other finds the server alive."""
    running, token = server, server.lab.partition("token=")[2]
    assert (
        requests.post(f"{running.home}/api/kernels?token={token}", json={}, timeout=60).status_code
        == 201
    )
    family = psutil.Process(running.process.pid).children(recursive=True)
    assert family, "the kernel is a process of its own"
    running.process.send_signal(signal.SIGHUP)
    running.process.communicate(timeout=60)
    assert running.process.returncode == 0
    assert psutil.wait_procs(family, timeout=30)[1] == []
