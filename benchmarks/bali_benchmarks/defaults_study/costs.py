"""What scaling a hyperparameter costs: differences to the same method as it is, on the same split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bali_benchmarks.defaults_study.cases import FACTORS, SETS, Line
from bali_benchmarks.defaults_study.sensitivity_fits import METHODS
from bali_benchmarks.reproduce.summary import Figure, figure

#: Nats of test log-likelihood that a factor of three may cost on average over the sets.
BAR = 0.05


@dataclass(frozen=True)
class ChangeCost:
    """Of one hyperparameter of one method times one factor; a negative cost is a gain."""

    hyperparameter: str
    factor: float
    nats: Mapping[str, float]  # by set, mean over splits
    rmse: Mapping[str, float]  # likewise, as a share of the RMSE of the method as it is
    diverged: int  # runs without a score, which are in no mean

    @property
    def mean(self) -> Figure | None:
        """Over sets, each of which counts the same."""
        return figure(list(self.nats.values()))

    @property
    def mean_rmse(self) -> Figure | None:
        return figure(list(self.rmse.values()))

    @property
    def worst_set(self) -> str | None:
        return max(self.nats, key=lambda name: self.nats[name], default=None)

    @property
    def is_within_bar(self) -> bool | None:
        """None where nothing was run."""
        if self.diverged:
            return False
        return None if self.mean is None else self.mean.mean <= BAR


def of_method(lines: Sequence[Line], method: str) -> list[Line]:
    return [line for line in lines if line["method"] == method]


def costs(lines: Sequence[Line], method: str) -> list[ChangeCost]:
    """Every hyperparameter with every factor, in the order of the table of methods."""
    own = of_method(lines, method)
    as_is = {(line["set"], line["split"]): line for line in own if line["hyperparameter"] is None and not line["diverged"]}
    return [_cost(own, as_is, h, factor) for h in METHODS[method].hyperparameters for factor in FACTORS]


def _cost(own: Sequence[Line], as_is: Mapping[tuple[str, int], Line], hyperparameter: str, factor: float) -> ChangeCost:
    changed = [line for line in own if line["hyperparameter"] == hyperparameter and line["factor"] == factor]
    nats, rmse = defaultdict(list), defaultdict(list)
    for line in changed:
        other = as_is.get((line["set"], line["split"]))
        if other is not None and not line["diverged"]:
            nats[line["set"]].append(other["log_likelihood"] - line["log_likelihood"])
            rmse[line["set"]].append(line["rmse"] / other["rmse"] - 1.0)
    diverged = sum(line["diverged"] for line in changed)
    return ChangeCost(hyperparameter, factor, _means(nats), _means(rmse), diverged)


def _means(by_set: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: float(np.mean(by_set[name])) for name in SETS if name in by_set}
