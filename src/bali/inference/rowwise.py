"""The input layer under many weight samples, for the price of one.

Under a sample W ~ MN(M, R, Σ) a row's outputs are xᵀM + √(xᵀRx) Bε with Σ = B Bᵀ and standard normal ε. Seen row by row
that is all there is to it; only the outputs of different rows are correlated, which no prediction of a row depends on.
So XM and xᵀRx are computed once, and one bank of noise Bε serves all samples: sample s gives row i the entry i + shift_s,
with a shift of its own. A row never sees an entry twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.sampling import standard_normal
from bali.layers.layer import Layer


class RowNoise:
    """Stands in for the input layer, whose weights are at their mean, on the rows x."""

    def __init__(
        self,
        layer: Layer,
        posterior: MNIW,
        x: Tensor,
        n_samples: int,
        noise: str,
        generator: torch.Generator,
    ) -> None:
        self.layer, self.posterior, self.noise, self.generator = layer, posterior, noise, generator
        self.mean = layer.module(x)
        variance = posterior.row_variance(layer.input_rows(x).to(self.mean.dtype))
        self.spread = variance.sqrt().expand(*layer.output_rows(self.mean).shape[:-1])[..., None]
        *lead, n, d = layer.output_rows(self.mean).shape
        length = max(n, n_samples)
        bank = standard_normal((*lead, length, d), self.mean, generator)
        if noise == "mode":  # one Σ for all samples
            bank = bank @ posterior.noise_mode_factor().to(bank.dtype).mT
        self.bank = torch.cat([bank, bank[..., :n, :]], dim=-2)
        self.shifts = torch.randperm(length, generator=generator, device=generator.device)[:n_samples].tolist()

    @contextmanager
    def of_sample(self, number: int) -> Iterator[None]:
        """The layer answers with its outputs under a sample; afterwards it computes again."""
        rows = self.layer.output_rows(self.mean)
        noise = self.bank.narrow(-2, self.shifts[number], rows.shape[-2])
        if self.noise == "sample":
            noise = noise @ self.posterior.noise_root("sample", self.generator).to(noise.dtype).mT
        output = torch.addcmul(rows, self.spread, noise).reshape(self.mean.shape)
        module = self.layer.module
        vars(module)["forward"] = lambda _x: output
        try:
            yield
        finally:
            del vars(module)["forward"]
