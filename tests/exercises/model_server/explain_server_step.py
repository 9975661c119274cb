"""What is wrong with an answer to ``model_server.server_step``: its weights, and what it sends.

What betrays the workers is in explain_worker_step.
"""

from multigpu.checking.comparing import (
    all_alike,
    all_same,
    examine_handles,
    largest_difference,
    same,
)
from multigpu.checking.verdicts import count, listed

from .explain_worker_step import no_fault_of_the_workers
from .telling import teller
from .training import mistakes, weights_of

# By mistake: what the weights are exactly equal to, and which code usually does that.
KNOWN = {
    "rounded": (
        "a step with rounded gradients",
        "gradients were sent or added up in a smaller dtype. Send them as they are.",
    ),
    "sum_not_mean": (
        "a step with the sum of the workers' gradients",
        "the sum was never divided by the number of workers.",
    ),
    "divided_by_world": (
        "a step with the sum divided by the number of ranks",
        "the server is a rank, too, but it has no rows: divide by the number of workers, which is"
        " world_size - 1.",
    ),
    "divided_twice": (
        "a step with the mean divided by the number of workers once more",
        "both sides divide. One of them is enough.",
    ),
    "missing_left_out": (
        "a step with the mean over those workers that have a gradient",
        "a missing gradient counts as zeros: divide by the number of all workers.",
    ),
    "one_worker_only": (
        "a step with the gradients of one worker alone",
        "every worker's gradient overwrites the one before, or only one worker is asked.",
    ),
    "old_gradients": (
        "a step with the gradients of all steps so far",
        "the server adds to what the last step left in .grad. Begin from zeros.",
    ),
    "old_where_missing": (
        "a step in which a missing gradient is the one of an earlier step",
        "what a worker sent in an earlier step was kept. A missing gradient counts as zeros.",
    ),
    "optimizer_made_anew": (
        "a step without momentum or the like of earlier steps",
        "the weights were changed by hand, or by a new optimizer. Use the one that is given.",
    ),
    "no_gradients": (
        "a step with gradients of zeros",
        "the gradients that came were not put into .grad of the server's own parameters.",
    ),
}


def examine_server(training, side):
    """The server's weights after a step are those of one process."""
    wrong = teller(
        training, side, "the server's weights are those of one process on the mean of the losses"
    )
    examine_handles(side.calls, wrong)
    right = training.right[side.step]
    if not all_same(side.weights, right, share_of=training.workers):
        examine_steps(training, side, wrong)
        known = {"rounded": training.right}
        known |= mistakes(training.model_of, training.optimizer_of, training.batches)
        found = (
            name for name, weights in known.items() if all_alike(side.weights, weights[side.step])
        )
        mistake = next(found, "").partition(",")[0]
        no_fault_of_the_workers(training, side.step, mistake)
        examine_frozen(training, side, wrong)
        difference = different(side.weights, right, training.workers)
        if mistake:
            like, usually = KNOWN[mistake]
            raise wrong(mistake, f"exactly the weights after {like}: {difference}", usually)
        raise wrong(
            "other_weights",
            difference,
            "gradients were mixed up, left out or read before they had come. Every gradient must"
            " be received in the order in which it is sent.",
        )
    if side.buffers_changed:
        raise wrong(
            "buffers_changed",
            f"the server's buffers changed: {listed(side.buffers_changed)}",
            "buffers stay at home: each rank has its own. Only parameters travel.",
        )


def examine_steps(training, side, wrong):
    """The weights are wrong: did the optimizer step once?"""
    before = training.right[side.step - 1] if side.step else weights_of(training.model_of())
    moved = not all_alike(side.weights, before)
    difference = different(side.weights, training.right[side.step], training.workers)
    if not side.stepped:
        raise wrong(
            "optimizer_not_used" if moved else "no_step",
            f"optimizer.step() was not called; {difference}",
            "the server has the optimizer, and one step of it changes the weights. By hand there"
            " is no momentum.",
        )
    if len(side.stepped) > 1:
        raise wrong(
            "several_steps",
            f"optimizer.step() was called {len(side.stepped)} times",
            "the server steps once, when the gradients of all workers are there. One step per"
            " worker is another method.",
        )


def examine_frozen(training, side, wrong):
    """The weights are wrong: is it the frozen ones?"""
    named = training.model_of().named_parameters(remove_duplicate=False)
    for name, frozen in named:
        came = side.weights.get(name)
        if not frozen.requires_grad and came is not None and not same(came, frozen):
            raise wrong(
                "frozen_moved",
                f"{name} is frozen, but {largest_difference(came, frozen)}",
                "it was given a gradient of zeros, so the optimizer moved it by weight decay. Leave"
                " .grad of a frozen parameter None.",
            )


def different(came, right, share_of=1):
    """The first parameter that differs, and how."""
    for name, expected in right.items():
        if name not in came:
            return f"there is no parameter {name} any more"
        if not same(came[name], expected, share_of=share_of):
            return f"{name} {largest_difference(came[name], expected)}"
    return "there are more parameters than before"


def examine_sending(training, server, worker, expected):
    """A worker has the weights of before the step: raise if the server is to blame for that."""
    wrong = teller(training, server, expected)
    down = [call for call in server.calls if call.op != "recv" and worker.rank in reached(call)]
    if not down:
        raise wrong(
            "weights_not_sent",
            f"worker {worker.rank} still has its old weights; nothing was sent to it",
            "the new weights go to every worker, in every step.",
        )
    stepped = server.stepped[-1] if server.stepped else 0.0
    sent_after = [call for call in server.calls if call.time > stepped]
    if not any(worker.rank in reached(call) for call in sent_after):
        raise wrong(
            "weights_sent_before_step",
            f"worker {worker.rank} still has its old weights; all that the server sent was sent"
            " before optimizer.step()",
            "the weights were sent, or copied for sending, too early.",
            where=down[-1].place,
        )


def reached(call):
    """The ranks to which a call of the server may bring something."""
    if call.op == "send":
        return (call.peer,)
    return () if call.op in ("recv", "reduce", "gather", "barrier") else call.members


def examine_alone(training, side):
    """Without workers nothing is sent, and nothing changes."""
    wrong = teller(training, side, "without workers server_step returns at once")
    if side.calls:
        raise wrong(
            "talks_when_alone",
            f"{count(len(side.calls), 'call')} of torch.distributed, the first is"
            f" {side.calls[0].via}",
            "with world size 1 there is nobody to talk to. Return before.",
            where=side.calls[0].place,
        )
    start = dict(training.model_of().named_parameters(remove_duplicate=False))
    if not all_same(side.weights, {name: p.detach() for name, p in start.items()}):
        raise wrong(
            "moves_when_alone",
            different(side.weights, {name: p.detach() for name, p in start.items()}),
            "the optimizer stepped with gradients from before, or with 0 / 0. Return before.",
        )
