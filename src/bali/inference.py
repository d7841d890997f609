"""Bayesian layerwise inference: the paper's Algorithm 1 over the layers of a module.

A step does, for each layer (the code cites these lines):

  1. outputs z and gradients g = ∇_z log p(y | x, W)            forward and backward pass
  2. Ψgg ← average of g²,  D = α / √Ψgg                         scale of the gradients
  3. targets Y = Z + G D, as moments of (X, Y − XM)             `targets.py`
  4. Ψxx ← average of N_eff/B · XᵀX,  R⁻¹ = R₀⁻¹ + Ψxx
  5. M, U                                                       `updates.py`
  6. Σ = U / (u₀ + N_eff + D_y + 1),  W ~ MN(M, R, Σ)

Averages are debiased (`DebiasedRate`), so "average" means Ψ/b of the paper. Lines 2 to 5 are in `layer_update.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bali import files, linalg, resume
from bali.first_pass import first_states
from bali.layer import Layer
from bali.layer_update import LayerState, update_layer
from bali.layers import take_stacked
from bali.likelihoods import Likelihood
from bali.mniw import MNIW
from bali.moments import DebiasedRate
from bali.network import Network
from bali.other_parameters import MakeOptimizer, OtherParameters
from bali.prediction import Method, PosteriorSampler
from bali.predictive import Predictive, concatenate
from bali.rows import effective_rows, layer_batch, row_mean, weight_of_rows
from bali.sampling import standard_normal
from bali.settings import Noise, PriorMean, Reparam, Settings, Sharing, Update
from bali.targets import local_output_noise


class LayerwiseInference:
    """A matrix-normal inverse-Wishart posterior for every linear map of a module, in whatever kind of layer it is.

    Parameters
    ----------
    module
        Any `nn.Module` whose trainable layers are of the kinds in docs/layers.md: linear, convolutional, recurrent,
        attention, embedding (or `StackedLinear`: K networks at once). Their parameters at construction are the weights of
        the first step; after each step they hold the current weight sample, or the mean where `reparam` is "local" or
        "none".
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
        default 10 / (D_in + 1) for each layer, and 10 for embeddings, whose rows have a single one.
    prior_mean
        M₀ is "zero", or the module's "weights" at construction, as for a pretrained network.
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
        Type of averages and factorisations. Rows are processed in the module's own type.
    input_moments
        What `bali.input_moments` gives for all the data: the first layer's XᵀX is then exact instead of an average over
        mini-batches, and is factored once for the whole run. Needs update="mean".
    noise_every
        After the first ten steps, U of a layer is brought up to date, and factored anew, only every so many steps: it
        moves slowly, and costs a product of all gradients. Layers whose targets carry the sampling noise
        (`target_noise`, and the output layer of a regression) do so at every step. Needs update="mean".
    sharing
        Of weights used at several positions of an example: "expand", every position is a row, or "reduce", every example
        is (see `rows.py`); for all layers or by layer name.
    optimizer, exclude
        A function from a list of parameters to a torch optimizer, such as `lambda p: torch.optim.Adam(p, lr=1e-3)`, for
        trainable parameters that are in no such layer or in a module named in `exclude`: they have no posterior.
    only
        Names of modules: everything outside of them stays as it is, as if it were frozen.
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
        prior_mean: PriorMean = "zero",
        noise_floor: float = 0.01,
        output_noise_floor: float = 1e-4,
        effective_size: float | None = None,
        reparam: Reparam = "weight",
        target_noise: bool = True,
        noise: Noise = "mode",
        update: Update = "mean",
        algebra_dtype: torch.dtype = torch.float64,
        input_moments: Tensor | None = None,
        noise_every: int = 1,
        sharing: Sharing | Mapping[str, Sharing] = "expand",
        optimizer: MakeOptimizer | None = None,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = Settings(
            n_data=n_data,
            step_size=step_size,
            ema_rate=ema_rate,
            prior_variance=prior_variance,
            noise_floor=noise_floor,
            output_noise_floor=output_noise_floor,
            effective_size=float(n_data if effective_size is None else effective_size),
            reparam=reparam,
            target_noise=target_noise,
            noise=noise,
            update=update,
            algebra_dtype=algebra_dtype,
            noise_every=noise_every,
            input_moments=input_moments,
            sharing=sharing,
            prior_mean=prior_mean,
        )
        if generator is None:
            generator = torch.Generator(device=next(module.parameters()).device)
            generator.manual_seed(int(torch.randint(2**62, ())))
        network = Network(module, exclude, has_optimizer=optimizer is not None, only=only)
        self._start(network, likelihood, settings, generator, optimizer)

    def _start(
        self,
        network: Network,
        likelihood: Likelihood,
        settings: Settings,
        generator: torch.Generator,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        self.network, self.others = network, OtherParameters(network.others, optimizer)
        self.likelihood, self.settings, self.generator = likelihood, settings, generator
        self.steps = 0
        self.rate = DebiasedRate()
        self.repairs = linalg.Repairs()
        self.output_layer: str | None = None  # in a regression; found in the first forward pass
        settings.check_layer_names(list(self.network.layers))
        self.states = {name: self._initial_state(layer) for name, layer in self.network.layers.items()}

    def _initial_state(self, layer: Layer) -> LayerState:
        weights = layer.weights()
        prior = self.settings.prior(layer, is_output=False, device=weights.device, repairs=self.repairs)
        return LayerState(layer, prior, weights)

    # --- the step -----------------------------------------------------------------------------------------------

    def step(self, x: Tensor, y: Tensor, ema_rate: float | None = None, sample_weight: Tensor | None = None) -> Tensor:
        """Take in one mini-batch. Returns its mean log-likelihood under the weights used, one per member if stacked.

        `sample_weight`, (n,) or (K, n) for stacked members, counts a row that many times; 0 leaves it out of the
        statistics. If anything fails, an error is raised and everything stays what it was.
        """
        if len(y) != len(x) and self.network.members is None:
            raise ValueError(f"x has {len(x)} rows and y has {len(y)}")
        if sample_weight is not None:
            sample_weight = sample_weight.to(next(iter(self.states.values())).weights.dtype)
            if not bool((sample_weight >= 0).all()) or not bool((sample_weight.sum(-1) > 0).all()):
                raise ValueError("sample_weight must not be negative, and must be positive for some row (of each member)")
        generator_state = self.generator.get_state()
        ema_rate = self.settings.rate_at(self.steps + 1) if ema_rate is None else ema_rate
        try:
            with self.network.restoring_buffers():
                return self._step(x, y, ema_rate, sample_weight)
        except BaseException:
            self.generator.set_state(generator_state)
            raise

    def _step(self, x: Tensor, y: Tensor, ema_rate: float, sample_weight: Tensor | None) -> Tensor:
        local_noise: dict[str, list[Tensor]] = {name: [] for name in self.network.layers}
        with torch.enable_grad():
            output, calls = self.network.forward(x, self._perturbation(local_noise))
        z = output.detach()
        states, output_layer = self.states, self.output_layer
        if self.steps == 0:
            states, output_layer = first_states(states, self.settings, self.likelihood, x, z, calls, self.repairs)
        if output_layer is not None and z.shape != calls[output_layer][0].z.shape:
            z = z.reshape(calls[output_layer][0].z.shape)  # a final squeeze is undone
        y = self.likelihood.targets(y, z)
        values, output_gradient = self.likelihood.evaluate(z, y, self._observation_noise_factor())
        if self.network.members is None and values.dim() > 1:
            values = values.reshape(-1)  # middle dimensions are rows
        row_weight = None if sample_weight is None else weight_of_rows(sample_weight, values)
        log_likelihood = row_mean(values, row_weight)
        if not math.isfinite(log_likelihood.sum().item()):
            raise linalg.NumericalError(
                f"the log-likelihood is not finite at step {self.steps + 1}. Look for NaN or extreme values in x and y, "
                "standardise them, or lower step_size."
            )
        gradients, of_others = self.network.backward(output, output_gradient, calls, sample_weight)  # line 1
        root = None if sample_weight is None else sample_weight.sqrt()

        rate = DebiasedRate(self.rate.weight, self.rate.squares)
        rho = rate.advance(ema_rate, effective_rows(values, row_weight))
        moves_noise = self.settings.moves_noise_at(self.steps + 1)
        updated = {}
        for name, state in states.items():
            residual = self.network.times(y - z, root) if name == output_layer else None
            sharing = self.settings.sharing_of(state.layer)
            batch = layer_batch(
                state.layer, calls[name], gradients[name], residual, local_noise[name], root, len(x), sharing
            )
            updated[name] = update_layer(state, batch, self.settings, rho, moves_noise=moves_noise)  # lines 2 to 5
        for state in updated.values():
            state.weights = self._draw_weights(state)  # line 6
        self.others.step(of_others, values.numel() if row_weight is None else float(row_weight.sum()))
        self.states, self.rate, self.steps, self.output_layer = updated, rate, self.steps + 1, output_layer
        self.network.assign({name: state.weights for name, state in self.states.items()})
        return log_likelihood

    def _draw_weights(self, state: LayerState) -> Tensor:
        posterior = state.posterior
        assert posterior is not None
        if self.settings.reparam != "weight":
            return posterior.mean.to(state.weights.dtype)
        root = posterior.noise_root(self.settings.noise, self.generator)
        return posterior.weights_from(standard_normal(posterior.mean.shape, state.weights, self.generator), root)

    def _perturbation(self, kept: dict[str, list[Tensor]]) -> Callable[[str, Tensor, Tensor], Tensor] | None:
        """Local reparametrisation: z + E with E ~ N(0, xᵀRx Σ) for each row, kept for the targets."""
        if self.settings.reparam != "local" or self.steps == 0:
            return None

        def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
            layer = self.network.layers[name]
            rows, at = layer.input_rows(x), layer.output_rows(z.detach())
            noise = local_output_noise(self.posteriors[name], rows, at, self.settings.noise, self.generator)
            kept[name].append(noise)
            return z + layer.from_rows(noise, z)

        return perturb

    def _observation_noise_factor(self) -> Tensor | None:
        """Factor of Σ_L in a regression; the identity before the first step."""
        if self.output_layer is None or self.steps == 0:
            return None
        posterior = self.states[self.output_layer].posterior
        assert posterior is not None
        return posterior.noise_mode_factor()

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
            "weight": `n_samples` weight samples (of each member, if stacked), the same for all chunks; "rowwise": the
            same distribution of every row at less cost, where rows no longer share one sample of the first layer;
            "local": independent noise on every layer's outputs; "closed-form": hidden layers sampled, the output layer
            of a regression integrated out (Gaussian components given the mode of Σ, Student-t's with noise="sample").
        generator
            Defaults to one with the seed of this inference's own: calls with the same arguments agree, and training is
            not affected by them.
        """
        if generator is None:
            generator = torch.Generator(device=self.generator.device)
            generator.manual_seed(self.generator.initial_seed())
        sampler = PosteriorSampler(self.network, self.posteriors, self.likelihood, self.output_layer, self.settings.noise)
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

    # --- members, keep and resume -------------------------------------------------------------------------------

    def take_members(self, index: Sequence[int]) -> LayerwiseInference:
        """An inference over some of the stacked members only, each as it stands now; it shares the generator."""
        if self.network.members is None:
            raise ValueError("only stacked networks have members; see bali.stack")
        taken = LayerwiseInference.__new__(LayerwiseInference)
        network = Network(take_stacked(self.network.module, index))
        taken._start(network, self.likelihood, self.settings.of_members(index), self.generator)
        taken.load_state_dict(resume.of_members(self.state_dict(), self.network.members, index))
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on exactly: averages, posteriors, weights, counters, generator."""
        return resume.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of an inference with the same layers and settings."""
        resume.load_state_dict(self, state_dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file, replacing an older one in one move."""
        state = self.state_dict()
        files.write(path, "inference state", state["meta"], state["tensors"])

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file written by `save`."""
        meta, tensors = files.read(path, "inference state")
        self.load_state_dict({"meta": meta, "tensors": tensors})
