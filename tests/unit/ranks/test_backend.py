"""Which backend carries a run, and which device a rank has."""

import pytest
import torch
import torch.distributed as dist
from said import numbers_in

from multigpu import run_ranks
from multigpu.ranks import rank_device
from multigpu.ranks.backend import choose_backend


@pytest.mark.parametrize(
    ("gpus", "asked", "name", "counts"),
    [
        (0, None, "gloo", []),
        (0, "gloo", "gloo", []),
        (1, None, "gloo", [4, 1]),  # 4 ranks share 1 GPU
        (2, None, "gloo", [4, 2]),
        (4, None, "nccl", [4]),
        (8, None, "nccl", [4]),
        (8, "gloo", "gloo", [4]),
        (4, "nccl", "nccl", [4]),
    ],
)
def test_nccl_is_chosen_where_every_rank_has_its_own_gpu(gpus, asked, name, counts):
    chosen = choose_backend(4, asked=asked, gpus=gpus)
    assert chosen.name == name
    assert str(chosen).startswith(name)
    assert numbers_in(str(chosen)) == counts
    assert ("GPU" if gpus else "CPU") in str(chosen)


def test_what_cannot_be_had_is_refused_before_any_rank_starts():
    ranks = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=r"nccl.*`backend`"):
        run_ranks(dist.get_rank, ranks, backend="nccl", show=False)


def test_torch_says_the_name_of_the_backend_with_and_without_a_trace():
    for trace in (True, False):
        results = run_ranks(dist.get_backend, 2, backend="gloo", trace=trace, show=False)
        assert results == ["gloo", "gloo"]


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cuda:0"), (2, "cuda:1")])
def test_ranks_share_the_gpus_that_there_are(monkeypatch, gpus, device):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert rank_device() == torch.device(device)


@pytest.mark.gpu
def test_ranks_that_share_a_gpu_add_up_on_it():
    def add():
        tensor = torch.ones(3, device=rank_device())
        dist.all_reduce(tensor)
        return tensor.device.type, tensor

    for device, tensor in run_ranks(add, torch.cuda.device_count() + 1, show=False):
        assert device == "cuda"
        assert tensor.tolist() == [torch.cuda.device_count() + 1] * 3
