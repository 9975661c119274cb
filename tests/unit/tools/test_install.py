"""Where ``make start`` takes PyTorch from, and the machines that it refuses."""

import re
import subprocess
from pathlib import Path

import install
import pytest
import torch_build
from pip_progress import Doing


@pytest.mark.parametrize(
    ("machine", "tried"),
    [
        (
            {},
            [
                ("torch==2.13.0+cpu", None),
                ("torch==2.13.0+cpu", torch_build.CPU_INDEX),
                ("torch==2.13.0", None),
            ],
        ),
        ({"has_gpu": True}, [("torch==2.13.0", None)]),  # the CUDA build
        ({"system": "Darwin"}, [("torch==2.13.0", None)]),  # which is a CPU build
        ({"index": "https://x/cu126"}, [("torch==2.13.0", "https://x/cu126")]),
        ({"index": "https://x/cu126", "has_gpu": True}, [("torch==2.13.0", "https://x/cu126")]),
    ],
)
def test_where_pytorch_is_looked_for(
    machine: dict[str, object], tried: list[tuple[str, str | None]]
) -> None:
    usual = {"system": "Linux", "has_gpu": False, "index": None}
    found = torch_build.attempts("2.13.0", **{**usual, **machine})
    assert [(attempt.requirement, attempt.index) for attempt in found] == tried


class Pip:
    """Stands in for pip: ``has`` are the requirements that it can get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has: str, index_answers: bool) -> None:
        self.asked: list[str] = []
        self.has = has
        monkeypatch.setattr(install, "run_pip", self)
        monkeypatch.setattr(install, "is_installed", lambda package: False)
        monkeypatch.setattr(install, "offers", lambda index, version: index_answers)
        monkeypatch.setattr("platform.system", lambda: "Linux")
        monkeypatch.delenv("TORCH_INDEX", raising=False)

    def __call__(self, python: Path, arguments: list[str], *, log: Path) -> bool:
        index = "index" if "--index-url" in arguments else "plain"
        self.asked.append(f"{index} {arguments[-1]}")
        log.write_text("ERROR: no such thing\n")
        return self.asked[-1] == self.has


@pytest.mark.parametrize(
    ("has", "index_answers", "asked"),
    [
        ("plain torch==2.13.0+cpu", True, ["plain torch==2.13.0+cpu"]),
        ("index torch==2.13.0+cpu", True, ["plain torch==2.13.0+cpu", "index torch==2.13.0+cpu"]),
        ("plain torch==2.13.0", False, ["plain torch==2.13.0+cpu", "plain torch==2.13.0"]),
    ],
)
def test_the_first_place_that_has_it_is_taken_and_each_is_said_in_one_line(
    has: str,
    index_answers: bool,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pip = Pip(monkeypatch, has=has, index_answers=index_answers)
    install.install_torch([], has_gpu=False, log=tmp_path / "log")
    assert pip.asked == asked
    said = capsys.readouterr().out.splitlines()
    assert len(said) == (1 if index_answers else 2)
    assert (torch_build.CPU_INDEX in said[-1]) is not index_answers


@pytest.mark.parametrize(
    ("printed", "offered"),
    [
        ("torch (2.13.0+cpu)\nAvailable versions: 2.13.0+cpu, 2.12.1+cpu\n", True),
        ("torch (2.14.0)\nAvailable versions: 2.14.0, 2.13.0\n", False),  # from another place
        ("torch (2.13.0+cpu.cxx11.abi)\n", False),
        (None, False),  # it keeps silent
    ],
)
def test_an_index_is_asked_for_the_very_build(
    printed: str | None, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> object:
        if printed is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, stdout=printed)

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.offers("https://index", "2.13.0+cpu") is offered


def test_no_pytorch_anywhere_ends_in_one_line_with_pips_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Pip(monkeypatch, has="", index_answers=True)
    with pytest.raises(install.Refused, match="no such thing"):
        install.install_torch([], has_gpu=False, log=tmp_path / "log")


def test_what_an_earlier_attempt_failed_of_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    log.write_text("$ pip install torch\nERROR: no such build\n$ pip install .\ndisk is full\n")
    assert "disk is full" in str(install.failure(log))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": "Windows"}, "WSL2"),
        ({"system": "Darwin", "machine": "x86_64"}, "Intel"),
        ({"free_bytes": 10**9}, "1.0 GB"),
        ({"free_bytes": 6 * 10**9, "has_gpu": True}, "11 GB"),
    ],
)
def test_a_machine_that_cannot_do_it_is_refused_in_one_line(
    change: dict[str, object], words: str
) -> None:
    fine = {"system": "Linux", "machine": "x86_64", "free_bytes": 10**12, "has_gpu": False}
    install.require_machine(**fine)
    with pytest.raises(install.Refused, match=words) as refused:
        install.require_machine(**{**fine, **change})
    assert "\n" not in str(refused.value)


def test_a_python_without_ensurepip_is_told_which_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    with pytest.raises(install.Refused, match=r"apt install python3\.\d+-venv"):
        install.make_venv(install.Venv.UNFINISHED)


def test_pips_output_becomes_what_it_is_doing() -> None:
    doing = Doing()
    seen = []
    for line in [
        "Collecting numpy==2.4.6 (from -c x (line 3))\n",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (200 MB)\n",
        "Progress 50000000 of 200000000\n",
        "Installing collected packages: a, b, c\n",
    ]:
        doing.read(line)
        seen.append(doing.now)
    values = [re.findall(r"numpy|torch|\d+", said) for said in seen]
    assert values == [["1", "numpy"], ["torch"], ["torch", "50", "200"], ["3"]]
