"""Whether a call leaves the caller's grad mode as it was."""

from typing import Any

import torch

# What a verdict says about it.
LEFT_OFF: dict[str, Any] = {
    "expected": "gradients are switched on for the caller after the call, as before it",
    "came": "they are off",
    "usually": "torch.set_grad_enabled(False) on a line of its own lasts after the function, for"
    " all code that follows. Write `with torch.no_grad():`.",
}


def switches_gradients_off(call, *arguments):
    """Make the call and tell if it leaves gradients off.  They are on again afterwards."""
    with torch.enable_grad():
        call(*arguments)
        return not torch.is_grad_enabled()
