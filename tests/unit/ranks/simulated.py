"""Plays a random program without processes: a clock, and ranks that take turns.

Messages and collectives behave as with gloo: a send waits for its receiver, a collective for all
members, only that in one with a root some ranks are now and then done before all have come.
"""

import random

from played import Play

SIGKILL = -9


class NotedPlay(Play):
    """Keeps the calls that the watch may forget."""

    def __init__(self, world_size):
        self.calls = {}
        super().__init__(world_size)

    def begin(self, rank, op, **details):
        number = super().begin(rank, op, **details)
        self.calls[rank, number] = self.watch._states[rank].last
        return number


class Simulation:
    """One run of a program; ``finding()`` is what the watch says of it."""

    def __init__(self, program, seed):
        self.rng = random.Random(seed)
        self.program = program
        self.run = NotedPlay(program["world"])
        self.states = self.run.watch._states
        self.todo = [list(steps) for steps in program["ranks"]]
        self.waits = [None] * program["world"]  # numbers of the calls that each rank waits for
        self.wakes = [0.0] * program["world"]
        self.handles = [{} for _ in self.todo]

    def finding(self):
        """The first finding, also at the end; None if all is well."""
        while any(self.todo) or any(self.waits):
            able = [rank for rank, steps in enumerate(self.todo) if self._able(rank, steps)]
            if able:
                self._go_on(self.rng.choice(able))
                self.run.now += self.rng.choice((0.0001, 0.001, 0.01))
            else:
                self._complete_what_is_under_way()
                self.run.now += 0.02
            if found := self.run.watch.look(self.run.now, self.run.threads):
                return found
        return self.run.look(0.5) or self.run.watch.final()

    def _complete_what_is_under_way(self):
        """Async collectives go on without their ranks."""
        for call in [call for state in self.states for call in state.calls.values()]:
            under_way = (
                call.is_open and call.is_async and call.nth is not None and call.completed is None
            )
            if under_way and self.run.watch._matching.may_complete(call):
                self.run.say(call.rank, phase="completed", id=call.id)

    def _able(self, rank, steps):
        if self.waits[rank]:
            return self._over(rank, self.waits[rank][0])
        return bool(steps) and self.wakes[rank] <= self.run.now

    def _over(self, rank, number):
        """Whether a call can end now."""
        matching, call = self.run.watch._matching, self.run.calls[rank, number]
        if call.nth is not None and matching.match(call).may_advance():
            root_only_gives = call.op == "broadcast" and call.rank == call.root
            others_only_give = call.op in ("gather", "reduce") and call.rank != call.root
            if (root_only_gives or others_only_give) and self.rng.random() < 0.3:
                return True
        return matching.may_complete(call)

    def _go_on(self, rank):
        if self.waits[rank]:
            number = self.waits[rank].pop(0)
            call = self.run.calls[rank, number]
            source = None
            if call.op == "recv" and call.peer is None:
                source = self._sender(call)
            self.run.done(rank, number, source=source)
            if self.waits[rank]:
                self.run.wait(rank, self.waits[rank][0])
        else:
            self._step(rank, self.todo[rank].pop(0))
        if not self.todo[rank] and not self.waits[rank] and not self._ended(rank):
            self.run.returned(rank)

    def _ended(self, rank):
        state = self.run.watch._states[rank]
        return state.over

    def _sender(self, call):
        queue = self.run.watch._matching.queue(call)
        return next(s for s, sends in queue.sends.items() if len(sends) > queue.arrived(s))

    def _step(self, rank, step):
        kind = step["kind"]
        if kind == "sleep":
            self.wakes[rank] = self.run.now + step["seconds"]
        elif kind == "wait":
            self._wait(rank, [self.handles[rank][step["handle"]]])
        elif kind in ("return", "raise", "exit", "kill"):
            self._leave(rank, kind)
        elif kind == "batch":
            size = {"numel": step["numel"], "tag": step["tag"], "via": "batch_isend_irecv"}
            sent = self.run.start(rank, "send", peer=step["to"], **size)
            self._wait(rank, [sent, self.run.start(rank, "recv", peer=step["source"], **size)])
        elif kind in ("collective", "start"):
            number = self.run.begin(rank, is_async=kind == "start", **self._collective(step))
            self._waited_or_not(rank, number, step, kind == "start")
        else:
            op = "send" if "send" in kind else "recv"
            details = {name: step[name] for name in ("peer", "numel", "tag", "dtype")}
            number = self.run.begin(rank, op, is_async=kind in ("isend", "irecv"), **details)
            self._waited_or_not(rank, number, step, kind in ("isend", "irecv"))

    def _collective(self, step):
        return {
            **{name: step[name] for name in ("op", "numel", "dtype", "root", "reduce")},
            "group": str(step["group"]),
            "members": self.program["groups"][step["group"]],
            "line": 10 + step["group"],
        }

    def _waited_or_not(self, rank, number, step, later):
        if later:
            self.handles[rank][step["handle"]] = number
        else:
            self._wait(rank, [number])

    def _wait(self, rank, numbers):
        self.waits[rank] = numbers
        self.run.wait(rank, numbers[0])

    def _leave(self, rank, kind):
        self.todo[rank].clear()
        if kind == "raise":
            self.run.raised(rank, "ValueError", "planted")
        if kind == "exit":
            self.run.say(rank, phase="left", status=0, where=["/course/train.py", 1, "train"])
        if kind in ("exit", "kill"):
            self.run.watch.ended(rank, SIGKILL if kind == "kill" else 0)
