"""Kronecker factors of the Fisher matrix of a layer, as K-FAC, Noisy K-FAC and FOOF use them.

Under K-FAC's approximation the Fisher matrix of a weight matrix W (D_in + 1, D_out) is A ⊗ S: A the second moments of the
layer's inputs, S those of the gradients at its outputs. Damping γ is split between the two as π√γ and √γ/π.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bali.conjugate import linalg
from bali_benchmarks.baselines.method import Setting
from bali_benchmarks.baselines.perceptrons import per_member

# Keeps √γ/π a number where a layer has no gradient at all.
_LARGEST_SPLIT = 1e4


def second_moments(rows: Tensor) -> Tensor:
    """Of rows (K, B, D) about zero, (K, D, D)."""
    return rows.mT @ rows / rows.shape[1]


def biased_moments(rows: Tensor) -> Tensor:
    """Of a layer's inputs with the one that stands for the bias, (K, D_in + 1, D_in + 1)."""
    return second_moments(functional.pad(rows, (0, 1), value=1.0))


def moved_average(old: Tensor, new: Tensor, rate: Tensor) -> Tensor:
    """One step of a moving average with its own rate (K,) for each member."""
    return old.lerp(new, rate[:, None, None])


def warm_rate(count: Tensor, refresh: int, rate: Setting) -> Tensor:
    """Share of the newest moments after `count` (K,) steps: the rate, but at first what makes the average a plain mean."""
    refreshes = torch.div(count, refresh, rounding_mode="floor") + 1.0
    return torch.maximum(1.0 / refreshes, per_member(rate, count))


def split(inputs: Tensor, gradients: Tensor) -> Tensor:
    """π = √(mean diagonal of A / mean diagonal of S), which keeps the damped product closest (Martens and Grosse, 2015)."""
    a, s = (m.diagonal(dim1=-2, dim2=-1).mean(-1) for m in (inputs, gradients))
    tiny = torch.finfo(a.dtype).tiny
    return (a / s.clamp_min(tiny)).sqrt().clamp(1.0 / _LARGEST_SPLIT, _LARGEST_SPLIT)[:, None, None]


def inverse_root(moments: Tensor, damping: Tensor, name: str) -> Tensor:
    """L with L Lᵀ = (moments + damping·I)⁻¹ for moments (K, D, D) and damping (K, 1, 1)."""
    eye = torch.eye(moments.shape[-1], dtype=moments.dtype, device=moments.device)
    factor = linalg.cholesky(moments + damping * eye, name)
    return linalg.transposed_half_solve(factor, eye.expand_as(factor))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left · right, where a tall right side, which batched products are slow at, is turned into a wide left one."""
    return left @ right if right.shape[-2] <= right.shape[-1] else (right.mT @ left.mT).mT


def times_inverse(root: Tensor, right: Tensor) -> Tensor:
    """A⁻¹ · right from the root of A⁻¹."""
    return product(root, product(root.mT, right))


def preconditioned(gradient: Tensor, input_root: Tensor, gradient_root: Tensor) -> Tensor:
    """A⁻¹ ∇W S⁻¹ from the roots of the inverses."""
    return times_inverse(input_root, gradient) @ gradient_root @ gradient_root.mT


def trusted_rate(rate: Setting, trust: Setting, wanted: Sequence[Tensor], steps: Sequence[Tensor]) -> Tensor:
    """The rate (K,), lowered where the step would be longer than √trust in the metric F of step = F⁻¹ wanted.

    Its squared length rate² Σ⟨step, F step⟩ is rate² Σ⟨step, wanted⟩, without another product (Ba et al., 2017).
    """
    square = torch.stack([(v * s).sum((1, 2)) for v, s in zip(wanted, steps, strict=True)]).sum(0)
    longest = (per_member(trust, square) / square.clamp_min(torch.finfo(square.dtype).tiny)).sqrt()
    return torch.minimum(per_member(rate, square), longest)
