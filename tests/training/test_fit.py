"""`bali.fit`: what users hand in, what comes out, and that it learns."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bali
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training import course, fit_checkpoints
from bali.training.rules import Rules
from support.networks import seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0}


def regression(n: int = 200) -> tuple[Tensor, Tensor]:
    g = seeded(0)
    x = torch.rand(n, 2, generator=g) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.1 * torch.randn(n, generator=g)


def classes(n: int = 300) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=seeded(1))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def mlp(d_in: int = 2, d_out: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d_in, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, d_out))


@pytest.fixture(scope="module")
def fitted_regression() -> Any:
    return bali.fit(mlp(), regression(), bali.likelihoods.Gaussian(), **QUIET)


@pytest.fixture(scope="module")
def fitted_classes() -> Any:
    return bali.fit(mlp(2, 2), classes(), bali.likelihoods.Categorical(), **QUIET)


def test_it_learns_a_regression(fitted_regression: Any) -> None:
    x, y = regression(400)
    predictive = fitted_regression.predict(x[200:])
    assert isinstance(predictive, RegressionPredictive)
    assert float((predictive.mean[:, 0] - y[200:]).square().mean().sqrt()) < 0.2
    low, high = predictive.interval(0.9)
    inside = ((low[:, 0] <= y[200:]) & (y[200:] <= high[:, 0])).float().mean()
    assert 0.8 < float(inside) <= 1.0


def test_it_learns_classes(fitted_classes: Any) -> None:
    x, y = classes(600)
    predictive = fitted_classes.predict(x[300:])
    assert isinstance(predictive, ClassPredictive)
    assert float((predictive.probabilities.argmax(-1) == y[300:]).float().mean()) > 0.9


@pytest.mark.parametrize(("shift", "scale"), [(100.0, 1.0), (0.0, 1e-3), (-5e4, 1e3)])
def test_targets_need_not_be_standardised(shift: float, scale: float, fitted_regression: Any) -> None:
    x, y = regression()
    moved = bali.fit(mlp(), (x, shift + scale * y), bali.likelihoods.Gaussian(), **QUIET)
    expected = shift + scale * fitted_regression.predict(x).mean
    torch.testing.assert_close(moved.predict(x).mean, expected, rtol=1e-3, atol=0.05 * scale)
    # Targets are rounded in another place, so that training takes another way: widths agree as a whole, not row by row.
    for rows in (x, 3 * x):
        found, expected = (f.predict(rows).std.mean() for f in (moved, fitted_regression))
        torch.testing.assert_close(found, scale * expected, rtol=0.35, atol=0.0)
    plain = moved.module(x).detach()  # answers in the targets' units
    assert float((plain[:, 0] - (shift + scale * y)).abs().mean()) < 0.3 * scale


def test_the_users_module_stays_as_it_is() -> None:
    module = mlp(2, 2)
    before = copy.deepcopy(module.state_dict())
    bali.fit(module, classes(60), bali.likelihoods.Categorical, epochs=2, **QUIET)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("kind", ["arrays", "dataset", "loader", "tensor dataset"])
def test_all_kinds_of_data_give_the_same(kind: str) -> None:
    x, y = classes(80)

    class Pairs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return x[i], y[i]

    data: Any = {
        "arrays": (x.numpy().astype(np.float64), y.numpy()),
        "dataset": Pairs(),
        "loader": DataLoader(Pairs(), batch_size=32),
        "tensor dataset": TensorDataset(x, y),
    }[kind]
    found, expected = (
        bali.fit(mlp(2, 2), d, bali.likelihoods.Categorical(), epochs=3, batch_size=32, **QUIET) for d in (data, (x, y))
    )
    torch.testing.assert_close(found.predict(x).mean, expected.predict(x).mean, rtol=1e-4, atol=1e-5)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(2, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(first) + self.b(second)))


@pytest.mark.parametrize("as_dict", [False, True])
def test_several_inputs(as_dict: bool) -> None:
    torch.manual_seed(0)
    x, y = classes(80)
    more = torch.randn(80, 3)
    inputs: Any = {"second": more, "first": x} if as_dict else (x, more)
    fitted = bali.fit(TwoInputs(), (inputs, y), bali.likelihoods.Categorical(), epochs=3, **QUIET)
    assert fitted.predict(inputs).mean.shape == (80, 2)


@pytest.mark.parametrize("second", [True, False], ids=["classes second", "classes last"])
def test_classes_at_every_position(second: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 1, 4, 4)
    y = (x[:, 0] > 0).long()
    net: nn.Module = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    if not second:
        net = PerToken()
        x = x.reshape(30, 16, 1)
        y = y.reshape(30, 16)
    fitted = bali.fit(net, (x, y), bali.likelihoods.Categorical(), epochs=90, **QUIET)
    predictive = fitted.predict(x)
    assert isinstance(predictive, ClassPredictive)
    assert predictive.probabilities.shape == (30 * 16, 2)
    assert float((predictive.probabilities.argmax(-1) == y.reshape(-1)).float().mean()) > 0.9


class PerToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(1, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(x)))


def test_many_observations_an_example_are_learnt_as_fast_as_one() -> None:
    """The bound on a step is one by observation (docs/decisions/0033-bound-by-observation.md)."""
    x = torch.randn(96, 1, 8, 8, generator=seeded(0))
    y = (x[:, 0] + x[:, 0].roll(1, -1) > 0).long()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    quick: dict[str, Any] = {"epochs": 20, "seed": 0, "verbose": False}
    by_example = Rules(kl_bound=Rules().kl_bound / 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bali.HealthWarning)  # the slow one is far from done
        fast, slow = (bali.fit(network, (x, y), nn.CrossEntropyLoss(), rules=r, **quick) for r in (Rules(), by_example))
    assert fast.history.scores[0][0][1] < 0.25 < 0.35 < slow.history.scores[0][0][1]


def test_norms_and_their_statistics() -> None:
    torch.manual_seed(0)
    x, y = classes(200)
    net = nn.Sequential(
        nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 2)
    )
    fitted = bali.fit(net, (x, y), bali.likelihoods.Categorical(), **QUIET)
    assert float((fitted.predict(x).mean.argmax(-1) == y).float().mean()) > 0.85
    assert fitted.module.get_submodule("1").running_mean is not None


def test_the_same_seed_gives_the_same_and_another_one_another() -> None:
    x, y = classes(80)
    a, b, c = (
        bali.fit(mlp(2, 2), (x, y), bali.likelihoods.Categorical(), epochs=2, seed=s, verbose=False) for s in (1, 1, 2)
    )
    assert torch.equal(a.predict(x).mean, b.predict(x).mean)
    assert not torch.equal(a.predict(x).mean, c.predict(x).mean)


def test_members_are_mixed() -> None:
    x, y = classes(80)
    fitted = bali.fit(mlp(2, 2), (x, y), bali.likelihoods.Categorical(), members=3, epochs=3, **QUIET)
    predictive = fitted.predict(x, n_samples=12)
    assert predictive.n_components == 12
    means = [member.posteriors["0"].mean for member in fitted.members]
    assert not torch.allclose(means[0], means[1], atol=1e-2)
    assert len(fitted.sample(4)) == 4


def test_a_resumed_fit_is_the_same_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = classes(100)
    net = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))

    def fit(path: Path | None) -> Any:
        torch.manual_seed(5)
        options: dict[str, Any] = {"epochs": 60, "batch_size": 32, "checkpoint": path}
        return bali.fit(net, (x, y), bali.likelihoods.Categorical(), **options, **QUIET)

    whole = fit(None)
    save, saved = fit_checkpoints.save, []

    def stop_after_three(*arguments: Any) -> None:
        save(*arguments)
        saved.append(1)
        if len(saved) == 3:
            raise RuntimeError("the power went off")

    monkeypatch.setattr(fit_checkpoints, "save", stop_after_three)
    with pytest.raises(RuntimeError, match="power"):
        fit(tmp_path / "c.bali")
    monkeypatch.setattr(fit_checkpoints, "save", save)
    resumed = fit(tmp_path / "c.bali")
    assert resumed.history.scores == whole.history.scores
    assert torch.equal(resumed.predict(x).mean, whole.predict(x).mean)
    with pytest.raises(ValueError, match="another fit"):
        bali.fit(net, (x[:50], y[:50]), bali.likelihoods.Categorical(), checkpoint=tmp_path / "c.bali", **QUIET)


def test_a_checkpoint_of_a_regression_is_gone_on_from(tmp_path: Path) -> None:
    whole, again = (
        bali.fit(mlp(), regression(60), bali.likelihoods.Gaussian(), epochs=120, checkpoint=tmp_path / "c.bali", **QUIET)
        for _ in range(2)
    )
    assert again.history.scores == whole.history.scores


def test_an_interrupted_fit_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = classes(100)
    calls = []
    score = course._score

    def interrupted(job: Any, at: Any) -> bool:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(job, at)

    monkeypatch.setattr(course, "_score", interrupted)
    fitted = bali.fit(mlp(2, 2), (x, y), bali.likelihoods.Categorical(), **QUIET)
    assert fitted.history.outcomes == ["interrupted"]
    assert len(fitted.history.scores[0]) == 3


def test_an_interruption_before_the_first_score_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(course, "one_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bali.fit(mlp(2, 2), classes(60), bali.likelihoods.Categorical(), **QUIET)


def test_a_posterior_around_trained_weights_keeps_them_as_its_mean() -> None:
    x, y = regression()
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        (net(x)[:, 0] - 7.0 - y).square().mean().backward()
        optimizer.step()
    fitted = bali.fit(net, (x, y + 7.0), bali.likelihoods.Gaussian(), epochs=0, **QUIET)
    torch.testing.assert_close(fitted.module(x), net(x))
    near, far = (fitted.predict(at).epistemic.mean() for at in (x, 10 * x))
    assert float(far) > 3 * float(near) > 0.0
    last = bali.fit(net, (x, y + 7.0), bali.likelihoods.Gaussian(), only=["4"], epochs=0, **QUIET)
    assert list(last.members[0].posteriors) == ["4"]


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 2, "only": ["3"]}], ids=["around", "last layer"])
def test_batch_norms_of_a_pretrained_network_stay_as_they_are(options: dict[str, Any]) -> None:
    x, y = classes(100)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    for _ in range(20):
        net(x)
    fitted = bali.fit(net, (x + 1.0, y), bali.likelihoods.Categorical(), **options, **QUIET)
    found, expected = (m.get_submodule("1").running_mean for m in (fitted.module, net))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_a_pretrained_regression_goes_on_in_the_units_of_the_targets() -> None:
    x, y = regression()
    options: dict[str, Any] = QUIET | {"epochs": 50}
    pretrained = bali.fit(mlp(), (x, 100.0 + 5.0 * y), bali.likelihoods.Gaussian(), **options).module
    changed = 100.0 + 5.0 * (y + 0.5 * x[:, 1])
    before = float((pretrained(x).detach()[:, 0] - changed).square().mean().sqrt())
    fitted = bali.fit(pretrained, (x, changed), bali.likelihoods.Gaussian(), only=["2", "4"], **options)
    assert float((fitted.predict(x).mean[:, 0] - changed).square().mean().sqrt()) < 0.5 * before
    assert float((fitted.module(x).detach()[:, 0] - changed).square().mean().sqrt()) < 0.5 * before
    adapted = bali.lora(copy.deepcopy(pretrained), ["2"], rank=2)
    fitted = bali.fit(adapted, (x, changed), bali.likelihoods.Gaussian(), **options)
    assert float((fitted.predict(x).mean[:, 0] - changed).square().mean().sqrt()) < 0.8 * before


def test_a_new_last_layer_on_a_frozen_body() -> None:
    x, y = regression()
    fitted = bali.fit(mlp(), (x, 100.0 + 5.0 * y), bali.likelihoods.Gaussian(), only=["4"], epochs=50, **QUIET)
    assert float((fitted.predict(x).mean[:, 0] - 100.0 - 5.0 * y).square().mean().sqrt()) < 3.0


def test_only_some_modules_are_trained() -> None:
    x, y = classes(100)
    net = mlp(2, 2)
    fitted = bali.fit(net, (x, y), bali.likelihoods.Categorical(), only=["4"], epochs=5, **QUIET)
    kept = fitted.module.state_dict()
    assert torch.equal(kept["0.weight"], net.state_dict()["0.weight"])
    assert not torch.equal(kept["4.weight"], net.state_dict()["4.weight"])


def test_predictions_can_be_differentiated(fitted_regression: Any) -> None:
    x = torch.zeros(3, 2, requires_grad=True)
    fitted_regression.predict(x, n_samples=4).mean.sum().backward()
    assert x.grad is not None
    at = torch.zeros(3, 2)
    step = torch.zeros(3, 2)
    step[:, 0] = 1e-2
    up, down = (fitted_regression.predict(at + s * step, n_samples=4).mean.sum() for s in (1, -1))
    torch.testing.assert_close(x.grad[:, 0].sum(), (up - down) / 2e-2, rtol=2e-2, atol=1e-3)


def test_prediction_in_inference_mode(fitted_classes: Any) -> None:
    x = classes(10)[0]
    with torch.inference_mode():
        inside = fitted_classes.predict(x).mean
    assert torch.equal(inside, fitted_classes.predict(x).mean)


def test_plain_modules_come_out(fitted_classes: Any, tmp_path: Path) -> None:
    x = classes(10)[0]
    module, samples = fitted_classes.module, fitted_classes.sample(3)
    assert not torch.equal(samples[0](x), samples[1](x))
    torch.save(module, tmp_path / "m.pt")
    again = torch.load(tmp_path / "m.pt", weights_only=False)
    assert torch.equal(again(x), module(x))
    exported = torch.export.export(module, (x,))
    torch.testing.assert_close(exported.module()(x), module(x))


def test_it_can_be_pickled_and_copied(fitted_classes: Any) -> None:
    x = classes(10)[0]
    expected = fitted_classes.predict(x).mean
    assert torch.equal(pickle.loads(pickle.dumps(fitted_classes)).predict(x).mean, expected)
    assert torch.equal(copy.deepcopy(fitted_classes).predict(x).mean, expected)


def test_it_prints_itself(fitted_classes: Any) -> None:
    text = repr(fitted_classes)
    assert text.startswith("Fitted(Categorical, 1 member, 3 layers with 722 weights")
    assert "held-out" in text


@pytest.mark.parametrize("name", ["classes", "regression"])
def test_files(name: str, fitted_classes: Any, fitted_regression: Any, tmp_path: Path) -> None:
    fitted, x = {"classes": (fitted_classes, classes(10)[0]), "regression": (fitted_regression, regression(10)[0])}[name]
    fitted.save(tmp_path / "f.bali")
    again = bali.load(tmp_path / "f.bali", module=mlp(2, 2 if name == "classes" else 1))
    assert torch.equal(again.predict(x).mean, fitted.predict(x).mean)
    assert torch.equal(again.predict(x).log_prob(torch.zeros(10).long()), fitted.predict(x).log_prob(torch.zeros(10).long()))
    with pytest.raises(bali.ModelFileError, match="layer '0' has weights of shape"):
        bali.load(tmp_path / "f.bali", module=mlp(3, 2 if name == "classes" else 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (nn.Sequential(mlp(2, 2), nn.Softmax(-1)), (x, y)), "remove it"),
        (lambda x, y: (mlp(2, 2), (x / 0.0 * 0.0, y)), "NaN or infinite values, first in rows"),
        (lambda x, y: (mlp(2, 2), (x, y[:-1])), "x has 60 rows and y has 59"),
        (lambda x, y: (mlp(2, 2), [x]), "data must be a pair"),
        (lambda x, y: (mlp(2, 2), (x, y.float())), "integer class indices"),
    ],
)
def test_bad_input_says_what_to_do(change: Any, message: str) -> None:
    module, data = change(*classes(60))
    with pytest.raises((ValueError, TypeError), match=message):
        bali.fit(module, data, bali.likelihoods.Categorical(), **QUIET)


def test_bad_options_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="validation must be a share"):
        bali.fit(mlp(2, 2), classes(60), bali.likelihoods.Categorical(), validation=1.5, **QUIET)
    with pytest.raises(TypeError, match="no likelihood"):
        bali.fit(mlp(2, 2), classes(60), io.StringIO, **QUIET)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="members"):
        bali.fit(mlp(2, 2), classes(60), bali.likelihoods.Categorical(), members=0, **QUIET)
