"""A table that comes in batches: one step of every member with each, and nothing held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bali.conjugate.symmetric import Dense
from bali.predictive.likelihoods import Likelihood
from bali.training.stack_course import CourseRules, StackCourse, StackData
from bali.training.table_posterior import StackPosterior, TablePosterior

#: Steps do not shrink: a stream has no end that they could shrink towards.
_ENDLESS = 10**12
_DOF = 10.0  # of the noise, of which no held-out row tells


class Stream:
    """The members and the averages that their steps go by."""

    def __init__(
        self,
        means: Sequence[Tensor],
        activation: str,
        likelihood: Likelihood,
        rules: CourseRules,
        first: tuple[Tensor, Tensor, Tensor],  # x, y, weight of a batch
        generator: torch.Generator,
        offset: Tensor | None,
    ) -> None:
        rules = replace(rules, n_steps=_ENDLESS)
        data = _nothing_held_out(len(means[0]), *first)
        self.activation = activation
        self.course = StackCourse(means, activation, likelihood, data, rules, generator, offset, is_stream=True)
        self.n_seen = 0.0

    def go_on_from(self, posterior: TablePosterior, n_seen: float, n_steps: int) -> None:
        """Averages and counts as a saved posterior tells them; only momentum is lost."""
        stack, self.n_seen, self.course.step = posterior.stacks[0], n_seen, n_steps
        layers = []
        for layer, known in zip(self.course.layers, stack.layers, strict=True):
            assert known.input_basis is not None
            inputs = (known.input_basis * (known.input_values / n_seen).unsqueeze(-2)) @ known.input_basis.mT
            gradients = (known.output_basis * known.output_values.unsqueeze(-2)) @ known.output_basis.mT
            own = layer.mean.dtype
            layers.append(
                replace(
                    layer, mean=known.mean.to(own), inputs=Dense(inputs.to(own), layer.label), gradients=gradients.to(own)
                )
            )
        self.course.layers = layers
        if posterior.noise is not None:
            noise, rows = posterior.noise, posterior.row_noise
            if rows is not None:  # a stream has the same noise in every row: that of a typical one
                noise = noise * rows.unit[:, None].double() * rows.unit.double()
            self.course.best_noise = noise.expand(stack.n_members, -1, -1).clone()

    def step(self, x: Tensor, y: Tensor, weight: Tensor) -> float:
        """One step; the mean log-likelihood of its rows before it."""
        course = self.course
        self.n_seen += float(weight.sum())
        course.see(_nothing_held_out(len(course.means[0]), x, y, weight))
        course.n_data = torch.full_like(course.n_data, self.n_seen)
        course.one_step(None)
        return -course.losses[-1]

    def posterior(self, seed: int) -> TablePosterior:
        """As far as the stream has come."""
        course = self.course
        stack = StackPosterior.around(course.layers, course.n_data, self.activation)
        noise = None if course.best_noise is None else course.best_noise.mean(0)
        dof = None if noise is None else _DOF
        found = TablePosterior((stack,), (course.likelihood,), seed, offset=course.offset)
        return replace(found, noise=noise, noise_dof=dof)


def _nothing_held_out(k: int, x: Tensor, y: Tensor, weight: Tensor) -> StackData:
    return StackData(x, y, weight, torch.zeros(k, len(x), dtype=torch.bool, device=x.device))
