"""What the pictures of traffic know: copies, links and the movements of a training step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from multigpu.pictures.palette import index_of
from multigpu.pictures.units import exact_bytes


class CopyLike(Protocol):
    """A copy of bytes from one device to another."""

    @property
    def source(self) -> Any: ...
    @property
    def target(self) -> Any: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Step:
    """One movement: its name, its copies, and who worked on what (`{"cuda:0": "8 rows"}`).

    `note` stands beside the name in the place of the bytes that were copied.
    """

    name: str
    copies: Iterable[CopyLike] = ()
    work: Mapping[Any, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class Link:
    """All the copies of one movement between one sender and one receiver."""

    source: str
    target: str
    bytes: int = 0
    copies: int = 0

    def __str__(self) -> str:
        plural = "copy" if self.copies == 1 else "copies"
        amount = f"{exact_bytes(self.bytes)} in {self.copies} {plural}"
        return f"{self.source} to {self.target}: {amount}"


def links(copies: Iterable[CopyLike]) -> list[Link]:
    """Sum copies by (source, target); copies inside one device are left out. Sorted by name.

    Sorted, because threads make copies in another order every time: a picture should not change.
    """
    found: dict[tuple[str, str], Link] = {}
    for copy in copies:
        ends = str(copy.source), str(copy.target)
        link = found.setdefault(ends, Link(*ends))
        link.bytes += copy.bytes
        link.copies += 1
    between = (link for link in found.values() if link.source != link.target)
    return sorted(between, key=lambda link: (_rank(link.source), _rank(link.target)))


def columns(
    movements: Sequence[Step], linked: Sequence[Sequence[Link]], devices: Iterable[Any] | None
) -> list[str]:
    """The names of all that take part: hosts first, then the given devices, then the others."""
    given = [str(device) for device in devices or ()]
    seen = {end for group in linked for link in group for end in (link.source, link.target)}
    seen |= {str(device) for movement in movements for device in movement.work}
    others = sorted(seen - set(given), key=_rank)
    hosts = [name for name in others if index_of(name) is None]
    return hosts + given + [name for name in others if name not in hosts]


def _rank(name: str) -> tuple[int, str]:
    """For sorting: the CPU first, then devices and ranks by number."""
    index = index_of(name)
    return (-1 if index is None else index, name)
