"""Laplace approximations: a Gaussian about the maximum of the posterior, its precision the curvature there.

MacKay (1992); Ritter, Botev and Barber (2018) for Kronecker factors. The networks are those of `map.py`. The curvature (the
generalised Gauss–Newton matrix) is computed by laplace-torch (Daxberger et al., 2021), member by member, when training is
over; predictions are those of the network linearised about the maximum (Immer, Korzepa and Bauer, 2021). Before that, and
so for the choice of settings and steps, the method is MAP.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.baselines.adam import averaged_weights
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.method import State, Task
from bali_benchmarks.baselines.perceptrons import affine, layers, per_member

#: Rows for which the library computes curvature at once.
_CHUNK = 1024


@contextmanager
def _no_jit_warning() -> Iterator[None]:
    """Torch's forward-mode derivatives use torch.jit.script, against which torch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        yield


def library() -> ModuleType:
    """laplace-torch, which is an optional extra."""
    try:
        with _no_jit_warning():
            import laplace
    except ImportError as error:
        raise ImportError("Laplace approximations need laplace-torch: pip install 'bali-benchmarks[peers]'") from error
    except RuntimeError as error:  # torchvision's operators for CUDA beside a torch without
        raise ImportError(
            f"laplace-torch cannot be imported ({error}); a torchvision that was built for another torch is the usual "
            "cause: install torch and torchvision from the same index, or remove torchvision, which is not needed here"
        ) from error
    return laplace


@dataclass(frozen=True)
class _Laplace(MAP):
    """What both have in common: networks for the library, and a state with or without a posterior."""

    subset: ClassVar[str]
    structure: ClassVar[str]

    def start(self, task: Task, generator: torch.Generator) -> State:
        library()  # rather now than after the training
        return super().start(task, generator)

    def finish(self, task: Task, state: State, x: Tensor, y: Tensor) -> State:
        precision = per_member(self.prior_precision, state["noise_variance"]).expand(task.members)
        noise = self.noise_variance(state).sqrt()
        posteriors = []
        for k in range(task.members):
            network = _network(task, [w[k] for w in averaged_weights(state)])
            likelihood = "classification" if task.classification else "regression"
            sigma = 1.0 if task.classification else float(noise[k])
            approximation = library().Laplace(
                network, likelihood, self.subset, self.structure, sigma_noise=sigma, prior_precision=float(precision[k])
            )
            targets = y[k] if task.classification else y[k].double()
            with _no_jit_warning():
                approximation.fit(DataLoader(TensorDataset(x[k].double(), targets), batch_size=_CHUNK))
            posteriors.append(self._posterior(approximation))
        names = posteriors[0].keys()
        return state | {name: torch.stack([p[name] for p in posteriors]).to(task.dtype) for name in names}

    @abstractmethod
    def _posterior(self, approximation: Any) -> State:
        """What sampling needs, of one member."""


@dataclass(frozen=True)
class LastLayerLaplace(_Laplace):
    """The last layer's weights have a Gaussian with a full covariance; the others stay where they are."""

    title: ClassVar[str] = "Laplace, last layer"
    citation: ClassVar[str] = "Daxberger et al., Laplace redux, NeurIPS 2021"
    subset = "last_layer"
    structure = "full"

    def _posterior(self, approximation: Any) -> State:
        return {"posterior_scale": approximation.posterior_scale.detach()}  # covariance = scale scaleᵀ

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        if "posterior_scale" not in state:
            return super().outputs(task, state, x, n_samples, generator)
        scale = state["posterior_scale"]
        inputs, (*_, mean) = layers(task, averaged_weights(state), x)
        noise = torch.randn(n_samples, *scale.shape[:2], 1, generator=generator, dtype=x.dtype, device=x.device)
        flat, n_outputs = (scale @ noise)[..., 0], mean.shape[-1]
        # The library has torch's order: a matrix (D_out, D_in), then the bias.
        weight, bias = flat[..., :-n_outputs].reshape(n_samples, task.members, n_outputs, -1), flat[..., -n_outputs:]
        return mean + inputs[-1] @ weight.mT + bias[..., None, :]


@dataclass(frozen=True)
class KroneckerLaplace(_Laplace):
    """All weights have a Gaussian; the precision of each layer's is a Kronecker product plus the prior's."""

    title: ClassVar[str] = "Laplace, Kronecker"
    citation: ClassVar[str] = "Ritter, Botev and Barber, A scalable Laplace approximation for neural networks, ICLR 2018"
    subset = "all"
    structure = "kron"

    def _posterior(self, approximation: Any) -> State:
        """Of every weight matrix and bias: eigenvectors of its two factors (or one), standard deviations along them."""
        precision = approximation.posterior_precision
        state: State = {}
        blocks = zip(precision.eigenvectors, precision.eigenvalues, precision.deltas, strict=True)
        for i, (vectors, values, prior) in enumerate(blocks):
            layer, is_bias = divmod(i, 2)
            name = "bias" if is_bias else "matrix"
            product = values[0] if is_bias else torch.outer(*values)
            state[f"{name}_std.{layer}"] = (product + prior).rsqrt().detach()
            for side, v in zip(("out", "in"), vectors, strict=False):
                state[f"{name}_{side}.{layer}"] = v.detach()
        return state

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        if "matrix_std.0" not in state:
            return super().outputs(task, state, x, n_samples, generator)
        weights = averaged_weights(state)
        inputs, outputs = layers(task, weights, x)
        change = torch.zeros_like(x)[None]  # of the inputs of a layer, to first order
        for i, weight in enumerate(weights):
            change = change @ weight[:, :-1] + affine(inputs[i][None], self._deviations(state, i, n_samples, generator))
            if i + 1 < len(weights):
                change = _slope(task, outputs[i]) * change
        return outputs[-1] + change

    def _deviations(self, state: State, layer: int, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws of a layer's weights less their mean, (S, K, D_in + 1, D_out)."""
        noise, bias_noise = (
            s * torch.randn(n_samples, *s.shape, generator=generator, dtype=s.dtype, device=s.device)
            for s in (state[f"matrix_std.{layer}"], state[f"bias_std.{layer}"])
        )
        matrix = state[f"matrix_out.{layer}"] @ noise @ state[f"matrix_in.{layer}"].mT  # (S, K, D_out, D_in)
        bias = state[f"bias_out.{layer}"] @ bias_noise[..., None]
        return torch.cat([matrix, bias], -1).mT


def _slope(task: Task, z: Tensor) -> Tensor:
    """The derivative of the activation at each entry of z."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(ACTIVATIONS[task.activation]()(z).sum(), z)
    return slope


def _network(task: Task, weights: list[Tensor]) -> nn.Sequential:
    """One member as a torch module, in float64."""
    modules: list[nn.Module] = []
    for weight in weights:
        linear = nn.Linear(weight.shape[0] - 1, weight.shape[1], dtype=torch.float64, device=weight.device)
        with torch.no_grad():
            linear.weight.copy_(weight[:-1].mT)
            linear.bias.copy_(weight[-1])
        modules += [linear, ACTIVATIONS[task.activation]()]
    return nn.Sequential(*modules[:-1])
