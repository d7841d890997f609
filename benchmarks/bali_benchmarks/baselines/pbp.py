"""Probabilistic backpropagation (Hernández-Lobato and Adams, 2015), for regression with rectifiers.

All weights are independent Gaussians, the noise precision and the weights' prior precision have Gamma distributions. A row
is taken in by assumed density filtering: means and variances go forward through the network, the gradients of the log
normaliser log Z of that row come back, and every weight gets the mean and the variance of its posterior given the row. After
each pass over the rows, expectation propagation refines the prior's factors. No setting is left to choose.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.moment_propagation import backward_moments, forward_moments

#: Shape and rate of both Gamma distributions before any row: a precision of 1, as if seen in twelve values of unit scale.
PRIOR_SHAPE, PRIOR_RATE = 6.0, 6.0
#: Weights that no row speaks about have no finite cavity; their prior factors stay as they are.
WIDEST_CAVITY = 1e6
_SHAPES_BELOW_AND_ABOVE = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)


@dataclass(frozen=True)
class PBP(Method):
    """Passes through the rows one at a time, in float64, whatever the mini-batch; its paper makes 40 passes."""

    title: ClassVar[str] = "PBP"
    citation: ClassVar[str] = "Hernández-Lobato and Adams, Probabilistic backpropagation, ICML 2015"
    grid: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    classifies: ClassVar[bool] = False
    steps_factor: ClassVar[float] = 0.12  # 1,200 batches of 32: 40 passes over about a thousand rows, as its authors made

    def start(self, task: Task, generator: torch.Generator) -> State:
        _check(task)
        scales = [1 / math.sqrt(n + 1) for n, size in _shapes(task) for _ in range((n + 1) * size)]
        scale = torch.tensor(scales, dtype=torch.float64, device=task.device)
        mean = scale * torch.randn(task.members, len(scales), generator=generator, dtype=torch.float64, device=task.device)
        ones = torch.ones_like(mean[:, 0])
        variance = PRIOR_RATE / (PRIOR_SHAPE - 1.0)
        return {
            "mean": mean,  # random, so that units differ
            "variance": torch.full_like(mean, variance),
            "noise_shape": PRIOR_SHAPE * ones,
            "noise_rate": PRIOR_RATE * ones,
            "prior_shape": PRIOR_SHAPE * ones,
            "prior_rate": PRIOR_RATE * ones,
            # what the prior's factor of each weight adds to the weight's precision and to the Gamma's shape and rate
            "factor_precision": torch.full_like(mean, 1.0 / variance),
            "factor_shape": torch.zeros_like(mean),
            "factor_rate": torch.zeros_like(mean),
            "rows_seen": torch.zeros_like(ones),
        }

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        mean, variance = state["mean"].clone(), state["variance"].clone()
        shape, rate = state["noise_shape"], state["noise_rate"]
        weights = list(zip(_matrices(task, mean), _matrices(task, variance), strict=True))
        d_mean, d_variance = torch.empty_like(mean), torch.empty_like(mean)
        gradients = list(zip(_matrices(task, d_mean), _matrices(task, d_variance), strict=True))
        inputs, targets = _first_inputs(x), y.double()
        for row in range(x.shape[1]):
            tape = forward_moments(weights, inputs[:, row : row + 1])
            m, v = tape[-1].mean[:, 0, 0], tape[-1].variance[:, 0, 0]
            error = targets[:, row, 0] - m
            spread = v + rate / (shape - 1.0)
            at_mean = (error / spread)[:, None, None]
            backward_moments(weights, tape, at_mean, 0.5 * (at_mean.square() - 1.0 / spread[:, None, None]), gradients)
            shape, rate = matched_gamma(shape, rate, error.square(), v)
            half_change = torch.addcmul(d_variance, d_mean, d_mean, value=-0.5).mul_(variance)
            narrower = torch.addcmul(variance, variance, half_change, value=2.0)
            possible = narrower > 0.0
            if not possible.all():  # as the authors do: a weight whose variance would not be positive waits
                d_mean.masked_fill_(~possible, 0.0)
                narrower = torch.where(possible, narrower, variance)
            mean.addcmul_(variance, d_mean)
            variance.copy_(narrower)
        rows_seen = state["rows_seen"] + x.shape[1]
        new = state | {"mean": mean, "variance": variance, "noise_shape": shape, "noise_rate": rate, "rows_seen": rows_seen}
        passes = [int(seen.max()) // task.n_data for seen in (state["rows_seen"], rows_seen)]
        return refined_prior(new) if passes[1] > passes[0] else new

    @torch.no_grad()
    def moments(self, task: Task, state: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the network's output at x (K, n, D_in), each (K, n, 1), without the noise."""
        weights = zip(_matrices(task, state["mean"]), _matrices(task, state["variance"]), strict=True)
        last = forward_moments(list(weights), _first_inputs(x))[-1]
        return last.mean, last.variance

    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws from the Gaussian that the method takes each output for, one from each of S equally probable strata."""
        mean, variance = self.moments(task, state, x)
        strata = torch.arange(n_samples, dtype=mean.dtype, device=mean.device)[:, None]
        within = torch.rand(n_samples, len(mean), generator=generator, dtype=mean.dtype, device=mean.device)
        draws = torch.special.ndtri(((strata + within) / n_samples).clamp_min(1e-12))
        return (mean + variance.sqrt() * draws[:, :, None, None]).to(task.dtype)

    def noise_variance(self, state: State) -> Tensor:
        """The mean of the noise variance under its inverse Gamma distribution."""
        return state["noise_rate"] / (state["noise_shape"] - 1.0)


def matched_gamma(shape: Tensor, rate: Tensor, squared: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The Gamma with the first two moments of a precision λ after seeing e with e² = `squared`, e ~ N(0, other + 1/λ).

    Z, Z₁ and Z₂, normalisers with shapes a, a + 1 and a + 2, give E λ = Z₁ a / (Z b) and E λ² = Z₂ a (a + 1) / (Z b²). Each
    takes 1/λ at its mean, as the authors do. Where no proper Gamma has these moments, the old one stays.
    """
    v = other + rate / (shape + _SHAPES_BELOW_AND_ABOVE.to(shape))
    log_z = -0.5 * (v.log() + squared / v)
    first = (log_z[1] - log_z[0]).exp() * shape  # b E λ
    excess = (log_z[2] - log_z[1]).exp() * (shape + 1.0) - first  # b Var λ / E λ
    new_shape, new_rate = first / excess, rate / excess
    proper = (new_shape > 1.0) & (new_shape < torch.inf)
    return torch.where(proper, new_shape, shape), torch.where(proper, new_rate, rate)


def refined_prior(state: State) -> State:
    """One sweep of expectation propagation over the prior's factors N(w | 0, 1/λ): each is taken out and put in anew."""
    cavity_precision, cavity_shift = 1.0 / state["variance"] - state["factor_precision"], state["mean"] / state["variance"]
    v, m = 1.0 / cavity_precision, cavity_shift / cavity_precision
    usable = (cavity_precision > 0.0) & (v < WIDEST_CAVITY)
    squared, factor_shape, factor_rate = m.square(), state["factor_shape"].clone(), state["factor_rate"].clone()
    shape, rate = state["prior_shape"], state["prior_rate"]
    expected = torch.empty_like(m)  # 1/λ, as seen from each weight's cavity
    for i in range(m.shape[1]):  # one after the other: each moves the Gamma that the next one sees
        cavity_shape, cavity_rate = shape - factor_shape[:, i], rate - factor_rate[:, i]
        possible = usable[:, i] & (cavity_shape > 1.0) & (cavity_rate > 0.0)
        safe_shape, safe_rate = torch.where(possible, cavity_shape, shape), torch.where(possible, cavity_rate, rate)
        new_shape, new_rate = matched_gamma(safe_shape, safe_rate, squared[:, i], v[:, i].clamp_min(0.0))
        expected[:, i] = safe_rate / (safe_shape - 1.0)
        shape, rate = torch.where(possible, new_shape, shape), torch.where(possible, new_rate, rate)
        factor_shape[:, i] = torch.where(possible, shape - cavity_shape, factor_shape[:, i])
        factor_rate[:, i] = torch.where(possible, rate - cavity_rate, factor_rate[:, i])
        usable[:, i] = possible
    # a Gaussian cavity N(m, v) times N(0, 1/λ), at the mean of 1/λ, is a Gaussian again: its precisions add
    factor_precision = torch.where(usable, 1.0 / expected, state["factor_precision"])
    new_variance = torch.where(usable, 1.0 / (cavity_precision + factor_precision), state["variance"])
    return state | {
        "mean": torch.where(usable, new_variance * cavity_shift, state["mean"]),
        "variance": new_variance,
        "prior_shape": shape,
        "prior_rate": rate,
        "factor_precision": factor_precision,
        "factor_shape": factor_shape,
        "factor_rate": factor_rate,
    }


def _check(task: Task) -> None:
    if task.classification:
        raise ValueError("probabilistic backpropagation is for regression only; choose another method for classes")
    if task.activation != "relu" and len(task.layer_sizes) > 2:
        raise ValueError(f"probabilistic backpropagation needs activation='relu', not {task.activation!r}")
    if task.layer_sizes[-1] != 1:
        raise ValueError(f"probabilistic backpropagation predicts one target, not {task.layer_sizes[-1]}: fit one for each")


def _shapes(task: Task) -> list[tuple[int, int]]:
    return list(itertools.pairwise(task.layer_sizes))


def _matrices(task: Task, flat: Tensor) -> list[Tensor]:
    """Views (K, D + 1, H) of one long vector (K, P), so that all weights are updated at once."""
    ends = list(itertools.accumulate((n + 1) * size for n, size in _shapes(task)))
    parts = (flat[:, start:end] for start, end in itertools.pairwise([0, *ends]))
    return [part.view(-1, n + 1, size) for part, (n, size) in zip(parts, _shapes(task), strict=True)]


def _first_inputs(x: Tensor) -> Tensor:
    return functional.pad(x.double(), (0, 1), value=1.0) / math.sqrt(x.shape[-1] + 1)
