"""What can be asked of any prediction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

Levels = float | Sequence[float] | Tensor


class UndefinedError(ValueError):
    """A distribution does not have what was asked of it."""


class Predictive(ABC):
    """The distribution of new observations at n rows: an equal mixture of S components, one for each weight sample.

    What a kind of prediction does not have, such as quantiles of classes without an order, is an `UndefinedError`.
    """

    @property
    @abstractmethod
    def n_rows(self) -> int: ...

    @property
    @abstractmethod
    def n_components(self) -> int: ...

    @abstractmethod
    def rows(self, index: Any) -> Self:
        """The same prediction for some of the rows."""

    @abstractmethod
    def components(self, index: Tensor) -> Self:
        """The mixture of some of the components."""

    @abstractmethod
    def joined(self, others: Sequence[Predictive]) -> Self:
        """Followed by the rows of others with the same components."""

    def mixed_with(self, others: Sequence[Predictive]) -> Self:
        """One mixture of the components of all, for the same rows."""
        raise self.without("a mixture with others")

    # --- moments ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def mean(self) -> Tensor: ...

    @property
    def aleatoric(self) -> Tensor:
        """Variance that stays when the weights are known, (n, D)."""
        raise self.without("an aleatoric part")

    @property
    def epistemic(self) -> Tensor:
        """Variance due to uncertain weights, (n, D)."""
        raise self.without("an epistemic part")

    @property
    def variance(self) -> Tensor:
        """Of a new observation, (n, D)."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> Tensor:
        """Standard deviation of a new observation, noise included, (n, D)."""
        return self.variance.sqrt()

    # --- probabilities ------------------------------------------------------------------------------------------

    @abstractmethod
    def component_log_prob(self, y: Tensor) -> Tensor:
        """log density or probability of the observed y under each component, (S, n)."""

    def log_prob(self, y: Tensor) -> Tensor:
        """log predictive density or probability of the observed y, (n,)."""
        components = self.component_log_prob(y)
        return components.logsumexp(0) - math.log(len(components))

    def cdf(self, y: Tensor) -> Tensor:
        """Marginal distribution functions at y, (n, D)."""
        raise self.without("a distribution function")

    def cdf_bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The distribution function just below y and at y: equal where single values have no probability."""
        at = self.cdf(y)
        return at, at

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score ∫ (F(t) − 1{y ≤ t})² dt of each row and output, (n, D); lower is better."""
        raise self.without("a continuous ranked probability score")

    def quantiles(self, levels: Levels) -> Tensor:
        """Marginal quantiles of a new observation, (len(levels), n, D): those of the mixture itself."""
        q = torch.as_tensor(levels, dtype=torch.float64).reshape(-1)
        if not bool(((q > 0) & (q < 1)).all()):
            raise ValueError("quantile levels must lie strictly between 0 and 1")
        return torch.stack([self._quantile(float(level)) for level in q])

    def _quantile(self, level: float) -> Tensor:
        raise self.without("quantiles")

    @property
    def median(self) -> Tensor:
        """(n, D)"""
        return self.quantiles(0.5)[0]

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central interval that holds a new observation with this probability: lower and upper ends, (n, D) each."""
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must lie strictly between 0 and 1, got {coverage}")
        low, high = self.quantiles([(1 - coverage) / 2, (1 + coverage) / 2])
        return low, high

    @abstractmethod
    def sample(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of y, (n_samples, n, ...)."""

    # --- calibration --------------------------------------------------------------------------------------------

    def tempered(self, power: float) -> Self:
        """Every component's noise made smaller (power above 1) or larger (below), as fitted on held-out rows."""
        raise self.without("noise that a temperature could change")

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        """The distribution of scale · y + shift, with (D,) tensors: undoes a standardisation of the targets."""
        raise self.without("a distribution of the same kind for shifted and scaled observations")

    def without(self, what: str) -> UndefinedError:
        return UndefinedError(f"{type(self).__name__} has not got {what}")


def concatenate(parts: Sequence[Predictive]) -> Predictive:
    """Predictions for consecutive chunks of rows, made with the same components, as one."""
    return parts[0].joined(parts[1:])
