"""The output layer of a fitted regression, made ready to take in rows (`conditioning.py`).

Its inputs, and how outputs change with the other layers' weights, are functions of x.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from bali.conjugate.matrix_normal import Kronecker
from bali.inference.first_pass import output_layer_of
from bali.inference.inputs import Inputs, rows
from bali.inference.linearised import Expansion, difference, differentiable_kernels
from bali.inference.network import Network
from bali.training.averaging import Point
from bali.training.conditioning import Body, Conditioned, Rows, begin
from bali.training.examples import as_inputs
from bali.training.fitted_values import Calibration, Member, Units

# --- functions of x ---------------------------------------------------------------------------------------------------


class LinearisedRows:
    """x → rows of a regression of the output layer, for K members, each with pairs of samples ±δ of its other weights.

    All members and samples run in one go where torch can do that, and one by one where not.
    """

    def __init__(
        self,
        module: nn.Module,
        output: nn.Module,
        weights: Tensor,  # of the output layer, (K, D_x, D), the last row for ones if it has a bias
        points: Sequence[Point],  # parameters and buffers of each member
        directions: Sequence[Sequence[Point]],  # δ of the parameters of each member; there may be none
        convert: Callable[[Any], Inputs],
    ) -> None:
        self._module, self._output, self._weights, self._convert = module, output, weights, convert
        self._has_ones = getattr(output, "bias", None) is not None
        names = {name for name, _ in module.named_parameters()}
        self._parameters = _stacked([{n: v for n, v in point.items() if n in names} for point in points])
        self._buffers = _stacked([{n: v for n, v in point.items() if n not in names} for point in points])
        has_some = len(directions[0]) > 0
        self._directions = _stacked([_stacked(own) for own in directions]) if has_some else None
        self._in_one_go = True

    def __call__(self, x: Any) -> Rows:
        like = next(iter(self._parameters.values()))
        keeps_graph = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
        inputs = x.to(like) if keeps_graph else self._convert(x)
        features, change = self._all(inputs)  # (K, n, D_x), (K, S / 2, n, D_x)
        weights = self._weights.to(features)
        ones = features.new_ones(*features.shape[:-1], 1)
        whole = torch.cat([features, ones], -1) if self._has_ones else features
        outputs = (whole @ weights).unsqueeze(1)
        if change is not None:
            moved = change @ weights[:, None, : change.shape[-1]]
            outputs = torch.cat([outputs + moved, outputs - moved], 1)
        return Rows(whole, outputs, None)

    def _all(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        if self._in_one_go:
            try:
                with differentiable_kernels():
                    return self._at_once(x)
            except (NotImplementedError, RuntimeError):
                found = self._one_by_one(x)  # which says itself what is wrong with x
                self._in_one_go = False  # a module that torch cannot run so, such as a recurrent one
                return found
        return self._one_by_one(x)

    def _at_once(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        if self._directions is None:
            return vmap(lambda p, b: self._features(p, b, x))(self._parameters, self._buffers), None

        def along(parameters: Point, buffers: Point, direction: Point) -> tuple[Tensor, Tensor]:
            features, change, *_ = jvp(lambda p: self._features(p, buffers, x), (parameters,), (direction,))
            return features, change

        of_member = vmap(along, in_dims=(None, None, 0))
        features, change = vmap(of_member)(self._parameters, self._buffers, self._directions)
        return features[:, 0], change

    def _one_by_one(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        features, changes = [], []
        for k in range(len(self._weights)):
            parameters, buffers = _part(self._parameters, k), _part(self._buffers, k)
            features.append(self._features(parameters, buffers, x))
            if self._directions is not None:
                own = _part(self._directions, k)
                at = functools.partial(self._features, buffers=buffers, x=x)
                count = len(next(iter(own.values())))
                changes.append(torch.stack([difference(at, parameters, _part(own, i)) for i in range(count)]))
        return torch.stack(features), torch.stack(changes) if changes else None

    def _features(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Inputs) -> Tensor:
        seen: list[Tensor] = []
        handle = self._output.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
        try:
            arguments: tuple[Tensor, ...] = (x,) if isinstance(x, Tensor) else () if isinstance(x, Mapping) else tuple(x)
            functional_call(self._module, {**parameters, **buffers}, arguments, dict(x) if isinstance(x, Mapping) else {})
        finally:
            handle.remove()
        return seen[0].reshape(-1, seen[0].shape[-1])


def _stacked(points: Sequence[Point]) -> Point:
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def _part(points: Point, number: int) -> Point:
    return {name: value[number] for name, value in points.items()}


# --- the regression ---------------------------------------------------------------------------------------------------


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
