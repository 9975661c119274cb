# right: ThreadPoolExecutor with futures, the original error with a note
from concurrent.futures import ThreadPoolExecutor

import torch


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
