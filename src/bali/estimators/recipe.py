"""What the parameters and a table come to: all that a model is trained, predicted with and read again by.

The rules in `defaults.py` are asked here, once, when a fit starts. A fitted or saved model goes by its recipe alone, so
that it stays what it was when a rule changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from bali.estimators import defaults
from bali.predictive.likelihoods import (
    Beta,
    Categorical,
    Gamma,
    Gaussian,
    Likelihood,
    LogNormal,
    LogNormalDuration,
    MixtureOfGaussians,
    NegativeBinomial,
    Poisson,
    Weibull,
    ZeroInflatedNegativeBinomial,
)
from bali.training.stack_course import CourseRules

#: By the names that parameters and files have for them.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "categorical": Categorical,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomial,
    "log_normal": LogNormal,
    "gamma": Gamma,
    "beta": Beta,
    "mixture_of_gaussians": MixtureOfGaussians,
    "weibull": Weibull,
    "log_normal_duration": LogNormalDuration,
}
#: Names for several of which held-out rows tell the best.
CHOICES: dict[str, tuple[str, ...]] = {
    "auto": ("gaussian",),
    "counts": ("poisson", "negative_binomial", "zero_inflated_negative_binomial"),
    "durations": ("weibull", "log_normal_duration"),
}


@dataclass(frozen=True)
class Stack:
    """One candidate that was kept: how it sees rows, and its networks."""

    likelihood: str
    layer_sizes: tuple[int, ...]  # encoded inputs, hidden layers, outputs
    prior_variances: tuple[float, ...]  # of the weights of each layer
    near: int = 0  # rows that near ones are looked for among
    waves: int = 0  # of a column, instead of bins


@dataclass(frozen=True)
class Recipe:
    """See `BALIRegressor` for what the settings mean."""

    activation: str
    dtype: Literal["float32", "float64"]  # of rows and weights
    seed: int
    n_rows: float
    n_columns: int
    n_outputs: int  # columns of y, or classes
    n_members: int  # of each stack
    n_groups: int  # of rows that are held out
    held_out_share: float  # of the rows, in each group
    hidden: tuple[int, ...]
    bins: tuple[int, ...]  # of the encodings that were tried
    likelihoods: tuple[str, ...]  # that were tried
    course: CourseRules
    stacks: tuple[Stack, ...] = ()
    near_rows: bool = False  # whether they were tried

    def with_stacks(self, stacks: tuple[Stack, ...]) -> Self:
        return replace(self, stacks=stacks)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        stacks = tuple(Stack(**_with_tuples(stack)) for stack in saved["stacks"])
        return cls(**_with_tuples(saved) | {"course": CourseRules(**saved["course"]), "stacks": stacks})


def _with_tuples(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


def make_recipe(
    parameters: Mapping[str, Any],
    *,
    n_rows: float,
    n_distinct: int,
    n_columns: int,
    n_outputs: int,
    likelihoods: tuple[str, ...],
    seed: int,
) -> Recipe:
    """What an estimator's parameters say, and for what they leave open, the rules. `n_rows` counts rows by their weights."""

    def given(name: str, otherwise: Any) -> Any:
        return otherwise if parameters[name] is None else parameters[name]

    rules = defaults.course(n_distinct)
    course = replace(
        rules,
        n_steps=int(given("max_iter", rules.n_steps)),
        batch_size=int(given("batch_size", rules.batch_size)),
        step_size=float(parameters["step_size"]),
        prior_variance=float(parameters["prior_variance"]),
    )
    n_members = int(given("n_members", defaults.members(n_distinct)))
    share = float(given("validation_fraction", defaults.held_out_share(n_distinct)))
    n_groups = max(1, min(defaults.groups(n_distinct), n_members // 2, n_distinct)) if share else 1
    bins = parameters["n_bins"]
    return Recipe(
        activation=parameters["activation"],
        # Rows in float64 cost little while they are few, and make results independent of their order.
        dtype="float64" if n_distinct * n_columns <= 2**10 else "float32",
        seed=seed,
        n_rows=n_rows,
        n_columns=n_columns,
        n_outputs=n_outputs,
        n_members=n_members,
        n_groups=n_groups,
        held_out_share=share,
        hidden=tuple(
            int(width) for width in given("hidden_layer_sizes", defaults.hidden_layer_sizes(n_distinct, n_columns))
        ),
        bins=defaults.bins(n_distinct, n_columns) if bins is None else (int(bins),),
        likelihoods=likelihoods,
        course=course,
        near_rows=_tries_near_rows(parameters, n_distinct, n_columns, n_outputs, likelihoods),
    )


def _tries_near_rows(
    parameters: Mapping[str, Any], n_distinct: int, n_columns: int, n_outputs: int, likelihoods: tuple[str, ...]
) -> bool:
    asked = parameters["near_rows"]
    if asked is not None and not asked:
        return False
    known = set(likelihoods) <= {"gaussian", "categorical"}
    if asked:
        if not known:
            raise ValueError("near_rows are for numbers with Gaussian noise and for classes; leave the parameter out")
        return n_distinct > defaults.FEW_ROWS
    is_told = known and parameters["validation_fraction"] != 0  # by held-out rows, whether they serve
    has_classes = "categorical" in likelihoods
    rule = defaults.tries_near_rows(n_distinct, n_columns, n_outputs, has_classes=has_classes)
    return is_told and parameters["n_bins"] is None and rule
