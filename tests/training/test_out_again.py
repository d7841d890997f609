"""Modules that come out of a fit are plain: saved, compiled, exported, moved as any other."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.training.fitted import Fitted
from support.networks import seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0, "epochs": 2}


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(self.embedding(x)).mean(1))
        return z


def fits() -> dict[str, tuple[nn.Module, Tensor, Tensor, Any]]:
    """Module, x, y, likelihood of each kind."""
    torch.manual_seed(0)
    g = seeded(0)
    rows, images = torch.randn(48, 3, generator=g), torch.randn(48, 1, 6, 6, generator=g)
    tokens, labels = torch.randint(7, (48, 5), generator=g), torch.randint(2, (48,), generator=g)
    mlp = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    return {
        "MLP": (mlp, rows, 50.0 + 3.0 * rows[:, 0], bali.likelihoods.Gaussian()),
        "CNN": (cnn, images, labels, bali.likelihoods.Categorical()),
        "transformer": (Transformer(), tokens, labels, bali.likelihoods.Categorical()),
    }


KINDS = ["MLP", "CNN", "transformer"]


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[Fitted, Tensor]]:
    return {
        name: (bali.fit(module, (x, y), likelihood, **QUIET), x[:6]) for name, (module, x, y, likelihood) in fits().items()
    }


def modules(fitted: Fitted) -> list[nn.Module]:
    return [fitted.module, fitted.sample(1)[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_saved(kind: str, fitted: Any, tmp_path: Path) -> None:
    fit, x = fitted[kind]
    for module in modules(fit):
        torch.save(module, tmp_path / "m.pt")
        again = torch.load(tmp_path / "m.pt", weights_only=False)
        assert torch.equal(again(x), module(x))
        fresh = copy.deepcopy(module)
        torch.save(module.state_dict(), tmp_path / "s.pt")
        fresh.load_state_dict(torch.load(tmp_path / "s.pt"))
        assert torch.equal(fresh(x), module(x))


@pytest.mark.parametrize("kind", KINDS)
def test_exported(kind: str, fitted: Any) -> None:
    fit, x = fitted[kind]
    for module in modules(fit):
        exported = torch.export.export(module, (x,))
        torch.testing.assert_close(exported.module()(x), module(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # of torch's own
@pytest.mark.parametrize("kind", KINDS)
def test_as_onnx(kind: str, fitted: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="pip install -e '.[dev]' has it")
    runtime = pytest.importorskip("onnxruntime", reason="pip install -e '.[dev]' has it")
    fit, x = fitted[kind]
    module = fit.module
    torch.onnx.export(module, (x,), tmp_path / "m.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), module(x).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: str, fitted: Any) -> None:
    fit, x = fitted[kind]
    for module in modules(fit):
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("kind", KINDS)
def test_copied_and_pickled(kind: str, fitted: Any) -> None:
    fit, x = fitted[kind]
    expected = fit.predict(x).mean
    assert torch.equal(copy.deepcopy(fit).predict(x).mean, expected)
    assert torch.equal(pickle.loads(pickle.dumps(fit)).predict(x).mean, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_moved(kind: str, fitted: Any) -> None:
    """To another type; devices go the same way."""
    fit, x = fitted[kind]
    wide = copy.deepcopy(fit).to(torch.float64)
    found = wide.predict(x, n_samples=512).mean
    assert found.dtype == torch.float64
    # Other draws: the mean of a regression has none, those of classes have a standard error.
    tolerance = 1e-4 if kind == "MLP" else 0.06
    torch.testing.assert_close(found.float(), fit.predict(x, n_samples=512).mean, rtol=tolerance, atol=tolerance)
    assert next(wide.module.parameters()).dtype == torch.float64
    plain = fit.module.to(torch.float64)
    inputs = x.double() if x.is_floating_point() else x
    torch.testing.assert_close(plain(inputs).float(), fit.module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_health(kind: str, fitted: Any) -> None:
    fit, _ = fitted[kind]
    health = fit.health()
    assert [row["layer"] for row in health.table()] == list(fit.posteriors)
    assert all(0.0 <= row["told by the data"] <= 1.0 for row in health.table())
    assert health.problems == []
    text = str(health)
    assert "ended by epochs" in text
    assert "condition number" in text
    assert "<table" in health._repr_html_()


def test_what_is_off_is_said() -> None:
    x = torch.randn(60, 3, generator=seeded(0)) * torch.tensor([1.0, 1.0, 1e5])
    torch.manual_seed(0)
    with pytest.warns(bali.HealthWarning, match="standardise"):
        fit = bali.fit(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (x, x[:, 0]), nn.MSELoss(), **QUIET)
    assert any("times as large as the median" in problem for problem in fit.health().problems)


def test_dead_units_are_no_fault_of_the_data() -> None:
    """Most inputs of a hidden layer may be all but zero."""
    x = torch.randn(120, 3, generator=seeded(0))
    torch.manual_seed(0)
    hidden = nn.Linear(3, 8)
    with torch.no_grad():
        hidden.weight[1:] *= 1e-6
        hidden.bias[1:] = 0.0
    network = nn.Sequential(hidden, nn.ReLU(), nn.Linear(8, 2))
    fitted = bali.fit(network, (x, (x[:, 0] > 0).long()), bali.likelihoods.Categorical(), epochs=0, seed=0, verbose=False)
    assert not fitted.health().problems
