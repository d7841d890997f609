"""The posterior around given means: how wide it is, from the curvature of the likelihood (docs/method.md).

With A = E[xxᵀ] of a layer's inputs and S = E[ggᵀ] of the gradients at its outputs, the curvature of the log-likelihood of N
examples of P rows is about N P · A ⊗ S (the Fisher approximation, as in K-FAC and Laplace's). With Newton's targets, whose
noise is the inverse curvature, it is also what the layer's regression finds. How far steps went has no part in it.

Samples of weights vary all layers at once, and each layer makes the doubts of the ones before it larger: a regression has
no use for the result. It predicts by the network's first-order expansion about the means instead, where doubts add up.
"""

from __future__ import annotations

import torch

from bali.conjugate.matrix_normal import CurvaturePosterior, Kronecker, MatrixNormal, SumNormal
from bali.inference.joint import JointLayer


def layer_posterior(layer: JointLayer, n_data: int, name: str, *, is_linearised: bool = False) -> CurvaturePosterior:
    """The Gaussian of the curvature N P · A ⊗ S, that of earlier data added, and the variance σ² of the layer's prior."""
    assert layer.inputs is not None
    assert layer.gradients is not None
    wide = torch.float32 if layer.mean.device.type == "mps" else torch.float64
    inputs = layer.inputs.to(wide)
    scaled = type(inputs)(inputs.values * (n_data * layer.rows_per_example))
    found = Kronecker(scaled, layer.gradients.to(wide))
    if layer.earlier is not None:
        found = found.plus(layer.earlier.scaled(n_data).to(wide))
    kind = SumNormal if is_linearised else MatrixNormal
    return kind.of(layer.mean.to(wide), found.inputs, found.outputs, layer.prior_variance, f"layer '{name}'")
