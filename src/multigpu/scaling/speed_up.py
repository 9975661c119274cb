"""What a time says about more GPUs: speed-up, efficiency, and the two laws that bound them.

speed_up(one=120.0, many=70.0)     # 1.71: strong scaling, the same work on more GPUs
efficiency(1.71, 2)                # 0.86: of what two GPUs could do at best
"""

from __future__ import annotations


def speed_up(*, one: float, many: float) -> float:
    """How many times as fast as one GPU: the seconds of one by the seconds of many.

    Says something about GPUs only if both did the same work: the same global batch, the same steps.
    """
    positive("the time of one GPU", one)
    positive("the time of many GPUs", many)
    return one / many


def efficiency(speed_up: float, gpus: int) -> float:
    """The part of the ideal speed-up that came out: 1.0 when `gpus` GPUs are `gpus` × as fast."""
    at_least_one(gpus)
    return speed_up / gpus


def amdahl(serial_share: float, gpus: int) -> float:
    """The largest speed-up of fixed work of which `serial_share` cannot be divided.

    Strong scaling. Source: Amdahl 1967, AFIPS, volume 30.
    """
    share("serial_share", serial_share)
    at_least_one(gpus)
    return 1 / (serial_share + (1 - serial_share) / gpus)


def gustafson(serial_share: float, gpus: int) -> float:
    """The work done in the same time, relative to one GPU, when work grows with the GPUs.

    Weak scaling: `serial_share` is the share of the time *on many GPUs* that is not divided.
    Source: Gustafson 1988, Communications of the ACM 31(5).
    """
    share("serial_share", serial_share)
    at_least_one(gpus)
    return gpus - serial_share * (gpus - 1)


def positive(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a number above 0."""
    if not value > 0:
        raise ValueError(f"{name} is {value!r}: it must be above 0")


def share(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a share."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r}: a share is between 0 and 1")


def at_least_one(gpus: int) -> None:
    """Raise ValueError unless there is a GPU."""
    if gpus < 1:
        raise ValueError(f"gpus={gpus}: there is at least one")
