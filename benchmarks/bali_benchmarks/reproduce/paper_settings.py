"""The paper's hyperparameters (its appendix on experiments), one row for each data set.

What differs from the paper is named: `OUTPUT_NOISE_FLOOR`, and `scales_inputs` for images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bali_benchmarks.initial_weights import unit_variances

#: σ_u² / N_eff of every layer, and σ_init.
NOISE_FLOOR, INIT_STD = 0.01, 1.0
#: The paper has 0.01 for the output layer of a regression too. With targets of unit variance that bounds yacht's
#: log-likelihood by −1.33, and the paper reports −0.745: its own tables were not made so.
OUTPUT_NOISE_FLOOR = 1e-4
#: β is divided by this after each of these shares of the steps.
RATE_DROP, RATE_DROPS_AT = 5.0, (0.6, 0.8)


@dataclass(frozen=True)
class PaperSetting:
    """How BALI is trained on one data set."""

    name: str
    step_size: float  # α
    ema_rate: float  # β, at the start
    prior_variance: float  # σ_r²
    effective_share: float  # N_eff / N
    batch_size: int | None  # None: all rows
    n_steps: int
    hidden: tuple[int, ...]
    activation: str
    n_splits: int  # or seeds, where the split is given
    #: The paper gives the first layer the data as they are. For 784 pixels that is much worse than dividing them by
    #: √(D + 1), as all other layers do with their inputs.
    scales_inputs: bool = False
    n_samples: int = 256  # for a prediction
    max_rows: int | None = None  # a run that is only a look takes the first rows of each split
    noise_floor: float = NOISE_FLOOR
    output_noise_floor: float = OUTPUT_NOISE_FLOOR
    init_std: float = INIT_STD
    rate_drop: float = RATE_DROP
    target_noise: bool = True  # targets start from the sampled outputs

    def quick(self) -> PaperSetting:
        """Few steps on few rows: to see that everything works, not for the figures."""
        return replace(
            self,
            n_steps=20 if self.scales_inputs else 60,
            effective_share=1.0,  # a share of so few rows would be none
            n_splits=2,
            max_rows=600,
            n_samples=16 if self.scales_inputs else 32,
            hidden=tuple(min(width, 32) for width in self.hidden),
        )

    def shortened(self, share: float) -> PaperSetting:
        """The same with a share of its steps; β falls after the same shares of them."""
        return replace(self, n_steps=max(1, round(share * self.n_steps)))

    def rate_at(self, step: int) -> float:
        """β of a step, counted from 1."""
        drops = sum(step > share * self.n_steps for share in RATE_DROPS_AT)
        return self.ema_rate / self.rate_drop**drops

    def unit_variances(self, sizes: Sequence[int]) -> dict[str, float]:
        """By layer name, the variance of a layer's own weights that stands for 1 in the paper."""
        return unit_variances(sizes, first=1.0 / (sizes[0] + 1) if self.scales_inputs else 1.0)


def _regression(
    name: str, share: float, batch_size: int | None, *, rate: float = 0.2, prior: float = 40.0, steps: int = 20_000
) -> PaperSetting:
    # The paper says 20 splits for every set; 5 were published for protein, the largest one.
    width, n_splits = (100, 5) if name == "protein" else (50, 20)
    return PaperSetting(name, 0.3, rate, prior, share, batch_size, steps, (width,), "relu", n_splits)


REGRESSION = {
    s.name: s
    for s in (
        _regression("yacht", 1.0, None),
        _regression("concrete", 1.0, None),
        _regression("energy", 1.0, None),
        _regression("redwine", 1.0, 1024),
        _regression("kin8nm", 1 / 4, 1024),
        _regression("powerplant", 1 / 4, 1024),
        _regression("protein", 1 / 4, 2048, rate=0.1, prior=20.0, steps=30_000),
    )
}


def _classification(
    name: str, step_size: float, rate: float, prior: float, share: float, steps: int, *, images: bool = False
) -> PaperSetting:
    seeds = 3 if images else 5
    hidden, activation = (256, 256), "leaky_tanh"
    return PaperSetting(
        name, step_size, rate, prior, share, 2048, steps, hidden, activation, seeds, scales_inputs=images, n_samples=128
    )


CLASSIFICATION = {
    s.name: s
    for s in (
        _classification("spam", 0.1, 0.1, 10.0, 1 / 4, 20_000),
        _classification("telescope", 0.5, 0.1, 8.0, 1 / 10, 20_000),
        _classification("diabetes", 0.25, 0.05, 10.0, 1 / 100, 30_000),
        _classification("mnist", 0.25, 0.1, 10.0, 1 / 50, 30_000, images=True),
        _classification("fashion_mnist", 0.25, 0.1, 10.0, 1 / 50, 30_000, images=True),
    )
}


@dataclass(frozen=True)
class AdamSetting:
    """How MAP and MC dropout are trained on one data set; steps and batches are those of BALI."""

    learning_rate: float
    weight_decay: float = 1e-4
    dropout: float = 0.1


ADAM = {name: AdamSetting(0.002 if s.scales_inputs else 0.001) for name, s in CLASSIFICATION.items()}
