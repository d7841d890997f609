"""All that inference keeps between steps, as values: a step makes a new state and leaves the old one as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bali.conjugate.averages import DebiasedRate
from bali.conjugate.mniw import MNIW
from bali.conjugate.symmetric import Symmetric


@dataclass(frozen=True)
class LayerState:
    prior: MNIW
    weights: Tensor  # of the next forward pass, (..., D_x, D_y)
    posterior: MNIW | None = None  # its precision is the average of R₀⁻¹ + XᵀX for N_eff rows
    mean_squared_gradient: Tensor | None = None  # its average, (..., D_y)
    velocity: Tensor | None = None  # how far the mean went in the last step, where it has momentum
    fixed_precision: Symmetric | None = None  # where XᵀX is that of all the data

    @property
    def reference(self) -> Tensor:
        """M of the last step; before the first one, the initial weights."""
        return self.weights.to(self.prior.mean.dtype) if self.posterior is None else self.posterior.mean

    @property
    def precision(self) -> Symmetric | None:
        """R⁻¹, where there is one yet."""
        return self.fixed_precision if self.posterior is None else self.posterior.precision


@dataclass(frozen=True)
class State:
    layers: Mapping[str, LayerState]  # by module name
    generator: torch.Generator  # as it is now: a step draws from a copy of it
    rate: DebiasedRate = field(default_factory=DebiasedRate)
    step: int = 0
    output_layer: str | None = None  # in a regression; found in the first forward pass

    @property
    def posteriors(self) -> dict[str, MNIW]:
        found = {name: state.posterior for name, state in self.layers.items() if state.posterior is not None}
        if not found:
            raise RuntimeError("there is no posterior yet: call step() first")
        return found

    def with_means(self, means: Mapping[str, Tensor]) -> State:
        """The same with other posterior means."""
        changed = {
            name: replace(self.layers[name], posterior=posterior.with_mean(means[name]))
            for name, posterior in self.posteriors.items()
        }
        return replace(self, layers={**self.layers, **changed})
