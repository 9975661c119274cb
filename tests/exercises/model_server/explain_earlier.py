"""What is wrong with an answer that keeps the first model it has seen, for every model after it."""

from .telling import teller


def examine_earlier(training):
    """Something went wrong with this model.  Raise Wrong if a rank worked on an earlier one."""
    for sides in training.sides:
        for side in sides:
            if side.earlier_changed:
                raise teller(training, side, "a step changes the model that it is given")(
                    "earlier_model",
                    f"{side.name} changed {side.earlier_changed[0]} in the model before",
                    "parameters were kept from an earlier call: in a global, in an attribute of the"
                    " function or as a default value. Ask model.parameters() in every call.",
                )
