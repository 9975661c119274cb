"""What the steps of a training run send.  ``case.total`` is Ψ, the number of trained elements."""

from multigpu.ranks.errors import listed


def sends_at_most(exercise, name, most, *, expects, usually, fix, ops=()):
    """No step sends more than ``most(case)`` elements per rank; None means no limit.

    With ``ops`` only these calls count.  The drive notes when each step began and ended, in seconds
    of time.monotonic(): ``{"watched": {"steps": [(began, ended), ...]}}``.
    """

    @exercise.holds(name, expects=expects, usually=usually, fix=fix)
    def _(run, case):
        limit = most(case)
        for number, volumes in enumerate(volume_by_step(run, case) if limit is not None else []):
            sent = sum(volume for op, volume in volumes.items() if not ops or op in ops)
            if limit is not None and sent > limit:
                parts = [f"{op} {volume / case.total:.1f} Ψ" for op, volume in volumes.items()]
                total = sum(volumes.values()) / case.total
                return f"step {number + 1} sent {total:.1f} Ψ elements per rank: {listed(parts)}"
        return None


def volume_by_step(run, case):
    """By step, what each operation made a rank send, in elements; the mean over ranks.

    As if all ranks sent to all: in a ring (n - 1) / n of it travels.  An all-reduce of Ψ elements
    costs 2 Ψ; a reduce-scatter, an all-gather, a reduce or a broadcast costs Ψ.
    """
    steps: list[dict[str, float]] = [{} for _ in run.came(case)[0]["watched"]["steps"]]
    for rank, own in enumerate(run.came(case)):
        calls = [call for call in run.calls(case, rank) if call.numel]
        for volumes, (began, ended) in zip(steps, own["watched"]["steps"], strict=True):
            for call in calls:
                if began <= call.time <= ended and call.op not in ("recv", "barrier"):
                    n = len(call.members)
                    factor = {"all_reduce": 2, "all_gather": n, "send": n / (n - 1 or 1)}
                    volume = factor.get(call.op, 1) * call.numel / case.world
                    volumes[call.op] = volumes.get(call.op, 0) + volume
    return steps
