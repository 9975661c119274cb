"""Random programs for ranks: valid ones, and the same with one planted fault.

A program is plain data: ``{"world": 3, "groups": [[0, 1, 2], [0, 2]], "ranks": [[step, ...], …]}``.
It is made event by event, and each event adds its steps to the lists of the ranks that take part.
So all ranks meet their events in one order, and the program cannot hang: async calls are waited for
somewhere later, by each rank at a place of its own.
"""

import random

COLLECTIVES = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"]
COLLECTIVES += ["all_to_all", "barrier", "all_gather_object", "broadcast_object_list"]
ROOTED = ("broadcast", "reduce", "gather", "scatter", "broadcast_object_list")
PLAIN = ("all_reduce", "broadcast", "reduce", "all_gather", "gather")  # every fault can be seen
SIZES = (1, 3, 8, 1000)

COMMUNICATION = ("collective", "send", "recv", "start", "isend", "irecv", "recv_any", "batch")
FAULTS = (
    *("skipped_call", "extra_call", "other_operation", "other_root", "other_reduction"),
    *("other_size", "other_dtype", "early_return", "exception", "os_exit", "sigkill"),
    *("send_without_receive", "receive_from_wrong_rank", "groups_in_other_order"),
)


def valid_program(seed, *, longest_sleep=0.7):
    """A program that ends well on 2 to 4 ranks."""
    rng = random.Random(seed)
    world = rng.randint(2, 4)
    groups = [list(range(world))]
    for _ in range(rng.randint(0, 2)):
        groups.append(sorted(rng.sample(range(world), rng.randint(2, world))))
    program = {"world": world, "groups": groups, "ranks": [[] for _ in range(world)]}
    for number in range(rng.randint(6, 14)):
        _event(program, rng, handle=f"h{number}")
    _wait_for_the_rest(program, rng)
    _sleep_here_and_there(program, rng, longest_sleep)
    return program


def _event(program, rng, *, handle):
    """One thing that some ranks do together."""
    ranks = program["ranks"]
    a, b = rng.sample(range(program["world"]), 2)
    message = {"numel": rng.choice(SIZES), "dtype": "float32", "tag": rng.choice((0, 0, 5))}
    kind = rng.choices(["collective", "start", "message", "imessage", "any", "ring"],
                       [8, 4, 3, 3, 1, 1])[0]  # fmt: skip
    if kind in ("collective", "start"):
        step = collective(program, rng, PLAIN if kind == "start" else COLLECTIVES)
        for rank in program["groups"][step["group"]]:
            threaded = kind == "collective" and rng.random() < 0.1
            ranks[rank].append({**step, "kind": kind, "handle": handle, "threaded": threaded})
    elif kind == "message":
        ranks[a].append({"kind": "send", "peer": b, **message})
        ranks[b].append({"kind": "recv", "peer": a, **message})
    elif kind == "imessage":
        ranks[a].append({"kind": rng.choice(("send", "isend")), "peer": b, **message})
        ranks[b].append({"kind": "irecv", "peer": a, **message})
        for rank in (a, b):
            ranks[rank][-1]["handle"] = handle
    elif kind == "any":
        tag = 100 + int(handle[1:])  # nobody else's
        for sender in (rank for rank in range(program["world"]) if rank != b):
            ranks[sender].append({"kind": "send", "peer": b, **message, "tag": tag})
            ranks[b].append({"kind": "recv_any", "peer": None, **message, "tag": tag})
    else:
        world = program["world"]
        for rank in range(world):
            to, source = (rank + 1) % world, (rank - 1) % world
            ranks[rank].append({"kind": "batch", "to": to, "source": source, **message})
            ranks[rank][-1]["handle"] = handle


def collective(program, rng, operations=COLLECTIVES):
    """A collective of some group."""
    group = rng.randrange(len(program["groups"]))
    op = rng.choice(operations)
    return {
        "kind": "collective",
        "op": op,
        "group": group,
        "numel": rng.choice(SIZES),
        "dtype": "float32",
        "root": rng.choice(program["groups"][group]) if op in ROOTED else None,
        "reduce": rng.choice(("SUM", "MAX")) if op in ("all_reduce", "reduce") else None,
    }


def _wait_for_the_rest(program, rng):
    """Each rank waits for what it has started, somewhere later."""
    for steps in program["ranks"]:
        started = [step for step in steps if step["kind"] in ("start", "isend", "irecv")]
        for step in started:
            place = next(i for i, each in enumerate(steps) if each is step)
            wait = {"kind": "wait", "handle": step["handle"]}
            steps.insert(rng.randint(place + 1, len(steps)), wait)


def _sleep_here_and_there(program, rng, longest):
    """Short sleeps for all, and now and then one that is longer than a deadlock needs."""
    for steps in program["ranks"]:
        for _ in range(rng.randint(0, 2)):
            nap = {"kind": "sleep", "seconds": rng.uniform(0, 0.03)}
            steps.insert(rng.randint(0, len(steps)), nap)
    if rng.random() < 0.3:
        steps = rng.choice(program["ranks"])
        nap = {"kind": "sleep", "seconds": rng.uniform(0.5, 1.0) * longest}
        steps.insert(rng.randint(0, len(steps)), nap)


def faulty_program(seed, fault):
    """A program with one fault of this kind, and the rank that has it."""
    for attempt in range(1000):
        rng = random.Random(f"{seed} {fault} {attempt}")
        program = valid_program(rng.randrange(10**9), longest_sleep=0.1)
        guilty = rng.randrange(program["world"])
        if PLANT[fault](program, program["ranks"][guilty], rng, guilty):
            return program, guilty
    raise AssertionError(f"no program for {fault}")


def _chosen(steps, rng, fits):
    """A random place in ``steps`` whose step fits; None if there is none."""
    places = [i for i, step in enumerate(steps) if fits(step)]
    return rng.choice(places) if places else None


def _plain(step):
    return step["kind"] in ("collective", "start") and step["op"] in PLAIN


def _blocks(step):
    return step["kind"] in ("send", "recv") or (step["kind"] == "collective" and _plain(step))


def _skip(program, steps, rng, guilty):
    place = _chosen(steps, rng, _blocks)
    return place is not None and bool(steps.pop(place))


def _extra(program, steps, rng, guilty):
    place = _chosen(steps, rng, lambda step: step["kind"] == "collective" and _plain(step))
    if place is not None:
        steps.insert(place, dict(steps[place]))
    return place is not None


def _change(name, values, fits=_plain):
    def plant(program, steps, rng, guilty):
        place = _chosen(steps, rng, fits)
        if place is None:
            return False
        now = steps[place]
        others = [v for v in values(program, now) if v != now[name]]
        if not others:
            return False
        steps[place] = {**now, name: rng.choice(others)}
        return True

    return plant


def _other_operation(program, steps, rng, guilty):
    place = _chosen(steps, rng, lambda step: _plain(step) and step["op"] != "broadcast")
    if place is not None:
        root = program["groups"][steps[place]["group"]][0]
        steps[place] = {**steps[place], "op": "broadcast", "root": root, "reduce": None}
    return place is not None


def _insert(step):
    """Somewhere before the rank's last communication, so that the others miss it."""

    def plant(program, steps, rng, guilty):
        last = max((i for i, s in enumerate(steps) if s["kind"] in COMMUNICATION), default=None)
        if last is not None:
            steps.insert(rng.randint(0, last), dict(step))
        return last is not None

    return plant


def _send_without_receive(program, steps, rng, guilty):
    peer = rng.choice([rank for rank in range(program["world"]) if rank != guilty])
    message = {"numel": rng.choice(SIZES), "dtype": "float32", "tag": 0}
    steps.insert(rng.randint(0, len(steps)), {"kind": "send", "peer": peer, **message})
    return True


def _receive_from_wrong_rank(program, steps, rng, guilty):
    place = _chosen(steps, rng, lambda step: step["kind"] == "recv")
    if place is None or program["world"] == 2:
        return False
    wrong = set(range(program["world"])) - {guilty, steps[place]["peer"]}
    steps[place] = {**steps[place], "peer": rng.choice(sorted(wrong))}
    return True


def _groups_in_other_order(program, steps, rng, guilty):
    members = sorted({guilty, *rng.sample(range(program["world"]), 2)})
    program["groups"] += [members, members]
    first = len(program["groups"]) - 2
    for rank in members:
        pair = [
            {**collective(program, rng, ["all_reduce"]), "group": first + i, "numel": 3}
            for i in (0, 1)
        ]
        for each in pair:
            each["reduce"] = "SUM"
        program["ranks"][rank] += pair if rank != guilty else pair[::-1]
    return True


PLANT = {
    "skipped_call": _skip,
    "extra_call": _extra,
    "other_operation": _other_operation,
    "other_root": _change(
        "root",
        lambda program, step: program["groups"][step["group"]],
        lambda step: _plain(step) and step["root"] is not None,
    ),
    "other_reduction": _change(
        "reduce", lambda *_: ("SUM", "MAX"), lambda step: _plain(step) and step["reduce"]
    ),
    "other_size": _change("numel", lambda program, step: (step["numel"] + 1,)),
    "other_dtype": _change("dtype", lambda *_: ("float64", "int32")),
    "early_return": _insert({"kind": "return"}),
    "exception": _insert({"kind": "raise"}),
    "os_exit": _insert({"kind": "exit"}),
    "sigkill": _insert({"kind": "kill"}),
    "send_without_receive": _send_without_receive,
    "receive_from_wrong_rank": _receive_from_wrong_rank,
    "groups_in_other_order": _groups_in_other_order,
}
