"""What both servers do around the imports that spare every process they fork the same."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from multigpu.ranks.lean import spare_the_compiler


@contextmanager
def warming_up() -> Iterator[None]:
    """Around the imports of a server that will fork: no thread, and no page written twice."""
    gc.disable()  # importing leaves no garbage, and looking for it takes a tenth of the time
    yield
    import torch

    torch.set_num_threads(1)
    spare_the_compiler()
    gc.collect()
    gc.freeze()  # the garbage collection of a forked process then copies none of these pages
    gc.enable()
