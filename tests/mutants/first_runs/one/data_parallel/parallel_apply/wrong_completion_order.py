# wrong: as_completed gives the outputs in the order in which they got ready
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch


def parallel_apply(replicas, chunks):
    enabled = torch.is_grad_enabled()

    def run(replica, chunk):
        with torch.set_grad_enabled(enabled):
            return replica(chunk)

    outputs = []
    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = {
            pool.submit(run, replica, chunk): i
            for i, (replica, chunk) in enumerate(zip(replicas, chunks))
        }
        for future in as_completed(futures):
            try:
                outputs.append(future.result())
            except Exception as error:
                error.add_note(f"replica {futures[future]}")
                raise
    return outputs
