"""Times several candidates in turn, in one run: a busy machine slows down all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 2  # rounds that do not count


def times_in_turn(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, meet: Callable[[], object]
) -> dict[str, list[float]]:
    """The seconds of each candidate, round by round; each is called once per round.

    ``meet`` brings the ranks together before and after each call, so that a call lasts until the
    slowest rank is done with it.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(WARM_UP + rounds):
        for name, call in candidates.items():
            meet()
            start = time.perf_counter()
            call()
            meet()
            times[name].append(time.perf_counter() - start)
    return {name: taken[WARM_UP:] for name, taken in times.items()}


def table(title: str, times: Mapping[str, list[float]], *, against: str) -> str:
    """One line per candidate: the median in milliseconds, and the ratio to one of them.

    The ratio is the median of the rounds' ratios: what disturbs a round disturbs both.
    """
    lines = [f"\n{title}"]
    for name, taken in times.items():
        pairs = zip(taken, times[against], strict=True)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        lines.append(f"  {name:34}{statistics.median(taken) * 1e3:9.1f} ms{ratio:8.2f} ×")
    return "\n".join(lines)
