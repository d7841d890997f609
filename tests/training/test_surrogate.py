"""The model of few rows: what evidence sets, rows added, and what takes it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import bali
from bali.training import surrogate_scales
from bali.training.conditioning import Rows
from bali.training.surrogate_scales import Evidence, log_evidence
from bali.training.waves import Waves
from support.networks import seeded


def rows(n: int = 30, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A function of the first of three columns; the last column tells nothing."""
    x = torch.rand(n, 3, generator=seeded(seed), dtype=torch.float64)
    return x, (6 * x[:, 0]).sin() + x[:, 1].square()


def test_few_rows_are_learnt_and_doubt_is_where_there_are_none() -> None:
    x, y = rows()
    model = bali.surrogate(x, y, seed=0)
    new, truth = rows(500, seed=1)
    found = model.predict(new, 1024)
    error = (found.mean[:, 0] - truth).square().mean().sqrt()
    assert float(error) < 0.15 * float(truth.std())
    mean, covariance = model.joint(at(model, new))
    far = torch.tensor([[4.0, 4.0, 4.0]], dtype=torch.float64)
    assert float(model.joint(at(model, far))[1]) > 10 * float(covariance.mean())
    z = (truth - mean[:, 0, 0]) / covariance[:, 0, 0].sqrt()
    assert 0.1 < float(z.square().mean().sqrt()) < 3.0  # neither too sure nor too doubtful


def at(model: object, x: Tensor) -> Rows:
    """Rows one by one, as batches of a single point."""
    made = model.body.rows(x)  # type: ignore[attr-defined]
    return Rows(made.features[:, :, None], made.outputs[:, :, :, None], None)


def test_the_evidence_is_that_of_the_gaussian() -> None:
    x, y = rows(6)
    waves = Waves.drawn(2, torch.full((3,), 0.5), torch.full((3,), 0.3), 0)
    columns, ones = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    features = waves.features(x, columns)
    sizes = torch.tensor([0.8, 0.6, 0.5, 0.4], dtype=torch.float64).expand(2, 1, 4)
    found = log_evidence(features, waves.parts, y[:, None], sizes, 0.1 * ones)
    squares = torch.cat([torch.full((n,), size**2) for n, size in zip(waves.parts, (0.8, 0.6, 0.5, 0.4), strict=True)])
    sizes = torch.cat([squares, torch.ones(1)]).double()
    covariance = (features * sizes) @ features.mT + (0.01 + 1e-6) * torch.eye(6)
    gaussian = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=torch.float64), covariance)
    exact = gaussian.log_prob(y)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, exact + 3.0 * math.log(2 * math.pi))


def test_columns_that_tell_nothing_have_long_waves() -> None:
    x, y = rows(40)
    waves = Waves.drawn(4, torch.full((3,), 0.5), torch.full((3,), 0.3), 0)
    evidence = Evidence(waves, x, ((y - y.mean()) / y.std())[:, None])
    columns = evidence.scales(evidence.most_likely(0)).columns
    assert bool((columns[:, 2] < 0.5 * columns[:, 0]).all())


def test_scales_are_drawn_with_the_curvature_of_their_density() -> None:
    x, y = rows(12)
    waves = Waves.drawn(2, torch.full((3,), 0.5), torch.full((3,), 0.3), 0)
    evidence = Evidence(waves, x, ((y - y.mean()) / y.std())[:, None])
    logs = evidence.most_likely(0)
    found = evidence.curvature(logs)

    def minus(values: Tensor) -> Tensor:
        return -evidence.log_density(values.reshape(logs.shape)).sum()

    hessian = torch.func.hessian(minus)(logs.flatten()).reshape(*logs.shape, *logs.shape)
    for member in range(2):
        torch.testing.assert_close(found[member], hessian[member, :, member])
    _, drawn = surrogate_scales.drawn_scales(waves, x, evidence.targets, 0)
    departure = (drawn.columns.log().unsqueeze(1) - logs[:, :3]).square().sum(-1).amin(1)  # from the nearer member
    assert bool((departure > 0).all())
    assert float(departure.mean()) < 10.0


def test_rows_added_are_rows_that_were_there() -> None:
    """Given what evidence set, more rows change the output layer as a regression on all of them would."""
    x, y = rows(25)
    model = bali.surrogate(x[:20], y[:20], seed=0)
    added = model.condition(x[20:], y[20:, None])
    again = type(model)(model.body, model.start, model.start).condition(x, y[:, None])
    # Almost without noise, as here, sums over rows have a condition that leaves seven digits.
    torch.testing.assert_close(added.now.mean, again.now.mean, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(added.now.noise, again.now.noise)
    np.testing.assert_allclose(added.predict(x).mean[20:, 0], y[20:], atol=0.1)


def test_several_outputs_and_units() -> None:
    x, y = rows(40)
    both = torch.stack([1000.0 * y + 5e4, -y + 0.3 * x[:, 2]], 1)
    model = bali.surrogate(x.numpy(), both.numpy(), bounds=np.array([[0.0] * 3, [1.0] * 3]))
    new, truth = rows(200, seed=1)
    error = (model.predict(new, 1024).mean - torch.stack([1000.0 * truth + 5e4, -truth + 0.3 * new[:, 2]], 1)).square()
    assert bool((error.mean(0).sqrt() < 0.2 * both.std(0)).all())
    covariance = model.joint(at(model, torch.full((1, 3), 2.0, dtype=torch.float64)))[1][0]
    assert float(covariance[0, 1]) < 0  # where nothing is known, they still go against each other


def test_members_share_parts_by_their_evidence() -> None:
    def chosen(*shares: float) -> list[int]:
        return surrogate_scales.shared_out(torch.tensor(shares)).tolist()

    assert chosen(0.98, 0.01, 0.01) == [0, 0, 0, 0]
    assert chosen(0.5, 0.48, 0.02) == [0, 0, 1, 1]
    assert chosen(0.7, 0.28, 0.02) == [0, 0, 0, 1]


def test_a_target_that_does_not_vary_and_a_column_that_does_not() -> None:
    x, y = rows(12)
    x[:, 1] = 2.0
    assert bool(torch.isfinite(bali.surrogate(x, y).predict(x).mean).all())
    torch.testing.assert_close(bali.surrogate(x, torch.full_like(y, 7.0)).predict(x).mean[:, 0], torch.full_like(y, 7.0))


def test_bad_input_is_told() -> None:
    x, y = rows(12)
    for arguments, words in (
        ((x, y[:5]), "x has 12 rows and y has 5"),
        ((x[:1], y[:1]), "of 2 to 1,000 rows, got 1"),
        ((x[:, 0], y), "x must have rows and columns"),
        ((x, y.clone().fill_(math.nan)), "y has NaN or infinite values"),
    ):
        with pytest.raises(ValueError, match=words):
            bali.surrogate(*arguments)
    with pytest.raises(ValueError, match="bounds must be the least and the largest value of 3 columns"):
        bali.surrogate(x, y, bounds=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="x has 2 columns, and the model was made of 3"):
        bali.surrogate(x, y).predict(x[:, :2])


def test_labels_are_asked_for_where_there_are_none() -> None:
    x, y = rows(40)
    model = bali.surrogate(x[x[:, 0] < 0.5], y[x[:, 0] < 0.5])
    pool = torch.rand(60, 3, generator=seeded(3), dtype=torch.float64)
    asked = bali.active.query(model, pool, 4, "variance")
    assert float(pool[torch.from_numpy(asked[:2]), 0].min()) > 0.7
