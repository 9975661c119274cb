"""Every test here trains, and so each has one thread."""

import pytest


@pytest.fixture(autouse=True)
def as_a_rank(one_thread: None) -> None:
    """What `one_thread` does, unasked."""
