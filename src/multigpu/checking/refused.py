"""The names that chapters about ranks refuse: what does the very work that they build by hand."""

READY_MADE_TRAINING = (
    "torch.nn.parallel",
    "torch.utils.data.DistributedSampler",
    "torch.utils.data.distributed",
    "torch.distributed.algorithms",
    "torch.distributed.optim",
    "torch.distributed.fsdp",
    "torch.distributed._composable",  # fully_shard under its first name
)

# Functions of torch.distributed in which several ranks take part, of torch 2.11 and of later ones.
# What asks a question (get_rank), and what sends or receives, is not among them.
IN_ALL_RANKS = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "_all_gather_base",
    "_broadcast_coalesced",
    "_reduce_scatter_base",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "shrink_group",
    "split_group",
)

COLLECTIVES = (
    *(f"torch.distributed.{name}" for name in IN_ALL_RANKS),
    *(f"torch.distributed.distributed_c10d.{name}" for name in IN_ALL_RANKS),
    "torch.distributed.nn",
    "torch.distributed._functional_collectives",
    "torch.nn.parallel",
)
