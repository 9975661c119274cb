"""Wrong steps that are known by name, for both sharded optimizers."""

# By mistake: what the weights are like, and which code usually does that.
KNOWN = {
    "summed": (
        "what a step with the sum of the gradients gives",
        "reduce, reduce_scatter and all_reduce add up. Divide by dist.get_world_size(), which is"
        " {n} here.",
    ),
    "divided_twice": (
        "what the mean of the gradients divided by {n} once more gives",
        "it was divided twice, for example before the sum and after it.",
    ),
    "of_one_rank": (
        "what a step with the gradients of one rank alone gives",
        "an owner has to step with the mean over all ranks: they were not reduced, or the result"
        " was not put into .grad, or not waited for.",
    ),
    "only_divided": (
        "what a step with the gradients of one rank, divided by {n}, gives",
        "they were divided, but the other ranks' gradients are not in the sum.",
    ),
    "stepped_twice": (
        "what two steps give",
        "the inner optimizer stepped more than once for the same elements; perhaps a parameter is"
        " in two inner optimizers.",
    ),
    "option_dropped": (
        "what training without {what} gives",
        "this option did not reach the inner optimizer: optimizer_class(mine, **kwargs).",
    ),
    "options_dropped": (
        "what training with nothing but lr gives",
        "the other options did not reach the inner optimizer: optimizer_class(mine, **kwargs).",
    ),
    "state_lost": (
        "what a step of a new optimizer gives",
        "the state was lost: momentum and averages go on from step to step. Make the inner"
        " optimizer once, in __init__, and keep its parameters the same objects. (SGD does the same"
        " where momentum did not reach it.)",
    ),
    "old_rate": (
        "what the learning rate of before gives",
        "somebody set group['lr'] in param_groups, but the inner optimizer steps with its own."
        " Hand out the inner optimizer's dicts, or copy the options into them before each step.",
    ),
    "older_gradients": (
        "what a step with the gradients of earlier steps added gives",
        "a flat tensor of yours still had the numbers of the step before, and gradients were added"
        " to them.",
    ),
}
