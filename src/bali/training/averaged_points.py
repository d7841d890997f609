"""Averages of everything that a training moves: what is scored and kept are these, not the last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bali.inference.network import Network

#: A point is every mean by its layer's name, and every other parameter by its own.
Point = dict[str, Tensor]

#: Memories of the two averages; at each score the better one is taken: early on a short one, at the end a long one.
DECAYS = (0.95, 0.99)


@dataclass
class AveragedPoints:
    points: list[Point] = field(default_factory=list)  # one for each of DECAYS
    count: int = 0

    def take_in(self, point: Mapping[str, Tensor]) -> None:
        self.count += 1
        if not self.points:
            self.points = [{name: value.clone() for name, value in point.items()} for _ in DECAYS]
            return
        for decay, average in zip(DECAYS, self.points, strict=True):
            share = max(1.0 - decay, 1.0 / self.count)  # all steps count alike until there are enough of them
            torch._foreach_lerp_([average[name] for name in point], list(point.values()), share)


@torch.no_grad()
def load_point(network: Network, point: Mapping[str, Tensor]) -> None:
    """Write a point into the module."""
    for name, layer in network.layers.items():
        layer.assign(point[name])
    for name, parameter in network.others.items():
        parameter.copy_(point[name])


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Those in training mode that keep running statistics, which belong to the weights they were taken at."""
    found = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    return [m for m in found if m.training and m.track_running_stats and m.running_mean is not None]
