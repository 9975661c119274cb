"""``python -m multigpu`` is the ``multigpu`` command."""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]) == Path.cwd():
    # `python -m` looks into the current folder first.  In exercises/ a learner's random.py or
    # torch.py would then take the place of the real one in the judge.
    del sys.path[0]

from multigpu.cli import main

sys.exit(main())
