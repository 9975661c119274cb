"""What is wrong with a training that was resumed from a checkpoint, in the learner's numbers.

``save_checkpoint`` and ``load_checkpoint`` are judged as a pair: whichever is checked, a mistake
comes out under its name.
"""

import torch

from multigpu.checking import Wrong, describe
from multigpu.checking.comparing import alike, largest_difference, same
from multigpu.checking.verdicts import count

from .resuming import AFTER, BEFORE, train, trained_before, training

PAIR = "save_checkpoint did not save it, or load_checkpoint did not bring it back"


def examine(function, case, saved, loaded, wheres):
    """Raise Wrong unless every rank goes on from ``case`` as if never stopped.

    ``saved`` and ``loaded`` have the notes of each rank (resuming.py).
    """
    for rank, note in enumerate(loaded):

        def wrong(mistake, came, usually, where=wheres[rank]):
            return Wrong(
                f"{function}.{mistake}",
                expected=f"every rank goes on from epoch {case.epoch} as if training had never"
                f" stopped ({case.optimizer}, {count(len(loaded), 'rank')})",
                came=came,
                usually=usually,
                where=where,
            )

        examine_model(rank, note, saved[0]["state"], loaded, wrong)
        examine_epoch(rank, note["returned"], case.epoch, wrong)
        examine_end(rank, note, saved[0], case, wrong)


def examine_model(rank, note, right, loaded, wrong):
    """Right after loading, parameters and buffers are those of the checkpoint, bit for bit."""
    lost = lost_in(note, right)
    if not lost:
        return
    came, name = note["state"]["tensors"][lost[0]].value, lost[0]
    difference = largest_difference(came, right["tensors"][name].value)
    found = f"on rank {rank}, {name} {difference}"
    if not lost_in(loaded[0], right):
        raise wrong(
            "other_ranks_not_loaded",
            f"rank 0 has what was saved, but {found}",
            "only rank 0 loads. Every rank reads the file, or rank 0 sends what it has read.",
        )
    parameters = [n for n, _ in training("SGD", seed=1)[0].named_parameters()]
    saved_value = right["tensors"][name].value
    away = apart(came, saved_value)
    if away < 1e-3 * saved_value.abs().max():
        raise wrong(
            "rounded",
            f"on rank {rank}, {name} is up to {away:.1g} away from what was saved",
            "the numbers were saved with fewer digits, or as float32. Keep their dtype.",
        )
    if all(n in lost for n in parameters):
        raise wrong(
            "model_not_loaded",
            f"the model is as new: {found}",
            f"{PAIR}. model.load_state_dict(...) writes the numbers into the model.",
        )
    if not set(lost) & set(parameters):
        raise wrong(
            "buffers_lost",
            f"the parameters are back, but {found}",
            "only parameters() were saved. Buffers belong to the model too: state_dict() has both.",
        )
    if lost == [n for n in lost if n.startswith("frozen")]:
        raise wrong(
            "frozen_lost",
            f"the trained parameters are back, but {found}",
            "parameters with requires_grad=False were left out. A new model has others there.",
        )
    raise wrong("other_numbers", found, f"{PAIR}.")


def lost_in(note, right):
    """Names of what a checkpoint holds and this rank does not have."""
    tensors = note["state"]["tensors"]
    return [
        name
        for name, saved in right["tensors"].items()
        if name != "position" and not torch.equal(tensors[name].value, saved.value)
    ]


def apart(came, saved):
    """The largest difference of two tensors."""
    if came.shape != saved.shape:
        return float("inf")
    return (came.double() - saved.double()).abs().max().item()


def examine_epoch(rank, came, epoch, wrong):
    if came is None:
        raise wrong(
            "returned_nothing",
            f"load_checkpoint returned None on rank {rank}",
            "it ends there without `return`.",
        )
    if type(came) is not int:
        raise wrong(
            "epoch_not_an_int",
            f"load_checkpoint returned {describe(came)} on rank {rank}",
            "the epoch comes back as the whole number that was saved.",
        )
    if came != epoch:
        raise wrong(
            "other_epoch",
            f"load_checkpoint returned {came} on rank {rank}",
            "it returns the number that was saved, unchanged: whoever calls it adds 1.",
        )


def examine_end(rank, note, saved, case, wrong):
    """After some more steps the weights are those of a training that was never stopped."""
    right = saved["end"]["tensors"]
    came = {n: t.value for n, t in note["end"]["tensors"].items()}
    apart = [n for n, t in right.items() if not same(came[n], t.value)]
    rates = note["state"]["learning rates"], saved["state"]["learning rates"]
    if not apart and rates[0] == rates[1]:
        return
    if apart and not note["kept"]:
        raise wrong(
            "parameters_replaced",
            f"on rank {rank} the model has other parameter objects than before",
            "the optimizer holds the old ones, so it trains what the model no longer uses. Copy"
            " numbers into the parameters that are there, as load_state_dict does.",
        )
    found = f"on rank {rank} the model is back, but "
    if apart:
        difference = largest_difference(came[apart[0]], right[apart[0]].value)
        found += f"{AFTER} steps later {apart[0]} {difference}"
    if ends_like(came, new_optimizer(case.optimizer)):
        raise wrong(
            "optimizer_lost",
            f"{found}: exactly as with a new optimizer",
            f"{PAIR}: momentum, step counts and learning rates are in optimizer.state_dict().",
        )
    if rates[0] != rates[1]:
        raise wrong(
            "learning_rate_lost",
            f"on rank {rank} the learning rates are {rates[0]} and not {rates[1]}",
            f"{PAIR}: a learning rate that was changed in training is a part of the optimizer's"
            " state.",
        )
    if ends_like(came, momentum_lost(case.optimizer)):
        raise wrong(
            "momentum_lost",
            f"{found}: exactly as with the learning rate that was saved, but without the momentum",
            f"{PAIR}: optimizer.state_dict() has the momentum of every parameter.",
        )
    raise wrong("goes_on_differently", found, f"{PAIR}, a part of the optimizer's state.")


def ends_like(came, model):
    return all(alike(came[name], p.detach()) for name, p in model.named_parameters())


def new_optimizer(kind):
    """The weights in the end if everything of the optimizer is forgotten."""
    model, _ = trained_before(kind)
    fresh, optimizer = training(kind, seed=1)
    fresh.load_state_dict(model.state_dict())
    train(fresh, optimizer, range(BEFORE, BEFORE + AFTER))
    return fresh


def momentum_lost(kind):
    """The weights in the end if only the learning rates are remembered."""
    model, optimizer = trained_before(kind)
    optimizer.state.clear()
    train(model, optimizer, range(BEFORE, BEFORE + AFTER))
    return model
