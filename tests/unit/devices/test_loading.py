"""DataLoader with workers and pinned memory, and forked processes."""

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from multigpu import virtual_gpus

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1 = torch.device("cuda", 1)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, int]]:
        return torch.full((3,), float(index)), {"label": index}


@pytest.mark.parametrize(("num_workers", "pin_memory"), [(0, False), (2, True)])
def test_batches_reach_the_gpu(num_workers, pin_memory):
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=num_workers, pin_memory=pin_memory, shuffle=True
    )
    labels = []
    for inputs, targets in loader:
        assert inputs.is_pinned() is targets["label"].is_pinned() is pin_memory
        on_gpu = inputs.to("cuda:1", non_blocking=True)
        assert on_gpu.device == CUDA_1
        labels += targets["label"].to("cuda:1").tolist()
    assert sorted(labels) == list(range(10))


def _in_child(tensor: torch.Tensor, answers) -> None:
    for use in (lambda: tensor + 1, lambda: torch.ones(1, device="cuda:0")):
        try:
            use()
        except RuntimeError as error:
            answers.put(str(error))
    with virtual_gpus(2) as machine:  # its own GPUs
        answers.put((torch.ones(3, device="cuda:1") * 2).tolist())
        answers.put(machine.memory(1).peak)


def test_a_forked_child_has_no_gpus_but_may_switch_its_own_on():
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    tensor = torch.ones(1, device="cuda:1")
    child = context.Process(target=_in_child, args=(tensor, answers))
    child.start()
    for _ in range(2):
        assert answers.get().startswith("Cannot re-initialize CUDA in forked subprocess")
    assert answers.get() == [2, 2, 2]
    assert answers.get() == 24
    child.join()
    assert (tensor + 1).item() == 2
