"""How the course writes bytes and seconds: the same everywhere."""

from math import floor, log10

KIB = 1024


def human_bytes(count: int) -> str:
    """Write a number of bytes: exact below 10 KiB, so that sums can be checked; rounded above.

    >>> human_bytes(1234), human_bytes(1_300_000)
    ('1,234 B', '1.2 MiB')
    """
    if abs(count) < 10 * KIB:
        return f"{count:,} B"
    size = count / KIB
    for unit in ("KiB", "MiB", "GiB"):
        if abs(size) < 999.95:  # would be written as 1,000.0
            return f"{size:,.1f} {unit}"
        size /= KIB
    return f"{size:,.1f} TiB"


def exact_bytes(count: int) -> str:
    """Write a number of bytes to the last one, with the rounded form after it where it helps."""
    exact = f"{count:,} B"
    rounded = human_bytes(count)
    return exact if rounded == exact else f"{exact} ({rounded})"


def human_seconds(seconds: float) -> str:
    """Write a duration with two or three figures.

    >>> human_seconds(0.0123), human_seconds(4.56)
    ('12.3 ms', '4.56 s')
    """
    if seconds == 0:
        return "0 s"
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((u for u in units if abs(seconds * u[0]) >= 0.9995), units[-1])
    amount = seconds * factor
    decimals = min(max(2 - floor(log10(abs(amount))), 0), 2)
    return f"{amount:,.{decimals}f} {unit}"
