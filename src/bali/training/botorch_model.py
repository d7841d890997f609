"""A regression as a model of BoTorch, so that its acquisition functions and optimizers run on it unchanged.

Posteriors are joint over the q points and the outputs, Gaussian with the mean and covariance of the mixture over weight
samples, in closed form as far as the output layer goes (`Conditioned.joint`), and differentiable in X. Observations at
points without a batch change output layer and noise exactly; batches of them, as fantasies are, condition the joint
Gaussian.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.training.conditioning import Conditioned, Rows

try:
    from botorch.models.ensemble import EnsembleModel
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors import GPyTorchPosterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from linear_operator import to_linear_operator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("BoTorch is not installed; pip install 'bali-torch[botorch]'") from error

#: Of the mean variance of the outputs at some points, added to each.
_STEADY = 1e-8


class HasOutputRegression(Protocol):
    """What `bali.fit` returns, and a fitted `BALIRegressor`."""

    @property
    def n_targets(self) -> int: ...

    def output_regression(self, x: Any, n_samples: int = ...) -> Conditioned: ...


class BoTorchModel(Model, FantasizeMixin):  # type: ignore[misc]
    """`model` is a regression fitted by `bali.fit`, a `BALIRegressor`, or what `condition` of either gave.

    X has the columns that the model takes, as (..., q, d). `n_samples` is of the weights of all layers but the last.
    """

    def __init__(self, model: Conditioned | HasOutputRegression, n_samples: int = 64) -> None:
        super().__init__()
        self._model, self._n_samples = model, n_samples
        self._extra: tuple[Tensor, Tensor] | None = None  # X (..., r, d) and Y (..., r, m) of fantasies
        self.likelihood = None

    def regression(self, X: Tensor) -> Conditioned:
        if not isinstance(self._model, Conditioned):
            self._model = self._model.output_regression(X.detach().reshape(-1, X.shape[-1]), self._n_samples)
        return self._model

    @property
    def num_outputs(self) -> int:
        return len(self._model.body.shift) if isinstance(self._model, Conditioned) else self._model.n_targets

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([]) if self._extra is None else self._extra[1].shape[:-2]

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """The joint distribution of the outputs at X, (..., q, d)."""
        regression = self.regression(X)
        m, q = self.num_outputs, X.shape[-2]
        if self._extra is None:
            mean, covariance = self._joint(regression, X)
        else:
            mean, covariance = self._given_fantasies(regression, X, *self._extra)
        if observation_noise is not False:
            covariance = covariance + self._noise(regression, X)
        if output_indices is not None:
            mean = mean[..., output_indices]
            places = (torch.arange(q)[:, None] * m + torch.tensor(output_indices)).flatten()
            covariance, m = covariance[..., places[:, None], places], len(output_indices)
        covariance = to_linear_operator(_steadied(covariance))  # factored when samples are drawn, and not before
        one = m == 1
        made = MultivariateNormal(mean.squeeze(-1), covariance) if one else MultitaskMultivariateNormal(mean, covariance)
        found = GPyTorchPosterior(made)
        return found if posterior_transform is None else posterior_transform(found)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """With Y (..., r, m) observed at X (..., r, d)."""
        made = type(self)(self.regression(X), self._n_samples)
        if X.dim() == 2 and Y.dim() == 2 and self._extra is None and not (X.requires_grad or Y.requires_grad):
            made._model = self.regression(X).condition(X, Y)
            return made
        made._extra = (X, Y)
        if self._extra is not None:
            made._extra = (_after(self._extra[0], X), _after(self._extra[1], Y))
        return made

    def paths(self, X: Tensor, n: int = 64) -> ThompsonPaths:
        """n functions drawn from the posterior, with fixed weights, as an ensemble of BoTorch's: for Thompson sampling.
        X tells what inputs look like."""
        return ThompsonPaths(self.regression(X), n)

    def _joint(self, regression: Conditioned, X: Tensor) -> tuple[Tensor, Tensor]:
        phi, outputs, _ = regression.body.rows(X.reshape(-1, X.shape[-1]))
        phi = phi.reshape(len(phi), *X.shape[:-1], phi.shape[-1])
        outputs = outputs.reshape(*outputs.shape[:2], *X.shape[:-1], outputs.shape[-1])
        mean, covariance = regression.joint(Rows(phi, outputs, None))
        return mean.to(X), covariance.to(X)

    def _noise(self, regression: Conditioned, X: Tensor) -> Tensor:
        """Of observations at X (..., q, d), (..., q m, q m)."""
        scale, (q, m) = regression.body.rows(X.reshape(-1, X.shape[-1])).scale, (X.shape[-2], self.num_outputs)
        noise = torch.kron(torch.eye(q, dtype=X.dtype, device=X.device), regression.noise.to(X))
        if scale is None:
            return noise
        each = scale.to(X).reshape(*X.shape[:-2], q * m)
        return noise * each.unsqueeze(-1) * each.unsqueeze(-2)

    def _given_fantasies(self, regression: Conditioned, X: Tensor, old: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        n, m = X.shape[-2], self.num_outputs
        mean, joint = self._joint(regression, _after(X, old))
        own, seen = slice(0, n * m), slice(n * m, None)
        factor = linalg.cholesky(joint[..., seen, seen] + self._noise(regression, old), "covariance of fantasies")
        half = linalg.half_solve(factor, joint[..., seen, own])
        residual = (y - mean[..., n:, :]).flatten(-2).unsqueeze(-1)
        white = linalg.half_solve(factor, residual)
        moved = (half.mT @ white).squeeze(-1)
        covariance = joint[..., own, own] - half.mT @ half
        mean = mean[..., :n, :] + moved.reshape(*moved.shape[:-1], n, m)
        return mean, covariance.expand(*mean.shape[:-2], n * m, n * m)


class ThompsonPaths(EnsembleModel):  # type: ignore[misc]
    """Functions with fixed weights, each a draw from the posterior."""

    def __init__(self, regression: Conditioned, n: int) -> None:
        super().__init__()
        self._regression, self._num_outputs = regression, len(regression.body.shift)
        self._n = n

    def forward(self, X: Tensor) -> Tensor:
        """(..., n, q, m) at X (..., q, d)."""
        means = self._regression.predict(X.reshape(-1, X.shape[-1]), self._n).means[: self._n]
        return means.reshape(self._n, *X.shape[:-1], means.shape[-1]).movedim(0, -3).to(X)


def _steadied(covariance: Tensor) -> Tensor:
    """Points that come twice, or nearly, have a covariance without a factor: a hundred-millionth of it is added."""
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return linalg.symmetric(covariance) + _STEADY * size[..., None, None] * eye


def _after(first: Tensor, second: Tensor) -> Tensor:
    """Points (or values) of both, (..., q + r, d); batches are broadcast."""
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])  # type: ignore[no-untyped-call]
    return torch.cat([t.expand(*batch, *t.shape[-2:]) for t in (first, second)], -2)
