"""Likelihoods of the user's own, from a distribution of torch or a log-density; gradients are autograd's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributions

from bali.predictive import bounded_families, families
from bali.predictive.families import Family, Support
from bali.predictive.likelihood import FamilyLikelihood
from bali.predictive.predictive_base import UndefinedError
from bali.predictive.target_checks import columns_for, refuse

Make = Callable[[Tensor], distributions.Distribution]
LogDensity = Callable[[Tensor, Tensor], Tensor]


def from_distribution(make: Make, n_outputs: int | None = None) -> FamilyLikelihood:
    """The likelihood of a distribution of `torch.distributions`, made from the network's outputs z (..., P).

    One observation of a row is what the distribution describes: a number where its shape is that of z without the last
    dimension, and D numbers where it has a last dimension of D. `n_outputs` is P, for those who build networks.
    """
    return _OfDistribution(make, n_outputs)


def from_log_density(log_density: LogDensity, n_outputs: int | None = None, n_targets: int = 1) -> FamilyLikelihood:
    """The likelihood log_density(z, y) of each row, (..., n), for outputs z (..., n, P) and observations y (..., n, D).

    D is `n_targets`, and P `n_outputs`. Predictions have log-probabilities and nothing else.
    """
    return _OfLogDensity(log_density, n_outputs, n_targets)


class _Own(FamilyLikelihood):
    def __init__(self, made_by: Callable[..., Any], n_outputs: int | None) -> None:
        self.made_by, self.outputs = made_by, n_outputs

    def n_outputs(self, y: Tensor) -> int:
        if self.outputs is None:
            raise UndefinedError("how many outputs this likelihood takes is not known: give n_outputs when it is made")
        return self.outputs


class _OfDistribution(_Own):
    def family(self, z: Tensor) -> Family:
        made = self.made_by(z)
        if not isinstance(made, distributions.Distribution):
            raise TypeError(f"from_distribution needs a function that makes torch distributions, not {type(made).__name__}")
        shape = made.batch_shape + made.event_shape
        if shape[: z.dim() - 1] != z.shape[:-1] or len(shape) > z.dim():
            raise ValueError(
                f"for outputs of shape {tuple(z.shape)} the distribution has shape {tuple(shape)}; one observation for each "
                f"row, {tuple(z.shape[:-1])} or {(*z.shape[:-1], 'D')}, is needed"
            )
        convert = _KNOWN.get(type(made))
        if convert is None:
            return _TorchFamily(z, self.made_by)
        return convert(made).map(lambda p: p if p.dim() == z.dim() else p.unsqueeze(-1))

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        self.family(z)  # its errors come first
        made = self.made_by(z)
        shape = made.batch_shape + made.event_shape
        is_scalar = len(shape) < z.dim()
        y = columns_for(y, z, 1 if is_scalar else shape[-1]).double()
        support: Any = made.support
        bad = ~support.check(y.squeeze(-1) if is_scalar else y)
        bad = bad.unsqueeze(-1) if is_scalar or made.event_shape else bad
        refuse(bad, y.expand(*bad.shape[:-1], -1), f"y must be in the support of {type(made).__name__}, {support}")
        return y


@contextmanager
def _unchecked() -> Iterator[None]:
    """Without torch's checks at every use, which rounding may fail: observations are checked once, in `targets`."""
    before = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distributions.Distribution.set_default_validate_args(before)


@dataclass(frozen=True)
class _TorchFamily(Family):
    """A distribution of torch as it is, made anew from outputs z (S, n, P)."""

    z: Tensor
    make: Make

    def _made(self) -> distributions.Distribution:
        return self.make(self.z)

    @property
    def _is_scalar(self) -> bool:
        made = self._made()
        return len(made.batch_shape + made.event_shape) < self.z.dim()

    @property
    def n_columns(self) -> int:
        made = self._made()
        return 1 if self._is_scalar else (made.batch_shape + made.event_shape)[-1]

    @property
    def support(self) -> Support:  # type: ignore[override]
        support: Any = self._made().support
        if getattr(support, "is_discrete", False):
            return "counts"
        lower, upper = (getattr(support, end, None) for end in ("lower_bound", "upper_bound"))
        return "real" if lower != 0 else "unit" if upper == 1 else "positive"

    def log_prob(self, y: Tensor) -> Tensor:
        made = self._made()
        if made.event_shape:
            raise UndefinedError(f"{type(made).__name__} of torch has log densities of whole rows only")
        with _unchecked():
            found = made.log_prob(y.squeeze(-1) if self._is_scalar else y)
        return found.unsqueeze(-1) if self._is_scalar else found

    def joint_log_prob(self, y: Tensor) -> Tensor:
        made = self._made()
        if not made.event_shape:
            return super().joint_log_prob(y)
        with _unchecked():
            return made.log_prob(y)

    def mean(self) -> Tensor:
        return self._asked("a mean", lambda made: made.mean)

    def variance(self) -> Tensor:
        return self._asked("a variance", lambda made: made.variance)

    def cdf(self, y: Tensor) -> Tensor:
        at = y.squeeze(-1) if self._is_scalar else y
        return self._asked("a distribution function, which quantiles and CRPS need", lambda made: made.cdf(at))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        # Distributions of torch draw from the global generator: from a state that ours chooses, and put back.
        seed = int(torch.randint(2**62, (), generator=generator, device=self.z.device))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            drawn = self._made().sample()
        return drawn.unsqueeze(-1) if self._is_scalar else drawn

    def _asked(self, what: str, get: Callable[[distributions.Distribution], Tensor]) -> Tensor:
        made = self._made()
        try:
            with _unchecked():
                found = get(made)
        except NotImplementedError as error:
            raise UndefinedError(f"{type(made).__name__} of torch has not got {what}") from error
        if bool(found.isnan().any()):
            raise UndefinedError(f"{type(made).__name__} with these parameters has not got {what}")
        return found.unsqueeze(-1) if self._is_scalar else found


#: Distributions of torch that are families of this package, which have distribution functions and exact quantiles.
_KNOWN: dict[type[distributions.Distribution], Callable[[Any], Family]] = {
    distributions.Normal: lambda d: families.Normal(d.loc, d.scale),
    distributions.LogNormal: lambda d: bounded_families.LogNormal(d.loc, d.scale),
    distributions.Gamma: lambda d: bounded_families.Gamma(d.concentration / d.rate, d.concentration),
    distributions.Weibull: lambda d: bounded_families.Weibull(d.scale, d.concentration),
    distributions.Beta: lambda d: bounded_families.Beta(d.concentration1, d.concentration0),
    distributions.Poisson: lambda d: bounded_families.Poisson(d.rate),
    distributions.NegativeBinomial: lambda d: bounded_families.NegativeBinomial(d.mean, d.total_count.expand_as(d.mean)),
    distributions.Bernoulli: lambda d: bounded_families.YesNo(d.logits),
}


class _OfLogDensity(_Own):
    def __init__(self, made_by: LogDensity, n_outputs: int | None, n_targets: int) -> None:
        super().__init__(made_by, n_outputs)
        self.columns = n_targets

    def n_targets(self, n_outputs: int) -> int:
        return self.columns

    def family(self, z: Tensor) -> Family:
        return _DensityFamily(z, self.made_by, self.columns)


@dataclass(frozen=True)
class _DensityFamily(Family):
    z: Tensor
    log_density: LogDensity
    columns: int

    @property
    def n_columns(self) -> int:
        return self.columns

    def joint_log_prob(self, y: Tensor) -> Tensor:
        found = self.log_density(self.z, y)
        if found.shape != self.z.shape[:-1]:
            raise ValueError(
                f"the log-density has shape {tuple(found.shape)} for outputs of shape {tuple(self.z.shape)}; one number for "
                f"each row, {tuple(self.z.shape[:-1])}, is needed"
            )
        return found

    def log_prob(self, y: Tensor) -> Tensor:
        raise self.without("log densities of single columns")

    def sample(self, generator: torch.Generator | None) -> Tensor:
        raise self.without("samples")

    def without(self, what: str) -> UndefinedError:
        return UndefinedError(f"a likelihood that is only a log-density has not got {what}; see from_distribution")
