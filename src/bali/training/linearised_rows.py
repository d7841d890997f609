"""Inputs of a network's output layer, and how outputs change with the other layers' weights, as functions of x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from bali.inference.inputs import Inputs
from bali.inference.linearised import NEARBY, differentiable_kernels
from bali.training.averaged_points import Point
from bali.training.conditioning import Rows


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
                count = len(next(iter(own.values())))
                changes.append(torch.stack([self._difference(parameters, buffers, _part(own, i), x) for i in range(count)]))
        return torch.stack(features), torch.stack(changes) if changes else None

    def _difference(self, parameters: Point, buffers: Point, direction: Point, x: Inputs) -> Tensor:
        step = NEARBY / max(1.0, *(float(part.abs().max()) for part in direction.values()))
        nearby = ({n: w + sign * step * direction[n] for n, w in parameters.items()} for sign in (1, -1))
        ahead, behind = (self._features(point, buffers, x) for point in nearby)
        return (ahead - behind) / (2.0 * step)

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
