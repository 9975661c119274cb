"""When ``.venv`` is left alone, completed, or made anew."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import install
import pytest
import venv_state
from venv_state import Venv

ROOT = Path(__file__).resolve().parents[3]
STAMP = Path(".venv", "multigpu-installed.json")


@pytest.fixture(scope="module")
def borrowed_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.venv`` that sees the packages of these tests, and a package multigpu beside it."""
    folder = tmp_path_factory.mktemp("made") / ".venv"
    options = ["--without-pip", "--system-site-packages"]
    subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
    paths = ["../../../../src", *(path for path in sys.path if "site-packages" in path)]
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "course.pth").write_text("\n".join(paths))
    return folder


@pytest.fixture
def repository(tmp_path: Path, borrowed_packages: Path) -> Path:
    """A repository whose ``.venv`` is complete."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(borrowed_packages, tmp_path / ".venv", symlinks=True)
    (tmp_path / "src" / "multigpu").mkdir(parents=True)
    (tmp_path / "src" / "multigpu" / "__init__.py").touch()
    venv_state.write_stamp(tmp_path, ["course", "test"])
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def forget_packages(repository: Path) -> None:
    next((repository / ".venv" / "lib").glob("python*/site-packages/course.pth")).unlink()
    replace(repository / ".venv" / "pyvenv.cfg", "packages = true", "packages = false")


def lose_a_package(repository: Path) -> None:
    replace(repository / "pyproject.toml", '"numpy"', '"a-package-that-is-gone"')
    venv_state.write_stamp(repository, ["course", "test"])


def test_a_complete_environment_is_left_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repository / "pyproject.toml").open("a") as metadata:
        metadata.write("\n[tool.nothing]\nx = 1\n")  # settings install nothing
    assert venv_state.look(repository) is Venv.USABLE
    monkeypatch.setattr(install, "ROOT", repository)
    monkeypatch.setattr(install, "install", None)  # it would install into the tests' own packages
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # is not the environment's
    assert install.main(["course", "test"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda repository: replace(repository / "pyproject.toml", "torch>=2.11", "torch>=2.12"),
        lambda repository: replace(repository / "constraints.txt", "==2.13.0", "==2.14"),
        lambda repository: (repository / STAMP).write_text('{"key": '),
        forget_packages,
        lose_a_package,
    ],
    ids=["requirement", "pin", "torn stamp", "all packages", "one package"],
)
def test_what_is_missing_is_noticed(repository: Path, spoil: Callable[[Path], object]) -> None:
    spoil(repository)
    assert not venv_state.is_complete(repository, ["course"])


def test_an_extra_that_was_never_asked_for_is_missing(repository: Path) -> None:
    (repository / STAMP).unlink()
    venv_state.write_stamp(repository, ["course"])
    assert not venv_state.is_complete(repository, ["course", "test"])
    venv_state.write_stamp(repository, ["test"])
    assert venv_state.is_complete(repository, ["course", "test"])


@pytest.mark.parametrize(
    ("spoil", "now"),
    [
        (lambda repository: (repository / ".venv" / "bin" / "python").unlink(), Venv.WORN_OUT),
        (lambda repository: replace(repository / STAMP, str(repository), "/old"), Venv.WORN_OUT),
        (lambda repository: (repository / ".venv").rename(repository / "kept"), Venv.UNFINISHED),
        (forget_packages, Venv.UNFINISHED),  # pip among them, as after an interrupted start
    ],
    ids=["no Python", "moved", "missing", "no pip"],
)
def test_what_does_not_work_is_completed_or_made_anew(
    repository: Path, spoil: Callable[[Path], object], now: Venv
) -> None:
    spoil(repository)
    assert venv_state.look(repository) is now


def test_somebody_elses_environment_of_another_python_is_theirs_to_keep(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert venv_state.look(repository) is Venv.WORN_OUT  # ours
    (repository / STAMP).unlink()
    assert venv_state.look(repository) is Venv.FOREIGN
    monkeypatch.setattr(install, "ROOT", repository)
    monkeypatch.setattr(install, "VENV", repository / ".venv")
    before = sorted((repository / ".venv").rglob("*"))
    assert install.main(["course"]) == 2
    assert sorted((repository / ".venv").rglob("*")) == before


def test_an_environment_that_is_linked_from_another_repository_is_not_emptied(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / ".venv").symlink_to(repository / ".venv")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(repository / name, other)
    monkeypatch.setattr(install, "ROOT", other)
    monkeypatch.setattr(install, "VENV", other / ".venv")
    before = sorted((repository / ".venv").rglob("*"))
    assert install.main(["course"]) == 2
    assert "rm .venv" in capsys.readouterr().err
    assert sorted((repository / ".venv").rglob("*")) == before
