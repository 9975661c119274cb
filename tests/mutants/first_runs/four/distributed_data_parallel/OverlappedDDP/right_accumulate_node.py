# Style: as before PyTorch 2.1, a hook on the AccumulateGrad node of each parameter.
import torch
import torch.distributed as dist
from torch import nn


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        self.handles = []
        self.nodes = []  # keeps the nodes alive, else the hooks go with them
        for p in module.parameters():
            if not p.requires_grad:
                continue
            node = p.view_as(p).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, p=p: self.handles.append(self.start(p)))
            self.nodes.append(node)

    @staticmethod
    def start(p):
        p.grad.mul_(1 / dist.get_world_size())
        return dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, async_op=True)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        handles, self.handles = self.handles, []
        for handle in handles:
            handle.wait()
