"""How a network's outputs change with its weights, to first order, and the posterior that such predictions start from.

Torch's forward mode gives the derivative along a direction of weights exactly, with no gradient kept. Some of torch's fused
kernels have none, and are closed for the time being. Functions that have none at all (a user's own `autograd.Function`) are
differentiated by two nearby points.

How wide the posterior around given means is comes from the curvature of the likelihood (docs/method.md). With A = E[xxᵀ] of
a layer's inputs and S = E[ggᵀ] of the gradients at its outputs, that of N examples of P rows is about N P · A ⊗ S (the
Fisher approximation, as in K-FAC and Laplace's). With Newton's targets, whose noise is the inverse curvature, it is also
what the layer's regression finds. How far steps went has no part in it. Samples of weights vary all layers at once, and
each layer makes the doubts of the ones before it larger: a regression has no use for the result. It predicts by the
first-order expansion about the means instead, where doubts add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from bali.conjugate.matrix_normal import CurvaturePosterior, Kronecker, MatrixNormal, SumNormal
from bali.inference.inputs import Inputs
from bali.inference.joint import JointLayer
from bali.inference.network import Network, as_output

#: The distance of the two nearby points, over the largest departure of a weight: far enough for float32.
_NEARBY = 3e-3


class Expansion:
    """A network about the weights that it has now, of which it keeps a copy: graphs of its outputs stay sound."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.weights = {name: p.detach().clone() for name, p in network.module.named_parameters()}
        self._buffers = {name: buffer.detach().clone() for name, buffer in network.module.named_buffers()}
        self._has_forward_mode = True

    def change(self, x: Inputs, departures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The module's output at x, and its derivative along these departures of the layers' weights."""
        direction = self.direction(departures)
        if self._has_forward_mode:
            try:
                with differentiable_kernels():
                    output, change, *_ = jvp(lambda weights: self._output_at(weights, x), (self.weights,), (direction,))
                    return output, change
            except (NotImplementedError, RuntimeError) as error:
                if "forward" not in str(error) and "jvp" not in str(error):
                    raise
                self._has_forward_mode = False
        return self.output(x), difference(lambda weights: self._output_at(weights, x), self.weights, direction)

    def output(self, x: Inputs) -> Tensor:
        return self._output_at(self.weights, x)

    def direction(self, departures: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Departures of layers' weight matrices as those of the module's parameters: writing them in is a linear map."""
        parameters = dict(self.network.module.named_parameters())
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.zero_()
            self.network.assign(departures)
            found = {name: p.detach().clone() for name, p in parameters.items()}
            for name, parameter in parameters.items():
                parameter.copy_(self.weights[name])
        return found

    def _output_at(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        arguments: tuple[Tensor, ...] = (x,) if isinstance(x, Tensor) else () if isinstance(x, Mapping) else x
        named = dict(x) if isinstance(x, Mapping) else {}
        output = functional_call(self.network.module, {**weights, **self._buffers}, arguments, named)
        return as_output(output, self.network.members)


def difference(
    at: Callable[[dict[str, Tensor]], Tensor], weights: Mapping[str, Tensor], direction: Mapping[str, Tensor]
) -> Tensor:
    """The derivative of a function of weights along a direction, by two nearby points."""
    step = _NEARBY / max(1.0, *(float(part.abs().max()) for part in direction.values()))
    points = ({name: w + sign * step * direction[name] for name, w in weights.items()} for sign in (1, -1))
    ahead, behind = map(at, points)
    return (ahead - behind) / (2.0 * step)


@contextmanager
def differentiable_kernels() -> Iterator[None]:
    short_cuts, fused = torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    _use_fused(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # Torch's own, of what it loads for forward mode when that is used first.
            warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(short_cuts)
        _use_fused(fused)


def _use_fused(value: bool) -> None:
    setattr(torch.backends.mkldnn, "enabled", value)  # noqa: B010 (torch types it as the descriptor that it is)


# --- the posterior around given means ---------------------------------------------------------------------------------


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
