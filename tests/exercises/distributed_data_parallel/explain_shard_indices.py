"""What is wrong with an answer to ``distributed_data_parallel.shard_indices``."""

from multigpu.checking import Wrong, describe
from multigpu.checking.verdicts import count

from .known_shards import KNOWN, OPTIONS, right


class Report:
    """What the calls gave, and what is wrong with it."""

    def __init__(self, calls, answer):
        self.calls = [(places, OPTIONS | named) for places, named in calls]
        self.written = [shown(*call) for call in calls]
        self.right = [right(*places, **named) for places, named in self.calls]
        self.results, self.drew = answer.result["rows"], answer.result["drew"]
        self.where = answer.where

    def wrong(self, mistake, i, expected, came, usually):
        return Wrong(
            f"shard_indices.{mistake}",
            expected=f"{self.written[i]} gives {expected}",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        for i, came in enumerate(self.results):
            self.examine_type(i, came)
        for i, (came, wanted) in enumerate(zip(self.results, self.right, strict=True)):
            if came != wanted:
                raise self.explained(i, came, wanted)
        if self.drew:
            raise self.wrong(
                "global_generator",
                self.drew[0],
                "these rows, and leaves torch's global random generator as it was",
                "the right rows, but the global generator is another one afterwards",
                "torch.manual_seed and torch.randperm without generator= use the generator of all"
                " the program: dropout and weights get the same numbers in every epoch then. Make"
                " a new torch.Generator and hand it to randperm.",
            )

    def examine_type(self, i, came):
        if came is None:
            raise self.wrong(
                "returned_nothing", i, "a list", "None", "the function ends without `return`."
            )
        if not isinstance(came, list) or not all(type(index) is int for index in came):
            inside = [] if not isinstance(came, list) else [v for v in came if type(v) is not int]
            raise self.wrong(
                "not_a_list_of_integers",
                i,
                "a list of Python integers",
                describe(came) + (f" with {describe(inside[0])} in it" if inside else ""),
                "a tensor becomes such a list with .tolist(), a range with list(...).",
            )

    def explained(self, i, came, wanted):
        for mistake, (rule, usually) in KNOWN.items():
            known = [rule(*places, **named) for places, named in self.calls]
            if known == self.results:
                name = mistake.partition(" ")[0]
                return self.wrong(name, i, rows(wanted), rows(came), usually)
        if len(came) != len(wanted):
            return self.wrong(
                "wrong_number",
                i,
                f"{count(len(wanted), 'row')}: {rows(wanted)}",
                f"{count(len(came), 'row')}: {rows(came)}",
                "each rank gets the number of rows divided by world_size: rounded up, or down with"
                " drop_last. All ranks get the same number.",
            )
        if sorted(came) == sorted(wanted):
            return self.wrong(
                "wrong_order",
                i,
                rows(wanted),
                f"the same rows in another order: {rows(came)}",
                "something was sorted or shuffled once more.",
            )
        return self.wrong(
            "wrong_rows",
            i,
            rows(wanted),
            rows(came),
            "the order is that of torch.randperm with a new generator, whose seed is seed + epoch;"
            " Python's random and NumPy give others."
            if self.calls[i][1]["shuffle"]
            else "rank r takes the rows at r, r + world_size, r + 2 * world_size, and so on.",
        )


def shown(places, named):
    words = [*map(str, places), *(f"{name}={value}" for name, value in named.items())]
    return f"shard_indices({', '.join(words)})"


def rows(indices):
    """For example "[0, 2, 4]"; the first of a long list."""
    if len(indices) > 10:
        return f"[{', '.join(map(str, indices[:8]))}, ...], {len(indices)} in all"
    return str(indices)
