"""Answers to ``parallel_apply`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import asyncio
import queue
import threading
import torch


def in_threads(forward, numbers):
    threads = [threading.Thread(target=forward, args=(i,)) for i in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def outputs_and_errors(replicas, chunks, kind=Exception):
    """By number, of replicas that run in threads; errors of this kind are caught."""
    outputs, errors = [None] * len(chunks), {}
    enabled = torch.is_grad_enabled()

    def forward(i):
        try:
            with torch.set_grad_enabled(enabled):
                outputs[i] = replicas[i](chunks[i])
        except kind as error:
            errors[i] = error

    in_threads(forward, range(len(chunks)))
    return outputs, errors


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
            raise RuntimeError(f"{type(error).__name__} in replica {i}: {error}")
        outputs[i] = output
    return [outputs[i] for i in range(len(chunks))]


# %% all_errors_as_a_group: pass
def parallel_apply(replicas, chunks):
    outputs, errors = outputs_and_errors(replicas, chunks)
    for i, error in errors.items():
        error.add_note(f"replicas[{i}] of {len(replicas)} on {chunks[i].device}")
    if errors:
        raise ExceptionGroup("some replicas failed", [*errors.values()])
    return outputs


# %% with_asyncio: pass
def parallel_apply(replicas, chunks):
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


# %% no_threads: wrong parallel_apply.one_waits
def parallel_apply(replicas, chunks):
    return [replica(chunk) for replica, chunk in zip(replicas, chunks)]


# %% catches_one_kind_of_error: wrong parallel_apply.error_swallowed
def parallel_apply(replicas, chunks):
    outputs, errors = outputs_and_errors(replicas, chunks, ValueError)
    for i, error in errors.items():
        raise RuntimeError(f"replica {i}") from error
    return outputs


# %% first_one_before_the_threads: wrong parallel_apply.one_waits
def parallel_apply(replicas, chunks):
    outputs = [replicas[0](chunks[0])] + [None] * (len(chunks) - 1)

    def forward(i):
        outputs[i] = replicas[i](chunks[i])

    in_threads(forward, range(1, len(chunks)))
    return outputs


# %% appends_as_they_come: wrong parallel_apply.completion_order
def parallel_apply(replicas, chunks):
    outputs = []
    in_threads(lambda i: outputs.append(replicas[i](chunks[i])), range(len(chunks)))
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

    def forward():
        outputs[i] = replicas[i](chunks[i])

    threads = []
    for i in range(len(chunks)):
        threads.append(threading.Thread(target=forward))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


# %% error_without_the_replica: wrong parallel_apply.replica_not_named
def parallel_apply(replicas, chunks):
    outputs, errors = outputs_and_errors(replicas, chunks)
    for error in errors.values():
        raise error
    return outputs


# %% counts_replicas_from_one: wrong parallel_apply.replica_not_named
def parallel_apply(replicas, chunks):
    outputs, errors = outputs_and_errors(replicas, chunks)
    for i, error in errors.items():
        raise RuntimeError(f"replica {i + 1}") from error
    return outputs


# %% another_error_without_a_cause: wrong parallel_apply.error_swallowed
def parallel_apply(replicas, chunks):
    outputs, errors = outputs_and_errors(replicas, chunks)
    for i in errors:
        raise RuntimeError(f"replica {i} failed")
    return outputs


# %% forgets_to_return: wrong returned_nothing
def parallel_apply(replicas, chunks):
    outputs_and_errors(replicas, chunks)


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
