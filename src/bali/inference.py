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

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bali import linalg, resume
from bali.batch_pass import Accumulated, batch_pass, unchanged_if_it_fails, update
from bali.blocks import with_blocks
from bali.distributed import Group, ProcessGroup, group_of
from bali.joint_step import report_failure, sum_over, update_together
from bali.layer import Layer
from bali.layer_update import LayerState
from bali.layers import take_stacked
from bali.likelihoods import Likelihood
from bali.mniw import MNIW
from bali.moments import DebiasedRate
from bali.network import Network
from bali.other_parameters import MakeOptimizer, OtherParameters
from bali.prediction import Method, PosteriorSampler
from bali.predictive import Predictive, concatenate
from bali.settings import Noise, PriorMean, Reparam, Settings, Sharing, StepSize, Update


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
        stacked members its own. Or a function from the step (counted from 1) to it: large steps learn fast, and small ones
        at the end leave less noise.
    ema_rate
        β: a number, or a function from the step (counted from 1) to one.
    momentum
        μ, from 0 to less than 1: after each step the mean goes on by this share of its last movement. A smaller α then
        learns as fast, with less noise. Needs update="mean".
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
    forward_dtype
        A narrower type, such as `torch.bfloat16`, for forward and backward passes of a float32 module in training
        (`torch.autocast`). Statistics are still summed in float32 and factored in `algebra_dtype`.
    max_block
        Linear layers with more inputs or outputs than this get a posterior of blocks up to this size, which are factored one
        by one; not the output layer of a regression (see `blocks.py`).
    process_group
        Processes that train together, each with rows of its own: "auto" are all that `bali.distributed.start` joined, None
        is this one alone. Every process must take the same steps.
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        n_data: int,
        *,
        step_size: StepSize | Callable[[int], StepSize] = 0.5,
        ema_rate: float | Callable[[int], float] = 0.2,
        momentum: float = 0.0,
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
        forward_dtype: torch.dtype | None = None,
        max_block: int | None = None,
        process_group: ProcessGroup = "auto",
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
            forward_dtype=forward_dtype,
            max_block=max_block,
            prior_mean=prior_mean,
            momentum=momentum,
        )
        network = Network(module, exclude, has_optimizer=optimizer is not None, only=only)
        device = next(module.parameters()).device
        if generator is None:
            generator = torch.Generator(device=device)
            generator.manual_seed(int(torch.randint(2**62, ())))
        group = group_of(process_group, device)
        if group is not None:
            group.adopt_first(network.module, generator)
        self._start(network, likelihood, settings, generator, optimizer, group)

    def _start(
        self,
        network: Network,
        likelihood: Likelihood,
        settings: Settings,
        generator: torch.Generator,
        optimizer: MakeOptimizer | None = None,
        group: Group | None = None,
    ) -> None:
        self.group = group  # of the processes that take every step together with this one
        self._accumulated: Accumulated | None = None  # since the last step
        network.layers = with_blocks(network.layers, settings.max_block)
        self.network, self.others = network, OtherParameters(network.others, optimizer)
        self.likelihood, self.settings, self.generator = likelihood, settings, generator
        self.steps = 0
        self.rate = DebiasedRate()
        self.repairs = linalg.Repairs()
        self.output_layer: str | None = None  # in a regression; found in the first forward pass
        settings.check_layer_names(list(self.network.layers))
        settings.check_forward_dtype(next(iter(self.network.layers.values())).weight.dtype)
        self.states = {name: self._initial_state(layer) for name, layer in self.network.layers.items()}

    def _initial_state(self, layer: Layer) -> LayerState:
        weights = layer.weights()
        prior = self.settings.prior(layer, is_output=False, device=weights.device, repairs=self.repairs)
        return LayerState(layer, prior, weights)

    # --- the step -----------------------------------------------------------------------------------------------

    def step(
        self,
        x: Tensor | None = None,
        y: Tensor | None = None,
        ema_rate: float | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Take in one mini-batch. Returns its mean log-likelihood under the weights used, one per member if stacked.

        `sample_weight`, (n,) or (K, n) for stacked members, counts a row that many times; 0 leaves it out of the
        statistics. If anything fails, an error is raised and everything stays what it was.

        Batches that were accumulated since the last step count as part of this one, which may be left out; after a failure
        they are forgotten. With several processes, the mini-batch is that of all of them together.
        """
        with unchanged_if_it_fails(self):
            accumulated, self._accumulated = self._accumulated, None
            try:
                if x is not None and y is not None:
                    last = batch_pass(self, x, y, sample_weight, accumulated)
                    accumulated = last if accumulated is None else accumulated + last
                if accumulated is None or (x is None) != (y is None):
                    raise ValueError("step needs x and y, or batches that were accumulated before")
                if self.group is None:
                    accumulated.totals.check()
            except Exception:
                if self.group is not None:
                    report_failure(self, self.group)
                raise
            return self._finish(accumulated, self.settings.rate_at(self.steps + 1) if ema_rate is None else ema_rate)

    def accumulate(self, x: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Take in a part of a mini-batch that is too large for one pass; `step` then makes one step of all parts.

        Returns the part's mean log-likelihood. The posterior is that of the mini-batch in one piece, up to rounding. A part
        that fails is left out.
        """
        with unchanged_if_it_fails(self):
            part = batch_pass(self, x, y, sample_weight, self._accumulated)
            part.sum_rows()
            self._accumulated = part if self._accumulated is None else self._accumulated + part
            return part.totals.mean

    def _finish(self, accumulated: Accumulated, ema_rate: float) -> Tensor:
        """Lines 2 to 6."""
        group, rate = self.group, DebiasedRate(self.rate.weight, self.rate.squares)
        totals, of_others = accumulated.totals, accumulated.of_others
        if group is not None:
            statistics, totals, of_others = sum_over(self, group, accumulated)
        rho = rate.advance(ema_rate, totals.effective_rows)
        if group is not None:
            updated = update_together(self, group, accumulated.states, statistics, rho)
        else:
            updated = update(self, accumulated, rho)
        self.others.step(of_others, float(totals.weight) if of_others else 1.0)
        if group is not None:
            group.copy_first(list(self.network.buffers().values()))
        self.states, self.rate, self.steps = updated, rate, self.steps + 1
        self.output_layer = accumulated.output_layer
        self.network.assign({name: state.weights for name, state in self.states.items()})
        return totals.mean

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
        chunk_rows: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Predictive]:
        """Predictions for consecutive chunks of rows: memory does not grow with the number of rows.

        method
            "weight": `n_samples` weight samples (of each member, if stacked), the same for all chunks; "rowwise": the
            same distribution of every row at less cost, where rows no longer share one sample of the first layer;
            "local": independent noise on every layer's outputs; "closed-form": hidden layers sampled, the output layer
            of a regression integrated out (Gaussian components given the mode of Σ, Student-t's with noise="sample").
        chunk_rows
            By default 4,096 for narrow layers and down to 2,048 for wide ones, whose outputs should fit in caches.
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
        chunk_rows: int | None = None,
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
        taken._start(network, self.likelihood, self.settings.of_members(index), self.generator, None, self.group)
        taken.load_state_dict(resume.of_members(self.state_dict(), self.network.members, index))
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on exactly: averages, posteriors, weights, counters, generator."""
        if self._accumulated is not None:
            raise RuntimeError("there are accumulated batches, which a saved state cannot hold: call step() first")
        return resume.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of an inference with the same layers and settings."""
        resume.load_state_dict(self, state_dict)
        self._accumulated = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file, replacing an older one in one move. Of several processes, the first one writes."""
        resume.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file written by `save`, by any number of processes. Of several, the first one reads."""
        resume.load(self, path)
