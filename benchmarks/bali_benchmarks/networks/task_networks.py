"""The networks of the tasks: as one would write them in torch, with torch's own initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def perceptron(n_inputs: int, widths: Sequence[int], n_outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(n_inputs, width), nn.ReLU()]
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(n_inputs, n_outputs))


def convolutional(*, has_norms: bool) -> nn.Sequential:
    """Two convolutions of 3 × 3 on images (n, 1, 28, 28), and a hidden layer of 128."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((1, 16), (16, 32)):
        norms = [nn.BatchNorm2d(n_out)] if has_norms else []
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), *norms, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10))


class RowTransformer(nn.Module):
    """The 28 rows of an image are its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(28, 64)
        self.places = nn.Parameter(torch.randn(28, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(self.embedding(x) + self.places).mean(1))
        return z


class RowGRU(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(28, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.recurrence(x)[0][:, -1])
        return z


class CharacterTransformer(nn.Module):
    """The next character at every place of a window."""

    def __init__(self, n_characters: int, context: int, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(n_characters, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_characters)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        hidden = self.encoder(self.embedding(x) + self.position(places), mask=self.mask, is_causal=True)
        z: Tensor = self.head(self.norm(hidden))
        return z
