"""scikit-learn's own checks of an estimator, all of them, with the defaults."""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bali import BALIClassifier, BALIRegressor


# The checks fit tables of a few rows and of constants, about which the estimators have something to say.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::bali.health.HealthWarning")
@parametrize_with_checks([BALIRegressor(), BALIClassifier()])  # type: ignore[untyped-decorator]
def test_scikit_learn_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
