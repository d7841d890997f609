"""From layer posteriors to a predictive distribution: three ways to integrate over the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.sampling import standard_normal
from bali.inference.inputs import check_tensor
from bali.inference.local_noise import local_output_noise
from bali.inference.network import Network
from bali.inference.settings import Noise
from bali.predictive.likelihoods import Likelihood
from bali.predictive.mixtures import Predictive, concatenate

Method = Literal["weight", "local", "closed-form"]

#: Weight samples of a prediction: more change nothing that anybody sees.
MOST_SAMPLES = 10**6
#: Draws of at most so many numbers are kept for all chunks; larger ones are drawn again for each.
_MOST_KEPT = 2**26
#: As many rows as give a layer so many outputs are quickest: more leave the processor's caches, of fewer the calls cost more
#: than the numbers. Within limits, as rows also share the cost of drawing weights and of what is kept for every row.
_OUTPUTS_AT_ONCE, _FEWEST_ROWS, _MOST_ROWS = 2**19, 2048, 4096


@dataclass(frozen=True)
class Draw:
    """Weights of the layers that are sampled, and a root of the observation noise in a regression."""

    weights: dict[str, Tensor]
    observation_root: Tensor | None


@dataclass(frozen=True)
class NetworkPosterior:
    """What predicts: a posterior for every layer of a network, whose module is as it was after each prediction."""

    network: Network
    posteriors: Mapping[str, MNIW]
    likelihood: Likelihood
    output_layer: str | None  # in a regression, the layer whose noise is the observations'
    seed: int  # of the draws, unless a generator is given: predictions with the same arguments agree

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
        """The predictive distribution of new observations at x; see `predict_chunks` for the arguments."""
        chunks = self.predict_chunks(x, n_samples, method=method, noise=noise, chunk_rows=chunk_rows, generator=generator)
        return concatenate(list(chunks))

    def predict_chunks(
        self,
        x: Tensor,
        n_samples: int = 128,
        *,
        method: Method = "weight",
        noise: Noise = "mode",
        chunk_rows: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Predictive]:
        """Predictions for consecutive chunks of rows: memory does not grow with the number of rows.

        method
            "weight": `n_samples` weight samples (of each member, if stacked), the same for all chunks; "local": independent
            noise on every layer's outputs; "closed-form": hidden layers sampled, the output layer of a regression
            integrated out (Gaussian components given the mode of Σ, Student-t's with noise="sample").
        noise
            Σ for samples of the weights is the "mode" of its posterior or itself a "sample".
        chunk_rows
            By default 4,096 for narrow layers and down to 2,048 for wide ones, whose outputs should fit in caches.
        """
        check_tensor(x, "x")
        if noise not in get_args(Noise):
            raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}; got {noise!r}")
        if generator is None:
            generator = torch.Generator(device=next(iter(self.posteriors.values())).mean.device).manual_seed(self.seed)
        return _Sampler(**vars(self), noise=noise).chunks(x, n_samples, method, chunk_rows, generator)


@dataclass(frozen=True)
class _Sampler(NetworkPosterior):
    """A prediction under way."""

    noise: Noise

    def chunks(
        self, x: Tensor, n_samples: int, method: Method, chunk_rows: int | None, generator: torch.Generator
    ) -> Iterator[Predictive]:
        chunk_rows = self.default_chunk_rows() if chunk_rows is None else chunk_rows
        if method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}; got {method!r}")
        if method == "closed-form" and self.output_layer is None:
            raise ValueError("method 'closed-form' needs a regression; use another one with class likelihoods")
        if n_samples < 1 or chunk_rows < 1:
            raise ValueError(f"n_samples and chunk_rows must be at least 1, got {n_samples} and {chunk_rows}")
        if n_samples > MOST_SAMPLES:
            raise ValueError(f"n_samples must be at most {MOST_SAMPLES:,}, got {n_samples}: more change no prediction")
        dim = -2 if self.network.members is not None else 0
        if x.shape[dim] == 0:
            raise ValueError("x has no rows")
        # A user's own autocast is for training: predictions are as exact as the module.
        as_it_is = functools.partial(torch.autocast, x.device.type, enabled=False)
        start = generator.get_state()
        kept: list[Draw] | None = None
        with as_it_is():
            sampled = self._sampled_layers(method)
            if n_samples * sum(self.posteriors[name].mean.numel() for name in sampled) <= _MOST_KEPT:
                kept = list(self._draws(n_samples, sampled, method, generator))
        for start_row in range(0, x.shape[dim], chunk_rows):
            chunk = x.narrow(dim, start_row, min(chunk_rows, x.shape[dim] - start_row))
            if kept is None:
                generator.set_state(start)  # every chunk sees the same weight samples
            draws = self._draws(n_samples, sampled, method, generator) if kept is None else kept
            with as_it_is():
                predicted = self._predict(chunk, draws, method, generator)
            yield predicted
            if kept is None and method == "local":
                start = generator.get_state()  # noise is per row: go on instead

    def default_chunk_rows(self) -> int:
        layers = self.network.layers.values()
        widest = max(layer.out_features for layer in layers) * (self.network.members or 1)
        return min(max(_OUTPUTS_AT_ONCE // widest, _FEWEST_ROWS), _MOST_ROWS)

    def _sampled_layers(self, method: Method) -> list[str]:
        """The layers whose weights are drawn; the others are at their means."""
        if method == "weight":
            return list(self.posteriors)
        return [] if method == "local" else [name for name in self.posteriors if name != self.output_layer]

    def _draws(self, n_samples: int, sampled: list[str], method: Method, generator: torch.Generator) -> Iterator[Draw]:
        for _ in range(n_samples):
            weights, observation = {}, None
            for name, posterior in self.posteriors.items():
                is_output = name == self.output_layer
                if name not in sampled and not is_output:
                    continue
                if self.noise == "sample" and method == "closed-form" and is_output:
                    # Integrated out: the Student-t's shape matrix is U / (u − D_y + 1).
                    root = posterior.scale_factor / (posterior.dof - posterior.n_outputs + 1) ** 0.5
                else:
                    root = posterior.noise_root(self.noise, generator)
                if is_output:
                    observation = root
                if name in sampled:
                    like = self.network.layers[name].weight
                    normal = standard_normal(posterior.mean.shape, like, generator)
                    weights[name] = posterior.weights_from(normal, root)
            yield Draw(weights, observation)

    def _predict(self, x: Tensor, draws: Iterable[Draw], method: Method, generator: torch.Generator) -> Predictive:
        outputs, noises, inflations = [], [], []
        with self.network.evaluating():
            perturb = self._perturbation(generator) if method == "local" else None
            if method != "weight":
                self.network.assign({name: p.mean for name, p in self.posteriors.items()})
            for draw in draws:
                self.network.assign(draw.weights)
                output, calls = self.network.forward(x, perturb)
                if self.output_layer is None:
                    outputs.append(output)
                    continue
                call = calls[self.output_layer][0]
                outputs.append(call.z)
                assert draw.observation_root is not None
                noises.append(draw.observation_root @ draw.observation_root.mT)
                if method == "closed-form":
                    variance = self.posteriors[self.output_layer].row_variance(call.x.to(call.z.dtype))
                    inflations.append((1.0 + variance).expand(call.z.shape[:-1]))
        z = self._components(outputs)
        if not bool(z.isfinite().all()):
            raise ValueError("predictions are not finite: x has NaN, or values that are too large for this network")
        if self.output_layer is None:
            return self.likelihood.predictive(z, None)
        noise = torch.stack(noises).reshape(-1, *noises[0].shape[-2:]).to(z.dtype)
        if not inflations:
            return self.likelihood.predictive(z, noise)
        inflation = torch.stack(inflations).reshape(-1, z.shape[1])
        return self.likelihood.predictive(z, noise, inflation, self._student_dof())

    def _components(self, outputs: list[Tensor]) -> Tensor:
        """(S, n, D), from S outputs of shape (n, D), or (K, n, D) with members, or with middle dimensions."""
        z = torch.stack(outputs)
        if self.network.members is not None:
            return z.flatten(0, 1)
        return z.reshape(len(outputs), -1, z.shape[-1])

    def _perturbation(self, generator: torch.Generator) -> Callable[[str, Tensor, Tensor], Tensor]:
        def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
            layer = self.network.layers[name]
            rows, at = layer.input_rows(x), layer.output_rows(z)
            return z + layer.from_rows(local_output_noise(self.posteriors[name], rows, at, self.noise, generator), z)

        return perturb

    def _student_dof(self) -> float | None:
        """Degrees of freedom of the integrated output, where Σ is integrated too."""
        if self.noise == "mode" or self.output_layer is None:
            return None
        posterior = self.posteriors[self.output_layer]
        return float(posterior.dof) - posterior.n_outputs + 1
