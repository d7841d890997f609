"""Seeded runs give the numbers that were recorded: a change of the code that is meant to change none does not."""

from __future__ import annotations

import pytest

from support.seeded_runs import RUNS, assert_as_recorded, run_seeded


@pytest.mark.parametrize("name", RUNS)
def test_a_seeded_run_gives_the_recorded_numbers(name: str) -> None:
    assert_as_recorded(name, run_seeded(name))
