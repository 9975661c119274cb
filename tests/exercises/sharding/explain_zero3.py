"""What is wrong with an answer to ``sharding.Zero3``: its shards, and its values."""

import itertools

from multigpu.checking import Returned, Wrong, describe
from multigpu.checking.comparing import alike, largest_difference, same
from multigpu.checking.verdicts import count

from .explain_zero3_gradients import explain_gradients
from .explain_zero3_memory import examine_memory, examine_rest
from .explain_zero3_start import explain_start
from .explain_zero3_travel import examine_travel
from .zero3_one_process import outputs_with, sizes_of, train

FUNCTION = "Zero3"
OUTPUTS = (
    "forward gives on every rank what one process gives that has trained on the rows of all ranks"
)


class Report:
    """What training one model came to on every rank, and what is wrong with it."""

    def __init__(self, world, case, results, answer):
        self.n, self.case, self.results = world, case, results
        self.answer = answer
        self.right = train(case.model_of, case.steps, case.evaluation)
        self.sizes = sizes_of(case.model_of, world, case.steps[0][0])

    def wrong(self, mistake, expected, came, usually, *, step=None, where=None):
        situation = f" ({count(self.n, 'rank')}" + (")" if step is None else f", step {step + 1})")
        return Wrong(
            f"{FUNCTION}.{mistake}",
            expected=expected + situation,
            came=came,
            usually=usually,
            where=where or self.answer.where,
        )

    def examine(self):
        """Shards, then values in the order of training, then memory, then what was sent."""
        examine_shards(self)
        for step in range(len(self.case.steps)):
            self.examine_outputs("steps", step, self.right.steps[step].outputs, step)
            if step in (0, len(self.case.steps) - 1):
                place = 0 if step == 0 else 1
                self.examine_outputs("evaluated", place, self.right.evaluated[place], step)
        for rank, result in enumerate(self.results):
            examine_rest(self, rank, result["start"])
        for step in range(len(self.case.steps)):
            for rank in range(self.n):
                examine_memory(self, step, rank)
        for step in range(len(self.case.steps)):
            for rank in range(self.n):
                examine_travel(self, step, rank)

    def examine_outputs(self, kind, place, right, step):
        """What forward returned on every rank, in training or in eval mode."""
        for rank, expected in enumerate(right):
            came = self.results[rank][kind][place]["outputs"]
            if not isinstance(came, Returned):
                raise self.wrong(
                    "no_output",
                    "forward returns what the module returns",
                    f"on rank {rank} it returned {describe(came)}",
                    "a return is missing, or something was put around the outputs.",
                    step=step,
                )
            if not same(came.value, expected, share_of=self.n):
                self.explain(kind, step, rank, came.value, expected)

    def explain(self, kind, step, rank, came, expected):
        """Why one rank's outputs are wrong: the start, the step before, or the mode."""
        evaluated = kind == "evaluated"
        rows = (self.case.evaluation if evaluated else self.case.steps[step])[rank]
        examine_waits(self, step)
        if alike(came, expected):
            raise self.wrong(
                "rounded",
                OUTPUTS,
                f"on rank {rank} it is rounded: the output {largest_difference(came, expected)}",
                "gradients or weights were sent or added up in a smaller dtype.",
                step=step,
            )
        if step == 0 and not evaluated:
            explain_start(self, rank, came, expected)
        in_training = outputs_with(self.case.model_of, self.right.weights_after[step], rows)
        if evaluated and alike(came, in_training):
            raise self.wrong(
                "mode_not_passed_on",
                "after eval() forward gives what the module gives in eval mode",
                f"on rank {rank} the outputs are those of training mode",
                "the module is not a part of the wrapper: eval() and train() reach what was"
                " assigned to self, and no module that stands in a list or behind a property."
                " Write self.module = module.",
                step=step,
            )
        for done in range(step + evaluated):
            explain_gradients(self, done)
        self.explain_later(evaluated, step, rank, came, expected, rows)

    def explain_later(self, evaluated, step, rank, came, expected, rows):
        """The gradients were right, and still the outputs are not."""
        found = f"on rank {rank} the output {largest_difference(came, expected)}"
        for earlier in range(step + evaluated):
            old = self.right.steps[earlier].weights
            if alike(came, outputs_with(self.case.model_of, old, rows, training=not evaluated)):
                raise self.wrong(
                    "stale_weights",
                    "forward uses the weights after the step before",
                    f"the outputs of rank {rank} are those of the weights before step"
                    f" {earlier + 1}",
                    "a gathered layer was kept, or the shard that is gathered is not the one that"
                    " the optimizer steps. Gather anew before each forward, from what parameters()"
                    " gives.",
                    step=step,
                )
        raise self.wrong(
            "other_output",
            OUTPUTS + (", also in eval mode and without gradients" if evaluated else ""),
            found,
            "the layers are put together wrongly, or from old shards. Compare what you gather with"
            " the parameters of the module, element by element.",
            step=step,
        )


def examine_waits(report, step):
    """Until the end of a step everything that it has sent was waited for."""
    for done, rank in itertools.product(range(step + 1), range(report.n)):
        begin, *_, end = report.results[rank]["steps"][done]["times"]
        calls = [c for c in report.answer.trace.of(rank) if begin <= c.time <= end]
        waiting = [call for call in calls if call.end is None or call.end > end]
        if waiting:
            raise report.wrong(
                "not_waited",
                "when backward ends, everything that was sent or asked for has been waited for",
                f"on rank {rank} {len(waiting)} of {count(len(calls), 'call')} had not been, among"
                f" them the {waiting[0].op} of {waiting[0].place}",
                "async_op=True returns a handle; the numbers are there after handle.wait(). What"
                " backward starts last, torch.autograd.Variable._execution_engine.queue_callback"
                " can wait for, or do without async_op.",
                step=done,
            )


def examine_shards(report):
    """``parameters()`` gives shards: tensors to step, few elements, and none that keeps more."""
    limit, usually = report.sizes.shards, None
    for rank, result in enumerate(report.results):
        shards = result["shards"]
        strange = next((shard["type"] for shard in shards if "type" in shard), None)
        expected = (
            f"parameters() gives this rank's shards: at most {limit} of"
            f" {count(report.sizes.whole, 'element')}"
        )
        if strange or not shards:
            raise report.wrong(
                "no_parameters",
                expected,
                f"on rank {rank} it gives {f'a {strange}' if strange else 'nothing'}",
                "parameters() of nn.Module finds nn.Parameters that were assigned to a module, or"
                " put into an nn.ParameterList. What stands in a plain list it does not find:"
                " write a method parameters() of your own.",
            )
        elements = sum(shard["elements"] for shard in shards)
        if elements <= limit:
            continue
        usually = (
            "parameters() of nn.Module also gives the parameters of the module inside. Write a"
            " method parameters() that gives the shards and nothing else."
        )
        if elements <= report.sizes.whole:
            usually = (
                "these are whole parameters, or pieces too large: rank r keeps the r-th of n pieces"
                " of equal length, and the optimizer gets nothing else."
            )
        raise report.wrong(
            "parameters_not_sharded",
            expected,
            f"on rank {rank} it gives {count(elements, 'element')}",
            usually,
        )
