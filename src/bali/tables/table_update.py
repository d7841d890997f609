"""Rows that come after the training: taken in by the output layers of a regression, exactly, in whatever parts they come."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali.estimators import BALIRegressor
from bali.tables.cells import Surprises
from bali.tables.errors import TableError, plural, shown
from bali.tables.table_model import TableModel

#: Standard errors by which new rows lie further from their predictions than rows that were kept aside: of chance, about one
#: time in seven hundred.
_TOO_FAR = 3.0


def check_takes_rows(model: TableModel) -> BALIRegressor:
    """Its estimator, if output layers can take in rows in closed form."""
    estimator = model.estimator
    if not isinstance(estimator, BALIRegressor) or not estimator.posterior_.is_regression:
        raise TableError(
            f"{shown(model.target.name)} is a target of {model.target.task}: only a regression with Gaussian noise takes in "
            "rows without training; fit the model again with all rows"
        )
    return estimator


def take_in(
    model: TableModel, pieces: Iterable[tuple[pd.DataFrame, NDArray[np.float64]]], forget: float, surprises: Surprises
) -> tuple[int, list[str]]:
    """The number of rows, and what is to be said of them. The model's estimator is changed in place.

    `pieces` are rows and their targets; `forget` is the share of all earlier rows that fades.
    """
    estimator, distances = check_takes_rows(model), list[NDArray[np.float64]]()
    for frame, y in pieces:
        before = model.predictive(frame, surprises)
        spread = before.variance[:, 0].sqrt().double().cpu().numpy()
        distances.append(np.abs(y - before.mean[:, 0].double().cpu().numpy()) / spread)
        features = model.encoder.transform(frame)
        estimator.partial_fit(features, y, output_only=True, forget=0.0 if len(distances) > 1 else forget)
    n_rows = sum(map(len, distances))
    return n_rows, _drift(model, np.concatenate(distances)) if n_rows else []


def _drift(model: TableModel, found: NDArray[np.float64]) -> list[str]:
    """Said where new rows are further from their predictions, in standard deviations, than those kept aside in training."""
    kept = model.record["holdout"]
    if not kept:
        return []
    known = np.abs(np.array(kept["y"]) - np.array(kept["mean"])) / np.array(kept["std"])
    if min(len(known), len(found)) < 2:
        return []
    error = math.sqrt(known.var(ddof=1) / len(known) + found.var(ddof=1) / len(found))
    if not found.mean() - known.mean() > _TOO_FAR * error:
        return []
    return [
        f"the {plural(len(found), 'row')} lie {found.mean():.2f} standard deviations from their predictions on average, "
        f"rows kept aside in training {known.mean():.2f}: what holds now may be something else; let earlier rows fade "
        "(--forget), or fit again"
    ]
