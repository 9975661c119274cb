# right: plain threads for chunks 1.., the caller runs chunk 0, errors raised anew with a cause
import threading

import torch


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
