"""scikit-learn's own checks of an estimator, all of them.

They fit some two hundred small tables. The normal run uses a small mixture and few steps; the defaults take minutes and are
among the slow tests.
"""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from bali import BALIClassifier, BALIRegressor

# The checks fit tables of a few rows and of constants, about which the estimators have something to say.
pytestmark = pytest.mark.filterwarnings("ignore::bali.inference.health.HealthWarning")
SMALL: dict[str, Any] = {"n_members": 2, "max_iter": 100, "hidden_layer_sizes": (16,), "n_samples": 64}


@parametrize_with_checks([BALIRegressor(**SMALL), BALIClassifier(**SMALL)])  # type: ignore[untyped-decorator]
def test_scikit_learn_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BALIRegressor(), BALIClassifier()])  # type: ignore[untyped-decorator]
def test_scikit_learn_check_of_the_defaults(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
