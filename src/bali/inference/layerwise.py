"""Bayesian layerwise inference: the paper's Algorithm 1 over the layers of a module.

A step does, for each layer (the code cites these lines):

  1. outputs z and gradients g = ∇_z log p(y | x, W)            forward and backward pass
  2. Ψgg ← average of g²,  D = α / √Ψgg                         scale of the gradients
  3. targets Y = Z + G D, as moments of (X, Y − XM)             `targets.py`
  4. Ψxx ← average of N_eff/B · XᵀX,  R⁻¹ = R₀⁻¹ + Ψxx
  5. M, U                                                       `updates.py`
  6. Σ = U / (u₀ + N_eff + D_y + 1),  W ~ MN(M, R, Σ)

Averages are debiased (`DebiasedRate`), so "average" means Ψ/b of the paper. Line 1 is in `passes.py`, the
others are in `layer_update.py`, and `step.py` puts them together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate.mniw import MNIW
from bali.files import ModelFileError
from bali.inference import checkpoints, members
from bali.inference.distributed import current_group
from bali.inference.health import Health, layer_health
from bali.inference.joint_step import report_failure
from bali.inference.network import Network
from bali.inference.other_parameters import MakeOptimizer, OtherParameters
from bali.inference.passes import Accumulated, batch_pass
from bali.inference.prediction import Method, NetworkPosterior
from bali.inference.schema import SchemaError
from bali.inference.settings import Noise, Reparam, Settings, StepSize, check_positive
from bali.inference.setup import Setup
from bali.inference.state import State
from bali.inference.step import next_state
from bali.layers.stacks import take_stacked
from bali.predictive.likelihoods import Likelihood, as_likelihood
from bali.predictive.mixtures import Predictive


class LayerwiseInference:
    """A matrix-normal inverse-Wishart posterior for every linear map of a module, in whatever kind of layer it is.

    It is a thin face over `setup`, which stays, and `state`, a value that every step replaces.

    Parameters
    ----------
    module
        Any `nn.Module` whose trainable layers are of the kinds in docs/layers.md: linear, convolutional, recurrent,
        attention, embedding (or `StackedLinear`: K networks at once). Their parameters at construction are the weights of
        the first step; after each step they hold the current weight sample, or the mean where `reparam` is "local" or
        "none". What is frozen (`requires_grad_(False)`) stays as it is.
    likelihood
        One of `bali.likelihoods` (see docs/likelihoods.md), such as `Gaussian()` or `Categorical()`, or a loss of torch.
    n_data
        Number of training examples.
    step_size
        α: how far targets move, in units of each output's root-mean-square gradient; a (K,) tensor gives each of K
        stacked members its own.
    ema_rate
        β: the rate of the moving averages.
    prior_variance
        Variance of the prior on the module's own weights, a number or a number per layer name (or (K,) tensors). By
        default 10 / (D_in + 1) for each layer, and 10 for embeddings, whose rows have a single one.
    noise_floor, output_noise_floor
        σ_u²/N_eff, so that U₀ = noise_floor · N_eff · I. The second, by default 1e-4, is for the output layer of a
        regression, whose noise is that of the data.
    effective_size
        N_eff: how many observations the averaged statistics stand for; `n_data` by default.
    reparam
        "weight": one weight sample a step; "local": independent noise on the outputs of each row; "none": the mean.
    target_noise
        Targets start from the sampled outputs, as in the paper, or (False) from the outputs of the mean.
    optimizer, exclude
        A function from a list of parameters to a torch optimizer, such as `lambda p: torch.optim.Adam(p, lr=1e-3)`, for
        trainable parameters that are in no such layer or in a module named in `exclude`: they have no posterior.

    With several processes (`bali.distributed`), all of them must take the same steps, each with rows of its own.
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood | type[Likelihood] | nn.Module,
        n_data: int,
        *,
        step_size: StepSize = 0.5,
        ema_rate: float = 0.2,
        prior_variance: float | Tensor | Mapping[str, float | Tensor] | None = None,
        noise_floor: float = 0.01,
        output_noise_floor: float = 1e-4,
        effective_size: float | None = None,
        reparam: Reparam = "weight",
        target_noise: bool = True,
        optimizer: MakeOptimizer | None = None,
        exclude: Collection[str] = (),
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
        )
        likelihood = as_likelihood(likelihood)
        true_targets = likelihood.has_true_targets
        network = Network(module, exclude, has_optimizer=optimizer is not None, has_true_targets=true_targets)
        device = next(module.parameters()).device
        if generator is None:
            generator = torch.Generator(device=device)
            generator.manual_seed(int(torch.randint(2**62, ())))
        group = current_group(device)
        if group is not None:
            group.adopt_first(network.module, generator)
        self._start(Setup(network, likelihood, settings, OtherParameters(network.others, optimizer), group), generator)

    def _start(self, setup: Setup, generator: torch.Generator) -> None:
        self.setup = setup
        self.state = State(setup.initial_layers(), generator)
        self._accumulated: Accumulated | None = None  # since the last step

    # --- before the first step ----------------------------------------------------------------------------------

    def center_prior_on_weights(self) -> None:
        """Put the prior's mean M₀ at the module's present weights, as for a pretrained network; it is zero otherwise."""
        self._prepare(prior_about_weights=True)

    def use_input_moments(self, input_moments: Tensor) -> None:
        """With what `bali.input_moments` gives for all the data, the first layer's XᵀX is exact instead of an average over
        mini-batches, and is factored once for the whole run."""
        self._prepare(input_moments=input_moments)

    def _prepare(self, **changes: Any) -> None:
        if self.state.step:
            raise RuntimeError("this has to be said before the first step")
        self._start(replace(self.setup, settings=replace(self.setup.settings, **changes)), self.state.generator)

    # --- the step -----------------------------------------------------------------------------------------------

    def step(
        self,
        x: Tensor | None = None,
        y: Tensor | None = None,
        ema_rate: float | None = None,
        sample_weight: Tensor | None = None,
        *,
        step_size: StepSize | None = None,
        momentum: float = 0.0,
    ) -> Tensor:
        """Take in one mini-batch. Returns its mean log-likelihood under the weights used, one per member if stacked.

        `sample_weight`, (n,) or (K, n) for stacked members, counts a row that many times; 0 leaves it out of the
        statistics. `step_size` and `ema_rate` may differ from step to step: large steps learn fast, and small ones at the
        end leave less noise. With `momentum` μ, from 0 to less than 1, the mean goes on by this share of its last movement.
        If anything fails, an error is raised and everything stays what it was.

        Batches that were accumulated since the last step count as part of this one, which may be left out; after a failure
        they are forgotten. With several processes, the mini-batch is that of all of them together.
        """
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be at least 0 and less than 1, got {momentum}")
        settings = self.setup.settings
        if step_size is not None:
            check_positive("step_size", step_size)
        with self.setup.network.restoring_buffers():
            accumulated, self._accumulated = self._accumulated, None
            try:
                if x is not None and y is not None:
                    last = batch_pass(self.setup, self.state, x, y, sample_weight, accumulated)
                    accumulated = last if accumulated is None else accumulated + last
                if accumulated is None or (x is None) != (y is None):
                    raise ValueError("step needs x and y, or batches that were accumulated before")
                if self.setup.group is None:
                    accumulated.totals.check()
            except Exception:
                if self.setup.group is not None:
                    report_failure(self.setup, self.setup.group)
                raise
            self.state, log_likelihood = next_state(
                self.setup,
                accumulated,
                settings.step_size if step_size is None else step_size,
                settings.ema_rate if ema_rate is None else ema_rate,
                momentum,
            )
        self.assign()
        return log_likelihood

    def accumulate(self, x: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Take in a part of a mini-batch that is too large for one pass; `step` then makes one step of all parts.

        Returns the part's mean log-likelihood. The posterior is that of the mini-batch in one piece, up to rounding. A part
        that fails is left out.
        """
        with self.setup.network.restoring_buffers():
            part = batch_pass(self.setup, self.state, x, y, sample_weight, self._accumulated)
            part.sum_rows()
            self._accumulated = part if self._accumulated is None else self._accumulated + part
            return part.totals.mean

    def assign(self) -> None:
        """Write the state's weights into the module."""
        self.setup.network.assign({name: layer.weights for name, layer in self.state.layers.items()})

    # --- results ------------------------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        return self.setup.network.module

    @property
    def posteriors(self) -> dict[str, MNIW]:
        """The posterior of every layer, by module name."""
        return self.state.posteriors

    def posterior(self) -> NetworkPosterior:
        """What predicts: the posterior of the whole network as it is now."""
        return self.posterior_of(self.state)

    def posterior_of(self, state: State) -> NetworkPosterior:
        """The posterior of the network in another state of this inference."""
        seed = state.generator.initial_seed()
        return NetworkPosterior(self.setup.network, state.posteriors, self.setup.likelihood, state.output_layer, seed)

    def predict(
        self,
        x: Tensor,
        n_samples: int = 128,
        *,
        method: Method = "weight",
        noise: Noise = "mode",
        chunk_rows: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """The predictive distribution of new observations at x; see `NetworkPosterior.predict_chunks` for the arguments.

        For very many rows, `posterior().predict_chunks(x)` gives it in chunks, and memory does not grow with their number.
        """
        return self.posterior().predict(x, n_samples, method=method, noise=noise, chunk_rows=chunk_rows, generator=generator)

    def health(self) -> Health:
        """Degrees of freedom, condition, noise, jitter and evidence of each layer; and what is off, if anything."""
        return layer_health(self.setup, self.state)

    # --- members, keep and resume -------------------------------------------------------------------------------

    def take_members(self, index: Sequence[int]) -> LayerwiseInference:
        """An inference over some of the stacked members only, each as it stands now."""
        setup, n_members = self.setup, self.setup.network.members
        if n_members is None:
            raise ValueError("only stacked networks have members; see bali.stack")
        taken = LayerwiseInference.__new__(LayerwiseInference)
        network = Network(take_stacked(setup.network.module, index))
        settings = setup.settings.of_members(index)
        taken._start(replace(setup, network=network, settings=settings), self.state.generator)
        taken.state = members.take_members(self.state, n_members, index)
        taken.assign()
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on exactly: averages, posteriors, weights, counters, generator."""
        if self._accumulated is not None:
            raise RuntimeError("there are accumulated batches, which a saved state cannot hold: call step() first")
        return checkpoints.state_dict(self.setup, self.state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of an inference with the same layers and settings."""
        self.state = checkpoints.load_state_dict(self.setup, self.state, state_dict)
        self._accumulated = None
        self.assign()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file, replacing an older one in one move. Of several processes, the first one writes."""
        checkpoints.save(self.setup.group, path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file written by `save`, by any number of processes. Of several, the first one reads.

        A damaged file is a `ModelFileError`, one of other layers or settings a `ValueError`; nothing changes then.
        """
        saved = checkpoints.load(self.setup.group, path)
        try:
            self.load_state_dict(saved)
        except SchemaError as error:
            raise ModelFileError(f"{os.fspath(path)!r} is damaged ({error})") from error
