"""Which runs a comparison consists of, in which order, and what is left out and why."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MODES = ("single", "dp", "ddp", "zero2", "zero3", "pipeline")
USUAL = ("single", "dp", "ddp")  # compared where nobody says what
ONE_PROCESS = ("single", "dp")  # every other mode has a rank for each GPU
MOST = 64  # GPUs; more is a mistyped number, and each ddp rank is a process


@dataclass(frozen=True)
class Candidate:
    """One way to train that is compared: a mode on a number of GPUs."""

    mode: str
    gpus: int

    def __str__(self) -> str:
        return self.mode if self.mode == "single" else f"{self.mode} on {self.gpus}"

    @property
    def ranks(self) -> int:
        """How many processes it needs."""
        return 1 if self.mode in ONE_PROCESS else self.gpus


@dataclass(frozen=True)
class LeftOut:
    """A combination that was asked for and is not run, and the reason."""

    mode: str
    gpus: int
    reason: str

    def __str__(self) -> str:
        return f"{self.mode} on {self.gpus}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What is run and what is not."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()


def plan_of(modes: Sequence[str], gpus: Sequence[int], *, batch_size: int) -> Plan:
    """The plan for some modes on some numbers of GPUs, `single` first: it is compared with.

    Raises ValueError for an unknown mode, a number of GPUs that cannot be, and a batch that
    `gpus` do not divide: it would be another batch.
    """
    for mode in modes:
        refuse_unknown(mode)
    for count in gpus:
        refuse_count(count)
    if not modes or not gpus:
        raise ValueError("nothing to compare: give at least one mode and one number of GPUs")
    wanted = [mode for mode in MODES if mode in modes]
    candidates = []
    left_out: list[LeftOut] = []
    for mode in wanted:
        for count in sorted(set(gpus)):
            if mode == "single":
                continue
            if mode == "dp" and count == 1:
                reason = "nn.DataParallel with one GPU calls the model directly, as single does"
                left_out.append(LeftOut(mode, count, reason))
                continue
            if mode == "pipeline" and count == 1:
                reason = "a pipeline of one stage is single, its batch in parts"
                left_out.append(LeftOut(mode, count, reason))
                continue
            if mode != "pipeline":  # there every GPU works on the whole batch
                refuse_batch(batch_size, count)
            candidates.append(Candidate(mode, count))
    if "single" in wanted:
        candidates.insert(0, Candidate("single", 1))
    if not candidates:
        raise ValueError(f"nothing is left to compare. {left_out[0]}.")
    return Plan(tuple(candidates), tuple(left_out))


def refuse_unknown(mode: str) -> None:
    """Raise ValueError for a mode that cannot be compared, with the nearest that can."""
    if mode in MODES:
        return
    near = difflib.get_close_matches(mode, MODES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"mode {mode!r} cannot be compared: choose from {', '.join(MODES)}.{hint}")


def refuse_count(gpus: int) -> None:
    """Raise ValueError for a number of GPUs that cannot be meant."""
    if not 1 <= gpus <= MOST:
        raise ValueError(f"{gpus} GPUs: give numbers from 1 to {MOST}, for example 1,2,4")


def refuse_batch(batch_size: int, gpus: int) -> None:
    """Raise ValueError where a batch cannot be divided equally."""
    if batch_size < 1 or batch_size % gpus:
        below, above = batch_size // gpus * gpus, (batch_size // gpus + 1) * gpus
        near = f"{below} or {above}" if below > 0 else f"{above}"
        raise ValueError(
            f"a batch of {batch_size} rows cannot be divided equally by {gpus} GPUs. "
            f"The batch is the global one, the same in every row. The nearest that can: {near}."
        )


def in_turn(candidates: Sequence[Candidate], rounds: int) -> Iterator[tuple[int, Candidate]]:
    """Every candidate once per round; each round begins with the next one.

    So a machine that is busy for a while slows down all alike, and none is always first.
    """
    for number in range(rounds):
        start = number % len(candidates)
        for candidate in (*candidates[start:], *candidates[:start]):
            yield number, candidate
