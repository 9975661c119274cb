"""A transformer whose parameters are sharded over ranks by fully_shard.

torchrun --nproc_per_node 2 fsdp2.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

parser = argparse.ArgumentParser()
parser.add_argument("--mixed-precision", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()


class Model(nn.Module):
    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.output = nn.Linear(width, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def sharded() -> Model:
    options = {}
    if args.mixed_precision:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    with torch.device("meta"):
        model = Model()
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
        else:
            nn.init.constant_(parameter, 1.0 if "norm" in name else 0.0)
    return model


rank = int(os.environ["LOCAL_RANK"])
device = torch.device(f"cuda:{rank}")
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
model = sharded()
assert isinstance(model, FSDPModule)
for parameter in model.parameters():
    assert isinstance(parameter, DTensor)
    assert parameter.placements == (Shard(0),)
    assert parameter.dtype is torch.float32
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
torch.manual_seed(rank)
losses = []
for step in range(12):
    if step == 5:
        model.set_requires_gradient_sync(False)
    tokens = torch.randint(20, (8, 10), device=device)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    if step == 5:
        model.set_requires_gradient_sync(True)
        continue
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert norm > 0
assert losses[-1] < 0.8 * losses[0], losses

full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
moments = get_optimizer_state_dict(
    model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
assert bool(full) == (rank == 0)
if rank == 0:
    assert full["output.weight"].shape == (20, 16)
    assert full["output.weight"].device.type == "cpu", full["output.weight"].device
again = sharded()
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(again, full, options=options)
set_optimizer_state_dict(
    again, torch.optim.Adam(again.parameters()), optim_state_dict=moments, options=options
)
for one, other in zip(model.parameters(), again.parameters(), strict=True):
    assert torch.equal(one.full_tensor(), other.full_tensor())
if rank == 0:
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} with sharded parameters")
dist.barrier()
dist.destroy_process_group()
