"""The page on likelihoods: its code runs, and its table is complete."""

from __future__ import annotations

from pathlib import Path

import torch

from bali.predictive import likelihoods
from support.pages import names_after

PAGE = Path(__file__).parents[2] / "docs/likelihoods.md"


def test_the_code_runs(tmp_path: Path) -> None:
    names = names_after(PAGE, tmp_path)
    low, high = names["low"], names["high"]
    assert isinstance(low, torch.Tensor)
    assert isinstance(high, torch.Tensor)
    assert torch.equal(low, low.round())
    assert (low < high).all()


def test_every_likelihood_is_in_the_table() -> None:
    base = (likelihoods.Likelihood, likelihoods.FamilyLikelihood)
    page = PAGE.read_text(encoding="utf-8")
    classes = [getattr(likelihoods, name) for name in likelihoods.__all__]
    for likelihood in classes:
        if isinstance(likelihood, type) and issubclass(likelihood, likelihoods.Likelihood) and likelihood not in base:
            assert f"| `{likelihood.__name__}(" in page
