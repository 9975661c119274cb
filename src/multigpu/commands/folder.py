"""Where the course's repository is on this machine."""

from pathlib import Path


class NoCourseFolder(Exception):
    """The package is installed, but the lessons and notebooks are not to be found."""


def course_folder() -> Path:
    """The folder with ``docs/`` and ``notebooks/``: where this package is, else around the reader.

    Raises :class:`NoCourseFolder` when the package was installed without the repository and the
    current folder is not inside it.
    """
    here = Path.cwd()
    for folder in (Path(__file__).parents[3], here, *here.parents):
        if (folder / "notebooks").is_dir() and (folder / "docs" / "conf.py").is_file():
            return folder
    raise NoCourseFolder(
        f"Neither {here} nor a folder above it is the course's repository. "
        "Go into the folder that you cloned and try again."
    )
