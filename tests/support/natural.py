"""The paper's table of natural parameters, in which conditioning is a sum."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW


class NaturalParameters(NamedTuple):
    """Factors of WΣ⁻¹Wᵀ, Σ⁻¹Wᵀ, Σ⁻¹ and log|Σ|."""

    precision: Tensor  # −½ R⁻¹
    precision_mean: Tensor  # R⁻¹M
    scale: Tensor  # −½ (U + MᵀR⁻¹M)
    log_det: Tensor  # −½ (u + D_y + D_x + 1)


def natural(q: MNIW) -> NaturalParameters:
    precision_mean = q.precision.times(q.mean)
    dof = torch.as_tensor(q.dof, dtype=q.mean.dtype)
    return NaturalParameters(
        -0.5 * q.precision.dense(),
        precision_mean,
        -0.5 * (q.scale + q.mean.mT @ precision_mean),
        -0.5 * (dof + q.n_outputs + q.n_inputs + 1),
    )
