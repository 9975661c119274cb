"""What is wrong with an answer to ``data_parallel.broadcast``, in the learner's names."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import alike, largest_difference, recognise, same, snapshot
from multigpu.checking.verdicts import count, listed, numbered

from .grad_mode import LEFT_OFF


class Report:
    """What ``broadcast`` made of ``models`` on the GPUs ``order``, and what is wrong with it."""

    def __init__(self, models, order, replicas, where):
        self.before = [tensors_of(snapshot(model)) for model in models]
        self.right = self.before[0]
        self.first = snapshot(models[0])
        self.gpus = [f"cuda:{i}" for i in order]
        self.replicas = replicas
        self.came = [tensors_of(replica) for replica in self.replicas]
        self.where = where

    def wrong(self, mistake, came, usually, expected=None):
        return Wrong(
            f"broadcast.{mistake}",
            expected=expected or "parameters and buffers of every replica equal those of replica 0",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        self.examine_names()
        self.examine_first()
        self.examine_objects()
        self.examine_stale()
        for i in range(1, len(self.came)):
            self.examine_values(i)
        for i in range(len(self.came)):
            self.examine_memory(i)
            self.examine_kind(i)

    def examine_names(self):
        """Every replica still has all its parameters and buffers."""
        for i, came in enumerate(self.came):
            lost = [name for name in self.right if name not in came]
            if lost:
                raise self.wrong(
                    "tensors_lost",
                    f"replica {i} has no {listed(lost, most=4)} any more",
                    "it was deleted, set to None or registered under another name. Write into the"
                    " tensors that are there: copy_.",
                    "every replica keeps all its parameters and buffers",
                )

    def examine_grad_mode(self, gradients_off):
        if gradients_off:
            raise Wrong("broadcast.grad_mode_changed", **LEFT_OFF, where=self.where)

    def examine_first(self):
        """Replica 0 has kept its numbers."""
        for name, right in self.right.items():
            came = self.came[0][name].value
            if same(came, right):
                continue
            known = {i: old[name] for i, old in enumerate(self.before) if i}
            source = recognise(came, known)
            if source is not None:
                raise self.wrong(
                    "wrong_direction",
                    f"{name} of replica 0 now has the numbers of replica {source}",
                    "the copy went the other way. target.copy_(source) writes into target.",
                )
            if alike(came, self.mean(name)):
                raise self.averaged(name)
            raise self.wrong(
                "first_changed",
                f"in replica 0, {name} {largest_difference(came, right)} any more",
                "something was written into replica 0. It is only read here.",
            )

    def mean(self, name):
        return (sum(old[name] for old in self.before) / len(self.before)).to(self.right[name].dtype)

    def averaged(self, name):
        return self.wrong(
            "averaged",
            f"{name} is the mean over {count(len(self.before), 'replica')}",
            "weights were averaged. Replica 0 alone has been trained, the others are out of date.",
        )

    def examine_objects(self):
        for i, replica in enumerate(self.replicas):
            old, new = replica["objects_before"], replica["objects"]
            replaced = [name for name in old if old[name] != new.get(name)]
            if replaced:
                raise self.wrong(
                    "new_objects",
                    f"in replica {i} other objects stand for {listed(replaced, most=4)}",
                    "a new tensor was assigned. Whoever holds the old one sees old numbers:"
                    " write into it with copy_.",
                    "every parameter and buffer stays the same object",
                )

    def examine_stale(self):
        """Tensors that kept their old numbers: which ones, and in which replicas?"""
        stale = [
            {name for name in self.right if self.is_stale(i, name)} for i in range(len(self.came))
        ]
        names = sorted(set.union(*stale), key=list(self.right).index)
        if not names:
            return
        asleep = [i for i, own in enumerate(stale) if own]
        if all(stale[i] == self.differing(i) for i in asleep):
            if len(asleep) == len(self.came) - 1:
                raise self.wrong(
                    "nothing_copied",
                    f"{numbered('replica', asleep)} kept all old numbers",
                    "`p = ...` gives a name to another tensor, and .to() makes a new one."
                    " Neither writes into the replica.",
                )
            raise self.wrong(
                "one_replica_only",
                f"{numbered('replica', asleep)} kept all old numbers",
                "a loop ends too early, or it takes only the second replica.",
            )
        self.examine_kinds(names, asleep)

    def is_stale(self, i, name):
        came = self.came[i][name].value
        return same(came, self.before[i][name]) and not same(came, self.right[name])

    def differing(self, i):
        return {name for name in self.right if not same(self.before[i][name], self.right[name])}

    def examine_kinds(self, names, asleep):
        """What do the tensors that were left out have in common?"""
        parameters, buffers = self.first["parameters"], self.first["buffers"]
        kinds = (
            ("buffers_skipped", set(buffers), "parameters() does not give buffers."),
            (
                "parameters_skipped",
                set(parameters),
                "buffers() does not give parameters.",
            ),
            (
                "non_persistent_skipped",
                {"position"},
                "state_dict() leaves non-persistent buffers out. buffers() has them all.",
            ),
            (
                "integers_skipped",
                {"batches"},
                "tensors that are not floating point were left out.",
            ),
            (
                "frozen_skipped",
                {name for name, p in parameters.items() if not p.requires_grad},
                "parameters with requires_grad=False were left out.",
            ),
        )
        came = f"{listed(names, most=4)} kept old numbers in {numbered('replica', asleep)}"
        for mistake, members, usually in kinds:
            changed = {name for name in members if any(name in self.differing(i) for i in asleep)}
            if changed and set(names) == changed:
                raise self.wrong(mistake, came, usually)
        raise self.wrong("some_skipped", came, "not every tensor was copied.")

    def examine_values(self, i):
        for name, right in self.right.items():
            came = self.came[i][name].value
            if came.dtype != right.dtype:
                raise self.wrong(
                    "dtype_changed",
                    f"{name} of replica {i} is {came.dtype} and not {right.dtype}",
                    "it was replaced by a tensor of another type.",
                )
            if same(came, right):
                continue
            neighbours = {j: old[name] for j, old in enumerate(self.before) if j}
            source = recognise(came, neighbours)
            if source is not None:
                raise self.wrong(
                    "from_the_neighbour",
                    f"{name} of replica {i} has the old numbers of replica {source}",
                    "each replica copied from the one before it, which was not up to date yet.",
                )
            if alike(came, self.mean(name)):
                raise self.averaged(name)
            if alike(came, self.before[i][name] + right):
                raise self.wrong(
                    "added",
                    f"{name} of replica {i} is its old value plus replica 0's",
                    "it was added where it should be copied.",
                )
            raise self.wrong(
                "values_changed",
                f"in replica {i}, {name} {largest_difference(came, right)}",
                "it got neither its old numbers nor those of replica 0.",
            )

    def examine_memory(self, i):
        for name, view in self.replicas[i]["views"].items():
            if not same(view.value, self.right[name]):
                raise self.wrong(
                    "new_memory",
                    f"a view of {name} of replica {i}, made before, still shows the old numbers",
                    "`p.data = ...` gives the parameter new memory. Write into the old one:"
                    " p.data.copy_(...), or p.copy_(...) under torch.no_grad().",
                    "every parameter and buffer keeps its memory",
                )

    def examine_kind(self, i):
        for name, right in self.first["parameters"].items():
            came = self.replicas[i]["parameters"][name]
            if came.requires_grad != right.requires_grad or not came.is_leaf:
                raise self.wrong(
                    "requires_grad_changed",
                    f"{name}.requires_grad of replica {i} is {came.requires_grad}",
                    "the copy was recorded by autograd, or the parameter was frozen to write to it."
                    " Use torch.no_grad().",
                    f"{name}.requires_grad stays {right.requires_grad}",
                )
        for name, came in self.came[i].items():
            if came.device != self.gpus[i]:
                raise self.wrong(
                    "moved",
                    f"{name} of replica {i} is on {came.device}",
                    "the replica got a tensor of another GPU.",
                    f"replica {i} stays on {self.gpus[i]}",
                )


def tensors_of(snap):
    """Parameters and buffers by name, without autograd."""
    tensors = snap["parameters"] | snap["buffers"]
    return {n: t.detach() if hasattr(t, "detach") else t for n, t in tensors.items()}
