"""What a table's training comes to: a mixture of stacks of networks, and what held-out rows told about noise and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bali.predictive.likelihoods import Gaussian, Likelihood
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.training.row_noise import RowNoise
from bali.training.stack_posterior import StackPosterior


@dataclass(frozen=True)
class TablePosterior:
    """Stacks of several candidates, whose members count alike.

    A regression with Gaussian noise is predicted in closed form: every member is a component, with the weights of its output
    layer integrated out. Other likelihoods are predicted by samples of all weights.
    """

    stacks: tuple[StackPosterior, ...]
    likelihoods: tuple[Likelihood, ...]  # of each
    seed: int
    width: float = 1e-4  # of the posteriors, where weights are sampled
    temperature: float = 1.0  # the power that class probabilities are raised to
    offset: Tensor | None = None  # (P,), added to the networks' outputs
    noise: Tensor | None = None  # (D, D) of a regression, in units of the rows' scales
    noise_dof: float | None = None
    row_noise: RowNoise | None = None

    @property
    def n_members(self) -> int:
        return sum(stack.n_members for stack in self.stacks)

    @property
    def is_regression(self) -> bool:
        return isinstance(self.likelihoods[0], Gaussian)

    def predictive(self, encoded: Sequence[Tensor], n_samples: int, members: Sequence[int] | None = None) -> Predictive:
        """At rows that every stack has encoded in its own way, (n, D_c); of all members, or some of each stack."""
        stacks = [s if members is None else s.members(members) for s in self.stacks]
        if self.is_regression:
            return self._regression(stacks, encoded)
        each = max(1, -(-n_samples // sum(s.n_members for s in stacks)))
        parts: list[Predictive] = []
        for number, (stack, likelihood, x) in enumerate(zip(stacks, self.likelihoods, encoded, strict=True)):
            z = stack.draws(x, each, self.width, self.seed + number)
            parts.append(likelihood.predictive(z if self.offset is None else z + self.offset.to(z)))
        mixed = parts[0].mixed_with(parts[1:])
        is_tempered = isinstance(mixed, ClassPredictive) and self.temperature != 1.0
        return mixed.tempered(self.temperature) if is_tempered else mixed

    def _regression(self, stacks: Sequence[StackPosterior], encoded: Sequence[Tensor]) -> RegressionPredictive:
        noise = self.noise
        assert noise is not None
        means, inflations, typical = [], [], noise.diagonal().mean()
        for stack, x in zip(stacks, encoded, strict=True):
            z, features = stack.outputs(x)
            means.append(z)
            inflations.append(stack.inflation(features, typical.expand(stack.n_members).to(torch.float64)))
        mixed = torch.cat(means)
        row_scale = None if self.row_noise is None else self.row_noise(encoded[0], mixed.mean(0))
        return RegressionPredictive(mixed, noise[None].to(mixed), torch.cat(inflations), self.noise_dof, row_scale)
