"""What a likelihood is: a distribution of the observations given the network's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from bali.predictive.predictive_base import Predictive


class Likelihood(ABC):
    """p(y | z) for network outputs z (..., n, P) and observations y (n, D), or (n,) where D is 1."""

    #: The output layer regresses on the observed targets themselves, and its noise is the likelihood's noise.
    has_true_targets: bool = False

    @abstractmethod
    def n_outputs(self, y: Tensor) -> int:
        """How many outputs a network needs for such observations."""

    @abstractmethod
    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        """y checked and brought to the form the other methods take, for outputs z."""

    @abstractmethod
    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p(y | z) of each row, (..., n), and its gradient with respect to z.

        `noise_factor` is the Cholesky factor of the output layer's noise, for likelihoods with true targets.
        """

    @abstractmethod
    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        """The mixture over outputs z (S, n, P).

        Of an output layer with true targets: noise covariances (S or 1, D, D), variances inflated by (S, n), tails.
        """

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"
