"""What is wrong with an answer to ``distributed_data_parallel.BucketedDDP``."""

import torch

from multigpu.checking.comparing import WIDTH
from multigpu.checking.verdicts import count, listed

from .buckets import OF_BUCKETS, cuts, twice_each
from .explain_no_sync import examine_interruption, examine_quiet, explain_silence
from .explain_training import Report
from .explain_travel import STARTS, calls_of, examine_overlap, started_late
from .one_process import added

DEFAULT = 25 * 2**20
TIED = 8 * WIDTH**2  # bytes of the tied parameter of Specimen


class Bucketed(Report):
    function = "BucketedDDP"
    OUT_OF_STEP = (
        "buckets were started in the order in which they filled, which differs from rank to rank,"
        " or one that was not full was left out. Start them in one order everywhere: the second"
        " one waits for the first. sync_gradients starts the rest."
    )

    def examine(self):
        examine_interruption(self)
        super().examine()

    def steps_of_examination(self):
        return self.examine_quiet, *super().steps_of_examination(), self.examine_travel

    def explain_own(self, step, rank, wrong):
        explain_silence(self, step, rank)
        super().explain_own(step, rank, wrong)

    def some_own(self, step, rank, wrong):
        return self.wrong(
            "last_bucket_not_sent",
            "every gradient on every rank is the mean over all ranks",
            f"on rank {rank} {listed(wrong, most=4)} still {'have' if wrong[1:] else 'has'} this"
            " rank's own gradient, the others are averaged",
            "a bucket that is not full, such as the one with the first layers, was never sent."
            " sync_gradients starts what is left.",
            step=step,
        )

    def examine_quiet(self, step, rank):
        examine_quiet(self, step, rank)

    def known_besides(self, step, rank, name):
        """A bucket that left too early, and what several backward passes can come to."""
        passes = [one[name] for one in self.right[step].passes]
        total, last = added(self.right[step].parts(name)), added(passes[-1])
        if len(passes) == 1:
            return {"sent_too_early": torch.zeros_like(total)}
        earlier = added([one[rank] for one in passes[:-1]])
        known = {"divided_by_passes": total / self.n / len(passes)}
        if last is None:
            return known
        known["only_last_pass"] = last / self.n
        if earlier is not None:
            known["earlier_not_averaged"] = earlier + last / self.n
        return known

    def words_for(self, mistake, right, came):
        return OF_BUCKETS.get(mistake) or super().words_for(mistake, right, came)

    # What was sent

    def examine_travel(self, step, rank):
        """One collective per bucket, the last layers first, and during backward."""
        unused = any(right is None for right in self.right[step].gradients.values())
        if self.n == 1 or unused:  # there is nobody to send to, or nothing for some buckets
            return
        calls = calls_of(self, step, rank)
        limit = self.case.options.get("bucket_bytes", DEFAULT)
        trained = [p for p in self.case.model_of(0).parameters() if p.requires_grad]
        sizes = [p.numel() * p.element_size() for p in reversed(trained)]
        allowed = {len(cut) for cut in cuts(sizes, limit) + cuts(sizes[::-1], limit)}
        twice = sum(call.bytes for call in calls) - sum(sizes) == TIED
        if twice or len(calls) not in allowed:
            raise self.wrong_number(step, rank, calls, sizes, limit)
        sent = [call.bytes for call in calls]
        forward = [[sum(group) for group in cut] for cut in cuts(sizes[::-1], limit)]
        backward = [[sum(group) for group in cut] for cut in cuts(sizes, limit)]
        if sent in forward and sent not in backward:
            raise self.wrong(
                "first_layers_first",
                "the gradients of the last layers travel first",
                f"with bucket_bytes={limit} rank {rank} sent {listed(sent)} bytes, in the order of"
                f" the layers. From the last to the first layer they are {listed(sizes)}",
                "backward begins with the last layer. Make the buckets from"
                " reversed(list(module.parameters())).",
                step=step,
            )
        if "one_by_one" in self.case.how:
            self.examine_overlap_after_no_sync(step, rank)
            examine_overlap(self, step, rank)

    def examine_overlap_after_no_sync(self, step, rank):
        """The hooks ran inside no_sync too, and that does not count."""
        late = started_late(self, step, rank)
        if late and self.note(step, rank)["quiet"] is not None:
            raise self.wrong(
                "late_after_no_sync",
                STARTS + ", also in the first backward after no_sync",
                f"on rank {rank} {len(late)} of {count(len(calls_of(self, step, rank)), 'bucket')}"
                " were started when the last gradient was ready already",
                "hooks run inside no_sync too, and what they counted there was still in the"
                " counters of the next backward. Inside no_sync nothing is counted.",
                step=step,
            )

    def wrong_number(self, step, rank, calls, sizes, limit):
        before, after = (len(cut) for cut in cuts(sizes, limit))
        wanted = count(before, "bucket")
        if after != before:
            wanted += f" (or {after}, if they are closed later)"
        sent = sum(call.bytes for call in calls)
        mistake, usually = "wrong_number_of_buckets", (
            "a size is numel() * element_size() bytes, and a bucket is closed where bucket_bytes is"
            " passed: before that parameter or after it."
        )  # fmt: skip
        if sent == 2 * sum(sizes) and twice_each(calls):
            mistake, usually = "sent_twice", (
                "every bucket was sent twice: sync_gradients starts again what the hooks have"
                " started. Remember which ones are on their way, and start the others there."
            )  # fmt: skip
        elif sent > sum(sizes):
            mistake, usually = "sent_too_much", (
                "a tied parameter was put in twice, or frozen ones were put in."
                " module.parameters() gives each one once; look at requires_grad."
            )  # fmt: skip
        elif len(calls) == len(sizes):
            mistake, usually = "one_collective_per_parameter", (
                "every gradient travels alone. A bucket has one flat tensor, which is sent once."
            )  # fmt: skip
        elif len(calls) == 1:
            mistake, usually = "one_bucket", (
                "all gradients are in one bucket: bucket_bytes has no effect, or numbers are"
                " counted in place of bytes. One bucket is full only when backward is over."
            )  # fmt: skip
        return self.wrong(
            mistake,
            f"with bucket_bytes={limit} and gradients of {listed(sizes)} bytes, from the last to"
            f" the first: {wanted}, each in one collective",
            f"rank {rank} made {count(len(calls), 'collective')} with"
            f" {listed(call.bytes for call in calls)} bytes",
            usually,
            step=step,
        )
