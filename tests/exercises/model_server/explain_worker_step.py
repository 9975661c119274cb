"""What is wrong with an answer to ``model_server.worker_step``: gradients, weights and buffers."""

from multigpu.checking.comparing import alike, all_alike, all_same, examine_handles, same
from multigpu.checking.verdicts import listed

from .telling import teller
from .training import gradients


def examine_worker_handles(training, side):
    wrong = teller(training, side, "every message of a worker is gone when worker_step returns")
    examine_handles(side.calls, wrong)


def no_fault_of_the_workers(training, step, mistake):
    """The server's weights are wrong in a known way: raise if a worker did that."""
    for side in training.sides[step][1:]:
        wrong = teller(training, side, f"{side.name} sends the gradients of its one loss")
        if mistake == "weights_as_gradients":
            raise wrong(
                "weights_sent",
                "the server's step is one with the weights themselves as gradients",
                "the worker sends its parameters. What it sends is parameter.grad.",
            )
        if mistake == "no_gradients" and not any(g is not None for g in side.gradients.values()):
            raise wrong(
                "no_backward",
                "the worker has no gradient at all, and the server's step is one with zeros",
                "loss.backward() was not called, or .grad was cleared after it and before sending.",
            )
        if mistake in ("old_gradients", "old_where_missing"):
            examine_old_gradients(training, side, wrong)


def examine_old_gradients(training, side, wrong):
    """Is something in this worker's ``.grad`` that is not of its last loss?"""
    own = right_gradients(training, side)
    for name, came in side.gradients.items():
        if came is None or not came.any():
            continue
        if own.get(name) is None:
            raise wrong(
                "old_where_missing",
                f"{side.name}'s loss does not use {name}, but its .grad is still that of an"
                " earlier step",
                "a gradient stays until somebody clears it. zero_grad() before backward does.",
            )
        if not alike(came, own[name]):
            raise wrong(
                "old_gradients",
                f"{side.name}'s .grad of {name} holds those of earlier steps, too",
                "backward adds to .grad. Call zero_grad() before it, or clear after sending.",
            )


def right_gradients(training, side):
    """What a worker's loss of this step gives, by name, None where it does not use it."""
    model = training.model_of()
    if side.step:
        model.load_state_dict(training.right[side.step - 1], strict=False)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return gradients(model, trained, *training.batches[side.step][side.rank - 1])


def examine_worker(training, side, examine_sending):
    """The worker has the server's weights, and its own buffers.  The server's weights are right.

    ``examine_sending(training, server, worker, expected)`` raises when the server is to blame.
    """
    expected = f"after the step {side.name} has the server's new weights"
    wrong = teller(training, side, expected)
    server = training.sides[side.step][0]
    if side.weights.keys() != server.weights.keys():
        raise wrong(
            "parameters_lost",
            f"{side.name} has no {listed(server.weights.keys() - side.weights.keys())} any more",
            "a parameter was deleted or registered under another name. Write new numbers into it.",
        )
    if not all_same(side.weights, server.weights):
        if all_alike(side.weights, server.weights):
            raise wrong(
                "rounded",
                f"{side.name} has them, but rounded",
                "the weights went through a smaller dtype. Send them as they are.",
            )
        before = weights_before(training, side)
        stale = [n for n, w in server.weights.items() if not same(side.weights[n], w)]
        old = [n for n in stale if alike(side.weights[n], before[n])]
        if old == stale and set(old) >= set(moved(server, before)):
            examine_sending(training, server, side, expected)
            raise wrong(
                "weights_not_kept",
                "all its weights are still the old ones, though the server sent something after"
                " its step",
                "what was received went into a new tensor. Write it into the parameters:"
                " parameter.data.copy_(arrived), or receive into parameter.data.",
            )
        if old == stale:
            raise wrong(
                "weights_left_out",
                f"{listed(old)} {'is' if len(old) == 1 else 'are'} still the old one"
                f"{'' if len(old) == 1 else 's'}",
                "a loop leaves parameters out, such as those without a gradient in this step.",
            )
        raise wrong(
            "other_weights",
            f"{listed(stale)}: neither the server's weights nor the old ones",
            "the weights were received in another order than they were sent, or the worker changed"
            " them by itself: it has no optimizer.",
        )
    if side.buffers_changed:
        raise wrong(
            "buffers_changed",
            f"the buffers of {side.name} were overwritten: {listed(side.buffers_changed)}",
            "the whole state_dict() was loaded. Buffers stay at home: each rank has its own.",
        )


def weights_before(training, side):
    if side.step:
        return training.right[side.step - 1]
    model = training.model_of()
    return {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)}


def moved(server, before):
    """The parameters that the step has changed."""
    return [name for name, weights in server.weights.items() if not alike(weights, before[name])]
