"""Frozen bodies: found where they can be told, run once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import bali
from bali.inference.frozen import frozen_body
from bali.inference.network import Network
from support.networks import seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0}


class Counted(nn.Module):
    """Two layers whose calls are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.second(torch.tanh(self.first(x)))
        return z


class Headed(nn.Module):
    def __init__(self, d_out: int = 2) -> None:
        super().__init__()
        self.body, self.hidden, self.head = Counted(), nn.Linear(8, 8), nn.Linear(8, d_out)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(torch.tanh(self.hidden(self.body(x))))
        return z


class Skipping(nn.Module):
    """An early output is used at the end, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        early = self.a(x)
        z: Tensor = self.head(self.b(torch.relu(early))) + early[:, :2]
        return z


class Scaled(nn.Module):
    """A trainable number in front of the frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.body, self.head = nn.Parameter(torch.ones(1)), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(self.scale * x))
        return z


def data(n: int = 80) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 3, generator=seeded(0))
    return x, (x[:, 0] > 0).long()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of examples that `Counted` sees from now on."""
    seen: list[int] = []
    forward = Counted.forward

    def counted(self: Counted, x: Tensor) -> Tensor:
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Counted, "forward", counted)
    return seen


def test_a_frozen_body_runs_once_for_training_and_once_for_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, (x, y) = Headed(), data()
    seen = counting(monkeypatch)
    fitted = bali.fit(net, (x, y), bali.likelihoods.Categorical(), only=["hidden", "head"], epochs=30, **QUIET)
    few = 130  # trials and looks; the 8 held-out examples run once for all widths
    assert sum(seen) < 80 + few
    seen.clear()
    predictive = fitted.predict(x, n_samples=32)
    assert sum(seen) < 80 + 12
    for place in ("fit_network", "fitted"):
        monkeypatch.setattr(f"bali.training.{place}.frozen_body", lambda *_: None)
    plain = bali.fit(net, (x, y), bali.likelihoods.Categorical(), only=["hidden", "head"], epochs=30, **QUIET)
    torch.testing.assert_close(plain.predict(x, n_samples=32).mean, predictive.mean)


def test_features_give_what_the_module_gives() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)), data()[0]
    network = Network(net, only=["4"])
    body = frozen_body(network, x[:4])
    assert body is not None
    assert (body.last, set(body.before)) == ("2", {"0"})
    expected = net(x).detach()
    with body.standing(body.features(x)):
        assert torch.equal(net(torch.full_like(x, 7.0)).detach(), expected)
    assert torch.equal(net(x).detach(), expected)


def test_nothing_is_kept_that_the_output_does_not_follow_from() -> None:
    torch.manual_seed(0)
    body = frozen_body(Network(Skipping(), only=["head"]), data()[0][:4])
    assert body is not None
    assert (body.last, body.before) == ("b", {})  # the first layer runs on
    assert frozen_body(Network(Skipping()), data()[0][:4]) is None
    scaled = Scaled()
    scaled.body.requires_grad_(False)
    assert frozen_body(Network(scaled, has_optimizer=True), data()[0][:4]) is None
    dropping = nn.Sequential(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 8)), nn.Linear(8, 2))
    dropping[0].requires_grad_(False)
    assert frozen_body(Network(dropping), data()[0][:4]) is None
    norms = nn.Sequential(nn.Linear(3, 8).requires_grad_(False), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 2))
    assert frozen_body(Network(norms), data()[0][:4]) is None


def test_random_augmentation_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()

    class Noisy(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return x[i] + 0.1 * torch.randn(3), y[i]

    seen = counting(monkeypatch)
    bali.fit(Headed(), Noisy(), bali.likelihoods.Categorical(), only=["head"], epochs=20, batch_size=36, **QUIET)
    assert sum(seen) > 20 * 72
