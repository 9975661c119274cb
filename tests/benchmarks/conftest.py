"""Benchmarks measure and print; they are collected only where they are asked for (`make bench`)."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("benchmarks" in argument for argument in config.args)
    return None if asked else True
