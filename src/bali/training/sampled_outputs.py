"""Outputs of a network under weight samples, at less than a plain pass for each.

A linear layer that takes in the data, one row an example, needs no weights: under its posterior an output row is
x M + s(x) e with s(x)² = xᵀRx and e ~ N(0, Σ). The mean and s(x) are computed once for all samples, and a sample is a draw
of e. Each row has the distribution that weight samples give it; that rows share e, as they would share weights, makes the
prediction of a row the same whichever rows it comes with.

Weights of all other layers are drawn and written into the module, and rows pass through it in chunks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bali.conjugate.matrix_normal import CurvaturePosterior, MatrixNormal
from bali.conjugate.moments import with_ones
from bali.conjugate.sampling import standard_normal
from bali.inference.inputs import Inputs, n_rows, rows
from bali.inference.network import Network
from bali.inference.perceptron import Perceptron
from bali.layers.layer import Layer

#: Numbers that a layer's outputs may have in one chunk.
_IN_CACHE = 2**18
#: Rows whose spreads are computed at once, for the same reason.
_ROWS_OF_SPREADS = 1024


def first_layers(network: Network, x: Inputs) -> tuple[list[str], int]:
    """Names of the linear layers that see the data themselves, and rows of a chunk that stays in the cache."""
    one = rows(x, slice(0, 1))
    _, calls = network.forward(one)
    largest = max(call.z.numel() for own in calls.values() for call in own)
    found = [
        name
        for name, own in calls.items()
        if isinstance(one, Tensor) and one.dim() == 2 and len(own) == 1 and _is_same(own[0].x, one)
        if type(network.layers[name].module) is nn.Linear
    ]
    return found, max(1, _IN_CACHE // largest)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype


@dataclass
class NoisyOutputs:
    """Stands in for a linear layer: its mean outputs plus noise, of the rows that are passed through next.

    A layer of P blocks along its inputs has a spread and a noise for each of them.
    """

    mean: Tensor  # (n, D_out)
    spread: Tensor  # s(x), (n, P)
    noise_root: Tensor  # e = εT with this T
    at: slice = field(default_factory=lambda: slice(None))
    noise: Tensor | None = None  # e of the present sample, (P, D_out)

    @classmethod
    def of(cls, layer: Layer, posterior: MatrixNormal, x: Tensor) -> NoisyOutputs:
        """At the module's weights, which are the means."""
        means, spreads, root = [], [], None
        for chunk in torch.split(x, _ROWS_OF_SPREADS):
            own = layer.input_rows(chunk)
            assert isinstance(own, Tensor)
            spread, root = posterior.output_noise(with_ones(own, None) if layer.has_bias else own)
            means.append(layer.module(chunk))
            spreads.append(spread.reshape(-1, len(chunk)))
        assert root is not None
        return cls(torch.cat(means), torch.cat(spreads, 1).mT.contiguous(), root)

    def draw(self, generator: torch.Generator) -> None:
        normal = standard_normal(self.noise_root.shape[:-1], self.mean, generator).unsqueeze(-2)
        self.noise = (normal @ self.noise_root).reshape(self.spread.shape[1], -1)[:, : self.mean.shape[1]]

    def __call__(self, _x: Tensor) -> Tensor:
        assert self.noise is not None
        return torch.addmm(self.mean[self.at], self.spread[self.at], self.noise)

    def into(self, outputs: Tensor) -> None:
        assert self.noise is not None
        torch.addmm(self.mean[self.at], self.spread[self.at], self.noise, out=outputs)


@contextmanager
def standing_in(network: Network, noisy: Mapping[str, NoisyOutputs]) -> Iterator[None]:
    modules = {name: network.layers[name].module for name in noisy}
    try:
        for name, module in modules.items():
            vars(module)["forward"] = noisy[name]
        yield
    finally:
        for module in modules.values():
            vars(module).pop("forward", None)


@torch.no_grad()
def sampled_outputs(
    network: Network,
    posteriors: Mapping[str, CurvaturePosterior],
    x: Inputs,
    n_samples: int,
    generator: torch.Generator,
    link: Callable[[Tensor], Tensor],
) -> Tensor:
    """Linked outputs of every sample, (S, n, ...). The module is at the means, and its weights are overwritten."""
    names, at_once = first_layers(network, x)
    noisy = {}
    for name in names:
        posterior = posteriors[name]
        if isinstance(posterior, MatrixNormal) and isinstance(x, Tensor):
            noisy[name] = NoisyOutputs.of(network.layers[name], posterior, x)
    drawn = {
        name: posterior.to(network.layers[name].weight.dtype) for name, posterior in posteriors.items() if name not in noisy
    }
    n, found = n_rows(x), None
    perceptron = Perceptron.of(network.module, x, min(n, at_once))
    stand_ins = {network.layers[name].module: one for name, one in noisy.items()}
    with standing_in(network, noisy):
        for number in range(n_samples):
            for one in noisy.values():
                one.draw(generator)
            for name, posterior in drawn.items():
                layer = network.layers[name]
                layer.assign(posterior.weights_from(standard_normal(posterior.mean.shape, layer.weight, generator)))
            for start in range(0, n, at_once):
                at = slice(start, start + at_once)
                for one in noisy.values():
                    one.at = at
                chunk = rows(x, at)
                if perceptron is not None and isinstance(chunk, Tensor):
                    outputs = link(perceptron(chunk, stand_ins))
                else:
                    outputs = link(network.plain_output(chunk))
                if found is None:
                    found = outputs.new_empty(n_samples, n, *outputs.shape[1:])
                found[number, at] = outputs
    assert found is not None
    return found
