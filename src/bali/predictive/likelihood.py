"""What a likelihood is, a distribution of the observations given the network's outputs; and one that is one family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from bali.predictive.families import Family
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.predictive_base import Predictive
from bali.predictive.target_checks import columns_for, n_columns


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


# --- one family of distributions, with its gradient by autograd -------------------------------------------------------


#: Outputs that are logarithms are bounded by this, so that nothing leaves float32: scales and means from 1e-11 to 7e10 …
LARGEST_LOG = 25.0
#: … and shapes from 3e-7 to 3e6.
LARGEST_LOG_SHAPE = 15.0


class FamilyLikelihood(Likelihood):
    """A likelihood that is one `Family`: a subclass says which one, and what observations may be. Gradients by autograd."""

    #: Outputs for each column of y.
    n_parameters: ClassVar[int] = 1

    @abstractmethod
    def family(self, z: Tensor) -> Family:
        """The distribution of observations (..., n, D), given outputs."""

    def check(self, y: Tensor) -> None:
        """Raises an error that says which rows cannot be observations of this kind."""

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        return self.family(z).joint_log_prob(y)

    def n_outputs(self, y: Tensor) -> int:
        return self.n_parameters * n_columns(y)

    def n_targets(self, n_outputs: int) -> int:
        """Columns of y for so many outputs."""
        if n_outputs % self.n_parameters or n_outputs == 0:
            raise ValueError(
                f"{type(self).__name__} needs {self.n_parameters} outputs for each column of y; the network has {n_outputs}"
            )
        return n_outputs // self.n_parameters

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        y = columns_for(y, z, self.n_targets(z.shape[-1])).double()
        self.check(y)
        return y

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return with_gradient(lambda exact: self.log_prob(exact, y), z)

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        return FamilyPredictive(self.family(z))

    def parts(self, z: Tensor) -> tuple[Tensor, ...]:
        """The outputs for each parameter: first those of all columns for the first one, then for the second, …"""
        self.n_targets(z.shape[-1])
        return z.chunk(self.n_parameters, -1)


def with_gradient(log_prob: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """log p of each row at z, and its gradient, in the type of z.

    Computed in float64: densities of counts and shapes cancel, and outputs are few numbers beside those of the layers.
    """
    with torch.enable_grad():
        exact = z.detach().double().requires_grad_()
        value = log_prob(exact)
        (gradient,) = torch.autograd.grad(value.sum(), exact)
    return value.detach().to(z.dtype), gradient.to(z.dtype)


def exp(z: Tensor, largest_log: float = LARGEST_LOG) -> Tensor:
    return z.clamp(-largest_log, largest_log).exp()
