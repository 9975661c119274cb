"""Real data to train on, small enough for a laptop.

from multigpu.data import digits
train, test = digits()
"""

from multigpu.data.handwritten import Split, digits

__all__ = ["Split", "digits"]
