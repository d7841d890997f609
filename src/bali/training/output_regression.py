"""The output layer of a fitted regression, made ready to take in rows (`conditioning.py`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from bali.conjugate.matrix_normal import Kronecker
from bali.inference.first_pass import output_layer_of
from bali.inference.inputs import Inputs, rows
from bali.inference.linearised import Expansion
from bali.inference.network import Network
from bali.training.averaged_points import Point
from bali.training.conditioning import Body, Conditioned, begin
from bali.training.examples import as_inputs
from bali.training.fitted_values import Calibration, Member, Units
from bali.training.linearised_rows import LinearisedRows

#: Numbers of all samples of all weights: large networks have fewer samples.
_MOST_NUMBERS, _LEAST_PAIRS = 2**26, 4
#: Examples that a noise is said to rest on where a file does not tell.
_MANY = 1e6


class FittedNetwork(Protocol):
    """What is needed of `Fitted`."""

    network: Network
    members: list[Member]
    calibration: Calibration
    units: Units | None
    seed: int

    def put_mean(self, number: int) -> None: ...

    def departures(self, number: int, n: int, width: float) -> Iterator[Point]: ...


def output_regression(fitted: FittedNetwork, x: Any, n_samples: int) -> Conditioned:
    """Before any rows beyond the training's; x tells what inputs look like."""
    calibration, units, network = fitted.calibration, fitted.units, fitted.network
    noise = calibration.noise
    if noise is None or units is None:
        raise ValueError(
            "only a regression with a Gaussian likelihood takes in rows in closed form, and this one has another one; "
            "give it as the prior of a fit to the new rows: bali.fit(..., prior=fitted)"
        )
    like = next(p for p in network.module.parameters() if p.is_floating_point())

    def convert(x: Any) -> Inputs:
        return as_inputs(x, like.device, like.dtype)

    with torch.inference_mode(False), network.evaluating():
        name = _output_layer(fitted, rows(convert(x), slice(0, 1)))
        size = sum(p.numel() for p in network.module.parameters())
        pairs = -(-n_samples // (2 * len(fitted.members)))
        pairs = max(min(pairs, _LEAST_PAIRS), min(pairs, _MOST_NUMBERS // size))
        points, directions = [], []
        for number in range(len(fitted.members)):
            fitted.put_mean(number)
            points.append({key: value.detach().clone() for key, value in network.module.state_dict().items()})
            directions.append(_directions(fitted, number, name, pairs))
        module = copy.deepcopy(network.module).eval()
    posteriors = [member.posteriors[name].with_width(calibration.width) for member in fitted.members]
    weights = torch.stack([p.mean.double() for p in posteriors])
    of_rows = LinearisedRows(module, module.get_submodule(name), weights, points, directions, convert)
    noise, scale, shift, dof = noise.double(), units.scale.double(), units.shift.double(), calibration.noise_dof
    tails = dof if dof is not None and dof > 2.0 else None
    noise = noise if tails is None else noise * (tails / (tails - 2.0))
    if units.module_has_them:  # outputs are in the targets' units already
        noise, scale, shift = noise * scale[:, None] * scale, torch.ones_like(scale), torch.zeros_like(shift)
    variances, basis = torch.linalg.eigh(noise)
    curvature, least = [], []
    for p in posteriors:
        known = Kronecker.of(p, "output layer")
        along = (basis.mT @ known.outputs.double() @ basis).diagonal() * variances  # near one: S is the inverse of the noise
        curvature.append(along[:, None, None] * known.inputs.dense().double())
        prior = variances / (p.width * p.prior_variance)
        least.append(prior[:, None, None] * torch.eye(p.mean.shape[-2], dtype=torch.float64, device=prior.device))
    body = Body(of_rows, basis, shift, scale, tails, torch.stack(least).unsqueeze(1), fitted.seed)
    n = 1 if not directions[0] else 2 * len(directions[0])
    rows_of_noise = _MANY if calibration.noise_rows is None else calibration.noise_rows
    return begin(body, torch.stack(curvature), n, variances, rows_of_noise)


def _output_layer(fitted: FittedNetwork, x: Inputs) -> str:
    network = fitted.network
    with torch.enable_grad():
        output, calls = network.forward(x)
    name = output_layer_of(output, network.layers, calls)
    if name is None:
        raise ValueError("the module must end in a linear layer that is trained, of at most 600 inputs")
    return name


def _directions(fitted: FittedNetwork, number: int, output: str, pairs: int) -> list[dict[str, Tensor]]:
    """Samples of the departures of all layers but the output layer, as those of the module's parameters."""
    if set(fitted.network.layers) == {output}:
        return []
    expansion, found = Expansion(fitted.network), list[dict[str, Tensor]]()
    for departures in fitted.departures(number, pairs, fitted.calibration.width):
        others = dict(departures) | {output: torch.zeros_like(departures[output])}
        found.append(expansion.direction(others))
    return found
