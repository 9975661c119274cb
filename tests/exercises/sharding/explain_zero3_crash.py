"""Why an answer to ``sharding.Zero3`` crashed, where general messages cannot know."""

from multigpu.checking import Wrong
from multigpu.checking.verdicts import Refused

EMPTY = "storage of size 0"  # setStorage: ... are out of bounds for storage of size 0
NONE = "'NoneType' object has no attribute"
READ_WHAT_IS_GONE = (
    "something read a tensor whose storage was emptied with resize_(0): a shard that is a view of"
    " the gathered tensor (clone() it), or a parameter of the module that was given to the"
    " optimizer (parameters() gives the shards only)."
)
NO_GRADIENT_YET = (
    "a .grad is None until backward has come to that parameter, and after you have set it to None."
    " Reduce a layer when the last of its gradients is there:"
    " register_post_accumulate_grad_hook of every parameter, and count them."
)


def explained(refused):
    """The same verdict with its cause in this exercise; the verdict itself if nothing is known."""
    if refused.message_id == "segfault":
        return with_cause(refused, READ_WHAT_IS_GONE)
    if EMPTY in refused.message:
        return not_gathered(refused)
    if refused.message_id == "exception" and NONE in refused.message and ".grad" in refused.message:
        return with_cause(refused, NO_GRADIENT_YET)
    return refused


def not_gathered(refused):
    """An operator got weights that were not there: in backward, or in the learner's forward."""
    when, hook = "forward", "register_forward_pre_hook"
    if refused.message_id == "unusable_result":
        when, hook = "backward", "register_full_backward_pre_hook"
    came = part(refused, "came: ")
    return Wrong(
        "Zero3.not_gathered",
        expected=f"a layer's weights are gathered when its {when} begins",
        came=came,
        usually=f"{when} needed a layer whose storage is empty: it was not gathered. {hook} calls"
        " you before; register it for each of module.modules() with parameters of its own, those"
        " inside others too.",
        where=part(refused, "where: "),
    )


def with_cause(refused, usually):
    lines = [line for line in refused.message.splitlines() if not line.startswith("usually: ")]
    place = next((i for i, line in enumerate(lines) if line.startswith("where: ")), len(lines))
    lines.insert(place, f"usually: {usually}")
    return Refused(
        refused.status,
        refused.message_id,
        "\n".join(lines),
        output=refused.output,
        finding=refused.finding,
    )


def part(refused, name):
    """One line of a message, without its name."""
    lines = refused.message.splitlines()
    return next((line[len(name) :] for line in lines if line.startswith(name)), None)
