"""Random numbers: one generator per GPU, as under CUDA."""

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("machine")


def test_the_same_seed_gives_the_same_numbers_on_every_gpu_and_others_on_the_cpu():
    torch.manual_seed(3)
    on_0, on_1 = torch.rand(3, device="cuda:0"), torch.rand(3, device="cuda:1")
    assert on_0.tolist() == on_1.tolist()
    assert torch.rand(3).tolist() != on_0.tolist()
    torch.manual_seed(3)
    assert torch.rand(3, device="cuda:0").tolist() == on_0.tolist()


DRAWS = {
    "rand": lambda x: torch.rand(3, device=x.device),
    "randperm": lambda x: torch.randperm(9, device=x.device),
    "randn_like": torch.randn_like,
    "multinomial": lambda x: torch.multinomial(torch.ones_like(x), 5),
    "normal_": lambda x: x.clone().normal_(),
    "dropout": lambda x: functional.dropout(x + 1),
    "rrelu": lambda x: functional.rrelu(x - 1, training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_uses_its_gpus_generator_and_no_other(name):
    draw, x = DRAWS[name], torch.zeros(9, device="cuda:1")
    cpu = torch.get_rng_state()
    torch.cuda.manual_seed_all(5)
    gpu_2 = torch.cuda.get_rng_state(2)
    first = draw(x)
    assert torch.equal(torch.get_rng_state(), cpu)
    assert torch.equal(torch.cuda.get_rng_state(2), gpu_2)
    assert not torch.equal(torch.cuda.get_rng_state(1), gpu_2)
    torch.cuda.manual_seed_all(5)
    assert torch.equal(draw(x), first)


def test_generators_belong_to_a_device():
    generator = torch.Generator(device="cuda:1").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert (generator.device, generator.initial_seed()) == (torch.device("cuda:1"), 5)
    first = torch.rand(3, device="cuda:1", generator=generator)
    generator.manual_seed(5)
    assert torch.rand(3, device="cuda:1", generator=generator).tolist() == first.tolist()
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.rand(3, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found"):
        torch.rand(3, device="cuda:1", generator=torch.Generator())
    with pytest.raises(RuntimeError, match=r"cuda:2.*cuda:1"):
        torch.rand(3, device="cuda:2", generator=generator)


def test_the_default_device_draws_with_its_generator():
    generator = torch.Generator("cuda").manual_seed(5)
    first = torch.rand(3, device="cuda", generator=generator)
    torch.set_default_device("cuda")
    assert torch.equal(torch.rand(3, generator=generator.manual_seed(5)), first)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found"):
        torch.rand(3, generator=torch.Generator("cpu"))


def test_states_can_be_taken_and_put_back():
    state = torch.cuda.get_rng_state(1)
    first = torch.randn(3, device="cuda:1")
    torch.cuda.set_rng_state(state, 1)
    assert torch.randn(3, device="cuda:1").tolist() == first.tolist()
    states = torch.cuda.get_rng_state_all()
    with torch.random.fork_rng(devices=[1]):
        inside = torch.rand(2, device="cuda:1")
    assert torch.rand(2, device="cuda:1").tolist() == inside.tolist()
    torch.cuda.set_rng_state_all(states)
    assert torch.rand(2, device="cuda:1").tolist() == inside.tolist()
