"""From layer posteriors to a predictive distribution: three ways to integrate over the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bali.likelihoods import Likelihood
from bali.mniw import MNIW
from bali.network import Network
from bali.predictive import Predictive
from bali.sampling import standard_normal
from bali.targets import local_output_noise

Method = Literal["weight", "local", "closed-form"]


@dataclass(frozen=True)
class PosteriorSampler:
    network: Network
    posteriors: Mapping[str, MNIW]
    likelihood: Likelihood
    output_layer: str | None  # in a regression, the layer whose noise is the observations'
    noise: Literal["mode", "sample"]

    def chunks(
        self, x: Tensor, n_samples: int, method: Method, chunk_rows: int, generator: torch.Generator
    ) -> Iterator[Predictive]:
        if method not in ("weight", "local", "closed-form"):
            raise ValueError(f"method must be weight, local or closed-form; got {method!r}")
        if method == "closed-form" and self.output_layer is None:
            raise ValueError("method 'closed-form' needs a regression; use 'weight' or 'local' with class likelihoods")
        if n_samples < 1 or chunk_rows < 1:
            raise ValueError(f"n_samples and chunk_rows must be at least 1, got {n_samples} and {chunk_rows}")
        dim = -2 if self.network.members is not None else 0
        if x.shape[dim] == 0:
            raise ValueError("x has no rows")
        start = generator.get_state()
        for start_row in range(0, x.shape[dim], chunk_rows):
            generator.set_state(start)  # every chunk sees the same weight samples
            chunk = x.narrow(dim, start_row, min(chunk_rows, x.shape[dim] - start_row))
            yield self._predict(chunk, n_samples, method, generator)
            if method == "local":
                start = generator.get_state()  # noise is per row: go on instead

    def _predict(self, x: Tensor, n_samples: int, method: Method, generator: torch.Generator) -> Predictive:
        outputs, noises, inflations = [], [], []
        with self.network.evaluating():
            perturb = self._perturbation(generator) if method == "local" else None
            if method != "weight":
                self.network.assign({name: p.mean for name, p in self.posteriors.items()})
            for _ in range(n_samples):
                roots = self._draw(method, generator)
                output, calls = self.network.forward(x, perturb)
                if self.output_layer is None:
                    outputs.append(output)
                    continue
                call = calls[self.output_layer][0]
                outputs.append(call.z)
                noises.append(roots @ roots.mT)
                if method == "closed-form":
                    posterior = self.posteriors[self.output_layer].to(call.z.dtype)
                    inflations.append((1.0 + posterior.row_variance(call.x)).expand(call.z.shape[:-1]))
        z = self._components(outputs)
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

    def _draw(self, method: Method, generator: torch.Generator) -> Tensor:
        """Put new weights in the module where the method wants them; return a root of the observation noise."""
        observation = torch.empty(0)
        for name, posterior in self.posteriors.items():
            is_output = name == self.output_layer
            if self.noise == "sample" and method == "closed-form" and is_output:
                # Integrated out: the Student-t's shape matrix is U / (u − D_y + 1).
                root = posterior.scale_factor / (posterior.dof - posterior.n_outputs + 1) ** 0.5
            else:
                root = posterior.noise_root(self.noise, generator)
            if is_output:
                observation = root
            if method == "weight" or (method == "closed-form" and not is_output):
                normal = standard_normal(posterior.mean.shape, posterior.mean, generator)
                self.network.layers[name].assign(posterior.weights_from(normal, root))
        return observation

    def _perturbation(self, generator: torch.Generator) -> Callable[[str, Tensor, Tensor], Tensor]:
        def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
            return z + local_output_noise(self.posteriors[name], x, z, self.noise, generator)

        return perturb

    def _student_dof(self) -> float | None:
        """Degrees of freedom of the integrated output, where Σ is integrated too."""
        if self.noise == "mode" or self.output_layer is None:
            return None
        posterior = self.posteriors[self.output_layer]
        return float(posterior.dof) - posterior.n_outputs + 1
