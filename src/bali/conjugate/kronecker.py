"""The precision A ⊗ S of a weight matrix: what data have said about it, as a prior for the next data.

A sum of such precisions is none. `plus` gives the one with the same partial traces, Σ A_t tr(S_t) and Σ S_t tr(A_t),
which is the sum itself where the terms have a factor in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.matrix_normal import CurvaturePosterior
from bali.conjugate.symmetric import Diagonal, Symmetric, as_symmetric


@dataclass(frozen=True)
class Kronecker:
    inputs: Symmetric  # A, (..., D_x, D_x)
    outputs: Tensor  # S, (..., D_y, D_y)

    @classmethod
    def of(cls, posterior: CurvaturePosterior, name: str) -> Kronecker:
        """The curvature that a posterior was made of, without its prior."""
        u, a, v, s = posterior.input_basis, posterior.input_values, posterior.output_basis, posterior.output_values
        inputs = Diagonal(a, name) if u is None else as_symmetric((u * a.unsqueeze(-2)) @ u.mT, name, None)
        return cls(inputs, (v * s.unsqueeze(-2)) @ v.mT)

    def times(self, weights: Tensor) -> Tensor:
        """A W S, in W's own type."""
        return self.inputs.times(weights) @ self.outputs.to(weights.dtype)

    def half_square(self, weights: Tensor) -> float:
        """tr(Wᵀ A W S) / 2, what a prior of this precision takes from the log joint at a departure W."""
        return 0.5 * float((weights * self.times(weights)).sum(dtype=torch.float64))

    def scaled(self, factor: float) -> Kronecker:
        return replace(self, inputs=replace(self.inputs, values=self.inputs.values * factor))

    def to(self, dtype: torch.dtype) -> Kronecker:
        return Kronecker(self.inputs.to(dtype), self.outputs.to(dtype))

    def plus(self, other: Kronecker) -> Kronecker:
        """The precision whose partial traces are those of the sum."""
        mine, its = (k.inputs.diagonal().sum(-1) for k in (self, other))
        own, their = (_trace(k.outputs) for k in (self, other))
        total = (mine * own + its * their).clamp_min(torch.finfo(mine.dtype).tiny)
        outputs = (mine / total)[..., None, None] * self.outputs + (its / total)[..., None, None] * other.outputs
        return Kronecker(_weighted(self.inputs, own).plus(_weighted(other.inputs, their)), outputs)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _weighted(matrix: Symmetric, weight: Tensor) -> Symmetric:
    found = replace(matrix, values=matrix.values.clone())
    found.scale_(weight)
    return found
