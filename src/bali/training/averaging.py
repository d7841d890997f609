"""A moving average of the posterior means, to predict from while steps are still large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bali.inference.layerwise import LayerwiseInference
from bali.inference.prediction import NetworkPosterior
from bali.inference.state import State


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

    def of_members(self, taken: LayerwiseInference, index: Sequence[int]) -> AveragedMeans:
        """The averages of some of the stacked members, to go on beside an inference over these."""
        averaged = AveragedMeans(taken, self.rate)
        averaged.steps = self.steps
        averaged.means = {name: mean[list(index)] for name, mean in self.means.items()}
        return averaged

    def state_dict(self) -> dict[str, Any]:
        """The averages, as they are now; the inference has a state of its own."""
        return {"steps": self.steps, "means": {name: mean.clone() for name, mean in self.means.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps = int(state_dict["steps"])
        self.means = {name: mean.clone() for name, mean in state_dict["means"].items()}
