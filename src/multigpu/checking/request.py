"""What the judge asks of the worker."""

from dataclasses import asdict, dataclass
from typing import Any

from multigpu.checking.catalog import Signature
from multigpu.ranks.limits import Limits


@dataclass(frozen=True)
class Request:
    """One run of a learner's module.

    ``source`` is the text of ``path``, so that judge and worker speak of the same version even
    while the learner saves a new one.  Either one worker has ``gpus`` GPUs: virtual ones, or real
    ones when ``backing`` is "real".  Or there are ``ranks`` workers that form a process group.
    """

    path: str
    source: str
    return_lines: dict[int, int]  # of the source; found once, for all runs
    function: str
    signature: Signature
    refused: tuple[str, ...]
    limits: Limits
    backing: str
    gpus: int = 0
    ranks: int = 0
    memory: str | None = None  # of each GPU, or of each rank

    def header(self) -> dict[str, Any]:
        """As plain data, for the wire."""
        return asdict(self)

    @classmethod
    def of(cls, header: dict[str, Any]) -> "Request":
        """The inverse of ``header``."""
        header = dict(header)
        signature = header.pop("signature")
        return cls(
            signature=Signature(
                tuple(signature["positional"]), tuple(signature["keyword_only"]), signature["text"]
            ),
            refused=tuple(header.pop("refused")),
            return_lines={int(line): first for line, first in header.pop("return_lines").items()},
            limits=Limits(**header.pop("limits")),
            **header,
        )
