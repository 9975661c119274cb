# style: whole parameters, reduced to their owners
import torch
import torch.distributed as dist


class Zero2Optimizer:
    def __init__(self, params, optimizer_class, **kwargs):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.params = [p for p in params if p.requires_grad]
        loads = [0] * self.world
        self.owner = {}
        for p in sorted(self.params, key=lambda p: -p.numel()):
            rank = loads.index(min(loads))
            self.owner[p] = rank
            loads[rank] += p.numel()
        self.mine = [p for p in self.params if self.owner[p] == self.rank]
        if self.mine:
            self.inner = optimizer_class(self.mine, **kwargs)
            self.param_groups = self.inner.param_groups
        else:
            self.inner = None
            self.param_groups = [dict(kwargs, params=[])]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=self.owner[p])
            if self.owner[p] == self.rank:
                p.grad /= self.world
            else:
                p.grad = None
        if self.inner is not None:
            self.inner.step()
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p])
