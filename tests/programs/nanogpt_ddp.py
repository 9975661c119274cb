"""A GPT that reads characters, trained by all ranks with gradient accumulation.

torchrun --standalone --nproc_per_node=2 nanogpt_ddp.py
"""

import math
import os
import tempfile
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

block_size, batch_size, n_embd, n_head, n_layer = 32, 16, 32, 4, 2
max_iters, warmup, learning_rate, grad_clip = 30, 3, 2e-2, 1.0
gradient_accumulation_steps = 4  # of all ranks together
text = "the cat sat on the mat and the dog sat on the log with the frog. " * 40


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        heads = (part.view(b, t, n_head, c // n_head) for part in self.qkv(x).split(c, dim=2))
        q, k, v = (head.transpose(1, 2) for head in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(n_embd), Attention(), nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks, self.ln_f = (
            nn.ModuleList(Block() for _ in range(n_layer)),
            nn.LayerNorm(n_embd),
        )
        self.lm_head = nn.Linear(n_embd, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight  # tied

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_lr(it: int) -> float:
    if it < warmup:
        return learning_rate * (it + 1) / (warmup + 1)
    ratio = (it - warmup) / (max_iters - warmup)
    return learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * ratio)))


init_process_group(backend="nccl")
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = f"cuda:{int(os.environ['LOCAL_RANK'])}"
torch.cuda.set_device(device)
assert gradient_accumulation_steps % world_size == 0
gradient_accumulation_steps //= world_size
torch.manual_seed(1337 + rank)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
characters = sorted(set(text))
data = torch.tensor([characters.index(c) for c in text])


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(
        device, non_blocking=True
    )


model = GPT(len(characters)).to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])])
scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
path = os.path.join(tempfile.gettempdir(), f"ckpt-{os.getpid()}.pt")
best, first = math.inf, None
x, y = get_batch()
for iteration in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iteration)
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with torch.amp.autocast("cuda", dtype) if dtype else nullcontext():
            loss = model(x, y) / gradient_accumulation_steps
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iteration % 20 == 0 or iteration == max_iters - 1:
        mean = loss.detach() * gradient_accumulation_steps
        all_reduce(mean)
        mean = mean.item() / world_size
        first = first or mean
        if mean < best and rank == 0:
            best = mean
            torch.save({"model": model.module.state_dict(), "best_val_loss": best}, path)
assert mean < 0.9 * first, (first, mean)
if rank == 0:
    again = GPT(len(characters)).to(device)
    saved = torch.load(path, map_location=device, weights_only=True)
    again.load_state_dict(saved["model"])
    os.remove(path)
    with torch.no_grad():
        torch.testing.assert_close(again(x, y), model.module(x, y))
    print(f"loss {first:.2f} -> {saved['best_val_loss']:.2f}")
destroy_process_group()
