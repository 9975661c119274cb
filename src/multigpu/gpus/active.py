"""Which virtual machine is switched on. Torch-free, so that asking costs nothing.

There is one stack for the whole process: the machine that was entered last is the current one, in
every thread. `with` blocks on one thread nest; blocks on several threads share the stack.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multigpu.gpus.machine import VirtualMachine

lock = threading.RLock()
_entered: list[VirtualMachine] = []


def virtual_machine() -> VirtualMachine | None:
    """The current virtual machine, or None where torch is as it came."""
    return _entered[-1] if _entered else None


def machine_in_use() -> VirtualMachine:
    """The current virtual machine, where there must be one."""
    return _entered[-1]


def push(machine: VirtualMachine) -> None:
    """Make `machine` the current one."""
    _entered.append(machine)


def remove(machine: VirtualMachine) -> bool:
    """Undo the latest `push` of `machine`, wherever it stands; true if none is left."""
    for position in reversed(range(len(_entered))):
        if _entered[position] is machine:
            del _entered[position]
            break
    return not _entered


def _after_fork() -> None:
    """CUDA cannot be used on in a forked child, so machines switched on before the fork cannot."""
    for machine in _entered:
        machine.forked = True


os.register_at_fork(after_in_child=_after_fork)
