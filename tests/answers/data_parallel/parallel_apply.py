"""Answers to ``parallel_apply`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import queue
import threading
import torch
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from torch import Tensor
from torch import nn


def in_threads(forward, n):
    threads = [threading.Thread(target=forward, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %% subclass_of_thread: pass


def parallel_apply(replicas, chunks):
    class Forward(threading.Thread):
        def __init__(self, number, replica, chunk, enabled):
            super().__init__(daemon=True)
            self.number, self.replica, self.chunk, self.enabled = number, replica, chunk, enabled
            self.error = self.output = None

        def run(self):
            try:
                with torch.set_grad_enabled(self.enabled):
                    self.output = self.replica(self.chunk)
            except BaseException as error:
                self.error = error

    pairs = enumerate(zip(replicas, chunks))
    threads = [Forward(i, *pair, torch.is_grad_enabled()) for i, pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        if thread.error is not None:
            message = f"{type(thread.error).__name__} in replica {thread.number}: {thread.error}"
            raise RuntimeError(message)
    return [thread.output for thread in threads]


# %% queue_with_indices: pass


def parallel_apply(replicas, chunks):
    ready = queue.SimpleQueue()
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def forward(i):
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            try:
                ready.put((i, replicas[i](chunks[i]), None))
            except Exception as error:
                ready.put((i, None, error))

    for i in range(len(chunks)):
        threading.Thread(target=forward, args=(i,)).start()
    outputs = {}
    for _ in chunks:
        i, output, error = ready.get()
        if error is not None:
            error.add_note(f"replica {i} on {chunks[i].device}")
            raise error
        outputs[i] = output
    return [outputs[i] for i in range(len(chunks))]


# %% all_errors_as_a_group: pass


def parallel_apply(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def forward(replica, chunk):
        with torch.set_grad_enabled(enabled):
            return replica(chunk)

    with ThreadPoolExecutor(len(replicas)) as pool:
        futures = [pool.submit(forward, replica, chunk) for replica, chunk in zip(replicas, chunks)]
    errors = []
    for i, future in enumerate(futures):
        if error := future.exception():
            error.add_note(f"replica {i}")
            errors.append(error)
    if errors:
        raise ExceptionGroup("some replicas failed", errors)
    return [future.result() for future in futures]


# %% with_asyncio: pass


def parallel_apply(replicas, chunks):
    import asyncio

    enabled = torch.is_grad_enabled()

    def forward(i):
        with torch.set_grad_enabled(enabled):
            return replicas[i](chunks[i])

    async def everything():
        waiting = [asyncio.to_thread(forward, i) for i in range(len(chunks))]
        return await asyncio.gather(*waiting, return_exceptions=True)

    outputs = asyncio.run(everything())
    for i, output in enumerate(outputs):
        if isinstance(output, Exception):
            raise type(output)(f"{output} (replica {i})") from output
    return outputs


# %% names_the_replica_by_its_place: pass


def parallel_apply(replicas, chunks):
    outputs, errors = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            error.add_note(f"replicas[{i}] of {len(replicas)} on {chunks[i].device}")
            errors.append(error)

    in_threads(forward, len(chunks))
    if errors:
        raise errors[0]
    return [outputs[i] for i in range(len(chunks))]


# %% one_executor_note: pass

# right: ThreadPoolExecutor with futures, the original error with a note


def parallel_apply(replicas, chunks):
    grad_mode = torch.is_grad_enabled()

    def forward(index, replica, chunk):
        torch.set_grad_enabled(grad_mode)
        try:
            return replica(chunk)
        except Exception as error:
            error.add_note(f"raised in replica {index}")
            raise

    with ThreadPoolExecutor(max_workers=len(chunks)) as pool:
        futures = [
            pool.submit(forward, index, replica, chunk)
            for index, (replica, chunk) in enumerate(zip(replicas, chunks))
        ]
    return [future.result() for future in futures]


# %% one_threads_caller_helps: pass

# right: plain threads for chunks 1.., the caller runs chunk 0, errors raised anew with a cause


def parallel_apply(replicas, chunks):
    enabled = torch.is_grad_enabled()
    outputs = [None] * len(chunks)
    errors = [None] * len(chunks)

    def work(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()

    for i, error in enumerate(errors):
        if error is not None:
            raise RuntimeError(f"replica {i} failed: {error}") from error
    return outputs


# %% one_cause_lost: pass

# wrong: keeps only the text of the error, so the new error names the replica but has no cause


def parallel_apply(replicas, chunks):
    enabled = torch.is_grad_enabled()
    outputs = [None] * len(chunks)
    messages = {}

    def worker(i):
        torch.set_grad_enabled(enabled)
        try:
            outputs[i] = replicas[i](chunks[i])
        except Exception as e:
            messages[i] = str(e)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(len(chunks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if messages:
        i = min(messages)
        raise RuntimeError(f"replica {i}: {messages[i]}")
    return outputs


# %% two_executor: pass

# right: ThreadPoolExecutor with one worker per chunk, futures in order, a note on the error


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    mode = torch.is_grad_enabled()

    def forward(replica: nn.Module, chunk: Tensor) -> Tensor:
        with torch.set_grad_enabled(mode):
            return replica(chunk)

    with ThreadPoolExecutor(max_workers=max(1, len(chunks))) as pool:
        futures = [pool.submit(forward, *pair) for pair in zip(replicas, chunks)]
    outputs = []
    for number, future in enumerate(futures):
        error = future.exception()
        if error is not None:
            error.add_note(f"This came from replica {number}.")
            raise error
        outputs.append(future.result())
    return outputs


# %% two_queue: pass

# right: bare threads that report through a queue; the calling thread takes chunk 0; raise ... from


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    grad = torch.is_grad_enabled()
    done: SimpleQueue = SimpleQueue()

    def work(i: int) -> None:
        try:
            with torch.set_grad_enabled(grad):
                done.put((i, replicas[i](chunks[i]), None))
        except BaseException as error:
            done.put((i, None, error))

    for i in range(1, len(chunks)):
        threading.Thread(target=work, args=(i,), daemon=True).start()
    if len(chunks):
        work(0)

    outputs: list = [None] * len(chunks)
    errors = {}
    for _ in chunks:
        i, output, error = done.get()
        outputs[i] = output
        if error is not None:
            errors[i] = error
    if errors:
        i = min(errors)
        raise RuntimeError(f"replica {i} failed: {errors[i]!r}") from errors[i]
    return outputs


# %% two_thread_class: pass

# right: a Thread subclass that keeps its output or its error and hands it out in join


class _Forward(Thread):
    def __init__(self, number: int, replica: nn.Module, chunk: Tensor):
        super().__init__(name=f"replica {number}")
        self.replica, self.chunk = replica, chunk
        self.trained = torch.is_grad_enabled()  # __init__ still runs in the calling thread
        self.output = self.error = None

    def run(self) -> None:
        torch.set_grad_enabled(self.trained)
        try:
            self.output = self.replica(self.chunk)
        except BaseException as error:
            error.add_note(f"raised in {self.name}")
            self.error = error


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    threads = [_Forward(i, *pair) for i, pair in enumerate(zip(replicas, chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return [thread.output for thread in threads]


# %% no_threads: wrong parallel_apply.one_after_another


def parallel_apply(replicas, chunks):
    return [replica(chunk) for replica, chunk in zip(replicas, chunks)]


# %% catches_one_kind_of_error: wrong parallel_apply.error_swallowed


def parallel_apply(replicas, chunks):
    outputs, errors = [None] * len(chunks), [None] * len(chunks)
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def work(i):
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                outputs[i] = replicas[i](chunks[i])
        except ValueError as error:
            error.add_note(f"replica {i}")
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return outputs


# %% first_one_before_the_threads: wrong parallel_apply.one_waits


def parallel_apply(replicas, chunks):
    outputs = [replicas[0](chunks[0])] + [None] * (len(chunks) - 1)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    threads = [threading.Thread(target=forward, args=(i,)) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


# %% appends_as_they_come: wrong parallel_apply.completion_order


def parallel_apply(replicas, chunks):
    outputs = []

    def forward(replica, chunk):
        outputs.append(replica(chunk))

    threads = [threading.Thread(target=forward, args=pair) for pair in zip(replicas, chunks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


# %% forgets_to_join: wrong parallel_apply.does_not_wait


def parallel_apply(replicas, chunks):
    outputs = [None] * len(chunks)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    for i in range(len(chunks)):
        threading.Thread(target=forward, args=(i,)).start()
    return outputs


# %% closure_sees_the_last_index: wrong parallel_apply.replicas_not_used


def parallel_apply(replicas, chunks):
    outputs = [None] * len(chunks)
    go = threading.Event()

    def forward():
        go.wait()
        outputs[i] = replicas[i](chunks[i])

    threads = []
    for i in range(len(chunks)):
        threads.append(threading.Thread(target=forward))
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    return outputs


# %% error_without_the_replica: wrong parallel_apply.replica_not_named


def parallel_apply(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def forward(replica, chunk):
        with torch.set_grad_enabled(enabled):
            return replica(chunk)

    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(forward, replicas, chunks))


# %% counts_replicas_from_one: wrong parallel_apply.wrong_replica_named


def parallel_apply(replicas, chunks):
    outputs, errors = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            error.add_note(f"replica {i + 1}")
            errors.append(error)

    in_threads(forward, len(chunks))
    if errors:
        raise errors[0]
    return [outputs[i] for i in range(len(chunks))]


# %% another_error_without_a_cause: wrong parallel_apply.cause_lost


def parallel_apply(replicas, chunks):
    outputs, failed = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception:
            failed.append(i)

    in_threads(forward, len(chunks))
    if failed:
        raise RuntimeError(f"replica {failed[0]} failed")
    return [outputs[i] for i in range(len(chunks))]


# %% forgets_to_return: wrong returned_nothing


def parallel_apply(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))


# %% returns_a_dictionary: wrong wrong_type


def parallel_apply(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = {i: pool.submit(replicas[i], chunk) for i, chunk in enumerate(chunks)}
        return {i: future.result() for i, future in futures.items()}


# %% joins_the_outputs_of_all: wrong wrong_values


def parallel_apply(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        outputs = list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))
    return [output / len(chunks) for output in outputs]


# %% waits_for_a_result_that_a_failed_thread_never_puts: hang hang_blocked


def parallel_apply(replicas, chunks):
    ready = queue.Queue()
    enabled = torch.is_grad_enabled()

    def forward(i):
        with torch.set_grad_enabled(enabled):
            ready.put((i, replicas[i](chunks[i])))

    for i in range(len(chunks)):
        threading.Thread(target=forward, args=(i,)).start()
    outputs = dict(ready.get() for _ in chunks)
    return [outputs[i] for i in range(len(chunks))]
