"""How thoroughly times are measured.

With `MULTIGPU_TIMES=rough` in the environment, measurements repeat as little as they can: all that
they give comes out, but the times are not to be trusted. Tests that run a page and compare
everything on it but times do this.
"""

import os


def only_roughly() -> bool:
    """Whether times only have to be there."""
    return os.environ.get("MULTIGPU_TIMES") == "rough"
