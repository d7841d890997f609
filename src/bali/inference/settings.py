"""The hyperparameters of an inference, checked, the priors they mean, and all else that stays the same from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bali.conjugate.linalg import Repairs
from bali.conjugate.mniw import MNIW
from bali.conjugate.symmetric import Dense, Diagonal
from bali.inference.distributed import Group
from bali.inference.network import Network
from bali.inference.other_parameters import OtherParameters
from bali.inference.state import LayerState
from bali.layers.layer import Layer
from bali.predictive.likelihoods import Likelihood

Reparam = Literal["weight", "local", "none"]
Noise = Literal["mode", "sample"]
#: Of all, or of each of K stacked members.
StepSize = float | Tensor


def algebra_dtype(device: torch.device) -> torch.dtype:
    """Averages and factorisations are in float64 where the device has it; rows are in the module's own type."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Settings:
    """See `LayerwiseInference` for what each one means."""

    n_data: int
    step_size: StepSize
    ema_rate: float
    prior_variance: float | Tensor | Mapping[str, float | Tensor] | None
    noise_floor: float
    output_noise_floor: float
    effective_size: float
    reparam: Reparam
    target_noise: bool
    prior_about_weights: bool = False
    input_moments: Tensor | None = None  # (D + 1, D + 1), or one for each of K members

    def __post_init__(self) -> None:
        if self.reparam not in get_args(Reparam):
            raise ValueError(f"reparam must be one of {', '.join(get_args(Reparam))}; got {self.reparam!r}")
        for name in ("n_data", "step_size", "ema_rate", "noise_floor", "output_noise_floor", "effective_size"):
            check_positive(name, getattr(self, name))

    def prior(self, layer: Layer, *, is_output: bool, repairs: Repairs) -> MNIW:
        """The layer's prior, about its present weights if so wished; a regression's output has its own noise floor."""
        variance = self.prior_variance
        if isinstance(variance, Mapping):
            variance = variance.get(layer.name)
        if variance is None:
            variance = 10.0 / (1 if layer.has_tokens else layer.fan_in + 1)  # a token has a single one in its row
        check_positive(f"prior_variance of layer '{layer.name}'", variance)
        device = layer.weight.device
        prior = MNIW.prior(
            layer.n_inputs,
            layer.out_features,
            variance=variance,
            noise=(self.output_noise_floor if is_output else self.noise_floor) * self.effective_size,
            dtype=algebra_dtype(device),
            device=device,
            name=f"layer '{layer.name}'",
            repairs=repairs,
        )
        return replace(prior, mean=layer.weights().to(prior.mean.dtype)) if self.prior_about_weights else prior

    def exact_xx(self, layer: Layer) -> Dense | Diagonal:
        """XᵀX of N_eff rows like all the data, for the layer that they enter."""
        mean, d = self.input_moments, layer.in_features
        assert mean is not None
        if mean.shape[-2:] != (d + 1, d + 1):
            raise ValueError(
                f"input_moments has shape {tuple(mean.shape)}, but layer '{layer.name}' has {d} inputs and needs "
                f"({d + 1}, {d + 1}); make them with bali.input_moments(x)"
            )
        n, device = layer.n_inputs, layer.weight.device
        return Dense(mean[..., :n, :n].to(device, algebra_dtype(device)) * self.effective_size)

    def check_layer_names(self, names: Sequence[str]) -> None:
        given = self.prior_variance
        unknown = set(given) - set(names) if isinstance(given, Mapping) else set()
        if unknown:
            raise ValueError(f"prior_variance names unknown layers {sorted(unknown)}; there are {list(names)}")

    def summary(self) -> dict[str, Any]:
        """What has to agree for a saved posterior to be taken up again."""
        kept = ("effective_size", "noise_floor", "output_noise_floor", "prior_about_weights")
        return {name: getattr(self, name) for name in kept} | {"exact_inputs": self.input_moments is not None}


def check_positive(name: str, value: float | Tensor) -> None:
    values = torch.as_tensor(value)
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class Setup:
    network: Network
    likelihood: Likelihood
    settings: Settings
    others: OtherParameters  # trainable, and without a posterior
    group: Group | None = None  # the processes that take every step together with this one
    repairs: Repairs = field(default_factory=Repairs)

    def initial_layers(self) -> dict[str, LayerState]:
        """Every layer before the first step: its prior, and the weights that the module has."""
        self.settings.check_layer_names(list(self.network.layers))
        return {
            name: LayerState(self.settings.prior(layer, is_output=False, repairs=self.repairs), layer.weights())
            for name, layer in self.network.layers.items()
        }
