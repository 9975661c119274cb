"""Whether a rank with ``sharding.Zero3`` ever held more than its shards and two whole layers."""

from multigpu.checking.verdicts import count

VIEWS = (
    "a shard that is a slice or a chunk of the whole tensor keeps all of it alive. Copy it:"
    " .clone()."
)
AUTOGRAD = (
    "autograd has saved the gathered weights for backward and keeps them, whatever your own"
    " references are (p.data = torch.empty(0) frees nothing). Empty the storage itself,"
    " untyped_storage().resize_(0), and fill it again before backward; or have something else"
    " saved, with torch.autograd.graph.saved_tensors_hooks or a torch.autograd.Function."
)
COPIES = (
    "one layer is there several times: the list that was received into, what cat made of it, and a"
    " copy in the parameter. Receive into the slices of one tensor, and let the parameters be views"
    " of it. Or a layer is freed only after others were gathered."
)


def examine_rest(report, rank, held):
    """After ``__init__``, before any step."""
    if not too_much(report, held["left"]):
        return
    shards = report.results[rank]["shards"]
    stored = sum({shard["storage"]: shard["stored"] for shard in shards}.values())
    if stored > report.sizes.shards + report.sizes.two:
        raise report.wrong(
            "shards_are_views",
            allowed(report),
            f"after __init__ {whose(rank)} {of_weights(report, held['left'])}: the storages behind"
            f" its {count(len(shards), 'shard')} hold {stored}",
            VIEWS,
        )
    raise report.wrong(
        "whole_module_kept",
        allowed(report),
        f"after __init__ {whose(rank)} {of_weights(report, held['left'])}",
        "the parameters of the module still hold their numbers. Free them as soon as the shard is"
        " cut: p.data = torch.empty(0), or p.untyped_storage().resize_(0). A view, or a flat copy"
        " of all, keeps them too.",
    )


def examine_memory(report, step, rank):
    """Every phase of one step, in their order."""
    note = report.results[rank]["steps"][step]
    memory = note["memory"]
    examine_left_after_forward(report, step, rank, memory)
    examine_forward(report, step, rank, memory["forward"], note["base"], "forward")
    examine_backward(report, step, rank, memory["backward"], note)
    place = {0: 0, len(report.case.steps) - 1: 1}.get(step)
    if place is None:
        return
    evaluated = report.results[rank]["evaluated"][place]
    held = evaluated["memory"]["evaluation"]
    if too_much(report, held["left"]):
        raise report.wrong(
            "kept_after_evaluation",
            allowed(report),
            f"after forward in eval mode and without gradients {whose(rank)}"
            f" {of_weights(report, held['left'])}",
            "without gradients no backward comes that would discard the layers. Discard each after"
            " its forward, always.",
            step=step,
        )
    examine_forward(report, step, rank, held, evaluated["base"], "forward without gradients")


def examine_left_after_forward(report, step, rank, memory):
    """Between forward and backward."""
    left = memory["forward"]["left"]
    if not too_much(report, left):
        return
    came = f"between forward and backward {whose(rank)} {of_weights(report, left)}"
    rest = memory["step"]["left"]
    if too_much(report, rest):
        raise report.wrong(
            "never_discarded",
            allowed(report),
            f"{came}, and after the optimizer's step it still {of_weights(report, rest)}",
            "what was gathered is never freed. Discard a layer after its forward, and after its"
            " backward.",
            step=step,
        )
    in_module = report.results[rank]["steps"][step]["in_module"]
    if in_module > report.sizes.two:
        raise report.wrong(
            "kept_after_forward",
            allowed(report),
            f"{came}, {in_module} of them in the parameters of the module",
            "nothing discards a layer after its forward: register_forward_hook calls you there."
            " Empty the storage, untyped_storage().resize_(0); p.data = torch.empty(0) is not"
            " enough, for autograd has saved the weights for backward.",
            step=step,
        )
    raise report.wrong("kept_for_backward", allowed(report), came, AUTOGRAD, step=step)


def examine_forward(report, step, rank, held, base, when):
    """The most there was during forward."""
    peak = held["peak"]
    if too_much(report, peak):
        raise too_many(report, step, rank, peak["weights"], when, peak["weights_line"])
    # Here there are no gradients: what is more than the activations can only be weights.
    weights = peak["together"] - base - report.sizes.activations
    if weights > report.sizes.weights:
        raise too_many(report, step, rank, weights, when, peak["together_line"])


def examine_backward(report, step, rank, held, note):
    """The most there was during backward: weights, then gradients."""
    peak, left = held["peak"], held["left"]
    if too_much(report, left):
        raise report.wrong(
            "kept_after_backward",
            allowed(report),
            f"after backward {whose(rank)} {of_weights(report, left)}",
            "layers were gathered again for backward and then kept. A layer can go when the last of"
            " its gradients is there: register_post_accumulate_grad_hook tells.",
            step=step,
        )
    if too_much(report, peak):
        raise too_many(report, step, rank, peak["weights"], "backward", peak["weights_line"])
    gradients = peak["others"] - note["base"]
    if gradients > report.sizes.in_backward:
        own = sum(g.value.numel() for g in note["gradients"] if g is not None)
        if note["gradients_hold"] > 1.5 * own:
            raise report.wrong(
                "gradients_are_views",
                "the .grad of a shard is no larger than the shard",
                f"on {whose(rank)} the shards' .grad have {own} elements, but they are views of"
                f" storages with {note['gradients_hold']}",
                "a slice of a flat tensor keeps all of it alive: clone() the slice, or receive into"
                " a tensor that is no larger.",
                step=step,
            )
        raise report.wrong(
            "gradients_kept",
            "in backward a rank has at most the whole gradients of two layers beside its shards'"
            f" .grad: {report.sizes.in_backward} elements, each gradient twice and activations"
            " included",
            f"{whose(rank)} had {gradients} at once, of {report.sizes.whole} trained ones",
            "gradients are reduced only when backward is over, or the whole ones stay in .grad of"
            " the module's parameters. When a layer's gradients are there, reduce-scatter them, and"
            " set .grad of these parameters to None.",
            step=step,
            where=place(report, peak["others_line"]),
        )


def too_many(report, step, rank, weights, when, line):
    came = f"during {when} {whose(rank)} held {weights} weights"
    layers = (weights - report.sizes.shards) / report.sizes.largest
    if weights >= 0.9 * report.sizes.whole:
        return report.wrong(
            "gathered_at_once",
            allowed(report),
            came,
            "all layers are gathered together. Gather a layer when it is its turn, and discard it"
            " before the next but one: register_forward_pre_hook and register_forward_hook, for"
            " backward register_full_backward_pre_hook.",
            step=step,
            where=place(report, line),
        )
    return report.wrong(
        "more_than_two_layers",
        allowed(report),
        f"{came}, {weights - report.sizes.weights} too many: its shards and {layers:.2f} times the"
        " largest layer",
        COPIES,
        step=step,
        where=place(report, line),
    )


def too_much(report, held):
    return held["weights"] > report.sizes.weights


def allowed(report):
    sizes = report.sizes
    return (
        f"of {sizes.whole} weights in {sizes.layers} layers a rank holds at most {sizes.weights} at"
        f" any time: {sizes.shards} in its shards and {sizes.two} in two whole layers"
    )


def of_weights(report, held):
    return f"held {held['weights']} weights"


def whose(rank):
    return f"rank {rank}"


def place(report, line):
    """The line that was running, in the learner's file."""
    return f"{report.answer.where.rpartition(':')[0]}:{line}" if line else None
