"""What the parameters and a table come to: all that a model is built, trained, predicted with and read again by.

The rules in `defaults.py` are asked here, once, when a fit starts. A fitted or saved model goes by its recipe alone, so
that it stays what it was when a rule changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch

from bali.estimators import defaults
from bali.estimators.mlp import draw_initial_weights, stacked_mlp, unit_variances
from bali.inference import distributed
from bali.inference.layerwise import LayerwiseInference
from bali.inference.settings import Reparam
from bali.predictive.likelihoods import Categorical, Gaussian, Likelihood
from bali.training.plan import Plan

LIKELIHOODS: dict[str, type[Likelihood]] = {"gaussian": Gaussian, "categorical": Categorical}


class TableSize(NamedTuple):
    """What the rules look at."""

    n_rows: float  # counted as often as their weights say
    n_distinct: int
    n_columns: int
    n_outputs: int
    classes: bool


@dataclass(frozen=True)
class Recipe:
    """See `BALIRegressor` for what the settings mean."""

    likelihood: Literal["gaussian", "categorical"]
    layer_sizes: tuple[int, ...]  # inputs, hidden layers, outputs
    activation: str
    dtype: Literal["float32", "float64"]  # of rows and weights
    seed: int
    n_rows: float
    n_members: int  # of each candidate
    # Of each candidate, from the strongest prior to the weakest; variances are in units of `unit_variances`.
    prior_variances: tuple[float, ...]
    initial_variances: tuple[float, ...]
    linear: tuple[bool, ...]  # without activations
    # Of each layer.
    unit_variances: tuple[float, ...]
    prior_widening: tuple[float, ...]  # how many times wider the prior is in predictions than in training
    step_size: float
    stream_rate: float  # β of `partial_fit`
    noise_floor: float
    output_noise_floor: float
    effective_size: float
    reparam: Reparam
    target_noise: bool
    shares_held_out_rows: bool
    plan: Plan

    def __post_init__(self) -> None:
        n_layers, n_candidates = len(self.layer_sizes) - 1, len(self.prior_variances)
        if n_layers != len(self.unit_variances) or n_layers != len(self.prior_widening):
            raise ValueError(f"a recipe of {n_layers} layers needs as many unit variances and widenings")
        if n_candidates != len(self.initial_variances) or n_candidates != len(self.linear):
            raise ValueError(f"a recipe of {n_candidates} candidates needs as many initial variances and kinds")

    @property
    def stack_size(self) -> int:
        """Members of all candidates together."""
        return self.n_members * len(self.prior_variances)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(str(2 * i) for i in range(len(self.layer_sizes) - 1))

    def of_candidates(self, chosen: Sequence[int]) -> Self:
        """For the candidates that were kept."""
        return replace(
            self,
            prior_variances=tuple(self.prior_variances[c] for c in chosen),
            initial_variances=tuple(self.initial_variances[c] for c in chosen),
            linear=tuple(self.linear[c] for c in chosen),
        )

    def trained_like(self, other: Self) -> Self:
        """The same model, trained further by another's plan."""
        return replace(self, plan=other.plan, shares_held_out_rows=other.shares_held_out_rows)

    def inference(self, device: torch.device) -> LayerwiseInference:
        """Before its first step."""
        linear = np.repeat(self.linear, self.n_members).tolist()
        module = stacked_mlp(len(linear), self.layer_sizes, self.activation, linear)
        dtype = getattr(torch, self.dtype)
        module.to(device, dtype)
        unit = dict(zip(self.layer_names, self.unit_variances, strict=True))
        variance, initial = (
            torch.as_tensor(np.repeat(values, self.n_members), dtype=dtype, device=device)
            for values in (self.prior_variances, self.initial_variances)
        )
        generator = torch.Generator(device=device).manual_seed(self.seed)
        draw_initial_weights(module, unit, generator, initial)
        with distributed.using(None):  # data are those of this process
            return LayerwiseInference(
                module,
                LIKELIHOODS[self.likelihood](),
                max(round(self.n_rows), 1),
                step_size=self.step_size,
                ema_rate=self.stream_rate,
                prior_variance={name: variance * v for name, v in unit.items()},
                noise_floor=self.noise_floor,
                output_noise_floor=self.output_noise_floor,
                effective_size=self.effective_size,
                reparam=self.reparam,
                target_noise=self.target_noise,
                generator=generator,
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        plan = _with_tuples(saved["plan"])
        return cls(**_with_tuples(saved) | {"plan": Plan(**plan)})


def _with_tuples(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


def make_recipe(parameters: Mapping[str, Any], size: TableSize, seed: int, *, validated: bool = True) -> Recipe:
    """What an estimator's parameters say, and for what they leave open, the rules.

    Where nothing will be `validated`, no candidate can be chosen: it is the weakest, whatever the size of a first batch.
    """
    table, classes = (size.n_rows, size.n_columns), size.classes

    def given(name: str, otherwise: Any) -> Any:
        return otherwise if parameters[name] is None else parameters[name]

    hidden = given("hidden_layer_sizes", defaults.hidden_layer_sizes(*table))
    sizes = (size.n_columns, *(int(width) for width in hidden), size.n_outputs)
    unit = unit_variances(sizes, defaults.first_variance(*table, classes=classes))
    candidates = _candidates(parameters["prior_variance"], size)[None if validated else -1 :]
    widening, first_only = (rule(*table, classes=classes) for rule in (defaults.prior_widening, defaults.like_images))
    return Recipe(
        likelihood="categorical" if classes else "gaussian",
        layer_sizes=sizes,
        activation=parameters["activation"],
        # Rows in float64 cost little while they are few, and make results independent of their order.
        dtype="float64" if size.n_distinct * size.n_columns <= 2**10 else "float32",
        seed=seed,
        n_rows=size.n_rows,
        n_members=int(given("n_members", defaults.members(*table, classes=classes))),
        prior_variances=tuple(c.variance for c in candidates),
        initial_variances=tuple(defaults.initial_variance(c.variance) for c in candidates),
        linear=tuple(c.linear for c in candidates),
        unit_variances=tuple(unit.values()),
        prior_widening=(widening, *[1.0 if first_only else widening] * (len(unit) - 1)),
        step_size=float(parameters["step_size"]),
        stream_rate=float(given("ema_rate", defaults.STREAM_RATE)),
        noise_floor=float(parameters["noise_floor"]),
        output_noise_floor=float(parameters["output_noise_floor"]),
        effective_size=float(given("effective_size", defaults.effective_size(size.n_rows, classes=classes))),
        reparam=parameters["reparam"],
        target_noise=bool(parameters["target_noise"]),
        shares_held_out_rows=classes and defaults.shares_held_out_rows(size.n_distinct),
        plan=_plan(parameters, size),
    )


def _candidates(variance: float | Sequence[float] | None, size: TableSize) -> list[defaults.Candidate]:
    """From the strongest prior to the weakest."""
    if variance is None:
        return list(defaults.candidates(size.n_rows, size.n_columns, classes=size.classes))
    return [defaults.Candidate(float(v)) for v in sorted(np.atleast_1d(np.asarray(variance, dtype=float)))]


def _plan(parameters: Mapping[str, Any], size: TableSize) -> Plan:
    batch_size = int(parameters["batch_size"])
    plan = defaults.plan(size.n_rows, size.n_columns, batch_size, classes=size.classes, n_distinct=size.n_distinct)
    given = {"max_steps": parameters["max_iter"], "patience": parameters["n_iter_no_change"]}
    changes: dict[str, Any] = {name: int(value) for name, value in given.items() if value is not None}
    if parameters["ema_rate"] is not None:
        changes["ema_rate"] = float(parameters["ema_rate"])
    return replace(plan, **changes)
