"""Switching on and off: torch comes back exactly, nesting, several threads, `gpus(n)`."""

import concurrent.futures
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import comm
from torch.overrides import TorchFunctionMode

from multigpu import gpus, virtual_gpus
from multigpu.devices import current_machine
from multigpu.devices import machine as machines
from multigpu.devices.tensor import VirtualTensor
from multigpu.devices.threads import around_new_threads

# What torch itself says where there is no GPU: in a CPU build, and in a build with CUDA.
NO_GPU = "Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"

PLACES: list[types.ModuleType | type] = [
    torch,
    torch._C,
    torch.Tensor,
    torch.UntypedStorage,
    torch.accelerator,
    torch.accelerator.memory,
    torch.autograd,
    torch.autograd.function.BackwardCFunction,
    torch.autograd.graph,
    torch.backends.cudnn,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    dist,
    torch.nn.Module,
    torch.nn.parallel._functions,
    torch.utils.dlpack,
    comm,
    sys.modules["torch.optim.optimizer"],
    concurrent.futures.thread._WorkItem,
    threading.Thread,
]


def snapshot() -> dict[tuple[str, str], object]:
    """Every attribute of everything that virtual GPUs touch or are near to."""
    attributes = {
        (place.__name__, name): value for place in PLACES for name, value in vars(place).items()
    }
    attributes["function modes", ""] = torch._C._len_torch_function_stack()
    attributes["dispatch modes", ""] = torch._C._len_torch_dispatch_stack()
    return attributes


def same(before: dict[tuple[str, str], object], after: dict[tuple[str, str], object]) -> bool:
    return before.keys() == after.keys() and all(before[key] is after[key] for key in before)


def use_everything() -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
    model(torch.ones(4, 2)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    torch.randn(2, device="cuda:1", generator=torch.Generator("cuda:1"))
    with torch.cuda.stream(torch.cuda.Stream(1)), torch.autocast("cuda"):
        model(torch.ones(1, 2))


def in_a_thread(function):
    """What it gives there, or raises."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_leaving_restores_every_attribute():
    with virtual_gpus(2):
        use_everything()  # torch imports parts of itself at their first use
    before = snapshot()
    with virtual_gpus(2):
        use_everything()
        assert not same(before, snapshot())
    assert same(before, snapshot())
    assert "to" not in vars(torch.UntypedStorage)  # where it is inherited
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError), match=NO_GPU):
        torch.zeros(1, device="cuda")


def test_an_exception_inside_leaves_nothing_behind():
    before = snapshot()

    def fail() -> None:
        with virtual_gpus(2), torch.cuda.device(1):
            torch.set_default_device("cuda:1")
            assert torch.zeros(1).device == torch.device("cuda:1")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert same(before, snapshot())
    assert torch.zeros(1).device.type == "cpu"


def test_an_exception_while_switching_on_leaves_nothing_behind(monkeypatch):
    before = snapshot()
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules["torch.optim.optimizer"], "_foreach_supported_types")
        with pytest.raises(AttributeError):
            virtual_gpus(2).__enter__()
    assert same(before, snapshot())
    assert current_machine().is_virtual is False


def test_the_default_device_is_one_threads_own(machine):
    torch.set_default_device("cuda:1")
    elsewhere = in_a_thread(lambda: (torch.zeros(1).device, torch.tensor([1.0]).device))
    assert [device.type for device in elsewhere] == ["cpu", "cpu"]
    assert torch.zeros(1).device == torch.tensor([1.0]).device == torch.device("cuda:1")


def test_tensors_outlive_their_machine():
    with virtual_gpus(2):
        x = torch.ones(2, device="cuda:1", requires_grad=True)
    assert (x * 2 + 1).cpu().tolist() == [3, 3]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert repr(x.detach()) == "tensor([1., 1.], device='cuda:1')"
    assert torch.tensor([x[0].detach(), 2.0]).tolist() == [1, 2]
    assert not x.is_pinned()


def test_a_stream_is_refused_after_its_machine():
    with virtual_gpus(2):
        stream = torch.cuda.Stream()
    with pytest.raises(RuntimeError, match="switched off: use them and their streams"), stream:
        pass


def test_a_thread_that_outlives_the_machine_sets_data_and_is_told_of_gradients():
    begun, ended = threading.Event(), threading.Event()
    found = []

    def in_thread(x):
        begun.set()
        ended.wait()
        y = torch.zeros(3)
        y.data = x
        found.append((y.device, y.tolist()))
        with pytest.raises(RuntimeError, match="device"):
            torch.zeros(3).grad = x
        with pytest.raises(RuntimeError, match="switched off"):
            torch.zeros(2).to(x)
        found.append("told")

    with virtual_gpus(2):
        x = torch.arange(3.0, device="cuda:1")
        thread = threading.Thread(target=in_thread, args=(x,))
        thread.start()
        begun.wait()
    ended.set()
    thread.join()
    assert found == [(torch.device("cuda:1"), [0, 1, 2]), "told"]


def test_the_innermost_machine_counts():
    with virtual_gpus(2) as outer:
        x = torch.ones(1, device="cuda:1")
        with virtual_gpus(4) as inner:
            assert current_machine() is inner
            assert torch.cuda.device_count() == 4
            y = torch.ones(3, device="cuda:1")
            with pytest.raises(RuntimeError, match=r"two.*machines"):
                x + y
            assert x.to("cuda:3").device.index == 3
            assert x.cpu().item() == 1
        assert current_machine() is outer
        assert torch.cuda.device_count() == 2
        assert (outer.memory(1).allocated, inner.memory(1).allocated) == (4, 12)
        with outer:  # entering the same machine again is fine
            assert torch.cuda.device_count() == 2
        assert (x + 1).item() == 2
    assert current_machine().is_virtual is False


class Calls(TorchFunctionMode):
    """Somebody else's mode, which notes what is called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_other_modes_see_calls_too_and_may_end_later():
    before = snapshot()
    machine, calls = virtual_gpus(2), Calls()
    machine.__enter__()
    with calls:
        assert torch.ones(2).to("cuda:1").device.index == 1
        assert calls.names[:2] == ["ones", "to"]
        machine.__exit__()
        torch.eye(2)
        assert calls.names[-1] == "eye"
    assert same(before, snapshot())


def test_threads_share_the_machine_and_have_their_own_current_gpu(machine):
    def work(index: int) -> tuple[int, list[float], bool]:
        torch.cuda.set_device(index)
        weight = torch.ones(3, requires_grad=True)
        moved = weight.to(f"cuda:{index}") * torch.full((3,), 2.0, device="cuda")
        moved.sum().backward()
        return torch.cuda.current_device(), weight.grad.tolist(), isinstance(moved, VirtualTensor)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [(i, [2, 2, 2], True) for i in range(3)]
    assert torch.cuda.current_device() == 0


def test_a_pool_older_than_the_machine_sees_its_gpus():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with virtual_gpus(2):
            make = pool.submit(lambda: torch.ones(2).to("cuda:1") + torch.ones(2, device="cuda:1"))
            assert make.result().device == torch.device("cuda:1")
        with pytest.raises((AssertionError, RuntimeError), match=NO_GPU):
            pool.submit(lambda: torch.ones(2, device="cuda:1")).result()


class MakesATensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad + torch.ones(1, device="cuda:1")


def test_a_thread_older_than_the_machine_computes_but_is_told_when_it_makes_a_tensor():
    started, go, answers = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        go.wait(10)
        answers.append((tensor * 2).to("cuda:0").device)
        torch.autograd.backward(MakesATensor.apply(tensor))
        try:
            torch.ones(1, device="cuda:1")
        except RuntimeError as error:
            answers.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(10)
    with virtual_gpus(2):
        tensor = torch.ones(1, device="cuda:1", requires_grad=True)
        go.set()
        thread.join()
    assert answers[0] == torch.device("cuda:0")
    assert tensor.grad.tolist() == [2]
    assert all(word in answers[1] for word in ("virtual GPUs", "thread", ".to(...)"))


def test_a_thread_has_taken_its_mode_off_when_it_ends():
    """Else C++ drops it later, and needs Python's lock then: a program that is ending aborts."""
    seen = []

    @contextmanager
    def looking(_) -> Iterator[None]:
        yield
        seen.append(torch._C._len_torch_function_stack())

    with around_new_threads(looking), virtual_gpus(2):
        in_a_thread(lambda: torch.ones(2, device="cuda:1"))
    assert seen == [0]


def test_machines_of_one_thread_or_two_may_be_left_in_any_order():
    before = snapshot()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for there in (lambda function: function(), lambda function: pool.submit(function).result()):
            first, second = virtual_gpus(2), virtual_gpus(4)
            first.__enter__()
            there(second.__enter__)
            assert torch.cuda.device_count() == 4  # the machine entered last, in every thread
            first.__exit__()
            assert there(lambda: torch.ones(1, device="cuda:3").device.index) == 3
            there(second.__exit__)
            assert same(before, snapshot())


def test_a_generator_may_end_in_another_thread():
    before = torch.cuda.device_count

    def generator() -> Iterator[None]:
        with virtual_gpus(2):
            yield

    running = generator()
    next(running)
    assert torch.cuda.device_count is not before
    in_a_thread(running.close)
    assert not current_machine().is_virtual
    assert torch.cuda.device_count is before
    with virtual_gpus(2):  # and this thread's own switch is found in order again
        assert torch.ones(1, device="cuda:1").device.index == 1
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("make", [virtual_gpus, gpus])
def test_a_machine_needs_a_gpu(make):
    with pytest.raises(ValueError, match=rf"^{make.__name__}\(0\)"):
        make(0)


@pytest.mark.parametrize("backing", ["meta", "cuda:64"])
def test_an_impossible_backing_is_named(backing):
    with pytest.raises(ValueError, match=f"backing='{backing}'"):
        virtual_gpus(2, backing=backing)
    with virtual_gpus(2), pytest.raises(ValueError, match=r"backing='cuda:0'.*virtual"):
        virtual_gpus(2, backing="cuda:0")


@pytest.fixture
def for_good():
    """Undo what `gpus` switches on for the rest of the process."""
    yield
    while machines._for_good:
        machines._for_good.pop().__exit__(None, None, None)


@pytest.mark.usefixtures("for_good")
def test_gpus_switches_virtual_ones_on_says_so_once_and_grows(capsys):
    assert current_machine().devices == []
    devices = gpus(2)
    assert [str(device) for device in devices] == ["cuda:0", "cuda:1"]
    assert capsys.readouterr().out.count("\n") == 1
    x = torch.ones(1, device=devices[1])
    assert gpus(1) == devices[:1]
    assert len(gpus(4)) == torch.cuda.device_count() == 4
    assert (x + 1).to("cuda:3").item() == 2
    assert capsys.readouterr().out == ""
    assert current_machine().is_virtual


@pytest.mark.usefixtures("for_good")
def test_gpus_inside_a_block_uses_its_machine(machine):
    assert gpus(2) == machine.devices[:2]
    with pytest.raises(ValueError, match=r"gpus\(4\).*virtual_gpus\(3\)"):
        gpus(4)
    assert machines._for_good == []


def test_leaving_twice_is_an_error_that_says_so():
    machine = virtual_gpus(2)
    with machine:
        pass
    with virtual_gpus(3):
        with pytest.raises(RuntimeError, match="not switched on"):
            machine.__exit__()
        assert torch.ones(1, device="cuda:2").device.index == 2


def test_virtual_gpus_go_on_without_torchs_compiler() -> None:
    """With PYTORCH_JIT=0, PyTorch's switch for debugging, torch.jit has no modules to save."""
    program = (
        "import torch; from multigpu import virtual_gpus\n"
        "with virtual_gpus(1): print(torch.ones(1, device='cuda').device)"
    )
    settings = os.environ | {"PYTORCH_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True
    )
    assert done.stdout == "cuda:0\n"
