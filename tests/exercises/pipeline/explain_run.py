"""What is wrong with an answer to ``pipeline.run``: the order in which it does things."""

from multigpu.checking import Returned, describe
from multigpu.checking.comparing import examine_handles, same
from multigpu.checking.verdicts import listed

from .tables import shown

KINDS = ("forward", "backward")
KEPT = "after the backward of a micro-batch its graph is gone"
MISSING = {"forward": "forward_missing", "backward": "backward_missing"}
TWICE = {"forward": "forward_twice", "backward": "backward_twice"}


def examine_messages(side):
    def wrong(mistake, came, usually, *, where):
        expected = "every message has arrived when run returns"
        return side.wrong(mistake, expected, came, usually, where=where)

    examine_handles(side.calls, wrong)


def examine_forwards(side):
    """Each forward is of one of the micro-batches, as the stage before has left it."""
    expected = f"stage {side.rank} is called once with each micro-batch"
    if not side.events:
        raise side.wrong(
            "stage_not_called",
            expected,
            f"on rank {side.rank} it was never called",
            "every rank has a row of its own in the schedule: follow schedule[rank].",
        )
    for event in side.events:
        if event["kind"] == "forward" and side.microbatch_of[event["call"]] is None:
            raise wrong_input(side, event["tensor"])


def wrong_input(side, came):
    """What was it that the stage was called with?"""
    expected = f"stage {side.rank} is called with one micro-batch" + (
        f", as stage {side.rank - 1} has returned it" if side.rank else ""
    )
    if not isinstance(came, Returned):
        return side.wrong(
            "not_a_tensor", expected, describe(came), "a stage takes one tensor: stage(inputs)."
        )
    right = side.right.inputs[side.rank]
    rank, shape = side.rank, tuple(came.shape)
    if rank and any(same(came.value, rows) for rows in side.right.inputs[0]):
        return side.wrong(
            "own_inputs",
            expected,
            f"rank {rank} called it with the inputs of the whole model",
            "only stage 0 takes the inputs in microbatches. Every other stage takes what it"
            " receives from the stage before.",
        )
    total = sum(side.case.rows)
    if shape[:1] == (total,) and total not in side.case.rows:
        return side.wrong(
            "whole_batch_at_once",
            expected,
            f"rank {rank} called it with all {total} rows",
            "the micro-batches were put together. Then one stage works at a time.",
        )
    if came.dtype != right[0].dtype:
        return side.wrong(
            "other_dtype",
            expected,
            f"{came.dtype} on rank {rank} and not {right[0].dtype}",
            "the tensor was made or converted with another dtype. Activations are float32, inputs"
            " are what they are.",
        )
    if shape not in {tuple(rows.shape) for rows in right}:
        return side.wrong(
            "other_shape",
            expected,
            f"the shape {shape} on rank {rank}; micro-batch 0 has {tuple(right[0].shape)} there",
            "the receiver assumes a shape. It may differ from stage to stage, and the number of"
            " rows from micro-batch to micro-batch: send the shape first.",
        )
    return side.wrong(
        "other_activation",
        expected,
        f"on rank {rank} something of the right shape, but with other numbers",
        "the buffer was read before the message had come, or overwritten by the next one, or it"
        " was never received into.",
    )


def examine_order(side):
    """The row of the schedule, from its first action to its last."""
    came = [action for action, _ in side.actions]
    if came == side.row:
        return
    expected = f"rank {side.rank} does {shown(side.row)}"
    found = shown(came)
    missing = [action for action in side.row if action not in came]
    if came == list(dict.fromkeys(came)) and missing:
        kind, m = missing[0]
        raise side.wrong(
            MISSING[kind],
            expected,
            f"{found}: no {kind} of micro-batch {m}",
            "an action of the schedule is left out."
            if kind == "forward"
            else "backward was not called on what this stage has returned, or autograd cannot reach"
            " it: the tensor was detached or received anew.",
        )
    twice = [action for action in came if came.count(action) > 1]
    if twice:
        kind, m = twice[0]
        raise side.wrong(
            TWICE[kind],
            expected,
            f"{found}: micro-batch {m} more than once",
            "each action is done once. A micro-batch whose number is not looked up in the schedule"
            " is easily taken for another one.",
        )
    if forwards_first(came) and not forwards_first(side.row):
        raise side.wrong(
            "always_all_forwards_first",
            expected,
            found,
            "the schedule is not followed: all forwards come first, as with gpipe, whatever it"
            " says. Then all micro-batches are in flight at once.",
        )
    raise side.wrong(
        "schedule_ignored",
        expected,
        found,
        "the actions come in another order. Go through schedule[rank], and take the micro-batch"
        " that it names.",
    )


def forwards_first(row):
    return row == sorted(row, key=lambda action: KINDS.index(action[0]))


def examine_kept(side):
    """When a backward is done, its graph is gone."""
    for index, (_, event) in enumerate(side.actions):
        over = [e["call"] for a, e in side.actions[:index] if a[0] == "backward"]
        examine_gone(side, sorted({*over} & set(event["kept"])))
        # A variable may name the last one, and a thread that sends may name another.
        outputs = sorted({*over[:-1]} & set(event["made"]))
        if len(outputs) > 1:
            raise side.wrong(
                "outputs_kept",
                KEPT,
                f"on rank {side.rank} what the stage had returned for the micro-batches"
                f" {listed(side.microbatch_of[call] for call in outputs)} was still there",
                "a list or dict still has it. Take it out when its backward comes:"
                " in_flight.pop(m).",
            )
    examine_gone(side, side.left)


def examine_gone(side, kept):
    if kept:
        raise side.wrong(
            "graph_kept",
            KEPT,
            f"on rank {side.rank} that of micro-batch {side.microbatch_of[kept[0]]} is still there",
            "retain_graph=True keeps it: the very memory that one_f_one_b saves.",
        )
