"""Rows added to a fitted regressor's output layers, and its inputs in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import bali
from bali.estimators.encodings import Encoding
from bali.estimators.input_scaling import InputScaling
from bali.estimators.table_rows import encoded_rows, scaled_rows

#: Two float64 algorithms for one posterior.
CLOSE = 1e-8
Array = NDArray[Any]


def rows(n: int, seed: int, d: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=n), np.exp(2 * rng.normal(size=n)), rng.integers(0, 5, n)])
    signal = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 2], X[:, 0] ** 2])
    return X, 100 + 10 * (signal[:, :d] + 0.2 * rng.normal(size=(n, d)))


@pytest.fixture(scope="module", params=[1, 2])
def model(request: pytest.FixtureRequest) -> Any:
    X, y = rows(150, 0, request.param)
    made = bali.BALIRegressor((12,), n_members=2, max_iter=60, random_state=0)
    return made.fit(X, y if request.param > 1 else y[:, 0])


def test_columns_are_scaled_and_put_into_bins_as_the_estimator_does_it() -> None:
    X, _ = rows(300, 1)
    scaling, weight = InputScaling.learn(X), np.ones(300)
    assert scaling.power[1] != 1.0  # of heavy tails
    far = np.concatenate([X, 10 * X[:5], -3 * X[:5]])
    found = scaled_rows(scaling, torch.tensor(far))
    np.testing.assert_allclose(found.numpy(), scaling(far), rtol=1e-10, atol=1e-10)
    for n_bins, n_waves in ((0, 0), (8, 0), (8, 4)):
        encoding = replace(Encoding.learn(X, n_bins, weight), n_waves=n_waves)
        wanted = encoding(far, scaling(far))
        np.testing.assert_allclose(encoded_rows(encoding, torch.tensor(far), found).numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_it_is_the_full_regression_on_each_member_s_features(model: Any) -> None:
    """Against one normal inverse-gamma regression of what training left and all new rows, in NumPy."""
    d, posterior = model.n_outputs_, model.posterior_
    X, y = rows(25, 7, d)
    start = model.output_regression()
    found = start.condition(X[:10], y[:10]).condition(X[10:], y[10:])
    phi_all, outputs, scale = start.body.rows(X)
    weights = np.ones((25, d)) if scale is None else 1.0 / scale.double().numpy() ** 2
    z = (y - model.target_mean_) / model.target_scale_
    v = start.body.directions.numpy()
    before = start.start.noise.numpy()[0, 0] * start.start.dof / (start.start.dof - 2)  # E σ² of each direction
    member, typical = 0, float(posterior.noise.diagonal().mean())
    for stack, encoded in zip(posterior.stacks, model.encoded_rows(X), strict=True):
        layer = stack.layers[-1]
        for number in range(stack.n_members):
            phi = np.column_stack([stack.outputs(encoded)[1][number].double().numpy(), np.ones(25)])
            basis, values = layer.input_basis[number].numpy(), layer.input_values[number].numpy()
            kept = phi_all[member].double().numpy()
            np.testing.assert_allclose(kept[:, [*range(phi.shape[1] - 1), -1]], phi, rtol=1e-4, atol=1e-5)  # float32
            phi = kept[:, [*range(phi.shape[1] - 1), -1]]
            for direction in range(d):
                target = (z - outputs[member, 0].double().numpy()) @ v[:, direction]
                w = weights[:, direction]
                prior = basis @ np.diag(values) @ basis.T + typical / layer.prior_variance * np.eye(len(values))
                mean = np.linalg.solve(prior + phi.T @ (phi * w[:, None]), phi.T @ (w * target))
                got = found.now.mean[member, 0, direction].numpy()[[*range(phi.shape[1] - 1), -1]]
                np.testing.assert_allclose(got, mean, rtol=CLOSE, atol=CLOSE)
                marginal = np.diag(1 / w) + phi @ np.linalg.inv(prior) @ phi.T
                n = start.now.dof - 2
                s2 = (n * before[direction] + target @ np.linalg.solve(marginal, target)) / (n + 2 + 25)
                np.testing.assert_allclose(float(found.now.noise[member, 0, direction]), s2, rtol=CLOSE)
            member += 1
    assert member == model.n_members_


def test_unconditioned_it_predicts_as_the_model_does(model: Any) -> None:
    X, _ = rows(40, 3, model.n_outputs_)
    ours, whole = model.output_regression().predict(X, 2048), model.pred_dist(X)
    assert float(((ours.mean - whole.mean) / whole.std).abs().max()) < 0.1
    assert float((ours.std / whole.std - 1).abs().max()) < 0.25


def test_rows_far_from_the_model_are_learnt_and_the_model_stays(model: Any) -> None:
    X, y = rows(60, 5, model.n_outputs_)
    before = model.predict(X)
    moved = y + 20
    taught = model.condition(X, moved).predict(X).mean.numpy()
    kept = before.reshape(taught.shape)
    assert np.abs(taught - moved).mean() < 0.7 * np.abs(kept - moved).mean()
    np.testing.assert_array_equal(model.predict(X), before)


def test_predictions_have_the_derivatives_of_finite_differences() -> None:
    X, y = rows(80, 0)
    made = bali.BALIRegressor((8,), n_members=2, max_iter=30, random_state=0, n_bins=0).fit(X, y[:, 0])
    start = made.output_regression()
    at = torch.tensor(X[:3], requires_grad=True)
    (gradient,) = torch.autograd.grad(start.joint(start.body.rows(at))[0].sum(), at)
    step = 1e-2
    for column in range(2):
        shifted = [X[:3] + sign * step * np.eye(3)[column] for sign in (1, -1)]
        values = [start.joint(start.body.rows(rows))[0].numpy()[:, 0] for rows in shifted]
        np.testing.assert_allclose(
            gradient[:, column].numpy(), (values[0] - values[1]) / (2 * step), rtol=0.05, atol=0.05 * abs(y).std()
        )


def test_a_regressor_is_optimised_by_botorch() -> None:
    pytest.importorskip("botorch", reason="BoTorch is an extra: pip install 'bali-torch[botorch]'")
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    x = np.random.default_rng(0).uniform(size=(40, 2))
    y = -((x - 0.3) ** 2).sum(1)
    made = bali.BALIRegressor((16,), n_members=2, max_iter=150, random_state=0).fit(x, y)
    torch.manual_seed(0)
    found, _ = optimize_acqf(
        qLogExpectedImprovement(bali.BoTorchModel(made), best_f=float(y.max())),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        q=1,
        num_restarts=2,
        raw_samples=32,
        options={"maxiter": 20},
    )
    assert float((found - 0.3).abs().max()) < 0.3


def test_what_has_no_closed_form_is_told(model: Any) -> None:
    X, y = rows(60, 0)
    counts = bali.BALIRegressor((8,), n_members=2, max_iter=5, likelihood="poisson", random_state=0).fit(X, y[:, 0].round())
    with pytest.raises(ValueError, match="this model has poisson"):
        counts.condition(X, y)
    with pytest.raises(ValueError, match="y has shape"):
        model.condition(X, y[:5])
