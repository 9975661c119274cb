"""Commands that are not run are read at least: their program knows each of their options."""

import argparse
import itertools
import re
import shlex
from pathlib import Path

from multigpu.cli import parser_for

ROOT = Path(__file__).parents[3]


class Unreadable(Exception):
    """A program does not know an option, or a file of a command is not there."""


def read(command: str) -> bool:
    """Whether there is anything to be read in a command.  Raises Unreadable where it is wrong."""
    words = first_of(command)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):  # VARIABLE=value before the program
        del words[0]
    try:
        return _read(words)
    except SystemExit:  # argparse has said why
        raise Unreadable(f"{command}: its program does not take these options") from None


def first_of(command: str) -> list[str]:
    """The words of a command up to a comment, a pipe or a redirection."""
    split = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    split.whitespace_split = True
    return list(itertools.takewhile(lambda word: not set(word) <= set("|&;<>()"), split))


def _read(words: list[str]) -> bool:
    program, arguments = Path(words[0]).name, words[1:]
    if program == "multigpu":
        parser_for(arguments).parse_args(arguments)
    elif program == "torchrun":
        _read_torchrun(arguments)
    elif program == "make":
        _read_make(arguments)
    elif program in ("python", "pytest"):
        _find_files(arguments)
    else:
        return False
    return True


def _read_torchrun(arguments: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    options = parser.parse_args(arguments)
    script = [options.training_script, *options.training_script_args]
    _read(script if options.module else ["python", *script])


def _read_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([\w-]+)(?: [\w-]+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if arguments[:1] == ["record"]:  # what follows it are pages
        arguments = [word for word in arguments if not _is_page(word)]
    for word in arguments:
        if "=" not in word and word not in targets:
            raise Unreadable(f"make {word}: the Makefile has no such target")


def _is_page(name: str) -> bool:
    """Whether `make record` knows a page or a notebook of this name."""
    return (ROOT / "docs" / f"{name}.rst").is_file() or (ROOT / f"{name}.ipynb").is_file()


def _find_files(arguments: list[str]) -> None:
    """Files below a folder of the course are there; others are the reader's own."""
    for word in arguments:
        path = word.partition("::")[0]
        folder = path.partition("/")[0]
        of_the_course = "/" in path and folder not in ("", "..") and (ROOT / folder).is_dir()
        if of_the_course and not (ROOT / path).exists():
            raise Unreadable(f"{path} is not there")
