"""Calls that nobody should make say what is wrong with them; those that the campaign of faults found, and their like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bali

X, Y = torch.randn(20, 3), torch.randn(20, 1)
ODD = {"nothing": None, "an array": np.zeros((20, 3)), "lists": X.tolist(), "text": "x", "a number": 3.0}


@pytest.mark.parametrize("odd", ODD)
def test_layerwise_inference_takes_tensors(odd: str) -> None:
    inference = bali.LayerwiseInference(nn.Linear(3, 1), bali.likelihoods.Gaussian(), len(X))
    inference.step(X, Y)
    before = inference.state_dict()["tensors"]
    for call in (
        lambda: inference.accumulate(ODD[odd], Y),  # type: ignore[arg-type]
        lambda: inference.accumulate(X, ODD[odd]),  # type: ignore[arg-type]
        lambda: inference.predict(ODD[odd]),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="must be a tensor, not"):
            call()
    after = inference.state_dict()["tensors"]
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("module", [None, "x", nn.Linear, [nn.Linear(3, 1)]])
def test_fit_takes_a_module(module: Any) -> None:
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, not"):
        bali.fit(module, (X, Y), bali.likelihoods.Gaussian())


@pytest.mark.parametrize("module", [nn.Identity(), nn.Sequential(nn.Flatten(), nn.ReLU())])
def test_fit_takes_a_module_with_parameters(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="has no parameters to learn"):
        bali.fit(module, (X, Y), bali.likelihoods.Gaussian())


@pytest.mark.parametrize("data", [(3.0, Y), (X, 3.0), (torch.tensor(3.0), torch.tensor(3.0))])
def test_a_number_is_no_data(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        bali.fit(nn.Linear(3, 1), data, bali.likelihoods.Gaussian(), epochs=1, verbose=False)


@pytest.mark.parametrize(("name", "least"), [("members", 1), ("epochs", 0), ("batch_size", 1)])
@pytest.mark.parametrize("value", [-1, 1.5, "x", float("nan"), [], float("inf")])
def test_counts_are_whole_numbers(name: str, least: int, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least {least}, got"):
        bali.fit(nn.Linear(3, 1), (X, Y), bali.likelihoods.Gaussian(), verbose=False, **{name: value})
