"""What was found wrong with a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Kind = Literal["exception", "exit", "mismatch", "deadlock", "no_progress"]


@dataclass(frozen=True)
class Finding:
    """Why a run cannot go on, or must not count: plain data, so that it can travel.

    `ranks` are those to blame, `message` says what happened with rank, file and line, `usually`
    what that usually means. `details` has the list `ranks`, one entry per rank, which says what
    it was doing (`state`: waiting, computing, returned, raised or gone); and what the kind adds.
    """

    kind: Kind
    ranks: tuple[int, ...]
    message: str
    usually: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The message, and what it usually means."""
        return f"{self.message}\nusually: {self.usually}" if self.usually else self.message

    def with_stacks(self, stacks: Mapping[int, str]) -> "Finding":
        """This finding with the stack of each busy rank under the message."""
        shown = [
            f"rank {rank} stands here:\n{_indented(stack)}"
            for rank, stack in sorted(stacks.items())
            if stack.strip()
        ]
        return replace(self, message="\n".join([self.message, *shown]))

    def to_dict(self) -> dict[str, Any]:
        """As plain data (JSON)."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Finding":
        """The finding that `to_dict` wrote."""
        return cls(**{**data, "ranks": tuple(data["ranks"])})


def _indented(stack: str) -> str:
    return "\n".join(f"  {line}" for line in stack.strip().splitlines())
