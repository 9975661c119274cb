"""Projects that are not the course's, as people write them: the same weights in every mode."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.training import TrainConfig, Trainer, prepare

MODES = ("ddp", "zero3")


def trained(mode, project):
    """The weights of a project after its training."""
    torch.manual_seed(0)
    model, rows, how, settings = project()
    trainer = Trainer(model.double(), TrainConfig(mode=mode, **settings), rows, **how)
    history = trainer.fit()
    assert history.last["step"] >= 4
    return trainer.strategy.model_state()


def assert_same_weights(train, *args):
    """`train(mode, ...)` gives the same weights in one process and on ranks."""
    wanted = train("single", *args)
    for on_rank in run_ranks(lambda: [train(mode, *args) for mode in MODES], 2, show=False):
        for weights in on_rank:
            assert weights.keys() == wanted.keys()
            for name, value in wanted.items():
                torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6, msg=str(name))


# --- a causal language model in the manner of Hugging Face ---------------------------------------


@dataclass
class CausalLMOutput:
    loss: Tensor
    logits: Tensor  # (rows, length, tokens)


class CausalLM(nn.Module):
    """Called by names; it shifts the labels itself and returns the mean loss over its tokens."""

    def __init__(self, tokens=11, width=8):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        kind = {"dropout": 0.0, "batch_first": True}
        layers = (nn.TransformerEncoderLayer(width, 2, 16, **kind) for _ in range(2))
        self.layers = nn.ModuleList(layers)
        self.lm_head = nn.Linear(width, tokens, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.embed(input_ids)  # (rows, length, width)
        causal = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=causal, src_key_padding_mask=attention_mask == 0)
        logits = self.lm_head(hidden)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss, logits)


def padded(rows):
    """What a data collator makes: the rows of one rank, as long as the longest of them."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    mask = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    input_ids = pad_sequence(ids, batch_first=True)  # (rows, length)
    labels = input_ids.where(mask == 1, -100)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def over_all_tokens(outputs, labels):
    """The model's mean as a sum and its weight: ranks have different numbers of tokens."""
    tokens = (labels[:, 1:] != -100).sum()
    return outputs.loss * tokens, tokens


def causal_lm():
    lengths = torch.randint(2, 9, (22,)).tolist()
    rows = [{"input_ids": torch.randint(1, 11, (length,)).tolist()} for length in lengths]
    how = {"loss_fn": over_all_tokens, "collate_fn": padded}
    return CausalLM(), rows, how, {"batch_size": 8, "epochs": 2, "accumulation_steps": 2}


# --- routed experts ------------------------------------------------------------------------------


class RoutedExperts(nn.Module):
    """Each row goes to the expert with the highest score. An expert without rows is called too,
    with none, because with zero3 all ranks use the same blocks."""

    def __init__(self, width=6, experts=4, classes=3):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, rows):
        scores = self.router(rows)
        shares, chosen = scores.softmax(dim=1).max(dim=1)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            [own] = torch.where(chosen == number)
            mixed = mixed.index_add(0, own, expert(rows[own]) * shares[own, None])
        return self.head(rows + mixed), scores


def with_router_loss(outputs, targets):
    classes, scores = outputs
    z_loss = scores.logsumexp(dim=1).square().mean()
    return F.cross_entropy(classes, targets) + 0.01 * z_loss


def routed_experts():
    inputs = torch.randn(20, 6, dtype=torch.float64)
    rows = TensorDataset(inputs, torch.randint(0, 3, (20,)))
    # 2 rows on a rank and 4 experts: some get none.
    settings = {"batch_size": 4, "epochs": 1, "optimizer": "sgd", "learning_rate": 0.3}
    return RoutedExperts(), rows, {"loss_fn": with_router_loss}, settings


@pytest.mark.parametrize(
    "project",
    [
        routed_experts,
        pytest.param(causal_lm, marks=pytest.mark.slow),
    ],
)
def test_the_trainer_trains_it_alike_in_every_mode(project):
    assert_same_weights(trained, project)


# --- a GAN, in a loop of its own -----------------------------------------------------------------


def perceptron(before, hidden, after):
    return nn.Sequential(nn.Linear(before, hidden), nn.Tanh(), nn.Linear(hidden, after)).double()


def gan(mode):
    """The weights of both models after the steps of both optimizers."""
    torch.manual_seed(0)
    config, rows = TrainConfig(mode=mode), 8
    real = torch.randn(4, rows, 5, dtype=torch.float64) + 1  # (steps, rows, numbers)
    noise = torch.randn(4, rows, 3, dtype=torch.float64)
    yes, no = torch.ones(rows, 1, dtype=torch.float64), torch.zeros(rows, 1, dtype=torch.float64)
    generator = prepare(perceptron(3, 8, 5), config, example=(noise[0], yes))
    critic = prepare(perceptron(5, 8, 1), config, example=(real[0], yes))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
    score = F.binary_cross_entropy_with_logits
    own = slice(critic.share, rows, critic.world_size)  # this rank's rows
    for step in range(4):
        with torch.no_grad():
            made = generator.model(noise[step, own])
        both, answers = torch.cat([real[step, own], made]), torch.cat([yes[own], no[own]])
        critic.backward(both, answers, loss_fn=score)
        critic.step(for_critic)

        for parameter in critic.parameters():
            parameter.requires_grad_(False)  # only the generator learns from this loss
        generator.backward(
            noise[step, own], yes[own], loss_fn=lambda made, yes: score(critic.model(made), yes)
        )
        generator.step(for_generator)
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
    states = [generator.strategy.model_state(), critic.strategy.model_state()]
    return {(n, name): value for n, state in enumerate(states) for name, value in state.items()}


@pytest.mark.slow
def test_a_gan_with_prepare_trains_alike_in_every_mode():
    assert_same_weights(gan)
