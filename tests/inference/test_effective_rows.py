"""How many rows of equal weight a debiased moving average is worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bali.conjugate.averages import DebiasedRate
from support.oracles import fast
from support.tolerances import STEPS


@fast
@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 50)), min_size=1, max_size=15))
def test_effective_rows_are_those_of_the_explicit_weights(steps: list[tuple[float, int]]) -> None:
    rate = DebiasedRate()
    weights = np.zeros(0)
    for beta, rows in steps:
        rate = rate.advanced(beta, rows)
        rho = rate.newest
        weights = np.concatenate([weights * (1 - rho), np.full(rows, rho / rows)])
    assert weights.sum() == pytest.approx(1.0)
    assert rate.effective_rows == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=STEPS)


def test_constant_rate_in_the_long_run() -> None:
    """Σ β²(1−β)²ˢ = β/(2−β)."""
    rate = DebiasedRate()
    for _ in range(300):
        rate = rate.advanced(0.2, 32)
    assert rate.effective_rows == pytest.approx(32 * (2 - 0.2) / 0.2)


def test_no_rows_before_the_first_step() -> None:
    assert DebiasedRate().effective_rows == 0.0
