"""Leaving machines in unusual ways: from another thread, in another order, twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

from multigpu import virtual_gpus
from multigpu.devices import current_machine
from multigpu.devices.machine import VirtualMachine
from multigpu.devices.threads import around_new_threads


def depth() -> int:
    return torch._C._len_torch_function_stack()


def in_a_thread(function) -> list[BaseException]:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return caught


def generator() -> Iterator[VirtualMachine]:
    with virtual_gpus(2) as machine:
        yield machine


def test_a_generator_may_end_in_another_thread():
    before = torch.cuda.device_count, depth()
    running = generator()
    next(running)
    assert torch.cuda.device_count is not before[0]
    assert in_a_thread(running.close) == []
    assert not current_machine().is_virtual
    assert torch.cuda.device_count is before[0]
    assert torch.ones(2).device.type == "cpu"
    with virtual_gpus(2):  # and this thread's own switch is found in order again
        assert torch.ones(1, device="cuda:1").device.index == 1
    assert (torch.cuda.device_count, depth()) == before


def test_machines_may_be_left_in_any_order():
    before = torch.cuda.device_count, depth()
    first, second = virtual_gpus(2), virtual_gpus(4)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert torch.cuda.device_count() == 4
    assert torch.ones(1, device="cuda:3").device.index == 3
    second.__exit__()
    assert (torch.cuda.device_count, depth()) == before


class Counting(TorchFunctionMode):
    """Counts the calls of torch functions while it is on."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_leaving_takes_off_no_mode_that_was_entered_later():
    before = torch.cuda.device_count, depth()
    machine, mode = virtual_gpus(2), Counting()
    machine.__enter__()
    with mode:
        machine.__exit__()
        calls = mode.calls
        torch.ones(2)
        assert mode.calls == calls + 1
        assert depth() == before[1] + 1
    assert (torch.cuda.device_count, depth()) == before


def test_a_mode_that_was_entered_before_may_be_left_first():
    before = torch.cuda.device_count, depth()
    mode = Counting()
    mode.__enter__()
    with virtual_gpus(2):
        mode.__exit__(None, None, None)  # which takes off the mode that was entered last
    assert (torch.cuda.device_count, depth()) == before
    with virtual_gpus(2):
        assert torch.ones(1, device="cuda:1").device.index == 1


def test_leaving_twice_is_an_error_that_says_so():
    machine = virtual_gpus(2)
    with machine:
        pass
    with pytest.raises(RuntimeError, match="already exited"):
        machine.__exit__()
    with virtual_gpus(3):
        with pytest.raises(RuntimeError, match="already exited"):
            machine.__exit__()
        assert torch.ones(1, device="cuda:2").device.index == 2


def test_torch_is_put_back_even_if_undoing_fails(monkeypatch):
    before = torch.cuda.device_count, depth()

    def fail(device: object) -> None:
        raise OSError("no")

    machine = virtual_gpus(2)
    machine.__enter__()
    torch.set_default_device("cuda:1")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "set_default_device", fail)
        with pytest.raises(OSError, match="no"):
            machine.__exit__()
    torch.set_default_device(None)
    assert (torch.cuda.device_count, depth()) == before


def test_a_thread_has_taken_its_mode_off_when_it_ends():
    """Else C++ drops it later, and needs Python's lock then: a program that is ending aborts."""
    seen = []

    @contextmanager
    def looking(_) -> Iterator[None]:
        yield
        seen.append(depth())

    with around_new_threads(looking), virtual_gpus(2):
        assert in_a_thread(lambda: torch.ones(2, device="cuda:1")) == []
    assert seen == [0]
