"""The model that checks hand to a learner's code."""

import torch

from multigpu.checking.specimen import WIDTH, Specimen


def tensors(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_a_seed_fixes_every_number_and_none_are_random():
    first, second, other = (tensors(Specimen(seed)) for seed in (1, 1, 2))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert not torch.equal(tensor, other[name])
    random = [Specimen().encode.weight for _ in range(2)]
    assert not torch.equal(*random)


def test_it_has_everything_that_a_copy_can_lose():
    model = Specimen(seed=1)
    buffers, state = dict(model.named_buffers()), model.state_dict()
    assert model.decode.weight is model.encode.weight
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
        "frozen.weight"
    ]
    assert [name for name, p in model.named_parameters() if p.ndim == 0] == ["gain.scale"]
    assert set(buffers) - set(state) == {"position"}
    assert [name for name, b in buffers.items() if not b.is_floating_point()] == ["batches"]
    assert [name for name, part in model.named_modules() if not part.training] == ["frozen"]


def test_every_trained_parameter_matters():
    model = Specimen(seed=1)
    model(torch.ones(2, WIDTH, dtype=torch.float64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name == "frozen.weight"), name
        assert parameter.grad is None or parameter.grad.abs().min() > 0, name


def test_rows_do_not_see_each_other():
    model, rows = Specimen(seed=1), torch.randn(3, WIDTH, dtype=torch.float64)
    apart = torch.cat([model(row[None]) for row in rows])
    torch.testing.assert_close(model(rows), apart)
