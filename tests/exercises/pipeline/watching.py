"""A stage that notes what ``pipeline.run`` asks of it, and which actions that was."""

from functools import partial
from weakref import WeakSet, ref

import torch
from torch import nn

from multigpu.checking import Returned
from multigpu.checking.comparing import same

from .models import uncut


class Kept:
    """What a forward keeps for its backward; torch lets it go when backward is done."""

    def __init__(self, tensor):
        self.tensor = tensor


class Watched(nn.Module):
    """A stage that notes each forward with its input, and each backward.

    ``events`` are dicts; ``call`` counts the forwards.  ``kept`` names the calls whose graphs are
    still there at that moment, ``made`` those whose outputs are.
    """

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.events, self.graphs, self.outputs = [], [], []

    def forward(self, rows):
        call = len(self.graphs)
        self.note("forward", call, tensor=copy_of(rows), graph=torch.is_grad_enabled())
        self.graphs.append(WeakSet())
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(self.keep, call), lambda kept: kept.tensor
        )
        with hooks:
            made = self.layers(rows)
        self.outputs.append(ref(made))
        if made.requires_grad:
            made.register_hook(lambda gradient: self.note("backward", call))
        return made

    def keep(self, call, tensor):
        kept = Kept(tensor)
        self.graphs[call].add(kept)
        return kept

    def note(self, kind, call, **more):
        made = [call for call, output in enumerate(self.outputs) if output() is not None]
        self.events.append({"kind": kind, "call": call, "kept": self.kept(), "made": made, **more})

    def kept(self):
        return [call for call, graph in enumerate(self.graphs) if len(graph)]


def copy_of(value):
    """A tensor as it is now; of anything else its type is told."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else type(value).__name__


class Side:
    """One rank in one step: its actions, recognized by their numbers."""

    def __init__(self, case, rank, step, events, left):
        self.case, self.rank, self.events, self.left = case, rank, events, left
        self.inputs = uncut(case)[step].inputs[rank]
        self.row = case.table[rank]
        self.microbatch_of = {
            event["call"]: recognized(event["tensor"], self.inputs)
            for event in events
            if event["kind"] == "forward"
        }

    @property
    def actions(self):
        """What this rank did, with the event.  A forward that only repeats one counts once.

        An answer may forget what a forward computed, and compute it again for backward.
        """
        done, without_graph = [], set()
        for event in self.events:
            m = self.microbatch_of[event["call"]]
            if event["kind"] == "forward" and event["graph"] and m in without_graph:
                continue
            if event["kind"] == "forward" and not event["graph"]:
                without_graph.add(m)
            done.append(((event["kind"], m), event))
        return done


def recognized(came, known):
    """The number of the first known tensor that it is equal to, or None."""
    if not isinstance(came, Returned):
        return None
    return next((m for m, tensor in enumerate(known) if same(came.value, tensor)), None)


def sides_of(run, case):
    """Of every step and rank."""
    for step in range(case.steps):
        for rank, came in enumerate(run.came(case)):
            yield Side(case, rank, step, *came["watched"][step])
