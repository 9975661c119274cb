"""What is wrong with an answer to ``data_parallel.replicate``, in the learner's names."""

from multigpu.checking import Wrong, describe
from multigpu.checking.comparing import same, snapshot
from multigpu.checking.verdicts import count, listed

from .explain_replica import examine_modes, examine_numbers, examine_ties


class Report:
    """The replicas that came for ``module`` on the GPUs ``order``, and what is wrong with them."""

    def __init__(self, module, order, replicas, where):
        self.right = snapshot(module)
        self.gpus = [f"cuda:{i}" for i in order]
        self.replicas = replicas
        self.where = where

    def wrong(self, mistake, came, usually, expected):
        return Wrong(
            f"replicate.{mistake}", expected=expected, came=came, usually=usually, where=self.where
        )

    def examine(self):
        self.examine_form()
        self.examine_first()
        for i, replica in enumerate(self.replicas):
            self.examine_names(i, replica)
        self.examine_sharing()
        self.examine_numbering()
        for i, replica in enumerate(self.replicas):
            self.examine_places(i, replica)
        for i, replica in enumerate(self.replicas):
            examine_numbers(self.right, i, replica, self.wrong)
            examine_ties(self.right, i, replica, self.wrong)
            examine_modes(self.right, i, replica, self.wrong)

    def examine_form(self):
        came, n = self.replicas, len(self.gpus)
        expected = f"a list of {count(n, 'module')}, one on each of {listed(self.gpus)}"
        if came is None:
            raise self.wrong(
                "returned_nothing", "None", "the function ends without `return`.", expected
            )
        if not isinstance(came, list | tuple):
            raise self.wrong(
                "not_a_list", describe(came), "return all replicas in one list.", expected
            )
        for i, replica in enumerate(came):
            if not isinstance(replica, dict) or "modules" not in replica:
                raise self.wrong(
                    "not_modules",
                    f"replica {i} is {describe(replica)}",
                    "a replica is a whole model that can be called, not only its numbers.",
                    expected,
                )
        if len(came) != n:
            raise self.wrong(
                "count", count(len(came), "module"), "`module` itself is one of them.", expected
            )

    def examine_first(self):
        """replicas[0] is the module, and no other one is."""
        same_object = [i for i, replica in enumerate(self.replicas) if replica["is_module"]]
        expected = "replicas[0] is `module` itself, the others are copies"
        if len(same_object) > 1:
            raise self.wrong(
                "same_object",
                f"replicas {listed(same_object)} are one and the same object",
                "module.to(device) moves the module itself and returns it; it makes no copy.",
                expected,
            )
        if 0 not in same_object:
            raise self.wrong(
                "first_is_a_copy",
                f"replica {same_object[0]} is `module`" if same_object else "none is `module`",
                "the first one was copied too. The optimizer would train a model nobody uses.",
                expected,
            )
        for kind in ("parameters", "buffers"):
            for name, right in self.right[kind].items():
                came = self.replicas[0][kind].get(name)
                if came is None or not same(came.value, right.detach()):
                    raise self.wrong(
                        "original_changed",
                        f"{name} of replica 0 has changed",
                        "`module` itself was initialised again or written to. Only move it.",
                        "`module` keeps its numbers",
                    )

    def examine_names(self, i, replica):
        for kind in ("parameters", "buffers"):
            missing = [name for name in self.right[kind] if name not in replica[kind]]
            if missing:
                mistake, usually = {
                    "parameters": (
                        "no_parameters",
                        "plain tensors stand where parameters were, as in nn.DataParallel's own"
                        " replicas. These cannot be trained.",
                    ),
                    "buffers": ("buffers_missing", "the copy was built from parameters alone."),
                }[kind]
                raise self.wrong(
                    mistake,
                    f"replica {i} has no {listed(missing)}",
                    usually,
                    f"replica {i} has the {kind} {listed(self.right[kind])}",
                )
        plain = [name for name, tensor in replica["parameters"].items() if not tensor.is_leaf]
        if plain:
            raise self.wrong(
                "not_trainable",
                f"{plain[0]} of replica {i} was computed from another tensor (it is no leaf)",
                "autograd recorded the copy. Copy with deepcopy, or detach.",
                "every parameter stands for itself",
            )

    def examine_sharing(self):
        """No module, parameter or buffer is in two replicas."""
        owner = {}
        for i, replica in enumerate(self.replicas):
            for kind in ("modules", "objects"):
                for name, number in replica[kind].items():
                    first = owner.setdefault(number, (i, name))
                    if first[0] != i:
                        label = name or "the model"
                        raise self.wrong(
                            "shared",
                            f"{label} of replica {i} is the very object that replica"
                            f" {first[0]} has",
                            "copy.copy copies the outer object only. What is inside is shared.",
                            "replicas share no module, parameter or buffer",
                        )

    def examine_numbering(self):
        """Is replica i on GPU number i, whatever devices[i] is?"""
        places = [{t.device for t in replica["parameters"].values()} for replica in self.replicas]
        wanted = [{gpu} for gpu in self.gpus]
        if places != wanted and places == [{f"cuda:{i}"} for i in range(len(places))]:
            i = [a == b for a, b in zip(places, wanted, strict=True)].index(False)
            raise self.wrong(
                "counts_gpus_itself",
                f"it is on cuda:{i}",
                f"replica {i} went to GPU number {i}. Use the list `devices`.",
                f"replica {i} on devices[{i}], which is {self.gpus[i]}",
            )

    def examine_places(self, i, replica):
        gpu, first = self.gpus[i], self.gpus[0]
        expected = f"all of replica {i} on {gpu}"
        for kind in ("parameters", "buffers"):
            astray = {n: t.device for n, t in replica[kind].items() if t.device != gpu}
            if not astray:
                continue
            name, place = next(iter(astray.items()))
            came = f"{name} is on {place}"
            if kind == "buffers":
                raise self.wrong(
                    "buffers_left_behind", came, "only parameters were moved.", expected
                )
            if i == 0:
                raise self.wrong(
                    "first_not_moved", came, "only the copies were moved to their GPU.", expected
                )
            if place == "cpu":
                raise self.wrong("left_on_cpu", came, "the copy was never moved.", expected)
            if place == first:
                raise self.wrong(
                    "left_on_first_gpu", came, "the copy stayed where the first one is.", expected
                )
            raise self.wrong("wrong_gpu", came, f"replica {i} goes to devices[{i}].", expected)
