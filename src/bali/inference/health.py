"""Is a trained network numerically and statistically sound? One row of numbers per layer, and sentences where not.

| number                | meaning                                                                                      |
|-----------------------|----------------------------------------------------------------------------------------------|
| effective dof         | tr(R Ψxx) = D_x − tr(R R₀⁻¹): how many of a layer's D_x inputs the data decide, not the prior |
| condition number      | of R⁻¹; digits of the algebra that are lost                                                    |
| noise                 | root of the mean diagonal of the mode of Σ, in the layer's own units                           |
| jitter                | how often a matrix had to be repaired, and the largest repair, relative to its diagonal        |
| averaged rows         | how many rows of equal weight the moving averages are worth, and no more than there are        |
| log evidence          | of the averaged (pseudo-)targets, weights and noise integrated out, per observation and output |

Of stacked members it is the mean; for the condition number and the jitter, the worst.
"""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bali.conjugate.mniw import eigenvalues, ratio_trace
from bali.inference.settings import Setup
from bali.inference.state import LayerState, State

#: Beyond this a float64 solve keeps fewer than four digits.
LARGEST_CONDITION_NUMBER = 1e12
#: A layer whose weights use up this share of the observations leaves nothing to learn the noise from.
LARGEST_DOF_SHARE = 0.95
#: Noise variance of the output in units of its floor, below which the floor and not the data decides it.
SMALLEST_NOISE_TO_FLOOR = 1.1
#: Statistics may count for this many times the rows they were averaged from.
LARGEST_INFLATION = 10.0


class HealthWarning(RuntimeWarning):
    """Training ended with a posterior that should not be trusted as it is; the message says why and what helps."""


@dataclass(frozen=True)
class LayerHealth:
    name: str
    n_inputs: int  # the bias counts
    n_outputs: int
    effective_dof: float
    condition_number: float
    noise: float
    noise_floor: float
    jitter_count: int
    jitter_largest: float
    averaged_rows: float
    log_evidence: float
    effective_size: float
    has_true_targets: bool  # the output layer of a regression

    def problems(self) -> list[str]:
        """What is wrong with the layer, and what helps, a sentence each."""
        found = []
        if self.jitter_count:
            found.append(
                f"a matrix was not positive definite {_times(self.jitter_count)} and got a jitter of up to "
                f"{self.jitter_largest:.0e} of its diagonal; standardise the inputs or lower effective_size"
            )
        if self.condition_number > LARGEST_CONDITION_NUMBER:
            found.append(
                f"its precision matrix has condition number {self.condition_number:.0e}, so few digits of its weights are "
                "sound; remove inputs that repeat each other or lower prior_variance"
            )
        if self.effective_dof > LARGEST_DOF_SHARE * self.effective_size:
            found.append(
                f"its weights use {self.effective_dof:.4g} degrees of freedom for {self.effective_size:.4g} observations, "
                "so it can fit anything; use smaller hidden layers, a lower prior_variance or more data"
            )
        if self.has_true_targets and self.noise**2 < SMALLEST_NOISE_TO_FLOOR * self.noise_floor**2:
            found.append(
                f"the noise is at its floor ({self.noise:.2g}), so the width of predictions is a setting and not learnt; "
                "lower output_noise_floor if the data are that exact, or look for the target among the inputs"
            )
        if self.effective_size > LARGEST_INFLATION * self.averaged_rows:
            found.append(
                f"its statistics count for {self.effective_size:.4g} observations but average only "
                f"{self.averaged_rows:.4g} rows; lower effective_size or ema_rate, or use larger batches"
            )
        return [f"layer '{self.name}': {sentence}." for sentence in found]

    def row(self) -> dict[str, Any]:
        return {
            "layer": self.name,
            "inputs": self.n_inputs,
            "outputs": self.n_outputs,
            "effective dof": self.effective_dof,
            "condition number": self.condition_number,
            "noise": self.noise,
            "jitter count": self.jitter_count,
            "largest jitter": self.jitter_largest,
            "averaged rows": self.averaged_rows,
            "log evidence": self.log_evidence,
        }


class HealthRow(Protocol):
    def problems(self) -> list[str]: ...

    def row(self) -> dict[str, Any]: ...


class HealthTable:
    """Rows of numbers and what is off. Prints as a table, also in notebooks."""

    layers: Sequence[HealthRow]

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that is off; empty for a sound model."""
        return [sentence for layer in self.layers for sentence in layer.problems()]

    def table(self) -> list[dict[str, Any]]:
        """One dictionary per layer, as `pandas.DataFrame` takes them."""
        return [layer.row() for layer in self.layers]

    def __str__(self) -> str:
        import pandas as pd

        return "\n".join([pd.DataFrame(self.table()).to_string(index=False, float_format=format_number), *self.problems])

    def _repr_html_(self) -> str:
        import pandas as pd

        table = pd.DataFrame(self.table()).to_html(index=False, border=0, float_format=format_number)
        return table + "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.problems)

    def warn(self, stacklevel: int = 2) -> None:
        """Say as one `HealthWarning` what is off, if anything is."""
        if self.problems:
            text = "the model is trained, but: " + " ".join(self.problems)
            warnings.warn(text, HealthWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class Health(HealthTable):
    """What `layer_health` found."""

    layers: tuple[LayerHealth, ...]


def layer_health(setup: Setup, state: State) -> Health:
    """Look over every layer's posterior; see the module's table for the numbers."""
    state.posteriors  # noqa: B018 (says so where there are none yet)
    return Health(tuple(_health_of(setup, state, name, layer) for name, layer in state.layers.items()))


@torch.no_grad()
def _health_of(setup: Setup, state: State, name: str, layer: LayerState) -> LayerHealth:
    prior, posterior, size = layer.prior, layer.posterior, setup.settings.effective_size
    assert posterior is not None
    # tr(R R₀⁻¹) = ‖C⁻¹C₀‖² for R⁻¹ = C Cᵀ and R₀⁻¹ = C₀C₀ᵀ: positive terms only.
    from_prior = ratio_trace(posterior.precision, prior.precision)
    found = eigenvalues(posterior.precision)
    condition = found.amax(-1) / found.amin(-1).clamp_min(0.0)
    noise = posterior.noise_mode().diagonal(dim1=-2, dim2=-1)
    floor = prior.scale.diagonal(dim1=-2, dim2=-1) / (posterior.dof + posterior.n_outputs + 1)
    evidence = prior.log_evidence_of(posterior) / (size * posterior.n_outputs)
    repairs, repaired = setup.repairs, f"{prior.name}: "
    return LayerHealth(
        name=name,
        n_inputs=posterior.n_inputs,
        n_outputs=posterior.n_outputs,
        effective_dof=posterior.n_inputs - float(from_prior.mean()),
        condition_number=float(condition.max()),
        noise=math.sqrt(float(noise.mean())),
        noise_floor=math.sqrt(float(floor.mean())),
        jitter_count=sum(count for key, count in repairs.count.items() if key.startswith(repaired)),
        jitter_largest=max((jitter for key, jitter in repairs.largest.items() if key.startswith(repaired)), default=0.0),
        averaged_rows=min(state.rate.effective_rows, float(setup.settings.n_data)),
        log_evidence=float(evidence.mean()),
        effective_size=size,
        has_true_targets=name == state.output_layer,
    )


def format_number(value: Any) -> str:
    """Four digits; text and whole numbers as they are."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
