"""A fitted regressor's output layers, made ready to take in rows (`training/conditioning.py`), and its inputs in torch.

Rows that need gradients, as in an optimisation, are scaled and put into bins by torch; all others by the estimator itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bali.estimators.encodings import FARTHEST_BIN, Encoding
from bali.estimators.frame_columns import Columns
from bali.estimators.input_scaling import Array, InputScaling
from bali.layers.modules import ACTIVATIONS
from bali.training.conditioning import Body, Conditioned, Rows, begin
from bali.training.table_posterior import TablePosterior


class FittedRegressor(Protocol):
    """What is needed of one."""

    columns_: Columns
    encodings_: list[Encoding]
    input_scaling_: Array
    posterior_: TablePosterior
    target_mean_: Array
    target_scale_: Array

    def encoded_rows(self, X: Any) -> list[Tensor]: ...


class TableRows:
    """X → rows of the regressions of all members' output layers; stacks of fewer features are filled up with zeros."""

    def __init__(self, model: FittedRegressor, unit: Tensor | None) -> None:
        self._model, self._unit = model, unit
        self._widest = max(stack.sizes[-2] for stack in model.posterior_.stacks)

    def __call__(self, x: Any) -> Rows:
        features, outputs, encoded = [], [], self._encoded(x)
        posterior = self._model.posterior_
        for stack, rows in zip(posterior.stacks, encoded, strict=False):
            # The last layer is added up in float64, as rows are that are taken in.
            bend, h = ACTIVATIONS[stack.activation](), rows.expand(stack.n_members, *rows.shape)
            for number, layer in enumerate(stack.layers):
                mean = layer.mean.to(h)
                if number + 1 == len(stack.layers):
                    features.append(_filled(h, self._widest))
                    break
                h = bend(torch.baddbmm(mean[:, -1:], h, mean[:, :-1]))
            outputs.append(features[-1].double() @ _filled_rows(stack.layers[-1].mean.double(), self._widest))
        means, scale = torch.cat(outputs), None
        if posterior.row_noise is not None and self._unit is not None:
            seen = encoded[posterior.row_noise.sees].detach()
            scale = posterior.row_noise(seen, means.detach().mean(0)) / self._unit.to(means)
        return Rows(torch.cat(features), means.unsqueeze(1), scale)

    def _encoded(self, x: Any) -> list[Tensor]:
        if not isinstance(x, Tensor):
            return self._model.encoded_rows(x)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self._model.encoded_rows(x.detach().cpu().numpy())
        columns = self._model.columns_
        if columns.categorical or any(column.has_missing for column in columns.numeric):
            raise ValueError("derivatives need columns of numbers without missing values")
        like = self._model.posterior_.stacks[0].layers[0].mean
        rows = x.to(like.device, torch.float64)
        scaled = scaled_rows(InputScaling(*self._model.input_scaling_), rows)
        own = self._model.encoded_rows(x.detach().cpu().numpy()[:1])[0].dtype
        return [encoded_rows(encoding, rows, scaled).to(own) for encoding in self._model.encodings_]


def scaled_rows(scaling: InputScaling, x: Tensor) -> Tensor:
    """`InputScaling` in torch."""
    mean, scale, power, bent_mean, bent_scale = (torch.as_tensor(a).to(x) for a in scaling)
    z = (x - mean) / scale
    for column in np.flatnonzero(scaling.power != 1.0):
        one = functional.one_hot(torch.tensor(int(column)), z.shape[-1]).bool().to(z.device)
        z = torch.where(one, _bent(z[:, int(column), None], float(power[int(column)])), z)
    return (z - bent_mean) / bent_scale


def _bent(z: Tensor, power: float) -> Tensor:
    """Yeo and Johnson's transformation."""
    above, below = z.clamp_min(0.0), -z.clamp_max(0.0)
    of_above = above.log1p() if power == 0.0 else ((above + 1.0) ** power - 1.0) / power
    rest = 2.0 - power
    of_below = below.log1p() if rest == 0.0 else ((below + 1.0) ** rest - 1.0) / rest
    return of_above - of_below


def encoded_rows(encoding: Encoding, x: Tensor, scaled: Tensor) -> Tensor:
    """`Encoding` in torch."""
    parts = [scaled]
    for column, edges in zip(x.mT, encoding.edges, strict=True):
        if len(edges):
            bounds = torch.as_tensor(edges).to(x)
            place = (column[:, None] - bounds[:-1]) / bounds.diff()
            if encoding.n_waves:
                angle = torch.pi * place.clamp(0.0, 1.0).mean(1, keepdim=True) * torch.arange(1, encoding.n_waves + 1).to(x)
                parts += [angle.sin(), angle.cos()]
                continue
            least, most = torch.zeros_like(bounds[:-1]), torch.ones_like(bounds[:-1])
            least[0], most[-1] = -FARTHEST_BIN, FARTHEST_BIN
            parts.append(2.0 * place.maximum(least).minimum(most) - 1.0)
    if encoding.near is not None:
        parts.append(encoding.near(scaled))
    return torch.cat(parts, 1)


def table_regression(model: FittedRegressor, noise_rows: float, seed: int) -> Conditioned:
    """Before any rows beyond the training's."""
    posterior = model.posterior_
    assert posterior.noise is not None
    noise, unit, tails = posterior.noise.double(), None, posterior.noise_dof
    typical = noise.diagonal().mean()
    noise = noise * _tail_factor(tails)
    if posterior.row_noise is None:
        variances, directions = torch.linalg.eigh(noise)
    else:  # each output has its own noise in every row: along no other directions is it independent
        unit = posterior.row_noise.unit.double()
        variances, directions = noise.diagonal() * unit.square(), torch.eye(len(noise)).to(noise)
    rows = TableRows(model, unit)
    curvature, least = [], []
    width = max(stack.sizes[-2] for stack in posterior.stacks) + 1
    for stack in posterior.stacks:
        layer = stack.layers[-1]
        assert layer.input_basis is not None
        gram = (layer.input_basis * layer.input_values.unsqueeze(-2)) @ layer.input_basis.mT
        gram = _filled_square(gram.double(), width)
        curvature.append(gram.unsqueeze(1).expand(-1, len(variances), -1, -1))
        prior = typical / layer.prior_variance * torch.eye(width).to(noise)
        least.append(prior.expand(stack.n_members, 1, len(variances), -1, -1))
    shift, scale = (torch.as_tensor(a).to(noise) for a in (model.target_mean_, model.target_scale_))
    body = Body(rows, directions, shift, scale, tails, torch.cat(least), seed)
    return begin(body, torch.cat(curvature), 1, variances, noise_rows)


def with_rows(posterior: TablePosterior, regression: Conditioned) -> TablePosterior:
    """The posterior with output layers and noise as the regression has them.

    Where outputs have noises of their own in every row, they share the mean of their precisions from then on.
    """
    now, body = regression.now, regression.body
    assert posterior.noise is not None
    noise = (body.directions * now.expected_noise.mean((0, 1))) @ body.directions.mT / _tail_factor(body.tails)
    if posterior.row_noise is not None:
        unit = posterior.row_noise.unit.to(noise)
        noise = noise / (unit[:, None] * unit)
    change = float(noise.diagonal().mean() / posterior.noise.diagonal().mean())
    gram = (now.precision - body.least)[:, 0].mean(1)
    moved = now.mean[:, 0].mT @ body.directions.mT  # (K, D_x, D)
    stacks, start = [], 0
    for stack in posterior.stacks:
        layer, part, h = stack.layers[-1], slice(start, start + stack.n_members), stack.sizes[-2]
        own = torch.tensor([*range(h), gram.shape[-1] - 1], device=gram.device)
        values, basis = torch.linalg.eigh(gram[part][:, own][:, :, own])
        mean = layer.mean + moved[part][:, own].to(layer.mean)
        # The prior's part of the precision stays, so that noise and prior variance change together.
        last = replace(
            layer,
            mean=mean,
            input_basis=basis,
            input_values=values.clamp_min(0.0),
            prior_variance=layer.prior_variance * change,
        )
        stacks.append(replace(stack, layers=(*stack.layers[:-1], last)))
        start += stack.n_members
    return replace(posterior, stacks=tuple(stacks), noise=noise.to(posterior.noise))


def _tail_factor(tails: float | None) -> float:
    """Variance of a Student-t over its squared scale."""
    return 1.0 if tails is None else tails / (tails - 2.0)


def _filled(features: Tensor, width: int) -> Tensor:
    """With zeros up to this width, and ones."""
    padded = functional.pad(features, (0, width - features.shape[-1]))
    return torch.cat([padded, features.new_ones(*features.shape[:-1], 1)], -1)


def _filled_rows(weights: Tensor, width: int) -> Tensor:
    """Weights (K, H + 1, D) of features that were filled up."""
    zeros = weights.new_zeros(len(weights), width + 1 - weights.shape[1], weights.shape[2])
    return torch.cat([weights[:, :-1], zeros, weights[:, -1:]], 1)


def _filled_square(gram: Tensor, width: int) -> Tensor:
    """Of features that were filled up: the ones, which are last, go to the end."""
    missing = width - gram.shape[-1]
    order = [*range(gram.shape[-1] - 1), *range(gram.shape[-1], width), gram.shape[-1] - 1]
    padded = functional.pad(gram, (0, missing, 0, missing))
    index = torch.tensor(order, device=gram.device)
    return padded[:, index][:, :, index]
