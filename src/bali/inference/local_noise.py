"""Every row's outputs with noise of their own instead of sampled weights: local reparametrisation.

Under a sample W ~ MN(M, R, Σ) a row's outputs are xᵀM + √(xᵀRx) Bε with Σ = B Bᵀ and standard normal ε. Seen row by row
that is all there is to it; only the outputs of different rows are correlated, which no prediction of a row depends on.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.rows import Tokens
from bali.conjugate.sampling import standard_normal
from bali.inference.settings import Setup
from bali.inference.state import State


def local_output_noise(
    posterior: MNIW, x: Tensor | Tokens, z: Tensor, noise: str, generator: torch.Generator | None
) -> Tensor:
    """E with independent rows e ~ N(0, xᵀRx · Σ): the noise that uncertain weights induce on the outputs z."""
    root = posterior.noise_root(noise, generator)
    spread = posterior.row_variance(x.to(z.dtype)).sqrt()
    return spread[..., None] * (standard_normal(z.shape, z, generator) @ root.to(z.dtype).mT)


class LocalNoise:
    """Turns a layer's outputs z = XM into z + E while the network runs, and keeps the rows of E for the targets."""

    def __init__(self, setup: Setup, state: State, generator: torch.Generator) -> None:
        self.network, self.posteriors, self.generator = setup.network, state.posteriors, generator
        self.rows: dict[str, list[Tensor]] = {name: [] for name in setup.network.layers}

    @classmethod
    def of_batch(cls, setup: Setup, state: State, generator: torch.Generator, earlier: LocalNoise | None) -> LocalNoise:
        """For one more batch of a step. `generator` is the one that weights are drawn from, alike on all processes.

        Noise belongs to rows, so that each of several processes draws its own.
        """
        if setup.group is None:
            return cls(setup, state, generator)
        if earlier is not None:
            return cls(setup, state, earlier.generator.clone_state())
        key = [generator.initial_seed(), state.step, setup.group.rank]
        own = torch.Generator(device=generator.device)
        own.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))
        return cls(setup, state, own)

    def __call__(self, name: str, x: Tensor, z: Tensor) -> Tensor:
        layer = self.network.layers[name]
        with torch.autocast(z.device.type, enabled=False):
            own = layer.weight.dtype
            rows, at = layer.input_rows(x).to(own), layer.output_rows(z.detach()).to(own)
            noise = local_output_noise(self.posteriors[name], rows, at, "mode", self.generator).to(z.dtype)
        self.rows[name].append(noise)
        return z + layer.from_rows(noise, z)
