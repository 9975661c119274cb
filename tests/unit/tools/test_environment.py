"""When ``.venv`` is left alone, completed, or made anew."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import install
import pytest
import venv_state
from venv_state import Venv

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose ``.venv`` is complete: it borrows the packages of these tests."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run(
        [
            sys.executable,
            "-m",
            "venv",
            "--without-pip",
            "--system-site-packages",
            tmp_path / ".venv",
        ],
        check=True,
    )
    paths = [str(tmp_path / "src"), *(path for path in sys.path if "site-packages" in path)]
    site = next((tmp_path / ".venv" / "lib").glob("python*/site-packages"))
    (site / "course.pth").write_text("\n".join(paths))
    (tmp_path / "src" / "multigpu").mkdir(parents=True)
    (tmp_path / "src" / "multigpu" / "__init__.py").touch()
    venv_state.write_stamp(tmp_path, ["course", "test"])
    return tmp_path


def forget_packages(repository: Path) -> None:
    next((repository / ".venv" / "lib").glob("python*/site-packages/course.pth")).unlink()
    config = repository / ".venv" / "pyvenv.cfg"
    config.write_text(config.read_text().replace("packages = true", "packages = false"))


def test_a_complete_environment_is_left_alone(repository: Path) -> None:
    assert venv_state.look(repository) is Venv.USABLE
    assert venv_state.is_complete(repository, ["course"])
    assert venv_state.is_complete(repository, ["course", "test"])


def test_new_requirements_and_new_pins_are_installed(repository: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        before = (repository / name).read_text()
        (repository / name).write_text(before.replace("2.11", "2.12").replace("==2.13.0", "==2.14"))
        assert not venv_state.is_complete(repository, ["course"])
        (repository / name).write_text(before)
        assert venv_state.is_complete(repository, ["course"])


def test_a_change_of_ruffs_settings_installs_nothing(repository: Path) -> None:
    with (repository / "pyproject.toml").open("a") as metadata:
        metadata.write("\n[tool.nothing]\nx = 1\n")
    assert venv_state.is_complete(repository, ["course"])


def test_an_extra_that_was_never_asked_for_is_missing(repository: Path) -> None:
    (repository / ".venv" / "multigpu-installed.json").unlink()
    venv_state.write_stamp(repository, ["course"])
    assert not venv_state.is_complete(repository, ["course", "test"])
    venv_state.write_stamp(repository, ["test"])
    assert venv_state.is_complete(repository, ["course", "test"])


def test_a_moved_repository_gets_a_new_environment(repository: Path) -> None:
    moved = repository.rename(repository.with_name("moved"))
    assert venv_state.look(moved) is Venv.WORN_OUT


def test_an_environment_that_lost_its_packages_is_noticed(repository: Path) -> None:
    forget_packages(repository)
    assert not venv_state.is_complete(repository, ["course"])


def test_a_single_package_that_is_gone_is_noticed(repository: Path) -> None:
    metadata = repository / "pyproject.toml"
    metadata.write_text(metadata.read_text().replace('"numpy"', '"a-package-that-is-gone"'))
    venv_state.write_stamp(repository, ["course"])
    assert not venv_state.is_complete(repository, ["course"])


def test_an_environment_that_lost_its_python_is_made_anew(repository: Path) -> None:
    (repository / ".venv" / "bin" / "python").unlink()
    assert venv_state.look(repository) is Venv.WORN_OUT


def test_a_missing_environment_is_made(repository: Path) -> None:
    (repository / ".venv").rename(repository / "kept")
    assert venv_state.look(repository) is Venv.UNFINISHED


def test_an_environment_without_pip_is_completed_and_not_emptied(repository: Path) -> None:
    """An interrupted start, or one that another tool made."""
    forget_packages(repository)
    assert venv_state.look(repository) is Venv.UNFINISHED


def test_our_environment_of_another_python_is_made_anew(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert venv_state.look(repository) is Venv.WORN_OUT


def test_somebody_elses_environment_of_another_python_is_theirs_to_keep(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".venv" / "multigpu-installed.json").unlink()
    assert venv_state.look(repository) is Venv.USABLE
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
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


def test_a_torn_stamp_counts_as_none(repository: Path) -> None:
    (repository / ".venv" / "multigpu-installed.json").write_text('{"key": ')
    assert not venv_state.is_complete(repository, ["course"])


def test_an_installed_course_is_not_installed_again(repository: Path) -> None:
    """The real program, in a repository that is complete: it says nothing and runs no pip."""
    tools = repository / "tools"
    tools.mkdir()
    for source in (ROOT / "tools").iterdir():
        if source.is_file():
            (tools / source.name).write_text(source.read_text())
    program = [repository / ".venv" / "bin" / "python", tools / "install.py", "course", "test"]
    ended = subprocess.run(program, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not (repository / ".venv" / "install.log").exists()
    stamp = json.loads((repository / ".venv" / "multigpu-installed.json").read_text())
    assert stamp["extras"] == ["course", "test"]
