"""One call of torch.distributed as the trace keeps it, and one named span of work.

A rank says each call before it makes it (a frame, plain data), then when it begins to wait for it,
and when the wait is over. `Call` is what these frames add up to. Times are those of
`time.monotonic()`, which all ranks of one machine share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from multigpu.ranks.wording import place, ranks_in_words

MESSAGES = ("send", "recv")
ROOTED = ("broadcast", "scatter", "gather", "reduce")  # one rank gives to or takes from the others
WORLD = "0"  # torch's name for the group that all ranks begin with
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


@dataclass(frozen=True)
class Call:
    """What one rank asked of torch.distributed, and when.

    `op` is the collective's plain name (`all_reduce`, `send`, ...), `via` the function that was
    called (`isend`, `all_gather_object`, `DistributedDataParallel`, ...). `bytes` is this rank's
    input; for broadcast, scatter and recv the buffer that is filled. `nth` counts this rank's
    collectives in this group from 0, and is None for messages.
    """

    rank: int
    id: int  # the rank's own number for it
    op: str
    via: str
    group: str
    members: tuple[int, ...]  # global ranks
    nth: int | None
    shapes: tuple[tuple[int, ...], ...]
    dtype: str | None
    numel: int
    bytes: int
    reduce: str | None
    root: int | None  # global rank
    peer: int | None  # receiver of a send, source of a recv; None: no message, or any source
    tag: int
    is_async: bool
    thread: int  # native id
    file: str
    line: int
    function: str
    time: float  # said just before the call
    wanted: tuple[int, ...] = ()  # the members that a new group shall have
    waited: float | None = None  # the (first) wait began
    end: float | None = None  # a wait returned, or the call failed
    changed: bool = False  # the caller's buffer was written between start and wait
    completed: float | None = None  # an async collective was over, waited for or not
    failed: str | None = None  # the error's text, if the call or its wait raised

    @classmethod
    def of(cls, rank: int, frame: Mapping[str, Any]) -> "Call":
        """The call that a `call` frame of `rank` announces."""
        known = {name: frame[name] for name in _SAID if name in frame}
        known["members"] = tuple(frame["members"])
        known["wanted"] = tuple(frame.get("wanted", ()))
        known["shapes"] = tuple(tuple(shape) for shape in frame.get("shapes", ()))
        return cls(rank=rank, **{**_UNSAID, **known})

    def heard(self, frame: Mapping[str, Any]) -> "Call":
        """This call after a later frame about it: `wait`, `completed`, `done` or `failed`."""
        if frame["phase"] == "wait":
            return self if self.waited is not None else replace(self, waited=frame["time"])
        if frame["phase"] == "completed":
            return replace(self, completed=frame["time"])
        if frame["phase"] == "failed":
            return replace(self, end=frame["time"], failed=frame["text"])
        source = frame.get("source")  # who it came from, where a receive asked for any source
        return replace(
            self,
            end=frame["time"],
            changed=frame.get("changed", False),
            peer=self.peer if source is None else source,
        )

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.op in MESSAGES

    @property
    def is_collective(self) -> bool:
        """Whether every member of the group must make it."""
        return not self.is_message

    @property
    def is_open(self) -> bool:
        """Whether it was begun and no wait for it has returned."""
        return self.end is None

    @property
    def place(self) -> str:
        """Where the call stands, as `train.py:41`."""
        return place(self.file, self.line, self.function)

    def in_group(self, world_size: int) -> str:
        """` of the group of ranks 0 and 2`; nothing for the group that all ranks begin with."""
        if len(self.members) < world_size:
            return f" of the group of {ranks_in_words(self.members)}"
        return "" if self.group == WORLD else f" of group {self.group!r}"


_SAID = [field.name for field in fields(Call)][1:22]  # id ... wanted
_UNSAID: dict[str, Any] = {
    "nth": None,
    "dtype": None,
    "numel": 0,
    "bytes": 0,
    "reduce": None,
    "root": None,
    "peer": None,
    "tag": 0,
    "is_async": False,
    "shapes": (),
}


@dataclass(frozen=True)
class Span:
    """Work that a rank named with `multigpu.ranks.span`."""

    rank: int
    label: str
    start: float
    end: float
