# mistake: hands out a copy of param_groups
import torch
import torch.distributed as dist


class Zero1Optimizer:
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
            self.param_groups = [dict(g) for g in self.inner.param_groups]
        else:
            self.inner = None
            self.param_groups = [dict(optimizer_class([torch.zeros(1)], **kwargs).param_groups[0], params=[])]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= self.world
        if self.inner is not None:
            self.inner.step()
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p])
