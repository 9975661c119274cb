"""How many bytes went up to the server and down to a worker, from the trace."""

from multigpu.checking.comparing import spoken
from multigpu.checking.verdicts import count

from .models import bytes_of
from .telling import teller

SLACK = 12_000  # bytes for headers, flags and pickled names; the parts of Heavy are larger

NO_BYTES = ("barrier", "new_group")


def examine_road(training, side):
    """A worker talks to the server, and to nobody else."""
    wrong = teller(training, side, "a worker sends to rank 0 and receives from rank 0")
    if not side.calls:
        raise wrong(
            "no_message",
            f"the numbers are right, but {side.name} communicated with nobody",
            "they took another road, such as a file or a store.",
        )
    for call in side.calls:
        if call.is_message and call.peer != 0:
            raise wrong(
                "between_workers",
                f"{spoken(call)}: both are workers",
                "the gradients of a worker go straight to the server, and the weights come straight"
                " from it. That is what makes its link hot.",
                where=call.place,
            )


def examine_bytes(training, side):
    """Per step every parameter travels at most once up and once down; Heavy is the model."""
    size = bytes_of(training.model_of())
    most = size["trained"] + size["frozen"] + SLACK
    up, down = (sum(travelled(call)[way] for call in side.calls) for way in (0, 1))
    expected = (
        f"between server and {side.name} each of the {size['trained']:,} bytes of trained"
        " parameters travels once up and once down"
    )
    for sent, way, function in ((up, "up", "worker_step"), (down, "down", "server_step")):
        if sent > most:
            wrong = teller(training, side, expected, function=function)
            raise too_many(training, side, sent, way, size, wrong)


def too_many(training, side, sent, way, size, wrong):
    """Which part of the model explains what came on top?"""
    came = f"{sent:,} bytes went {way}"
    largest = max(side.calls, key=lambda call: travelled(call)[way == "down"])
    everywhere = [call for call in side.calls if call.op in ("all_reduce", "all_gather")]
    if way == "down" and any(travelled(call)[1] > SLACK for call in everywhere):
        return wrong(
            "gradients_sent_down",
            f"{came}, with {largest.via if largest in everywhere else everywhere[0].via}",
            "it brings the gradients to every worker, too, who has no use for them. Only the"
            " server needs them: reduce, gather or send.",
            where=everywhere[0].place,
        )
    extras = {
        "tied_twice": (
            size["tied"],
            "tied weights are one parameter with two names. parameters() gives it once,"
            " state_dict() and remove_duplicate=False give it twice.",
        ),
        "buffers_travel": (
            size["buffers"],
            "buffers are not trained and stay at home. state_dict() holds them, parameters() does"
            " not.",
        ),
        "buffers_travel too": (
            size["buffers"] + size["tied"],
            "state_dict() holds buffers, and tied weights under each of their names. parameters()"
            " gives every parameter once, and no buffer.",
        ),
        "travels_twice": (
            size["trained"],
            "two things travel where one is enough, such as gradients and weights, or every number"
            " takes twice the bytes (float64).",
        ),
    }
    for mistake, (extra, usually) in extras.items():
        over = sent - size["trained"] - extra
        if -SLACK <= over <= size["frozen"] + SLACK:
            return wrong(mistake.partition(" ")[0], came, usually, where=largest.place)
    times = sent / size["trained"]
    return wrong(
        "too_many_bytes",
        f"{came}, {times:.1f} × the parameters, in {count(len(side.calls), 'call')}",
        "something travels more often than once per step, or buffers travel as well.",
        where=largest.place,
    )


def travelled(call):
    """The bytes that one call of a worker brought up to others, and down to it."""
    others = len(call.members) - 1
    if call.op in NO_BYTES or not others:
        return 0, 0
    own_root = call.root == call.rank
    if call.op in ("send", "recv"):
        return (call.bytes, 0) if call.op == "send" else (0, call.bytes)
    if call.op in ("broadcast", "scatter"):
        return (call.bytes, 0) if own_root else (0, call.bytes)
    if call.op in ("reduce", "gather"):
        return (0, call.bytes * others) if own_root else (call.bytes, 0)
    if call.op == "all_gather":
        return call.bytes, call.bytes * others
    if call.op == "all_to_all":
        return call.bytes, 0  # what comes back is not in the trace
    return call.bytes, call.bytes // (others + 1) if call.op == "reduce_scatter" else call.bytes
