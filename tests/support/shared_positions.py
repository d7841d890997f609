"""Networks that use a layer's weights at several positions of an example."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bali.layers.convolution import Convolution
from support.networks import data, linears, mlp


class OverPositions(nn.Module):
    """A layer at every position, tanh, the mean over positions, and a linear head."""

    def __init__(self, layer: Convolution | nn.Linear, head: nn.Linear, *, channels_last: bool) -> None:
        super().__init__()
        self.layer, self.head, self.channels_last = layer, head, channels_last

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.layer(x.movedim(1, -1) if self.channels_last else x))
        return self.head(z.mean(tuple(range(1, z.dim() - 1)) if self.channels_last else tuple(range(2, z.dim()))))


def one_by_one() -> tuple[OverPositions, OverPositions]:
    """A convolution whose patches are single positions, and the same network with a linear layer."""
    (layer,), convolution = linears(mlp((3, 4), seed=4)), nn.Conv2d(3, 4, 1).double()
    state = layer.state_dict()
    convolution.load_state_dict({"weight": state["weight"][..., None, None], "bias": state["bias"]})
    (head,), (other_head,) = (linears(mlp((4, 2), seed=3)) for _ in range(2))
    return (
        OverPositions(convolution, head, channels_last=False),
        OverPositions(layer, other_head, channels_last=True),
    )


def images(likelihood: str, n: int = 20) -> tuple[Tensor, Tensor]:
    """Three channels of 2 × 3, and targets that depend on them."""
    x, y = data(likelihood, n, 18, 2)
    return x.reshape(n, 3, 2, 3), y
