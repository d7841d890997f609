"""Bayesian layerwise inference: the paper's Algorithm 1 over the linear layers of a module.

A step does, for each layer (the code cites these lines):

  1. outputs z and gradients g = ∇_z log p(y | x, W)            forward and backward pass
  2. Ψgg ← average of g²,  D = α / √Ψgg                         scale of the gradients
  3. targets Y = Z + G D, as moments of (X, Y − XM)             `targets.py`
  4. Ψxx ← average of N_eff/B · XᵀX,  R⁻¹ = R₀⁻¹ + Ψxx
  5. M, U                                                       `updates.py`
  6. Σ = U / (u₀ + N_eff + D_y + 1),  W ~ MN(M, R, Σ)

Averages are debiased (`DebiasedRate`), so "average" means Ψ/b of the paper.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bali import files, linalg
from bali.layers import LinearLayer, UnsupportedLayerError, take_stacked
from bali.likelihoods import Likelihood
from bali.mniw import MNIW
from bali.moments import DebiasedRate, Moments, averaged
from bali.network import Call, Network
from bali.prediction import Method, PosteriorSampler
from bali.predictive import Predictive, concatenate
from bali.sampling import standard_normal
from bali.targets import gradient_scale, local_output_noise, relative_to_mean
from bali.updates import mean_update, natural_update

Reparam = Literal["weight", "local", "none"]


@dataclass(frozen=True)
class LayerState:
    """All that inference keeps of one layer between steps."""

    layer: LinearLayer
    prior: MNIW
    weights: Tensor  # of the next forward pass, (..., D_x, D_y)
    posterior: MNIW | None = None
    xx: Tensor | None = None  # average of XᵀX for N_eff rows
    gg: Tensor | None = None  # average of the mean squared gradient, (..., D_y)
    targets: Moments | None = None  # averages for absolute targets, natural form only

    @property
    def reference(self) -> Tensor:
        """M of the last step; before the first one, the initial weights."""
        return self.weights if self.posterior is None else self.posterior.mean


class LayerwiseInference:
    """A matrix-normal inverse-Wishart posterior for every linear layer of a module.

    Parameters
    ----------
    module
        Any `nn.Module` whose trainable layers are `nn.Linear` (or `StackedLinear`: K networks at once). Its parameters
        at construction are the weights of the first step; after each step they hold the current weight sample, or the
        mean where `reparam` is "local" or "none".
    likelihood
        `bali.likelihoods.Gaussian()`, `Categorical()` or `Bernoulli()`.
    n_data
        Number of training examples.
    step_size
        α: how far targets move, in units of each output's root-mean-square gradient; a (K,) tensor gives each of K
        stacked members its own.
    ema_rate
        β: a number, or a function from the step (counted from 1) to one.
    prior_variance
        Variance of the prior on the module's own weights, a number or a number per layer name (or (K,) tensors). By
        default 10 / (D_in + 1) for each layer.
    noise_floor, output_noise_floor
        σ_u²/N_eff, so that U₀ = noise_floor · N_eff · I. The second, by default 1e-4, is for the output layer of a
        regression, whose noise is that of the data.
    effective_size
        N_eff: how many observations the averaged statistics stand for; `n_data` by default.
    reparam
        "weight": one weight sample a step; "local": independent noise on the outputs of each row; "none": the mean.
    target_noise
        Targets start from the sampled outputs, as in the paper, or (False) from the outputs of the mean.
    noise
        Σ for samples of the weights is the "mode" of its posterior or itself a "sample".
    update
        "mean" or "natural": two forms of the same posterior. "mean" keeps more digits.
    algebra_dtype
        Type of the D×D algebra. Rows are processed in the module's own type.
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        n_data: int,
        *,
        step_size: float | Tensor = 0.5,
        ema_rate: float | Callable[[int], float] = 0.2,
        prior_variance: float | Tensor | Mapping[str, float | Tensor] | None = None,
        noise_floor: float = 0.01,
        output_noise_floor: float | None = None,
        effective_size: float | None = None,
        reparam: Reparam = "weight",
        target_noise: bool = True,
        noise: Literal["mode", "sample"] = "mode",
        update: Literal["mean", "natural"] = "mean",
        algebra_dtype: torch.dtype = torch.float64,
        generator: torch.Generator | None = None,
    ) -> None:
        _check_choice("reparam", reparam, ("weight", "local", "none"))
        _check_choice("noise", noise, ("mode", "sample"))
        _check_choice("update", update, ("mean", "natural"))
        self.network = Network(module)
        self.likelihood, self.n_data = likelihood, n_data
        self.step_size, self.ema_rate = step_size, ema_rate
        self.prior_variance, self.noise_floor = prior_variance, noise_floor
        self.output_noise_floor = 1e-4 if output_noise_floor is None else output_noise_floor
        self.effective_size = float(n_data if effective_size is None else effective_size)
        for name in ("n_data", "step_size", "noise_floor", "output_noise_floor", "effective_size"):
            _check_positive(name, getattr(self, name))
        self.reparam: Reparam = reparam
        self.target_noise, self.noise, self.update = target_noise, noise, update
        self.algebra_dtype = algebra_dtype
        if generator is None:
            generator = torch.Generator(device=next(module.parameters()).device)
            generator.manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator
        self.steps = 0
        self.rate = DebiasedRate()
        self.repairs = linalg.Repairs()
        self.output_layer: str | None = None  # found in the first forward pass
        self.states = {name: self._initial_state(layer) for name, layer in self.network.layers.items()}
        unknown = set(prior_variance) - set(self.states) if isinstance(prior_variance, Mapping) else set()
        if unknown:
            raise ValueError(f"prior_variance names unknown layers {sorted(unknown)}; there are {list(self.states)}")

    # --- priors -------------------------------------------------------------------------------------------------

    def _initial_state(self, layer: LinearLayer) -> LayerState:
        weights = layer.weights().to(self.algebra_dtype)
        return LayerState(layer, self._prior(layer, self.noise_floor, weights.device), weights)

    def _prior(self, layer: LinearLayer, noise_floor: float, device: torch.device) -> MNIW:
        variance = self.prior_variance
        if isinstance(variance, Mapping):
            variance = variance.get(layer.name)
        if variance is None:
            variance = 10.0 / (layer.in_features + 1)
        _check_positive(f"prior_variance of layer '{layer.name}'", variance)
        prior = MNIW.prior(
            layer.n_inputs,
            layer.out_features,
            variance=variance,
            noise=noise_floor * self.effective_size,
            dtype=self.algebra_dtype,
            device=device,
            name=f"layer '{layer.name}'",
        )
        return replace(prior, repairs=self.repairs)

    def _find_output_layer(self, output: Tensor, calls: Mapping[str, list[Call]]) -> None:
        """In a regression, the layer whose outputs are the module's; it gets its own noise floor."""
        for name, (last, *more) in ((name, layer_calls[::-1]) for name, layer_calls in calls.items()):
            if not more and last.is_the(output):
                self.output_layer = name
        if self.output_layer is None:
            raise ValueError("with a Gaussian likelihood the module must end in a linear layer that is trained")
        state = self.states[self.output_layer]
        prior = self._prior(state.layer, self.output_noise_floor, state.weights.device)
        self.states[self.output_layer] = replace(state, prior=prior)

    # --- the step -----------------------------------------------------------------------------------------------

    def step(self, x: Tensor, y: Tensor, ema_rate: float | None = None, sample_weight: Tensor | None = None) -> Tensor:
        """Take in one mini-batch. Returns its mean log-likelihood under the weights used, one per member if stacked.

        `sample_weight`, (n,) or (K, n) for stacked members, counts a row that many times; rows of weight 0 are left out.
        If anything fails, an error is raised and the posteriors stay what they were.
        """
        if len(y) != len(x) and self.network.members is None:
            raise ValueError(f"x has {len(x)} rows and y has {len(y)}")
        if sample_weight is not None:
            sample_weight = sample_weight.to(x.dtype)
            if not bool((sample_weight >= 0).all()) or not bool((sample_weight.sum(-1) > 0).all()):
                raise ValueError("sample_weight must not be negative, and must be positive for some row (of each member)")
        local_noise: dict[str, list[Tensor]] = {name: [] for name in self.states}
        with torch.enable_grad():
            output, calls = self.network.forward(x, self._perturbation(local_noise))
        if self.likelihood.has_true_targets and self.output_layer is None:
            self._find_output_layer(output.detach(), calls)
        z = output.detach()
        if self.output_layer is not None:
            z = z.reshape(calls[self.output_layer][0].z.shape)  # a final squeeze is undone
        y = self.likelihood.targets(y, z)
        noise_factor = self._observation_noise_factor()
        values = self.likelihood.log_prob(z, y, noise_factor)
        if self.network.members is None:
            values = values.reshape(-1)  # middle dimensions are rows
        row_weight = _weight_of_rows(sample_weight, values)
        log_likelihood = _row_mean(values, row_weight)
        if not bool(torch.isfinite(log_likelihood).all()):
            raise linalg.NumericalError(
                f"the log-likelihood is not finite at step {self.steps + 1}. Look for NaN or extreme values in x and y, "
                "standardise them, or lower step_size."
            )
        output_gradient = self.likelihood.gradient(z, y, noise_factor).reshape(output.shape)
        gradients = self._backward(output, output_gradient, calls)  # line 1

        rate = replace(self.rate)
        if ema_rate is None:
            ema_rate = self.ema_rate(self.steps + 1) if callable(self.ema_rate) else self.ema_rate
        rho = rate.advance(ema_rate, _effective_rows(values, row_weight))
        states = {}
        for name, state in self.states.items():
            residual = y - z if name == self.output_layer else None
            states[name] = self._update_layer(
                state, calls[name], gradients[name], residual, local_noise[name], sample_weight, rho
            )
        self.states = {name: replace(state, weights=self._draw_weights(state)) for name, state in states.items()}  # line 6
        self.rate, self.steps = rate, self.steps + 1
        self.network.assign({name: state.weights for name, state in self.states.items()})
        return log_likelihood

    def _backward(self, output: Tensor, gradient: Tensor, calls: Mapping[str, list[Call]]) -> dict[str, list[Tensor]]:
        """Gradients with respect to the outputs of every call."""
        named = [(name, call.z) for name, layer_calls in calls.items() for call in layer_calls]
        found = torch.autograd.grad(output, [z for _, z in named], gradient, allow_unused=True)
        gradients: dict[str, list[Tensor]] = {name: [] for name in calls}
        for (name, _), g in zip(named, found, strict=True):
            if g is None:
                raise UnsupportedLayerError(f"layer '{name}' has no effect on the module's output; freeze or remove it")
            gradients[name].append(g)
        return gradients

    def _update_layer(
        self,
        state: LayerState,
        calls: list[Call],
        gradients: list[Tensor],
        residual: Tensor | None,
        local_noise: list[Tensor],
        weight: Tensor | None,
        rho: float,
    ) -> LayerState:
        layer = state.layer
        xs = [layer.rows(call.x) for call in calls]
        gs = [layer.rows(g) for g in gradients]
        weights = [_weight_of_rows(weight, g[..., 0]) for g in gs]
        # Targets minus the outputs that were computed: what is true of the data, or the gradient. For local noise these
        # outputs are XM + E, otherwise XW.
        at_outputs = [layer.rows(residual)] if residual is not None else gs
        moments = self._moments(layer, xs, at_outputs, weights)
        gg = state.gg
        scale = None
        if residual is None:  # line 2
            gg = averaged(gg, moments.scaled_to(1.0).yy.diagonal(dim1=-2, dim2=-1), rho)
            alpha = self.step_size[:, None] if isinstance(self.step_size, Tensor) else self.step_size
            scale = gradient_scale(gg, alpha)
        # line 3
        keep_noise = self.target_noise or residual is not None
        if local_noise and keep_noise:
            steps = at_outputs if scale is None else [g * scale.to(g.dtype).unsqueeze(-2) for g in gs]
            rows = [s + layer.rows(e) for s, e in zip(steps, local_noise, strict=True)]
            moments = self._moments(layer, xs, rows, weights)
        else:
            moments = moments if scale is None else moments.with_target_scale(scale)
            if self.reparam == "weight":
                moments = relative_to_mean(moments, state.weights, state.reference, keep_noise=keep_noise)
        moments = moments.scaled_to(self.effective_size)
        xx = averaged(state.xx, moments.xx, rho)  # line 4
        if self.update == "mean":  # line 5
            posterior = mean_update(state.prior, state.posterior, state.reference, xx, moments, rho)
            targets = None
        else:
            targets, posterior = natural_update(state.prior, state.targets, state.reference, xx, moments, rho)
        posterior.scale_factor  # noqa: B018 (passes the gate now, so that a failed step changes nothing)
        return replace(state, posterior=posterior, xx=xx, gg=gg, targets=targets)

    def _moments(self, layer: LinearLayer, xs: list[Tensor], ys: list[Tensor], weights: list[Tensor | None]) -> Moments:
        """Moments of all calls' rows, in the type of the algebra."""
        batches = zip(xs, ys, weights, strict=True)
        first, *more = [Moments.of(x, y, bias=layer.has_bias, weight=w) for x, y, w in batches]
        return functools.reduce(operator.add, more, first).to(self.algebra_dtype)

    def _draw_weights(self, state: LayerState) -> Tensor:
        posterior = state.posterior
        assert posterior is not None
        if self.reparam != "weight":
            return posterior.mean
        root = posterior.noise_mode_factor() if self.noise == "mode" else posterior.sample_noise_factor((), self.generator)
        return posterior.weights_from(standard_normal(posterior.mean.shape, posterior.mean, self.generator), root)

    def _perturbation(self, kept: dict[str, list[Tensor]]) -> Callable[[str, Tensor, Tensor], Tensor] | None:
        """Local reparametrisation: z + E with E ~ N(0, xᵀRx Σ) for each row, kept for the targets."""
        if self.reparam != "local" or self.steps == 0:
            return None

        def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
            noise = local_output_noise(self.posteriors[name], x, z, self.noise, self.generator)
            kept[name].append(noise)
            return z + noise

        return perturb

    def _observation_noise_factor(self) -> Tensor | None:
        """Factor of Σ_L in a regression; the identity before the first step."""
        if self.output_layer is None or self.steps == 0:
            return None
        return self.posteriors[self.output_layer].noise_mode_factor()

    # --- results ------------------------------------------------------------------------------------------------

    @property
    def posteriors(self) -> dict[str, MNIW]:
        """The posterior of every layer, by module name."""
        found = {name: state.posterior for name, state in self.states.items() if state.posterior is not None}
        if not found:
            raise RuntimeError("there is no posterior yet: call step() first")
        return found

    def predict_chunks(
        self,
        x: Tensor,
        n_samples: int = 128,
        *,
        method: Method = "weight",
        chunk_rows: int = 4096,
        generator: torch.Generator | None = None,
    ) -> Iterator[Predictive]:
        """Predictions for consecutive chunks of rows: memory does not grow with the number of rows.

        method
            "weight": `n_samples` weight samples (of each member, if stacked), the same for all chunks; "local":
            independent noise on every layer's outputs; "closed-form": hidden layers sampled, the output layer of a
            regression integrated out (Gaussian components given the mode of Σ, Student-t's with noise="sample").
        generator
            Defaults to one with the seed of this inference's own: calls with the same arguments agree, and training is
            not affected by them.
        """
        if generator is None:
            generator = torch.Generator(device=self.generator.device)
            generator.manual_seed(self.generator.initial_seed())
        sampler = PosteriorSampler(self.network, self.posteriors, self.likelihood, self.output_layer, self.noise)
        return sampler.chunks(x, n_samples, method, chunk_rows, generator)

    def predict(
        self,
        x: Tensor,
        n_samples: int = 128,
        *,
        method: Method = "weight",
        chunk_rows: int = 4096,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """The predictive distribution of new observations at x; see `predict_chunks` for the arguments."""
        chunks = self.predict_chunks(x, n_samples, method=method, chunk_rows=chunk_rows, generator=generator)
        return concatenate(list(chunks))

    def take_members(self, index: Sequence[int]) -> LayerwiseInference:
        """An inference over some of the stacked members only, each as it stands now."""
        chosen = torch.as_tensor(index, device=self.generator.device)

        def take(value: Any) -> Any:
            return value[chosen.to(value.device)] if isinstance(value, Tensor) else value

        variance = self.prior_variance
        if isinstance(variance, Mapping):
            variance = {name: take(v) for name, v in variance.items()}
        taken = LayerwiseInference(
            take_stacked(self.network.module, index),
            self.likelihood,
            self.n_data,
            step_size=take(self.step_size),
            ema_rate=self.ema_rate,
            prior_variance=take(variance),
            noise_floor=self.noise_floor,
            output_noise_floor=self.output_noise_floor,
            effective_size=self.effective_size,
            reparam=self.reparam,
            target_noise=self.target_noise,
            noise=self.noise,
            update=self.update,
            algebra_dtype=self.algebra_dtype,
            generator=self.generator,
        )
        state = self.state_dict()
        tensors = {k: v if k == "generator" else take(self._per_member(k, v)) for k, v in state["tensors"].items()}
        same = taken.state_dict()["meta"]
        meta = state["meta"] | {"layers": same["layers"], "prior_precision": same["prior_precision"]}
        taken.load_state_dict({"meta": meta, "tensors": tensors})
        return taken

    def _per_member(self, key: str, tensor: Tensor) -> Tensor:
        """A saved tensor with members in front, also where they shared one (the Gram matrix of shared inputs)."""
        dims = 2 if key.endswith("/gg") else 3
        return tensor if tensor.dim() == dims else tensor.expand(self.network.members or 1, *tensor.shape)

    # --- keep and resume ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on exactly: averages, posteriors, weights, counters, generator."""
        tensors: dict[str, Tensor] = {"generator": self.generator.get_state()}
        for name, state in self.states.items():
            kept = {"weights": state.weights, "xx": state.xx, "gg": state.gg}
            if state.posterior is not None:
                kept |= {"mean": state.posterior.mean, "scale": state.posterior.scale}
            if state.targets is not None:
                kept |= {"xy": state.targets.xy, "yy": state.targets.yy}
            tensors |= {f"{name}/{key}": value.clone() for key, value in kept.items() if value is not None}
        meta = {
            "steps": self.steps,
            "ema_weight": self.rate.weight,
            "ema_squares": self.rate.squares,
            "output_layer": self.output_layer,
            "update": self.update,
            "effective_size": self.effective_size,
            "noise_floor": self.noise_floor,
            "output_noise_floor": self.output_noise_floor,
            "prior_precision": {name: state.prior.precision[..., 0, 0].tolist() for name, state in self.states.items()},
            "layers": {name: list(state.weights.shape) for name, state in self.states.items()},
            "repairs": {"count": dict(self.repairs.count), "largest": dict(self.repairs.largest)},
        }
        return {"meta": meta, "tensors": tensors}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of an inference with the same layers and settings."""
        meta, tensors = state_dict["meta"], state_dict["tensors"]
        mine = self.state_dict()["meta"]
        for key in ("layers", "update", "effective_size", "noise_floor", "output_noise_floor", "prior_precision"):
            if meta[key] != mine[key]:
                raise ValueError(f"the saved state has {key} {meta[key]}, this inference has {mine[key]}")
        self.repairs.count, self.repairs.largest = dict(meta["repairs"]["count"]), dict(meta["repairs"]["largest"])
        self.output_layer = meta["output_layer"]
        states = {}
        for name, state in self.states.items():
            floor = self.output_noise_floor if name == self.output_layer else self.noise_floor
            device = state.weights.device
            prior = self._prior(state.layer, floor, device)
            own = {k.removeprefix(f"{name}/"): v.to(device) for k, v in tensors.items() if k.rpartition("/")[0] == name}
            posterior, targets = None, None
            if "mean" in own:
                dof = prior.dof + self.effective_size
                posterior = replace(
                    prior, mean=own["mean"], precision=prior.precision + own["xx"], scale=own["scale"], dof=dof
                )
            if "xy" in own:
                targets = Moments(own["xx"], own["xy"], own["yy"], self.effective_size)
            states[name] = LayerState(state.layer, prior, own["weights"], posterior, own.get("xx"), own.get("gg"), targets)
        self.states = states
        self.steps, self.rate = meta["steps"], DebiasedRate(meta["ema_weight"], meta["ema_squares"])
        self.generator.set_state(tensors["generator"].cpu())
        self.network.assign({name: state.weights for name, state in states.items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file, replacing an older one in one move."""
        state = self.state_dict()
        files.write(path, "inference state", state["meta"], state["tensors"])

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file written by `save`."""
        meta, tensors = files.read(path, "inference state")
        self.load_state_dict({"meta": meta, "tensors": tensors})


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def _check_positive(name: str, value: float | Tensor) -> None:
    values = torch.as_tensor(value)
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise ValueError(f"{name} must be positive, got {value}")


def _row_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over rows, (..., n) to (...)."""
    return values.mean(-1) if weight is None else (values * weight).sum(-1) / weight.sum(-1)


def _effective_rows(values: Tensor, weight: Tensor | None) -> float:
    """How many rows of equal weight the batch (..., n) is worth, (Σw)²/Σw²; the mean over members."""
    return float(values.shape[-1] if weight is None else (weight.sum(-1).square() / weight.square().sum(-1)).mean())


def _weight_of_rows(weight: Tensor | None, rows: Tensor) -> Tensor | None:
    """Weights of rows (..., m) from those of examples (..., n), each of which may have become several rows."""
    if weight is None or weight.shape[-1] == rows.shape[-1]:
        return weight
    return weight.repeat_interleave(rows.shape[-1] // weight.shape[-1], dim=-1)
