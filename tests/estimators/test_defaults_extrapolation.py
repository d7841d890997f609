"""The defaults fit a rough function of one variable, and know where they have not seen it."""

from __future__ import annotations

import numpy as np

from bali import BALIRegressor
from bali_benchmarks.datasets import sines_trend


def test_defaults_fit_the_sines_and_are_unsure_outside() -> None:
    data = sines_trend()
    x = np.asarray(data.x_train, dtype=float)
    y = np.asarray(data.y_train, dtype=float)
    model = BALIRegressor(random_state=0).fit(x, y)
    mean, inside = model.predict(x, return_std=True)
    _, outside = model.predict([[x.min() - 0.5], [x.max() + 0.5]], return_std=True)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 0.05  # the noise is 0.02
    assert outside.min() > 10 * np.median(inside)
