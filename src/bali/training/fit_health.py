"""Is a fitted network sound? A row of numbers for each layer, a few for the whole, and sentences where something is off.

| number           | meaning                                                                                        |
|------------------|------------------------------------------------------------------------------------------------|
| weight           | root mean square of the mean weights                                                            |
| weight std       | the same of their standard deviations, as predictions use them                                  |
| told by the data | share of the weights' prior variance that the data took away                                    |
| condition number | of the posterior's precision; the step's own solve is damped and never worse than 10 D_x         |
| largest input    | its root mean square over that of the median input, or over 1 where that is less                |
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bali.conjugate.matrix_normal import CurvaturePosterior, SumNormal
from bali.inference.health import HealthTable, format_number
from bali.training.fitted_values import Calibration, History

#: An input so many times larger than the others hides them from each other.
LARGEST_INPUT = 1e3
#: A temperature beyond this, or below its inverse, mends probabilities that were far off.
LARGEST_TEMPERATURE = 2.5
#: Noise in units of the targets' standard deviation, below which they are explained too well.
SMALLEST_NOISE = 1e-4


@dataclass(frozen=True)
class FittedLayerHealth:
    name: str
    n_inputs: int  # the bias counts
    n_outputs: int
    weight: float
    weight_std: float
    told_by_data: float
    condition_number: float
    largest_input: float
    has_gradients: bool

    def problems(self) -> list[str]:
        found = []
        if not self.has_gradients:
            found.append("no gradient reaches it, so its weights are those it started from or zero; is it used at all?")
        if self.largest_input > LARGEST_INPUT:
            found.append(f"one of its inputs is {self.largest_input:.0e} times as large as the median one; standardise them")
        return [f"layer '{self.name}': {sentence}" for sentence in found]

    def row(self) -> dict[str, Any]:
        return {
            "layer": self.name,
            "inputs": self.n_inputs,
            "outputs": self.n_outputs,
            "weight": self.weight,
            "weight std": self.weight_std,
            "told by the data": self.told_by_data,
            "condition number": self.condition_number,
            "largest input": self.largest_input,
        }


@dataclass(frozen=True)
class FittedHealth(HealthTable):
    """What `Fitted.health` found; the layers are those of the first member."""

    layers: tuple[FittedLayerHealth, ...]
    steps: int
    refused: int  # steps that would have ruined the fit, and were not taken
    outcomes: tuple[str, ...]  # of each member: converged, epochs or interrupted
    width: float
    temperature: float
    noise: float | None  # of a regression, in units of the targets' standard deviation

    @property
    def whole(self) -> dict[str, Any]:
        """The numbers that are no layer's."""
        found: dict[str, Any] = {"steps": self.steps, "refused": self.refused, "ended by": ", ".join(self.outcomes)}
        found |= {"width": self.width, "temperature": self.temperature}
        return found | ({} if self.noise is None else {"noise": self.noise})

    @property
    def problems(self) -> list[str]:
        found = [sentence for layer in self.layers for sentence in layer.problems()]
        if self.refused:
            found.append(
                f"{self.refused} of {self.steps} steps would have ruined the fit and were not taken; look for extreme "
                "values in x"
            )
        if not 1.0 / LARGEST_TEMPERATURE < self.temperature < LARGEST_TEMPERATURE:
            found.append(
                f"class probabilities were far off before a temperature of {self.temperature:.2g} mended them; are held-out "
                "and training examples of one kind?"
            )
        if self.noise is not None and self.noise < SMALLEST_NOISE:
            found.append(
                f"the noise is {self.noise:.0e} of the targets' spread, so they are explained almost exactly; look for the "
                "target among the inputs"
            )
        return found

    def __str__(self) -> str:
        whole = ", ".join(f"{name} {format_number(value)}" for name, value in self.whole.items())
        return f"{whole}\n{super().__str__()}"

    def _repr_html_(self) -> str:
        whole = ", ".join(f"{name} {format_number(value)}" for name, value in self.whole.items())
        return f"<p>{html.escape(whole)}</p>{super()._repr_html_()}"


@torch.no_grad()
def fitted_health(posteriors: Mapping[str, CurvaturePosterior], history: History, calibration: Calibration) -> FittedHealth:
    layers = tuple(_of_layer(name, posterior) for name, posterior in posteriors.items())
    noise = None if calibration.noise is None else math.sqrt(float(calibration.noise.diagonal().mean()))
    steps = sum(len(losses) for losses in history.losses)
    return FittedHealth(
        layers, steps, history.refused, tuple(history.outcomes), calibration.width, calibration.temperature, noise
    )


def _of_layer(name: str, posterior: CurvaturePosterior) -> FittedLayerHealth:
    deviations = posterior.deviations
    prior = posterior.prior_variance * (posterior.width if isinstance(posterior, SumNormal) else 1.0)
    basis = posterior.input_basis
    squares = posterior.input_values if basis is None else (basis.square() * posterior.input_values.unsqueeze(-2)).sum(-1)
    return FittedLayerHealth(
        name=name,
        n_inputs=posterior.mean.shape[-2],
        n_outputs=posterior.mean.shape[-1],
        weight=float(posterior.mean.square().mean().sqrt()),
        weight_std=float(deviations.square().mean().sqrt()),
        told_by_data=float((1.0 - deviations.square() / prior).mean()),
        condition_number=float((deviations.max() / deviations.min()).square()),
        # Over 1 at least: of a hidden layer's inputs most may have died, which says nothing about the data.
        largest_input=math.sqrt(float(squares.max() / squares.median().clamp_min(1.0))),
        has_gradients=bool(posterior.output_values.max() > 0.0),
    )
