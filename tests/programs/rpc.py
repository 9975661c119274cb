"""A parameter server by remote calls: rank 0 has the weights, the others train them.

torchrun --nproc_per_node 2 rpc.py
"""

import os
import threading

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.optim import DistributedOptimizer

STEPS = 10


class ParameterServer:
    """Averages what arrives; the device is its GPU, what is sent is on the CPU."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.weight = torch.zeros(4, 1, device="cuda")
        self.updates = 0

    def get(self) -> torch.Tensor:
        return self.weight.cpu()

    def push(self, gradient: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.weight -= 0.1 * gradient.cuda()
            self.updates += 1
            return self.weight.cpu()

    def state(self) -> tuple[int, list[float]]:
        return self.updates, self.weight.flatten().tolist()


def train(server: rpc.RRef, rank: int) -> None:
    torch.manual_seed(rank)
    weight = server.rpc_sync().get()
    for _ in range(STEPS * 5):
        x = torch.randn(16, 4, device="cuda")
        w = weight.cuda().requires_grad_()
        (x @ w - x.sum(1, keepdim=True)).square().mean().backward()
        weight = server.rpc_async().push(w.grad.cpu()).wait()


def remote_layer() -> nn.Module:
    return nn.Linear(4, 1, bias=False)


def parameters(layer: rpc.RRef) -> list[rpc.RRef]:
    return [rpc.RRef(parameter) for parameter in layer.local_value().parameters()]


def through_layers(owner: str) -> list[float]:
    """Train a layer of another rank through distributed autograd."""
    layer = rpc.remote(owner, remote_layer)
    optimizer = DistributedOptimizer(
        torch.optim.SGD, rpc.rpc_sync(owner, parameters, args=(layer,)), lr=0.1
    )
    losses = []
    for _ in range(STEPS):
        with dist_autograd.context() as context:
            x = torch.ones(3, 4)
            loss = (layer.rpc_sync().forward(x) - 2).square().mean()
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
            losses.append(loss.item())
    return losses


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8, rpc_timeout=60)
    name = "server" if rank == 0 else f"trainer{rank}"
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
    if rank == 0:
        server = rpc.RRef(ParameterServer())
        trainers = range(1, size)
        for done in [rpc.rpc_async(f"trainer{r}", train, args=(server, r)) for r in trainers]:
            done.wait()
        updates, weight = server.to_here().state()
        assert updates == STEPS * 5 * (size - 1)
        assert all(abs(w - 1) < 0.1 for w in weight), weight
        losses = through_layers("trainer1")
        assert losses[-1] < 0.1 * losses[0], losses
        print(f"{updates} updates of the server's weights: {weight[0]:.2f}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
