"""Inference mode, and copies of tensors whose storage was looked at, behave as on CUDA."""

import copy
import io

import pytest
import torch
from torch import nn

from multigpu.devices import virtual_gpus

VIEWS = {
    "detach": torch.Tensor.detach,
    "view": lambda tensor: tensor.view(-1),
    "index": lambda tensor: tensor[0],
    "chunk": lambda tensor: tensor.chunk(2)[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("trained", [False, True])
def test_a_view_made_in_inference_mode_stays_an_ordinary_tensor(view, trained):
    with virtual_gpus(1):
        tensor = torch.ones(2, 2, device="cuda:0", requires_grad=trained) * 2
        with torch.inference_mode():
            seen = view(tensor)
            result = tensor + 1
        assert not seen.is_inference()
        assert result.is_inference()
        assert seen.sum().item() in (4, 8)


@pytest.mark.parametrize("look", ["save", "storage"])
def test_a_model_can_be_copied_after_its_storages_were_looked_at(look):
    with virtual_gpus(2):
        model = nn.Linear(2, 2).to("cuda:1")
        if look == "save":
            torch.save(model.state_dict(), io.BytesIO())
        else:
            model.weight.untyped_storage()
        twin = copy.deepcopy(model)
        assert twin.weight.device == torch.device("cuda:1")
        nn.init.zeros_(twin.weight)
        assert model.weight.abs().sum() > 0


def test_copies_of_two_views_share_their_memory_again():
    with virtual_gpus(1):
        whole = torch.zeros(4, device="cuda:0")
        half = whole[:2]
        whole.untyped_storage()
        whole_twin, half_twin = copy.deepcopy((whole, half))
        half_twin += 1
        assert whole_twin.tolist() == [1, 1, 0, 0]
        assert whole.tolist() == [0, 0, 0, 0]
        assert whole.untyped_storage().clone().device == torch.device("cuda:0")
