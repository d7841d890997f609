"""The training of a table's networks: K members of one shape side by side, each with rows of its own held out.

Steps shrink to nothing along half a cosine wave, so that the length of the course is known before it starts. Averages of
the means are scored on the held-out rows now and then, and each member keeps its best. A course can be paused: candidates
that are clearly behind others need not go on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bali.conjugate import linalg
from bali.conjugate.linalg import NumericalError
from bali.conjugate.symmetric import Dense
from bali.inference import stack_update
from bali.inference.joint import Pace
from bali.inference.stack_update import StackLayer, StackPass, advance, backward, forward, forward_columns, take_in
from bali.layers.modules import ACTIVATIONS
from bali.predictive.likelihoods import Likelihood
from bali.training.adam import Adam

#: Memories of the averages of the means; at each score the better one counts.
DECAYS = (0.95, 0.99)
#: Rows of a pass that needs no gradients.
AT_ONCE = 4096
#: Nats a row that a member may be behind the middle one.
ASTRAY = 1.0
#: Variance of the noise of standardised targets, at the least.
LEAST_NOISE = 1e-8


@dataclass(frozen=True)
class CourseRules:
    """Numbers that serve every table."""

    n_steps: int
    batch_size: int
    step_size: float = 1.0  # α of a single layer; L layers have 1/L each
    kl_bound: float = 4e-3  # nats a row that a step may change the outputs by
    momentum: float = 0.9
    rate: float = 0.05
    damping: float = 0.1
    prior_variance: float = 10.0  # of a weight, times the number of its fellows
    prior_steps: int = 100  # in which the prior's pull grows
    least_share: float = 3e-3  # of steps at the end
    n_scores: int = 20

    def pace(self, n_layers: int, step: int) -> Pace:
        """Of a step, counted from 1."""
        share = max(self.least_share, 0.5 * (1.0 + math.cos(math.pi * (step - 1) / self.n_steps)))
        prior_share = min(1.0, step / self.prior_steps)
        size = self.step_size / n_layers * share
        return Pace(size, self.kl_bound * share**2, self.momentum, self.rate, self.damping, prior_share)

    @property
    def initial_gain(self) -> float:
        """Rough functions are found from rough ones."""
        return max(1.0, self.prior_variance / 30.0) ** 0.25

    @property
    def between_scores(self) -> int:
        return max(25, self.n_steps // self.n_scores)


@dataclass(frozen=True)
class StackData:
    """Rows, and which of them each member holds out."""

    x: Tensor  # (n, D)
    y: Tensor  # (n, ...), as the likelihood takes it
    weight: Tensor  # (n,)
    held_out: Tensor  # (K, n): the share of a row's weight that a member holds out; of a single row all or nothing

    @property
    def train_weight(self) -> Tensor:
        """(K, n)"""
        return self.weight * (1.0 - self.held_out.to(self.weight.dtype))

    def held_out_rows(self) -> tuple[Tensor, Tensor]:
        """Rows that some member holds out, and with which weight, (K, m)."""
        rows = (self.held_out > 0).any(0).nonzero()[:, 0]
        return rows, self.weight[rows] * self.held_out[:, rows].to(self.weight.dtype)


@dataclass(frozen=True)
class _Batch:
    """Rows of a step."""

    columns: Tensor  # of x, (D + 1, n)
    y: Tensor  # (n, ...)
    share: Tensor  # (K, n), of each row in its member's weight of the batch
    total: Tensor  # (K,), that weight

    @classmethod
    def of(cls, x: Tensor, y: Tensor, weight: Tensor) -> _Batch:
        total = weight.sum(-1).clamp_min_(torch.finfo(weight.dtype).tiny)
        return cls(stack_update.columns_of(x), y, weight / total[:, None], total)


class StackCourse:
    """A training that can be run in parts."""

    def __init__(
        self,
        means: Sequence[Tensor],
        activation: str,
        likelihood: Likelihood,
        data: StackData,
        rules: CourseRules,
        generator: torch.Generator,
        offset: Tensor | None = None,
        *,
        is_stream: bool = False,
    ) -> None:
        """A stream has no rows but those of its last batch, so that the first layer's A is an average as well."""
        self.activation: nn.Module = ACTIVATIONS[activation]()
        self.likelihood, self.data, self.rules = likelihood, data, rules
        self.generator, self.step, self.refused = generator, 0, 0
        self.offset = offset  # (P,), added to the outputs
        self._train_weight = weight = data.train_weight
        self.n_data = weight.sum(-1)
        self.layers = [
            StackLayer(mean, rules.prior_variance / mean.shape[-2], f"layer {number}: inputs")
            for number, mean in enumerate(means)
        ]
        if not is_stream:
            self.layers[0] = stack_update.with_known_inputs(self.layers[0], data.x, weight, rules.pace(len(means), 1))
        self.averages = [[mean.clone() for mean in means] for _ in DECAYS]
        self.best = [mean.clone() for mean in means]
        k = len(means[0])
        self.best_score = means[0].new_full((k,), math.inf)  # mean negative log-likelihood of each member's rows
        self.best_noise = self._unit_noise(k)
        self._noise_factor: tuple[Tensor, Tensor] | None = None  # of which noise, and its factor
        self.losses: list[float] = []
        self.scores: list[tuple[int, float]] = []
        self._batches = self._batch_rows()
        self._all_rows: _Batch | None = None
        self._held_rows, self._held_weight = data.held_out_rows()

    def see(self, data: StackData) -> None:
        """Other rows from now on, as the next batch of a stream."""
        self.data, self._train_weight, self._all_rows = data, data.train_weight, None

    def _unit_noise(self, k: int) -> Tensor | None:
        """Covariance (K, D, D) of a regression's noise."""
        if not self.likelihood.has_true_targets:
            return None
        d = self.data.y.shape[-1]
        return torch.eye(d, dtype=torch.float64, device=self.data.x.device).repeat(k, 1, 1)

    @property
    def means(self) -> list[Tensor]:
        return [layer.mean for layer in self.layers]

    def run(self, until: int) -> Iterator[int]:
        """Steps up to number `until`."""
        while self.step < until:
            self.one_step(next(self._batches))
            if self.step % self.rules.between_scores == 0 or self.step == self.rules.n_steps:
                self._score()
            yield self.step

    def _batch_rows(self) -> Iterator[Tensor | None]:
        """Shuffled epochs; all rows at once, which is None, where a batch would be as large."""
        n, size = len(self.data.x), self.rules.batch_size
        if n <= size:
            yield from itertools.repeat(None)
        while True:
            order = torch.randperm(n, generator=self.generator, device=self.data.x.device)
            for start in range(0, n - size + 1, size):
                yield order[start : start + size]

    @torch.no_grad()
    def one_step(self, rows: Tensor | None) -> None:
        """With these rows, or with all."""
        pace = self.rules.pace(len(self.layers), self.step + 1)
        self.step += 1
        batch, means = self._batch(rows), self.means
        passed = forward_columns(means, self.activation, batch.columns)
        values, gradient = self._evaluate(passed.outputs, batch.y)
        log_likelihood = (values * batch.share).sum().item() / len(values)
        if not math.isfinite(log_likelihood):
            raise NumericalError("the log-likelihood is not finite: look for NaN or extreme values in X and y")
        self.losses.append(-log_likelihood)
        gradients = backward(means, passed, gradient.mT * batch.share.unsqueeze(1))
        layers = take_in(self.layers, StackPass(passed.columns, gradients, batch.share, batch.total), self.step, pace)
        self.layers, refused = advance(layers, self.n_data, pace)
        self.refused += refused
        if self.best_noise is not None and not self.scores:
            self._average_noise(batch.y - passed.outputs, batch.share)
        means = self.means
        for decay, average in zip(DECAYS, self.averages, strict=True):
            torch._foreach_lerp_(average, means, max(1.0 - decay, 1.0 / self.step))

    def _batch(self, rows: Tensor | None) -> _Batch:
        if rows is not None:
            x, y, weight = self.data.x, self.data.y, self._train_weight
            return _Batch.of(x.index_select(0, rows), y.index_select(0, rows), weight.index_select(1, rows))
        if self._all_rows is None:
            self._all_rows = _Batch.of(self.data.x, self.data.y, self._train_weight)
        return self._all_rows

    def _evaluate(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.best_noise is None:
            z = z if self.offset is None else z + self.offset
            return self.likelihood.evaluate(z, y.expand(len(z), *y.shape))
        if self._noise_factor is None or self._noise_factor[0] is not self.best_noise:
            factor = linalg.cholesky(self.best_noise, "noise of the observations").to(z.dtype)
            self._noise_factor = (self.best_noise, factor)
        return self.likelihood.evaluate(z, y, self._noise_factor[1])

    def _average_noise(self, residual: Tensor, row_share: Tensor) -> None:
        """Before the first score the noise is that of the batches."""
        assert self.best_noise is not None
        rows = residual.double()
        noise = (rows * row_share[..., None]).mT @ rows
        self.best_noise = _floored(self.best_noise.lerp(noise, max(self.rules.rate, 1.0 / self.step)))

    @torch.no_grad()
    def _score(self) -> None:
        for average in self.averages:
            score, noise = self._held_out_score(average)
            better = score < self.best_score
            for best, mean in zip(self.best, average, strict=True):
                best[better] = mean[better]
            self.best_score = torch.where(better, score, self.best_score)
            if noise is not None and self.best_noise is not None:
                self.best_noise = torch.where(better[:, None, None], noise, self.best_noise)
        self._bring_back()
        self.scores.append((self.step, -self.best_score.mean().item()))

    def _bring_back(self) -> None:
        """Members that have gone astray start again from where the one is that holds out the same rows, or from the best."""
        astray = ~(self.best_score <= self.best_score.median() + ASTRAY)
        if not bool(astray.any()):
            return
        best = int(self.best_score.argmin())
        for member in astray.nonzero()[:, 0].tolist():
            fellows = (self.data.held_out == self.data.held_out[member]).all(1) & ~astray
            source = int(fellows.nonzero()[0, 0]) if bool(fellows.any()) else best
            for place in (*self.averages, self.best):
                for mean, known in zip(place, self.best, strict=True):
                    mean[member] = known[source]
            self.layers = [
                replace(layer, mean=_with(layer.mean, member, mean[source]), drive=_with(layer.drive, member, 0.0))
                for layer, mean in zip(self.layers, self.best, strict=True)
            ]
            self.best_score[member] = self.best_score[source]
            if self.best_noise is not None:
                self.best_noise = _with(self.best_noise, member, self.best_noise[source])

    def _held_out_score(self, means: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Mean negative log-likelihood (K,) of each member's held-out rows; a regression's noise is their own.

        Without any, the last average counts.
        """
        if len(self._held_rows) == 0:
            fresh = self.best_score.new_full(self.best_score.shape, -float(self.step))
            return fresh, self.best_noise
        rows = self._held_rows
        z, y = self.outputs(means, self.data.x[rows]), self.data.y[rows]
        weight = self._held_weight
        total = weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)
        if self.best_noise is None:
            values = self._evaluate(z, y)[0]
            return -(values * weight).sum(-1) / total, None
        residual = (y - z).double()
        noise = _floored((residual * weight[..., None]).mT @ residual / total[:, None, None])
        logdet = linalg.logdet(linalg.cholesky(noise, "noise of the observations"))
        return 0.5 * (logdet + noise.shape[-1] * (1.0 + math.log(2 * math.pi))).to(self.best_score.dtype), noise

    @torch.no_grad()
    def outputs(self, means: Sequence[Tensor], x: Tensor) -> Tensor:
        """(K, n, D)"""
        parts = [forward(means, self.activation, x[s : s + AT_ONCE]).outputs for s in range(0, max(len(x), 1), AT_ONCE)]
        return torch.cat(parts, 1)

    @torch.no_grad()
    def curvature(self, max_rows: int = 20_000) -> list[StackLayer]:
        """Layers at the best means with A and S of the rows that each member trained on, or of every so many of them."""
        layers = [replace(layer, mean=mean, drive=None) for layer, mean in zip(self.layers, self.best, strict=True)]
        sums: list[list[Tensor]] = [[] for _ in layers]
        total = torch.zeros_like(self.n_data)
        # Tables come sorted by their first column, so that the first rows would be no fair sample.
        sample = torch.arange(0, len(self.data.x), -(-len(self.data.x) // max_rows), device=self.data.x.device)
        for start in range(0, len(sample), AT_ONCE):
            rows = sample[start : start + AT_ONCE]
            weight = self._train_weight[:, rows]
            passed = forward(self.best, self.activation, self.data.x[rows])
            gradients = backward(self.best, passed, self._evaluate(passed.outputs, self.data.y[rows])[1].mT)
            total += weight.sum(-1)
            for sums_of, h, g in zip(sums, passed.columns, gradients, strict=True):
                products = [(part * weight.unsqueeze(1)) @ part.mT for part in (h, g)]
                sums_of[:] = [a + b for a, b in zip(sums_of, products, strict=True)] if sums_of else products
        total = total.clamp_min(torch.finfo(total.dtype).tiny)[:, None, None]
        return [
            replace(layer, inputs=Dense(xx / total, layer.label), gradients=gg / total)
            for layer, (xx, gg) in zip(layers, sums, strict=True)
        ]


def _with(values: Tensor | None, member: int, new: Tensor | float) -> Tensor:
    assert values is not None
    values = values.clone()
    values[member] = new
    return values


def _floored(noise: Tensor) -> Tensor:
    return noise + LEAST_NOISE * torch.eye(noise.shape[-1], dtype=noise.dtype, device=noise.device)


def initial_means(
    k: int,
    sizes: Sequence[int],
    generator: torch.Generator,
    dtype: torch.dtype,
    output_share: float = 0.1,
    gain: float = 1.0,
) -> list[Tensor]:
    """Weights of this gain; those of the last layer are small, so that training starts at the mean of the targets."""
    means = [
        torch.randn(k, n_in + 1, n_out, generator=generator, dtype=dtype, device=generator.device)
        * (gain / math.sqrt(n_in + 1))
        for n_in, n_out in itertools.pairwise(sizes)
    ]
    means[-1] *= output_share
    return means


def best_constant(likelihood: Likelihood, y: Tensor, weight: Tensor, n_outputs: int, n_steps: int = 300) -> Tensor:
    """Outputs (P,) that are the same for all rows and make them most likely, by Adam: where training starts from."""
    z = torch.zeros(n_outputs, dtype=torch.float64, device=y.device)
    adam, share = Adam(z, 0.2, (0.9, 0.99)), weight.double() / weight.double().sum()
    for step in range(1, n_steps + 1):
        gradient = likelihood.evaluate(z.expand(len(y), -1), y)[1]
        z = z + adam.step((gradient * share[:, None]).sum(0), 1.0 - step / (n_steps + 1))
    return z
