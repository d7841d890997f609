"""Bayesian layerwise inference over the layers of a module: what its user holds.

How a step goes is in `step.py`, and the algorithm in `step.py`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate.mniw import MNIW
from bali.files import ModelFileError
from bali.inference import checkpoints
from bali.inference.distributed import current_group
from bali.inference.health import Health, layer_health
from bali.inference.network import Network
from bali.inference.other_parameters import MakeOptimizer, OtherParameters
from bali.inference.prediction import Method, NetworkPosterior
from bali.inference.schema import SchemaError
from bali.inference.settings import Noise, Reparam, Settings, Setup, StepSize
from bali.inference.state import State
from bali.inference.step import Stepping
from bali.predictive.likelihoods import Likelihood, as_likelihood
from bali.predictive.mixtures import Predictive


class LayerwiseInference(Stepping):
    """A matrix-normal inverse-Wishart posterior for every linear map of a module, in whatever kind of layer it is.

    It is a thin face over `setup`, which stays, and `state`, a value that every step replaces.

    With several processes (`bali.distributed`), all of them must take the same steps, each with rows of its own.

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
        setup = Setup(network, likelihood, settings, OtherParameters(network.others, optimizer), group)
        self._begin(setup, generator)

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
        self._begin(replace(self.setup, settings=replace(self.setup.settings, **changes)), self.state.generator)

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

    # --- keep and resume ----------------------------------------------------------------------------------------

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
