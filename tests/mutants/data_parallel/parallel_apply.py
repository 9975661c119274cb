"""Answers to ``parallel_apply``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import queue
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from harness import right, wrong


def in_threads(forward, n):
    threads = [threading.Thread(target=forward, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@wrong("parallel_apply.one_after_another")
def no_threads(replicas, chunks):
    return [replica(chunk) for replica, chunk in zip(replicas, chunks)]


@wrong("parallel_apply.one_after_another")
def joins_inside_the_loop(replicas, chunks):
    outputs = [None] * len(chunks)
    enabled = torch.is_grad_enabled()

    def forward(i):
        with torch.set_grad_enabled(enabled):
            outputs[i] = replicas[i](chunks[i])

    for i in range(len(chunks)):
        thread = threading.Thread(target=forward, args=(i,))
        thread.start()
        thread.join()
    return outputs


@wrong("parallel_apply.one_after_another")
def calls_the_function_instead_of_passing_it(replicas, chunks):
    outputs = [None] * len(chunks)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    threads = [threading.Thread(target=forward(i)) for i in range(len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


@wrong("parallel_apply.grad_mode_lost")
def four_threads_for_any_number(replicas, chunks):
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda pair: pair[0](pair[1]), zip(replicas, chunks)))


@wrong("parallel_apply.error_swallowed")
def catches_one_kind_of_error(replicas, chunks):
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


@wrong("parallel_apply.one_after_another")
def waits_for_each_future(replicas, chunks):
    with ThreadPoolExecutor() as pool:
        return [pool.submit(replica, chunk).result() for replica, chunk in zip(replicas, chunks)]


@wrong("parallel_apply.one_after_another")
def one_lock_for_all(replicas, chunks):
    outputs = [None] * len(chunks)
    lock = threading.Lock()

    def forward(i):
        with lock:
            outputs[i] = replicas[i](chunks[i])

    in_threads(forward, len(chunks))
    return outputs


@wrong("parallel_apply.one_waits")
def first_one_before_the_threads(replicas, chunks):
    outputs = [replicas[0](chunks[0])] + [None] * (len(chunks) - 1)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    threads = [threading.Thread(target=forward, args=(i,)) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


@wrong("parallel_apply.one_waits")
def too_small_a_pool(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def forward(replica, chunk):
        with torch.set_grad_enabled(enabled):
            return replica(chunk)

    with ThreadPoolExecutor(max_workers=max(1, len(chunks) - 1)) as pool:
        return list(pool.map(forward, replicas, chunks))


@wrong("parallel_apply.completion_order")
def appends_as_they_come(replicas, chunks):
    outputs = []

    def forward(replica, chunk):
        outputs.append(replica(chunk))

    threads = [threading.Thread(target=forward, args=pair) for pair in zip(replicas, chunks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


@wrong("parallel_apply.completion_order")
def results_as_completed(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = [pool.submit(replica, chunk) for replica, chunk in zip(replicas, chunks)]
        return [future.result() for future in as_completed(futures)]


@wrong("parallel_apply.completion_order")
def reads_a_queue(replicas, chunks):
    ready = queue.Queue()
    for replica, chunk in zip(replicas, chunks):
        threading.Thread(target=lambda r=replica, c=chunk: ready.put(r(c))).start()
    return [ready.get() for _ in chunks]


@wrong("parallel_apply.does_not_wait")
def forgets_to_join(replicas, chunks):
    outputs = [None] * len(chunks)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    for i in range(len(chunks)):
        threading.Thread(target=forward, args=(i,)).start()
    return outputs


@wrong("parallel_apply.replicas_not_used")
def closure_sees_the_last_index(replicas, chunks):
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


@wrong("parallel_apply.error_swallowed")
def loses_errors(replicas, chunks):
    outputs = [None] * len(chunks)
    enabled = torch.is_grad_enabled()

    def forward(i):
        with torch.set_grad_enabled(enabled):
            outputs[i] = replicas[i](chunks[i])

    in_threads(forward, len(chunks))
    return outputs


@wrong("parallel_apply.error_swallowed")
def returns_the_error(replicas, chunks):
    outputs = [None] * len(chunks)
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            outputs[i] = error

    in_threads(forward, len(chunks))
    return outputs


@wrong("parallel_apply.error_swallowed")
def drops_failed_replicas(replicas, chunks):
    outputs = {}
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            print(f"replica {i}: {error}")

    in_threads(forward, len(chunks))
    return [outputs[i] for i in sorted(outputs)]


@wrong("parallel_apply.replica_not_named")
def error_without_the_replica(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def forward(replica, chunk):
        with torch.set_grad_enabled(enabled):
            return replica(chunk)

    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(forward, replicas, chunks))


@wrong("parallel_apply.wrong_replica_named")
def counts_replicas_from_one(replicas, chunks):
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


@wrong("parallel_apply.cause_lost")
def another_error_without_a_cause(replicas, chunks):
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


@wrong("parallel_apply.grad_mode_lost")
def reads_the_grad_mode_inside_the_thread(replicas, chunks):
    def forward(replica, chunk):
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return replica(chunk)

    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(forward, replicas, chunks))


@wrong("parallel_apply.replicas_not_used")
def one_replica_does_everything(replicas, chunks):
    home = chunks[0].device

    def forward(replica, chunk):
        return replicas[0](chunk.to(home)).to(chunk.device)

    with ThreadPoolExecutor(len(chunks)) as pool:
        return list(pool.map(forward, replicas, chunks))


@wrong("returned_nothing")
def forgets_to_return(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))


@wrong("wrong_type")
def returns_a_dictionary(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = {i: pool.submit(replicas[i], chunk) for i, chunk in enumerate(chunks)}
        return {i: future.result() for i, future in futures.items()}


@wrong("wrong_values")
def joins_the_outputs_of_all(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        outputs = list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))
    return [output / len(chunks) for output in outputs]


@wrong("parallel_apply.detached")
def copies_the_numbers_out_of_the_threads(replicas, chunks):
    with ThreadPoolExecutor(len(chunks)) as pool:
        outputs = list(pool.map(lambda replica, chunk: replica(chunk), replicas, chunks))
    return [output.detach() for output in outputs]


@wrong("hang_blocked", status="hang")
def waits_for_a_result_that_a_failed_thread_never_puts(replicas, chunks):
    ready = queue.Queue()
    enabled = torch.is_grad_enabled()

    def forward(i):
        with torch.set_grad_enabled(enabled):
            ready.put((i, replicas[i](chunks[i])))

    for i in range(len(chunks)):
        threading.Thread(target=forward, args=(i,)).start()
    outputs = dict(ready.get() for _ in chunks)
    return [outputs[i] for i in range(len(chunks))]


@wrong("parallel_apply.replica_not_named")
def names_all_gpus(replicas, chunks):
    outputs, errors = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            error.add_note("the GPUs are 0, 1, 2, 3")
            errors.append(error)

    in_threads(forward, len(chunks))
    if errors:
        raise errors[0]
    return [outputs[i] for i in range(len(chunks))]


@wrong("parallel_apply.wrong_replica_named")
def names_the_gpu(replicas, chunks):
    outputs, errors = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            error.add_note(f"replica {chunks[i].device.index}")
            errors.append(error)

    in_threads(forward, len(chunks))
    if errors:
        raise errors[0]
    return [outputs[i] for i in range(len(chunks))]


@wrong("parallel_apply.wrong_replica_named")
def names_every_replica(replicas, chunks):
    outputs, errors = {}, []
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            error.add_note(", ".join(f"replica {j}" for j in range(len(replicas))))
            errors.append(error)

    in_threads(forward, len(chunks))
    if errors:
        raise errors[0]
    return [outputs[i] for i in range(len(chunks))]


@right
def subclass_of_thread(replicas, chunks):
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


@right
def queue_with_indices(replicas, chunks):
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


@right
def all_errors_as_a_group(replicas, chunks):
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


@right
def with_asyncio(replicas, chunks):
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


@right
def names_the_replica_by_its_place(replicas, chunks):
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
