"""A deep ensemble as users build one: five perceptrons with a mean and a noise for each row, stopped early by Adam's best.

Lakshminarayanan, Pritzel and Blundell (2017) without their adversarial rows. All five are trained as one batch of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bali_benchmarks.tables_study.densities import Array, Fitted, classes, gaussians, held_out

N_NETWORKS, WIDTH, RATE = 5, 100, 1e-3
MAX_EPOCHS, PATIENCE = 500, 20
LEAST_VARIANCE = 1e-6
Loss = Callable[[Tensor, Tensor], Tensor]


def regression(X: Array, y: Array, seed: int) -> Fitted:
    centre, scale = float(y.mean()), float(y.std()) or 1.0
    outputs = _trained(X, (y - centre) / scale, seed, 2, _gaussian_loss)

    def predict(Z: Array) -> tuple[Array, Array]:
        mean, raw = outputs(Z).unbind(-1)
        return centre + scale * mean.numpy(), scale**2 * _variance(raw).numpy()

    return lambda Z: gaussians(*predict(Z))


def classification(X: Array, y: Array, seed: int) -> Fitted:
    outputs = _trained(X, y, seed, int(y.max()) + 1, _class_loss)
    return lambda Z: classes(outputs(Z).softmax(-1).numpy())


def _variance(raw: Tensor) -> Tensor:
    return functional.softplus(raw) + LEAST_VARIANCE


def _gaussian_loss(z: Tensor, y: Tensor) -> Tensor:
    """Mean over rows, for each network, (K,)."""
    mean, raw = z.unbind(-1)
    variance = _variance(raw)
    return 0.5 * ((y - mean).square() / variance + variance.log()).mean(-1)


def _class_loss(z: Tensor, y: Tensor) -> Tensor:
    return -z.log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).mean((-1, -2))


def _trained(X: Array, y: Array, seed: int, n_outputs: int, loss: Loss) -> Callable[[Array], Tensor]:
    """Outputs (K, n, O) of networks at the weights where each was best on the held-out rows."""
    centre, scale = X.mean(0), X.std(0)
    scale = np.where(scale > 0.0, scale, 1.0)

    def rows(Z: Array) -> Tensor:
        return torch.as_tensor((Z - centre) / scale).float().expand(N_NETWORKS, -1, -1)

    X, y, X_val, y_val = held_out(X, y, seed, loss is _class_loss)
    x, x_val = rows(X), rows(X_val)
    targets, targets_val = (torch.as_tensor(part).float().expand(N_NETWORKS, -1) for part in (y, y_val))
    generator = torch.Generator().manual_seed(seed)
    weights = _started((X.shape[1], WIDTH, WIDTH, n_outputs), generator)
    adam = torch.optim.Adam(weights, lr=RATE)
    best, best_loss = [w.detach().clone() for w in weights], torch.full((N_NETWORKS,), float("inf"))
    batch, stale = min(512, max(32, len(y) // 40)), 0
    for _ in range(MAX_EPOCHS):
        order = torch.stack([torch.randperm(len(y), generator=generator) for _ in range(N_NETWORKS)])
        for index in torch.split(order, batch, 1):
            adam.zero_grad()
            picked = x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
            torch.autograd.backward(loss(_forward(weights, picked), targets.gather(1, index)).sum())
            adam.step()
        with torch.no_grad():
            now = loss(_forward(weights, x_val), targets_val)
            better = now < best_loss
            best_loss = torch.where(better, now, best_loss)
            best = [torch.where(better[:, None, None], w, old) for w, old in zip(weights, best, strict=True)]
        stale = 0 if bool(better.any()) else stale + 1
        if stale >= PATIENCE:
            break

    def outputs(Z: Array) -> Tensor:
        with torch.no_grad():
            return _forward(best, rows(Z))

    return outputs


def _started(sizes: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
    """He's weights, then biases, layer by layer."""
    found = []
    for d, o in pairwise(sizes):
        found += [torch.randn(N_NETWORKS, d, o, generator=generator) * (2.0 / d) ** 0.5, torch.zeros(N_NETWORKS, 1, o)]
    return [w.requires_grad_() for w in found]


def _forward(weights: list[Tensor], x: Tensor) -> Tensor:
    for layer in range(0, len(weights), 2):
        x = torch.baddbmm(weights[layer + 1], torch.relu(x) if layer else x, weights[layer])
    return x
