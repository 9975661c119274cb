# wrong: asks for the grad mode inside the new thread, where it is always on
import threading

import torch


def parallel_apply(replicas, chunks):
    results = {}

    def worker(i, replica, chunk):
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                results[i] = replica(chunk)
        except Exception as e:
            e.add_note(f"replica {i}")
            results[i] = e

    threads = [
        threading.Thread(target=worker, args=(i, r, c))
        for i, (r, c) in enumerate(zip(replicas, chunks))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    outputs = []
    for i in range(len(threads)):
        if isinstance(results[i], Exception):
            raise results[i]
        outputs.append(results[i])
    return outputs
