"""Averages of what a training moves: what is scored, kept and predicted from are these, not the last step.

`AveragedPoints` are those of `bali.fit` and of tables, of means and all other parameters; `AveragedMeans` goes beside
`LayerwiseInference`, to predict from while steps are still large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bali.inference.layerwise import LayerwiseInference
from bali.inference.network import Network
from bali.inference.prediction import NetworkPosterior
from bali.inference.state import State

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


class AveragedMeans:
    """The mean of every layer's posterior, averaged over the last steps.

    Large steps learn fast, but leave each mean where the last mini-batches pulled it. Their average is where they pull
    together, so that no schedule has to make the steps smaller before predictions are good:

        averaged = bali.AveragedMeans(inference, rate=0.05)
        for x, y in batches:
            inference.step(x, y)
            averaged.update()
        predictive = averaged.posterior().predict(x_new)

    Spread and noise of the posteriors are those of the last step; parameters that have no posterior are not averaged.

    rate
        How far an average moves to the new mean: about the last 1 / rate steps count. All steps count alike until there
        are so many.
    """

    def __init__(self, inference: LayerwiseInference, rate: float = 0.05) -> None:
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"rate is {rate}; it must be above 0 and at most 1")
        self._inference, self.rate = inference, rate
        self.steps = 0
        self.means: dict[str, Tensor] = {}

    def update(self) -> None:
        """Take in the means of the last step."""
        posteriors = self._inference.posteriors
        self.steps += 1
        share = max(self.rate, 1.0 / self.steps)
        for name, posterior in posteriors.items():
            mean = posterior.mean
            self.means[name] = self.means[name].lerp(mean, share) if name in self.means else mean.clone()

    def posterior(self) -> NetworkPosterior:
        """The posterior with averaged means, to predict from."""
        return self._inference.posterior_of(self.state())

    def state(self) -> State:
        """The inference's state with averaged means; training goes on with the other one."""
        if not self.means:
            raise RuntimeError("nothing has been averaged yet: call update() after a step")
        return self._inference.state.with_means(self.means)

    def state_dict(self) -> dict[str, Any]:
        """The averages, as they are now; the inference has a state of its own."""
        return {"steps": self.steps, "means": {name: mean.clone() for name, mean in self.means.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps = int(state_dict["steps"])
        self.means = {name: mean.clone() for name, mean in state_dict["means"].items()}
