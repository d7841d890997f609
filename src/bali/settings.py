"""The hyperparameters of an inference, checked, and the priors they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bali.layer import Layer
from bali.linalg import Repairs
from bali.mniw import MNIW

Reparam = Literal["weight", "local", "none"]
Noise = Literal["mode", "sample"]
Update = Literal["mean", "natural"]
Sharing = Literal["expand", "reduce"]
PriorMean = Literal["zero", "weights"]
#: Of all, or of each of K stacked members.
StepSize = float | Tensor

_CHOICES = {
    "reparam": ("weight", "local", "none"),
    "noise": ("mode", "sample"),
    "update": ("mean", "natural"),
    "prior_mean": ("zero", "weights"),
}
_SHARINGS = get_args(Sharing)


@dataclass(frozen=True)
class Settings:
    """See `LayerwiseInference` for what each one means."""

    n_data: int
    step_size: StepSize | Callable[[int], StepSize]
    ema_rate: float | Callable[[int], float]
    prior_variance: float | Tensor | Mapping[str, float | Tensor] | None
    noise_floor: float
    output_noise_floor: float
    effective_size: float
    reparam: Reparam
    target_noise: bool
    noise: Noise
    update: Update
    algebra_dtype: torch.dtype
    noise_every: int = 1
    input_moments: Tensor | None = None  # (D + 1, D + 1), or one for each of K members
    sharing: Sharing | Mapping[str, Sharing] = "expand"
    forward_dtype: torch.dtype | None = None
    max_block: int | None = None
    prior_mean: PriorMean = "zero"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        for name in ("n_data", "step_size", "noise_floor", "output_noise_floor", "effective_size"):
            if not callable(getattr(self, name)):
                _check_positive(name, getattr(self, name))
        for sharing in self.sharing.values() if isinstance(self.sharing, Mapping) else [self.sharing]:
            if sharing not in _SHARINGS:
                raise ValueError(
                    f"sharing must be one of {', '.join(_SHARINGS)}, or one for each layer name; got {sharing!r}"
                )
        if self.max_block is not None and self.max_block < 1:
            raise ValueError(f"max_block must be at least 1, got {self.max_block}")
        if self.noise_every < 1:
            raise ValueError(f"noise_every must be at least 1, got {self.noise_every}")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be at least 0 and less than 1, got {self.momentum}")
        if self.update == "natural" and (self.input_moments is not None or self.noise_every > 1 or self.momentum > 0.0):
            raise ValueError("input_moments, noise_every and momentum need update='mean'")

    def moves_noise_at(self, step: int) -> bool:
        """Whether a step, counted from 1, brings U up to date; the first ones, which change most, all do."""
        return step <= 10 or step % self.noise_every == 0

    def at(self, step: int) -> Settings:
        """With the α of a step, counted from 1."""
        return replace(self, step_size=self.step_size(step)) if callable(self.step_size) else self

    def rate_at(self, step: int) -> float:
        """β of a step, counted from 1."""
        return self.ema_rate(step) if callable(self.ema_rate) else self.ema_rate

    def prior(self, layer: Layer, *, is_output: bool, device: torch.device, repairs: Repairs) -> MNIW:
        """The layer's prior, about its present weights if so wished; a regression's output has its own noise floor."""
        variance = self.prior_variance
        if isinstance(variance, Mapping):
            variance = variance.get(layer.name)
        if variance is None:
            variance = 10.0 / (1 if layer.has_tokens else layer.fan_in + 1)  # a token has a single one in its row
        _check_positive(f"prior_variance of layer '{layer.name}'", variance)
        prior = MNIW.prior(
            layer.n_inputs,
            layer.out_features,
            variance=variance,
            noise=(self.output_noise_floor if is_output else self.noise_floor) * self.effective_size,
            dtype=self.algebra_dtype,
            device=device,
            name=f"layer '{layer.name}'",
            as_column=layer.has_tokens,
        )
        mean = layer.weights().to(self.algebra_dtype) if self.prior_mean == "weights" else prior.mean
        return replace(prior, mean=mean, repairs=repairs)

    def exact_xx(self, layer: Layer, device: torch.device) -> Tensor:
        """XᵀX of N_eff rows like all the data, for the layer that they enter."""
        mean = self.input_moments
        assert mean is not None
        d = layer.in_features
        if mean.shape[-2:] != (d + 1, d + 1):
            raise ValueError(
                f"input_moments has shape {tuple(mean.shape)}, but layer '{layer.name}' has {d} inputs and needs "
                f"({d + 1}, {d + 1}); make them with bali.input_moments(x)"
            )
        n = layer.n_inputs
        return mean[..., :n, :n].to(device, self.algebra_dtype) * self.effective_size

    def check_layer_names(self, names: Sequence[str]) -> None:
        for setting in ("prior_variance", "sharing"):
            value = getattr(self, setting)
            unknown = set(value) - set(names) if isinstance(value, Mapping) else set()
            if unknown:
                raise ValueError(f"{setting} names unknown layers {sorted(unknown)}; there are {list(names)}")

    def check_forward_dtype(self, own: torch.dtype) -> None:
        if self.forward_dtype is not None and (self.forward_dtype.itemsize != 2 or own != torch.float32):
            raise ValueError(
                "forward_dtype must be torch.bfloat16 or torch.float16, for a float32 module; "
                f"got {self.forward_dtype} for one of {own}"
            )

    def sharing_of(self, layer: Layer) -> Sharing:
        return self.sharing.get(layer.name, "expand") if isinstance(self.sharing, Mapping) else self.sharing

    def of_members(self, index: Sequence[int]) -> Settings:
        """The settings of some of the stacked members."""

        def take(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: take(v) for name, v in value.items()}
            return value[list(index)] if isinstance(value, Tensor) else value

        shared = {"input_moments"} if self.input_moments is not None and self.input_moments.dim() == 2 else set()
        return replace(self, **{f.name: take(getattr(self, f.name)) for f in fields(self) if f.name not in shared})

    def summary(self) -> dict[str, Any]:
        """What has to agree for a saved posterior to be taken up again."""
        kept = ("update", "effective_size", "noise_floor", "output_noise_floor", "prior_mean")
        sharing = dict(self.sharing) if isinstance(self.sharing, Mapping) else self.sharing
        exact = self.input_moments is not None
        return {name: getattr(self, name) for name in kept} | {"exact_inputs": exact, "sharing": sharing}


def _check_positive(name: str, value: float | Tensor) -> None:
    values = torch.as_tensor(value)
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{name} must be positive, got {value}")
