"""What the tests of a watch share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # played.py, said.py and others

from played import Play


@pytest.fixture
def play():
    """``play(world_size)`` begins a run that the test tells."""
    return Play
