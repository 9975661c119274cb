"""Shows what ranks print while they run, each line with its rank in front."""

import codecs
import sys


class Printer:
    """Takes output in parts, prints it in lines: "rank 1 | epoch 3"."""

    def __init__(self, world_size: int, *, show: bool) -> None:
        self._world_size, self._show = world_size, show
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = [decoder(errors="replace") for _ in range(world_size)]
        self._rests = [""] * world_size  # of lines that are not finished yet

    def begin(self, backend: str) -> None:
        """Say on what the ranks run."""
        noun = "rank" if self._world_size == 1 else "ranks"
        self._print(f"{self._world_size} {noun}: {backend}\n")

    def add(self, rank: int, part: bytes) -> None:
        """Print the lines that are whole now."""
        text = self._rests[rank] + self._decoders[rank].decode(part)
        *lines, self._rests[rank] = text.split("\n")
        self._print("".join(f"rank {rank} | {line}\n" for line in lines))

    def end(self) -> None:
        """Print lines that were never finished."""
        for rank, rest in enumerate(self._rests):
            if rest:
                self._print(f"rank {rank} | {rest}\n")
        self._rests = [""] * self._world_size

    def _print(self, text: str) -> None:
        if self._show and text:
            sys.stdout.write(text)
            sys.stdout.flush()
