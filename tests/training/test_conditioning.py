"""One more observation: the output layer against a regression on the features, written out densely."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bali
from support.networks import randn, seeded

#: Two float64 algorithms for one posterior; what is asked for.
CLOSE = 1e-8
SAMPLES = 8


def rows(n: int = 150, d: int = 1) -> tuple[Tensor, Tensor]:
    x = randn(n, 3, seed=1)
    y = torch.stack([torch.sin(x[:, 0]), x[:, 1] * x[:, 2]], 1)[:, :d]
    return x, 50 + 10 * (y + 0.1 * randn(n, d, seed=2))


def fit(d: int, members: int = 2) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, d)).double()
    return bali.fit(module, rows(d=d), bali.likelihoods.Gaussian(), members=members, epochs=5, verbose=False, seed=0)


@pytest.fixture(scope="module", params=[1, 2])
def fitted(request: pytest.FixtureRequest) -> Any:
    return fit(request.param)


def features(fitted: Any, member: int, x: Tensor) -> np.ndarray:
    """Inputs of the output layer at a member's mean weights, ones included, by a plain forward pass."""
    with fitted.network.evaluating(), torch.no_grad():
        fitted.put_mean(member)
        h = fitted.network.module[:-1](x)
    return torch.cat([h, torch.ones(len(x), 1)], 1).numpy()


def whole_regression(fitted: Any, member: int, x: Tensor, targets: np.ndarray, v: np.ndarray, variance: float) -> Any:
    """Weights, their covariance and the noise along the direction v of the outputs, from all that is known at once.

    The curvature that training left is that of so many rows of features; it, the prior and the new rows make one normal
    inverse-gamma regression. Everything is in NumPy and by dense formulas.
    """
    p = fitted.members[member].posteriors["4"]
    basis, outputs = p.input_basis.numpy(), p.output_basis.numpy()
    gram = basis @ np.diag(p.input_values.numpy()) @ basis.T
    strength = v @ outputs @ np.diag(p.output_values.numpy()) @ outputs.T @ v
    before = variance * (strength * gram + np.eye(len(gram)) / (fitted.calibration.width * p.prior_variance))
    phi = features(fitted, member, x)
    nu = fitted.calibration.noise_rows
    precision = before + phi.T @ phi
    mean = np.linalg.solve(precision, phi.T @ targets)
    marginal = np.eye(len(phi)) + phi @ np.linalg.inv(before) @ phi.T  # of the new rows, over σ²
    noise = (nu * variance + targets @ np.linalg.solve(marginal, targets)) / (nu + 2 + len(phi))
    return mean, np.linalg.inv(precision), noise


def test_it_is_the_full_regression_on_the_features(fitted: Any) -> None:
    d, units, calibration = len(fitted.units.shift), fitted.units, fitted.calibration
    x, y = rows(40, d)
    model = fitted.output_regression(x, SAMPLES)
    for part in (slice(0, 7), slice(7, 8), slice(8, 40)):  # however the rows come
        model = model.condition(x[part], y[part])
    tails = calibration.noise_dof
    noise = calibration.noise.numpy() * (tails / (tails - 2) if tails is not None and tails > 2 else 1)
    variances, directions = np.linalg.eigh(noise)
    z = ((y - units.shift) / units.scale).numpy()
    at = randn(5, 3, seed=9)
    outputs, outputs_at = (model.body.rows(part).outputs.numpy() for part in (x, at))
    scale, each = units.scale.numpy(), SAMPLES // 2
    means, within = np.zeros((2, each, 5, d)), np.zeros((5 * d, 5 * d))
    for member in range(2):
        phi_at = features(fitted, member, at)
        for sample in range(each):
            total = outputs_at[member, sample].copy()
            for number in range(d):
                v = directions[:, number] * np.sign(directions[0, number] * float(model.body.directions[0, number]))
                targets = (z - outputs[member, sample]) @ v
                mean, covariance, s2 = whole_regression(fitted, member, x, targets, v, variances[number])
                np.testing.assert_allclose(model.now.mean[member, sample, number].numpy(), mean, rtol=CLOSE, atol=CLOSE)
                np.testing.assert_allclose(float(model.now.noise[member, sample, number]), s2, rtol=CLOSE)
                total += np.outer(phi_at @ mean, v)
                nu = calibration.noise_rows + 42
                doubt = phi_at @ covariance @ phi_at.T * s2 * nu / (nu - 2)
                within += np.kron(doubt, np.outer(v * scale, v * scale)) / SAMPLES
            means[member, sample] = total * scale + units.shift.numpy()
    assert model.now.dof == calibration.noise_rows + 42
    found_mean, found_covariance = model.joint(model.body.rows(at))
    flat = means.reshape(SAMPLES, -1)
    np.testing.assert_allclose(found_mean.numpy().reshape(-1), flat.mean(0), rtol=CLOSE)
    spread = flat - flat.mean(0)
    np.testing.assert_allclose(found_covariance.numpy(), within + spread.T @ spread / SAMPLES, rtol=CLOSE, atol=CLOSE)


def test_features_and_changes_are_those_of_the_network(fitted: Any) -> None:
    """Against networks a little way along the weight samples."""
    x, _ = rows(6, len(fitted.units.shift))
    found = fitted.output_regression(x, SAMPLES).body.rows(x)
    for member in range(2):
        np.testing.assert_allclose(found.features[member].numpy(), features(fitted, member, x), rtol=CLOSE)
        for sample, departures in enumerate(fitted.departures(member, 2, fitted.calibration.width)):
            values = []
            for step in (1e-5, -1e-5):
                with fitted.network.evaluating(), torch.no_grad():
                    fitted.put_mean(member)
                    for name in ("0", "2"):
                        layer = fitted.network.layers[name]
                        layer.assign(layer.weights() + step * departures[name])
                    values.append(fitted.network.module(x))
            mean, change = (values[0] + values[1]) / 2, (values[0] - values[1]) / 2e-5
            torch.testing.assert_close(found.outputs[member, sample], mean + change, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(found.outputs[member, 2 + sample], mean - change, rtol=1e-6, atol=1e-6)


def test_two_that_took_in_different_rows_merge_to_one_that_took_in_all(fitted: Any) -> None:
    d = len(fitted.units.shift)
    x, y = rows(40, d)
    start = fitted.output_regression(x)
    elsewhere = pickle.loads(pickle.dumps(fitted)).output_regression(x)  # as on another machine
    merged = start.condition(x[:15], y[:15]).merge(elsewhere.condition(x[15:], y[15:]))
    both = start.condition(x, y)
    for a, b in ((merged.now.mean, both.now.mean), (merged.now.noise, both.now.noise)):
        torch.testing.assert_close(a, b, rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(merged.now.precision, both.now.precision, rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(merged.predict(x).means, both.predict(x).means, rtol=CLOSE, atol=CLOSE)
    assert merged.n_rows == both.n_rows == 40
    assert merged.now.dof == both.now.dof
    with pytest.raises(ValueError, match="from one start"):
        merged.merge(fitted.output_regression(x, 4))
    with pytest.raises(ValueError, match="has forgotten rows"):
        merged.merge(start.condition(x, y, forget=0.1))


def test_predictions_go_towards_what_was_observed_and_are_surer_there(fitted: Any) -> None:
    d = len(fitted.units.shift)
    x = torch.full((1, 3), 2.0, dtype=torch.float64)
    before = fitted.output_regression(x).predict(x)
    y = before.mean + 3 * before.std
    model = fitted.condition(x, y)
    for _ in range(5):
        model = model.condition(x, y)
    after = model.predict(x)
    assert bool(((after.mean - y).abs() < 0.7 * (before.mean - y).abs()).all())
    assert bool((after.epistemic < before.epistemic).all())
    assert before.means.shape == (256, 1, d)


def test_unconditioned_it_predicts_as_the_fit_does(fitted: Any) -> None:
    x, _ = rows(30, len(fitted.units.shift))
    ours, whole = fitted.output_regression(x, 2048).predict(x, 2048), fitted.predict(x, 2048)
    assert float(((ours.mean - whole.mean) / whole.std).abs().max()) < 0.1
    ratio = ours.epistemic / whole.epistemic  # of two variances, each of 2,048 samples
    assert float(ratio.min()) > 0.85
    assert float(ratio.max()) < 1.15
    torch.testing.assert_close(ours.aleatoric, whole.aleatoric, rtol=0.05, atol=0.0)


def test_rows_that_fade_leave_the_doubt_of_the_prior(fitted: Any) -> None:
    x, y = rows(40, len(fitted.units.shift))
    kept, faded = fitted.condition(x, y), fitted.condition(x, y).condition(x[:1], y[:1], forget=0.9)
    assert bool((faded.predict(x).epistemic > kept.predict(x).epistemic).all())
    with pytest.raises(ValueError, match="forget must be at least 0 and below 1"):
        kept.condition(x, y, forget=1.0)


def test_fantasies_differ_and_each_took_in_its_rows(fitted: Any) -> None:
    x, y = rows(3, len(fitted.units.shift))
    model = fitted.condition(x[:1], y[:1])
    futures = model.fantasise(x[1:], 6)
    assert [future.n_rows for future in futures] == [3] * 6
    means = torch.stack([future.predict(x).mean for future in futures])
    assert float(means.std(0).min()) > 0


def test_a_module_in_the_units_of_the_targets_and_a_frozen_body() -> None:
    """As a pretrained network: weights stay, and only the output layer has a posterior."""
    x, y = rows(60)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    fitted = bali.fit(module, (x, y), bali.likelihoods.Gaussian(), epochs=0, only=["2"], verbose=False, seed=0)
    assert fitted.units is not None
    assert fitted.units.module_has_them
    model = fitted.output_regression(x)
    assert model.body.rows(x).outputs.shape == (1, 1, 60, 1)  # no samples of layers that are known
    torch.testing.assert_close(model.joint(model.body.rows(x))[0], fitted.predict(x).mean, rtol=1e-6, atol=1e-6)
    taught = model.condition(x, y)
    error, before = (float((m.predict(x).mean - y).square().mean()) for m in (taught, model))
    assert error < 0.5 * before


def test_the_features_can_be_differentiated_and_recurrent_bodies_work() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrence = nn.GRU(2, 8, batch_first=True)
            self.head = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.head(self.recurrence(x)[0][:, -1])
            return z

    torch.manual_seed(0)
    x = torch.randn(40, 5, 2, generator=seeded(0))
    fitted = bali.fit(Reader(), (x, x.sum((1, 2))), bali.likelihoods.Gaussian(), epochs=1, verbose=False, seed=0)
    model = fitted.condition(x[:2], x[:2].sum((1, 2)), 4)
    at = x[:3].clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model.joint(model.body.rows(at))[0].sum(), at)
    assert float(gradient.abs().max()) > 0


def test_bad_rows_are_told(fitted: Any) -> None:
    d = len(fitted.units.shift)
    x, y = rows(3, d)
    with pytest.raises(ValueError, match="y has NaN"):
        fitted.condition(x, y * float("nan"))
    with pytest.raises(ValueError, match="y has shape"):
        fitted.condition(x, y[:2])
    torch.manual_seed(0)
    classes = bali.fit(
        nn.Linear(3, 2),
        (x.float(), torch.tensor([0, 1, 1])),
        bali.likelihoods.Categorical(),
        epochs=1,
        verbose=False,
        seed=0,
    )
    with pytest.raises(ValueError, match="only a regression with a Gaussian likelihood"):
        classes.condition(x, y)
