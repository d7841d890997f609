"""Predictions by samples: the quick ways against weights drawn, written into the module and passed through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.conjugate.sampling import standard_normal
from bali.inference.network import Network
from bali.training import fit_network
from bali.training import sampled_outputs as module_under_test
from bali.training.fitted import Fitted
from bali.training.sampled_outputs import first_layers
from support.networks import seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0, "epochs": 0}


def fitted(net: nn.Module, x: Tensor) -> Fitted:
    y = torch.randint(2, (len(x),), generator=seeded(1))
    return bali.fit(net, (x, y), bali.likelihoods.Categorical(), **QUIET)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def images(n: int = 40) -> Tensor:
    return torch.randn(n, 1, 4, 4, generator=seeded(2))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))


def by_weights(model: Fitted, x: Tensor, n: int, seed: int) -> Tensor:
    """Outputs of weight samples that are written into the module one by one."""
    generator, found = seeded(seed), []
    with model.network.evaluating():
        for _ in range(n):
            for name, posterior in model.posteriors.items():
                layer = model.network.layers[name]
                layer.assign(posterior.weights_from(standard_normal(posterior.mean.shape, layer.weight, generator)))
            found.append(model.network.plain_output(x))
    return torch.stack(found)


def test_only_linear_layers_on_the_data_need_no_weights() -> None:
    assert first_layers(Network(perceptron()), torch.randn(3, 5))[0] == ["0"]
    assert first_layers(Network(convolution()), images(3))[0] == []
    scaled = nn.Sequential(nn.Tanh(), nn.Linear(5, 2))
    assert first_layers(Network(scaled), torch.randn(3, 5))[0] == []
    sequence = nn.Sequential(nn.Linear(5, 2), nn.Flatten(), nn.Linear(6, 2))
    assert first_layers(Network(sequence), torch.randn(3, 3, 5))[0] == []


def test_weights_in_chunks_give_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = fitted(convolution(), images()), images(17)
    monkeypatch.setattr(module_under_test, "_IN_CACHE", 60)  # five rows
    with model.network.evaluating():
        found = model.linked_outputs(x, 6)
    torch.testing.assert_close(found, by_weights(model, x, 6, model.seed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_block", [2048, 3])
def test_noise_of_outputs_has_the_distribution_of_weight_samples(max_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_network, "MAX_BLOCK", max_block)
    x = torch.randn(30, 5, generator=seeded(3))
    net = perceptron()
    model, n = fitted(net, x), 3_000
    assert (model.posteriors["0"].mean.dim() == 4) == (max_block == 3)
    rows = x[:4]
    with model.network.evaluating():
        ours, theirs = model.linked_outputs(rows, n), by_weights(model, rows, n, 9)
    scale = theirs.std(0)
    torch.testing.assert_close(ours.mean(0) / scale, theirs.mean(0) / scale, rtol=0.0, atol=5 * (2 / n) ** 0.5)
    torch.testing.assert_close(ours.std(0) / scale, torch.ones_like(scale), rtol=0.0, atol=5 * n**-0.5)
    correlation = [torch.corrcoef(z[:, 0].T)[0, 1] for z in (ours, theirs)]
    assert float((correlation[0] - correlation[1]).abs()) < 0.1


def test_a_row_is_predicted_the_same_in_any_company() -> None:
    x = torch.randn(50, 5, generator=seeded(4))
    model = fitted(perceptron(), x)
    torch.testing.assert_close(model.predict(x, 8).mean[7:9], model.predict(x[7:9], 8).mean, rtol=1e-5, atol=1e-6)
    assert "forward" not in vars(model.network.module.get_submodule("0"))


def test_a_file_is_not_much_larger_than_its_bases(tmp_path: Path) -> None:
    """In the module's own type: of a convolution with D inputs and E outputs, D² + E² + D E numbers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    model = fitted(net, torch.randn(30, 16, 4, 4))
    model.save(tmp_path / "m.bali")
    d, e = 145, 16
    numbers = d * d + e * e + d * e + 65**2 + 65 * 2
    assert (tmp_path / "m.bali").stat().st_size < 4.5 * numbers + 10_000
