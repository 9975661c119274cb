"""How the course writes bytes, seconds and large numbers: the same everywhere."""

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


def human_count(count: float, unit: str = "") -> str:
    """Write a large number with three figures and a prefix of the SI.

    >>> human_count(78.2e9, "FLOP/s"), human_count(1000, "B/s")
    ('78.2 GFLOP/s', '1 kB/s')
    """
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = min(max(floor(log10(abs(count)) / 3 + 1e-9), 0), len(prefixes) - 1) if count else 0
    amount = count / 1000**power
    if abs(amount) >= 999.5 and power < len(prefixes) - 1:  # would be written as 1e+03
        power, amount = power + 1, amount / 1000
    return f"{amount:.3g} {prefixes[power]}{unit}".rstrip()
