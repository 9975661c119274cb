"""What is wrong with an answer to ``pipeline.balance``, in the learner's numbers."""

from multigpu.checking import Wrong, describe
from multigpu.checking.verdicts import count, listed, numbered

from .known_cuts import KNOWN, USUALLY, best, largest, ranges

ROUNDING = 1e-9  # of a sum of floats


class Report:
    """What the calls gave, and what is wrong with it.

    ``results`` holds per call a list of (start, stop), one for each range, or what came instead.
    """

    def __init__(self, calls, answer):
        self.calls, self.results, self.where = calls, answer.result, answer.where

    def wrong(self, mistake, i, expected, came, usually):
        costs, num_stages = self.calls[i]
        return Wrong(
            f"balance.{mistake}",
            expected=f"balance({costs}, {num_stages}) gives {expected}",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        for i, result in enumerate(self.results):
            self.examine_type(i, result)
        for i, result in enumerate(self.results):
            self.examine_cover(i, [tuple(pair) for _, *pair in result])
        for i, result in enumerate(self.results):
            self.examine_cost(i, [tuple(pair) for _, *pair in result])
        for i, result in enumerate(self.results):
            self.examine_empty(i, [tuple(pair) for _, *pair in result])

    def examine_type(self, i, result):
        if result is None:
            raise self.wrong(
                "returned_nothing", i, "a list", "None", "the function ends without `return`."
            )
        if not isinstance(result, list):
            raise self.wrong(
                "not_a_list_of_ranges",
                i,
                "a list of ranges",
                describe(result),
                "a generator or another container becomes a list with list(...).",
            )
        for item in result:
            if not (isinstance(item, tuple) and item[:1] == ("range",)):
                raise self.wrong(
                    "not_a_list_of_ranges",
                    i,
                    "a list of ranges",
                    f"a list with {describe(item)} in it",
                    "a stage is range(first, end): the numbers of its layers, without costs.",
                )
        for item in result:
            if len(item) != 3:
                raise self.wrong(
                    "not_contiguous",
                    i,
                    "layers that follow each other",
                    "a range that leaves layers out or counts backwards",
                    "a stage is range(first, end), with a step of 1.",
                )

    def examine_cover(self, i, came):
        costs, num_stages = self.calls[i]
        if len(came) != num_stages:
            raise self.wrong(
                "wrong_number_of_stages",
                i,
                count(num_stages, "range"),
                f"{count(len(came), 'range')}: {shown(came)}",
                "the last stage was not closed, or a stage is left out when it is empty.",
            )
        layers = [layer for first, end in came for layer in range(first, end)]
        if layers == list(range(len(costs))):
            return
        missing = sorted(set(range(len(costs))) - set(layers))
        if missing:
            raise self.wrong(
                "layers_missing",
                i,
                f"ranges with all {len(costs)} layers",
                f"{shown(came)}: {numbered('layer', missing)} in no stage",
                "a range ends before its end: range(0, 2) has the layers 0 and 1. Each stage begins"
                " where the one before ends.",
            )
        raise self.wrong(
            "not_contiguous",
            i,
            "ranges that follow each other, each layer once",
            shown(came),
            "each stage begins where the one before ends; the last ends with the last layer.",
        )

    def examine_cost(self, i, came):
        costs, num_stages = self.calls[i]
        right = ranges(best(costs, num_stages))
        smallest, reached = largest(costs, right), largest(costs, came)
        if reached > smallest * (1 + ROUNDING):
            raise self.too_expensive(i, came, right, float(smallest), float(reached))

    def examine_empty(self, i, came):
        costs, num_stages = self.calls[i]
        empty = [stage for stage, (first, end) in enumerate(came) if end <= first]
        if empty and len(costs) >= num_stages:
            raise self.wrong(
                "empty_stage",
                i,
                f"one or more layers for every stage, as {shown(ranges(best(costs, num_stages)))}",
                f"{shown(came)}: {numbered('stage', empty)} without a layer",
                "a GPU without a layer does nothing. With as many layers as stages, or more, every"
                " stage gets one, even where that makes the largest cost no smaller.",
            )

    def too_expensive(self, i, came, right, smallest, reached):
        expected = f"a largest cost of {smallest:g}, as with {shown(right)}"
        found = f"{shown(came)}: one stage costs {reached:g}"
        cuts = [[tuple(pair) for _, *pair in result] for result in self.results]
        for mistake, rule in KNOWN.items():
            if all(cut == ranges(rule(*call)) for cut, call in zip(cuts, self.calls, strict=True)):
                name = mistake.partition(",")[0]
                return self.wrong(name, i, expected, found, USUALLY[name])
        return self.wrong(
            "not_smallest",
            i,
            expected,
            found,
            "not all places of the cuts were compared, or something else was made smallest than the"
            " largest cost of a stage.",
        )


def shown(cut):
    return listed(f"range({first}, {end})" for first, end in cut)
