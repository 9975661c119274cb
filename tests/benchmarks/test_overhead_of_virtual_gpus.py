"""What virtual GPUs cost: each operator against plain CPU, in the same run; then a training step.

Run with `make bench`. Nothing is asserted about times: they are printed, as microseconds and as
ratios, which differ less from machine to machine. "inside" is the same CPU operator while virtual
GPUs are on but not used.
"""

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from multigpu import virtual_gpus

REPEATS, CALLS = 7, 300


def seconds(call: Callable[[], object], *, calls: int = CALLS) -> float:
    """The least time of one call: what it costs when nothing disturbs it."""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def operators(device: str, size: int) -> dict[str, float]:
    """Seconds per call of some operators on (size, size) tensors."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    weight = torch.randn(size, size, device=device, requires_grad=True)
    labels = torch.zeros(size, dtype=torch.int64, device=device)
    return {
        "a + b": seconds(lambda: a + b),
        "a.add_(b)": seconds(lambda: a.add_(b)),
        "a @ b": seconds(lambda: a @ b),
        "a.view(-1)": seconds(lambda: a.view(-1)),
        "a.shape": seconds(lambda: a.shape),
        "relu": seconds(lambda: functional.relu(a)),
        "linear": seconds(lambda: functional.linear(a, weight)),
        "cross_entropy": seconds(lambda: functional.cross_entropy(a, labels)),
        "forward and backward": seconds(lambda: functional.linear(a, weight).sum().backward()),
    }


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("size", [8, 256])
def test_overhead_per_operator(size):
    plain = operators("cpu", size)
    with virtual_gpus(1):
        inside = operators("cpu", size)
        virtual = operators("cuda:0", size)
    print(f"\n({size}, {size}) float32       plain    inside      virtual    virtual/plain")
    for name, alone in plain.items():
        print(
            f"{name:22}{alone * 1e6:9.1f} µs{inside[name] * 1e6:7.1f} µs"
            f"{virtual[name] * 1e6:10.1f} µs{virtual[name] / alone:14.1f}"
        )


def test_switching_on_and_off():
    def switch() -> None:
        with virtual_gpus(4):
            pass

    print(f"\nentering and leaving virtual_gpus(4): {seconds(switch, calls=20) * 1e3:.2f} ms")


@pytest.mark.parametrize("rows", [64, 1024])
def test_a_data_parallel_step(rows):
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 16, 10),
        )  # fmt: skip

    def stepper(net: nn.Module, device: str) -> Callable[[], None]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        images = torch.randn(rows, 1, 8, 8, device=device)
        labels = torch.zeros(rows, dtype=torch.int64, device=device)

        def step() -> None:
            optimizer.zero_grad()
            functional.cross_entropy(net(images), labels).backward()
            optimizer.step()

        return step

    times = {"plain CPU": seconds(stepper(model(), "cpu"), calls=5)}
    for count in (1, 2, 4):
        with virtual_gpus(count):
            net = nn.DataParallel(model().cuda())
            times[f"DataParallel, {count} virtual"] = seconds(stepper(net, "cuda:0"), calls=5)
    print(f"\none training step, {rows} rows")
    for name, taken in times.items():
        print(f"{name:26}{taken * 1e3:8.1f} ms{taken / times['plain CPU']:8.1f} ×")
