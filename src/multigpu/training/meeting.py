"""Where the ranks of a run find each other, also after torchrun has started them again.

torchrun keeps the store in which ranks leave their addresses, over all restarts (PyTorch issue
135712). A rank that is started again may then read the address that another rank left in its former
life, and wait for a process that is dead. So the ranks first agree on a name that nobody has used.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

POLL = 0.01  # seconds
PATIENCE = timedelta(minutes=30)  # PyTorch's own


def meeting_store() -> tuple[Store, int, int]:
    """The store to join a process group with, this process's rank, and the number of ranks."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=PATIENCE)))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(new_name(store, rank, world_size), store)
    return store, rank, world_size


def new_name(store: Store, rank: int, world_size: int) -> str:
    """A name that rank 0 makes up and tells every rank of this life, and none of an earlier one.

    Each rank asks with a number of its own; rank 0 answers whoever asks until all have thanked it.
    The questions of ranks that are dead are answered, too, and heard by nobody. Restarts could be
    counted instead, but a machine that joins later counts from 0. Raises RuntimeError when ranks
    do not come.
    """
    if rank:
        question = uuid.uuid4().hex
        store.set(f"multigpu/question/{rank}", question)
        name: str = store.get(f"multigpu/answer/{question}").decode()
        store.set(f"multigpu/thanks/{name}/{rank}", "")
        return name
    name = uuid.uuid4().hex
    missing = set(range(1, world_size))
    until = time.monotonic() + PATIENCE.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"multigpu/question/{other}"]):
                question = store.get(f"multigpu/question/{other}").decode()
                store.set(f"multigpu/answer/{question}", name)
            if store.check([f"multigpu/thanks/{name}/{other}"]):
                missing.discard(other)
        if time.monotonic() > until:
            raise RuntimeError(f"ranks {sorted(missing)} did not come within {PATIENCE}")
        time.sleep(POLL)
    return name
