"""Models that are hard to cut: long skips, tied weights, two inputs, noise in training alone."""

import torch
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Two long skips, BatchNorm, ReLU in place, dropout as a function, noise in training only."""

    def __init__(self):
        super().__init__()
        self.down1 = self.part(1, 8)
        self.down2 = self.part(8, 16)
        self.middle = nn.Sequential(self.part(16, 16), nn.Dropout(0.2))
        self.up2 = self.part(32, 8)
        self.up1 = self.part(16, 8)
        self.out = nn.Conv2d(8, 1, 1)
        self.never_used = nn.Linear(2, 3)

    @staticmethod
    def part(before, after):
        conv = nn.Conv2d(before, after, 3, padding=1)
        return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True))

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.middle(F.max_pool2d(second, 2))
        deep = F.dropout(deep, 0.3, self.training)
        if self.training:
            deep = deep + 0.01 * torch.randn_like(deep)
        joined = self.up2(torch.cat([F.interpolate(deep, scale_factor=2), second], dim=1))
        joined = self.up1(torch.cat([F.interpolate(joined, scale_factor=2), first], dim=1))
        return self.out(joined)


class Translator(nn.Module):
    """PyTorch's transformer: two inputs, one matrix at both ends, a mask made in forward."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        read, written = self.words(source), self.words(target)
        return self.head(self.transformer(read, written, tgt_mask=mask, tgt_is_causal=True))


class Named(nn.Module):
    """A dict of inputs, one that may be None, a dict of outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, inputs, mask=None):
        hidden = F.relu(self.first(inputs["x"]))
        if mask is not None:
            hidden = hidden * mask
        hidden = F.relu(self.second(hidden)) * inputs["weight"][:, None]
        return {"scores": self.third(hidden), "hidden": hidden}


class Turned(nn.Module):
    """Tensors whose dimensions are in another order in memory, and dropout on them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(3, 3), nn.Linear(8, 8)

    def forward(self, rows):
        turned = torch.relu(self.first(rows)).transpose(1, 2)
        turned = F.dropout(turned, 0.3, self.training) * 2
        back = torch.tanh(self.second(turned.contiguous()).transpose(1, 2))
        turned_again = torch.relu(self.third(back)).transpose(1, 2) * 3
        return self.third(turned_again.transpose(1, 2).view(-1, 8) + back.reshape(-1, 8))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        ctx.save_for_backward(given)
        return given * given

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


class Mixed(nn.Module):
    """A counter, an LSTM, an own autograd function, a module used twice, writing into a slice."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, 8))
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.shared = nn.Linear(8, 8)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.register_buffer("calls", torch.zeros(()))
        self.mask = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])

    def forward(self, rows):
        self.calls += 1
        given = torch.cat([self.start.expand(len(rows), -1, -1), rows], dim=1)
        hidden, _ = self.recurrent(given)
        hidden = self.shared(Square.apply(hidden) * self.mask)
        hidden = self.shared(self.normed(hidden)).view(len(rows) * 4, 8)
        hidden = hidden.view(len(rows), 4, 8)
        hidden[:, 0] = 0
        return hidden.sum(1) / len(rows)
