"""Real ranks that are stuck or only slow, in the ways in which real programs are."""

import multiprocessing
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from multigpu.ranks import RankError, run_ranks

pytestmark = pytest.mark.slow

LONG = 0.9  # seconds: longer than it takes to call a deadlock


def one():
    return torch.ones(1)


def first():
    return dist.get_rank() == 0


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


# Valid programs that are silent for a while.


def uneven_work():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    for _ in range(2):
        model(torch.rand(3, 4)).sum().backward()
        time.sleep(LONG / 2 * dist.get_rank())


def joined_inputs():
    model = DistributedDataParallel(nn.Linear(4, 4))
    with model.join():
        for _ in range(2 + dist.get_rank()):
            model(torch.rand(3, 4)).sum().backward()


def pool_of_threads():
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(dist.all_reduce, one())
        if first():
            time.sleep(LONG)
        started.result()
        dist.barrier()


def thread_that_sends_later():
    """The main threads wait for each other's messages, but a new thread will bring one."""

    def later():
        time.sleep(LONG)
        dist.send(one(), 1, tag=1)

    if first():
        sender = in_a_thread(later)
        dist.recv(one(), 1, tag=2)
        sender.join()
    else:
        dist.recv(one(), 0, tag=1)
        dist.send(one(), 0, tag=2)


def while_others_wait(send_later):
    """Rank 0 has a thread that sends in the end, what nobody can know before."""
    if first():
        send_later(lambda: dist.send(one(), 1))
    else:
        dist.recv(one(), 0)
    dist.barrier()


LATER = 1.6  # seconds: longer than the most that a deadlock takes to be called


def send_after(wait):
    def later(send):
        in_a_thread(lambda: (wait(), send()))

    while_others_wait(later)


def thread_that_waits_for_an_event():
    send_after(lambda: threading.Event().wait(LATER))


def thread_that_waits_for_a_child_process():
    forking = multiprocessing.get_context("fork")
    came, opened = forking.SimpleQueue(), forking.Semaphore(0)

    def child():
        time.sleep(LATER / 2)
        came.put(1)
        time.sleep(LATER)
        opened.release()

    def wait():
        process = forking.Process(target=child)
        process.start()
        came.get()
        opened.acquire()
        process.join()

    send_after(wait)


class SlowRows(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, row):
        time.sleep(LONG / 2)
        return one()


def data_loader():
    for row in DataLoader(SlowRows(), num_workers=1 if first() else 0):
        dist.all_reduce(row)


def waiting_at_the_store():
    store = dist.distributed_c10d._get_default_store()
    if first():
        time.sleep(LONG)
        store.set("key", "value")
    else:
        store.get("key")


def after_a_future():
    future = dist.all_reduce(one(), async_op=True).get_future().then(lambda f: f.value()[0])
    time.sleep(LONG * dist.get_rank())
    future.wait()


def threads_that_pass_on():
    """One thread receives, the main one works, one sends: a pipeline of two."""
    came = queue.Queue()

    def receive():
        for _ in range(2):
            tensor = one()
            dist.recv(tensor, 1 - dist.get_rank())
            came.put(tensor)

    receiver = in_a_thread(receive)
    for _ in range(2):
        if first():
            time.sleep(LONG / 2)
            dist.send(one(), 1)
            came.get()
        else:
            tensor = came.get()
            in_a_thread(lambda tensor=tensor: dist.send(tensor, 0)).join()
    receiver.join()


def hook_of_ddp():
    """C++ waits for the future that a hook returns, and takes it as torch made it."""

    def halved(_, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / 2)

    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, halved)
    time.sleep(LONG * dist.get_rank())
    model(torch.full((3, 4), float(dist.get_rank()))).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((4, 4), 1.5))


SLOW = [
    *(uneven_work, joined_inputs, pool_of_threads, thread_that_sends_later, data_loader),
    *(waiting_at_the_store, after_a_future, threads_that_pass_on, hook_of_ddp),
    *(thread_that_waits_for_an_event, thread_that_waits_for_a_child_process),
]

# Programs that are stuck.


def fewer_batches():
    model = DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(3 - dist.get_rank()):
        model(torch.rand(3, 4)).sum().backward()


def stuck_behind_idle_threads():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.barrier).result()
        dist.recv(one(), 1 - dist.get_rank())


def stuck_in_a_joined_thread():
    in_a_thread(lambda: dist.recv(one(), 1 - dist.get_rank())).join()


def stuck_beside_a_library_s_thread():
    """The thread that feeds a queue sleeps as long as there is nothing to send."""
    fed = multiprocessing.Queue()
    fed.put(1)
    fed.get()
    dist.recv(one(), 1 - dist.get_rank())


def waiting_for_a_thread_that_waits():
    came = queue.Queue()
    in_a_thread(lambda: came.put(dist.recv(one(), 1 - dist.get_rank())))
    came.get()


def futures_that_follow():
    if first():
        future = dist.all_reduce(one(), async_op=True).get_future().then(lambda f: f.value())
        torch.futures.wait_all([future.then(lambda f: f.value()[0])])


def send_first():
    dist.send(one(), 1 - dist.get_rank())
    dist.recv(one(), 1 - dist.get_rank())


STUCK = [
    *(fewer_batches, stuck_behind_idle_threads, stuck_in_a_joined_thread, send_first),
    *(stuck_beside_a_library_s_thread, waiting_for_a_thread_that_waits, futures_that_follow),
]


@pytest.mark.parametrize("program", SLOW)
def test_a_slow_program_is_not_called_stuck(program):
    run_ranks(program, 2, show=False)


@pytest.mark.parametrize("program", STUCK)
def test_a_stuck_program_is_proven_to_be(program):
    with pytest.raises(RankError, match=r"test_stuck_ranks\.py:") as caught:
        run_ranks(program, 2, show=False)
    assert (caught.value.kind, caught.value.ranks) == ("deadlock", (0, 1))
