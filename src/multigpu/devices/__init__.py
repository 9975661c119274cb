"""The GPUs of this machine: real ones, or virtual ones that behave like them.

    from multigpu import gpus, virtual_gpus
    devices = gpus(4)                      # real if there are four, else virtual from now on
    with virtual_gpus(4) as machine:       # virtual, until the end of the block
        ...
        machine.traffic.by_link()

To read how virtual GPUs work, begin with gpu.py (a GPU and its two names) and tensor.py (a tensor
on it). Every call comes through gate.py: functions of torch go on to functions.py where they need
more than another device, operators to dispatch.py. torch_cuda.py and comm.py are what torch's own
modules are given, and machine.py puts it there. The meters are in meters.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.devices.machine import copy_to, current_machine, gpus, virtual_gpus

__all__ = ["copy_to", "current_machine", "gpus", "virtual_gpus"]


def __getattr__(name: str) -> Any:
    """Import torch when one of the functions is asked for: the command must start quickly."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multigpu.devices import machine

    return getattr(machine, name)
