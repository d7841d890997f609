"""The page on training one's own network: its code runs and does what its comments say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bali.predictive import likelihoods
from support.pages import names_after

PAGE = Path(__file__).parents[2] / "docs/torch.md"
#: Their English words, as far as needed.
NUMBERS = {15: "fifteen", 16: "sixteen", 17: "seventeen", 18: "eighteen"}


@pytest.fixture(scope="module")
def after_page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with torch.random.fork_rng():
        return names_after(PAGE, tmp_path_factory.mktemp("torch-page"))


def test_the_first_fit_learns(after_page: dict[str, Any]) -> None:
    functions: list[Tensor] = after_page["functions"]
    answers, low, high = after_page["answers"], after_page["low"], after_page["high"]
    assert (low < answers).all()
    assert (answers < high).all()
    assert not torch.equal(functions[0], functions[1])
    assert after_page["best"] < 1.0


def test_positions_have_a_row_each(after_page: dict[str, Any]) -> None:
    right = after_page["maps"].argmax(-1) == after_page["labels"][:4]
    assert right.float().mean() > 0.8


def test_the_papers_algorithm_knows_where_it_has_no_data(after_page: dict[str, Any]) -> None:
    prediction = after_page["prediction"]
    assert prediction.mean.shape == (3, 1)
    assert prediction.std[2] > 2 * prediction.std[:2].max()
    assert after_page["inference"].posteriors["2"].mean.shape == (65, 64)


def test_the_number_of_likelihoods() -> None:
    base = (likelihoods.Likelihood, likelihoods.FamilyLikelihood)
    found = [getattr(likelihoods, name) for name in likelihoods.__all__]
    n = sum(isinstance(f, type) and issubclass(f, likelihoods.Likelihood) and f not in base for f in found)
    assert f"{NUMBERS[n]} likelihoods" in PAGE.read_text(encoding="utf-8")
