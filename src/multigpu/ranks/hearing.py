"""What a leader has heard from one of its processes."""

from dataclasses import dataclass, field
from typing import Any

from multigpu.ranks.channels import Ends
from multigpu.ranks.frames import FrameReader
from multigpu.ranks.limits import Limits


@dataclass
class Intake:
    """What came out of one pipe: the first bytes, and how many there were."""

    keep: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, part: bytes) -> None:
        """Take in one part; beyond ``keep`` bytes it is only counted."""
        self.total += len(part)
        self.data += part[: max(0, self.keep - len(self.data))]

    def text(self) -> str:
        """The kept bytes as text."""
        return self.data.decode(errors="replace")


class Heard:
    """One process, as far as it has been heard: its frames, its output, its stack, its end."""

    def __init__(self, pid: int, ends: Ends, *, token: bytes, limits: Limits) -> None:
        self.pid, self.ends = pid, ends
        self.said: list[dict[str, Any]] = []
        self.answer = b""  # the bytes that came with the phase of this name
        self.status: int | None = None  # once it is gone; negative for a signal
        self.holding = False  # it waits to be let go
        self.output, self.stack = Intake(limits.kept_output), Intake(limits.kept_output)
        self.total = 0  # bytes from all pipes
        self._reader = FrameReader(token, keep=limits.answer)

    def add(self, pipe: str, part: bytes) -> list[dict[str, Any]]:
        """Take in what came out of a pipe; the frames among it."""
        self.total += len(part)
        if pipe != "mouth":
            getattr(self, pipe).add(part)
            return []
        if not part:
            self._reader.close()
            return []
        frames = self._reader.add(part)
        for header, blob in frames:
            self.said.append(header)
            if header["phase"] == "answer":
                self.answer = blob
            self.holding = self.holding or header["phase"] == "holding"
        return [header for header, _ in frames]

    def report(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "status": self.status,
            "said": self.said,
            "foreign": self._reader.foreign,
            "output": self.output.text(),
            "output_bytes": self.output.total,
            "stack": self.stack.text(),
            "answer": len(self.answer),
        }
