"""A run that is only played: its frames are written by the test, its clock stands still."""

from dataclasses import dataclass, field
from itertools import count

from multigpu.ranks.proof import Watch

MAIN = 1  # the thread that every rank begins with


@dataclass
class FakeThreads:
    """Every thread may act, unless the test says that it is blocked, or works."""

    blocked: set = field(default_factory=set)  # (rank, thread)
    working: set = field(default_factory=set)  # (rank, thread)
    ending: set = field(default_factory=set)  # ranks

    def may_act(self, rank, thread):
        return (rank, thread) not in self.blocked

    def others_work(self, rank, known):
        return any(r == rank and thread not in known for r, thread in self.working)

    def dying(self, rank):
        return rank in self.ending


class Play:
    """Says what ranks would say. Lines count up, so that every call has its own."""

    def __init__(self, world_size, *, timeout=60.0):
        self.watch = Watch(world_size, timeout=timeout)
        self.threads = FakeThreads()
        self.world = tuple(range(world_size))
        self.now = 100.0
        self.numbers = count()
        self.nth = {}
        for rank in self.world:
            self.say(rank, phase="started", thread=MAIN)

    def say(self, rank, **frame):
        self.now += 1e-4
        self.watch.hear(rank, {"time": self.now, **frame})

    def begin(self, rank, op, *, group="0", members=None, thread=MAIN, line=None, **details):
        """A call, not waited for. Returns its number."""
        number = next(self.numbers)
        nth = None
        if op not in ("send", "recv"):
            nth = self.nth.get((rank, group), 0)
            self.nth[rank, group] = nth + 1
        numel = details.pop("numel", 3)
        frame = {
            "via": op,
            "members": list(members or self.world),
            "shapes": [[numel]],
            "dtype": "float32",
            "bytes": 4 * numel,
            "reduce": "sum" if "reduce" in op else None,
            "root": None,
            "peer": None,
            "tag": 0,
            "is_async": False,
            "file": "/course/train.py",
            "line": 10 if line is None else line,
            "function": "train",
            **details,
        }
        said = {"op": op, "group": group, "nth": nth, "numel": numel, "thread": thread}
        self.say(rank, phase="call", id=number, **said, **frame)
        return number

    def wait(self, rank, number, *, thread=MAIN):
        self.say(rank, phase="wait", id=number, thread=thread)

    def call(self, rank, op, **details):
        """A blocking call that has not come back. Returns its number."""
        number = self.begin(rank, op, **details)
        self.wait(rank, number, thread=details.get("thread", MAIN))
        return number

    def start(self, rank, op, **details):
        """An async call, not waited for yet. Returns its number."""
        return self.begin(rank, op, is_async=True, **details)

    def done(self, rank, number, **details):
        self.say(rank, phase="done", id=number, **details)

    def all(self, op, *, ranks=None, **details):
        """A collective from its beginning to its end on all ranks."""
        ranks = self.world if ranks is None else ranks
        members = details.pop("members", ranks)
        numbers = [self.call(rank, op, members=members, **details) for rank in ranks]
        for rank, number in zip(ranks, numbers, strict=True):
            self.done(rank, number)

    def returned(self, *ranks):
        for rank in ranks:
            self.say(rank, phase="returned")

    def raised(self, rank, kind, text, *, inside=None, line=20):
        self.say(
            rank,
            phase="raised",
            type=kind,
            types=[kind],
            text=text,
            notes=[],
            frames=[["/course/train.py", line, "train"]],
            inside=inside,
        )

    def fails(self, rank, number, text):
        """A call of the rank fails, and the rank raises that error."""
        self.say(rank, phase="failed", id=number, text=text)
        self.raised(rank, "RuntimeError", text, inside=number)

    def look(self, seconds=2.0):
        """The finding, if there is one within this time, with a look every 20 ms."""
        end = self.now + seconds
        while self.now < end:
            if found := self.watch.look(self.now, self.threads):
                return found
            self.now += 0.02
        return None
