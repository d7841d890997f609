"""The page on likelihoods: its code runs, and its table is complete."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from bali.predictive import likelihoods

PAGE = (Path(__file__).parents[2] / "docs/likelihoods.md").read_text(encoding="utf-8")


def test_the_code_runs() -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)):
        exec(compile(block, f"docs/likelihoods.md block {number}", "exec"), names)
    low, high = names["low"], names["high"]
    assert isinstance(low, torch.Tensor)
    assert isinstance(high, torch.Tensor)
    assert torch.equal(low, low.round())
    assert (low < high).all()


def test_every_likelihood_is_in_the_table() -> None:
    base = (likelihoods.Likelihood, likelihoods.FamilyLikelihood)
    classes = [getattr(likelihoods, name) for name in likelihoods.__all__]
    for likelihood in classes:
        if isinstance(likelihood, type) and issubclass(likelihood, likelihoods.Likelihood) and likelihood not in base:
            assert f"| `{likelihood.__name__}(" in PAGE
