"""Rows to label next: closed forms against dense Gaussian algebra, classes against enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import bali
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.active import Method, query_predictive
from bali.training.information import ClassInformation, GaussianInformation
from support.networks import randn, seeded

NUMBER_METHODS: tuple[Method, ...] = ("epig", "bald", "batchbald", "variance")


def numbers(n: int, d: int, seed: int) -> RegressionPredictive:
    noise = randn(d + 2, d, seed=seed + 1)
    return RegressionPredictive(randn(30, n, d, seed=seed), (noise.mT @ noise)[None])


def covariance(*parts: RegressionPredictive) -> Tensor:
    """Of all outputs of all rows with noise, (N D, N D), rows first."""
    means = torch.cat([p.means for p in parts], 1)
    flat = (means - means.mean(0)).flatten(1)
    noise = parts[0].noise[0]
    return flat.mT @ flat / len(flat) + torch.kron(torch.eye(means.shape[1], dtype=torch.float64), noise)


def information(joint: Tensor, first: list[int], second: list[int]) -> float:
    """Between two groups of Gaussian numbers."""
    both = first + second
    parts = [torch.logdet(joint[rows][:, rows]) for rows in (first, second, both)]
    return 0.5 * float(parts[0] + parts[1] - parts[2])


@pytest.mark.parametrize("d", [1, 2])
def test_information_of_numbers_is_that_of_the_joint_gaussian(d: int) -> None:
    pool, target = numbers(6, d, seed=1), numbers(3, d, seed=20)
    target = RegressionPredictive(target.means, pool.noise)
    joint = covariance(pool, target)

    def places(row: int) -> list[int]:
        return list(range(row * d, (row + 1) * d))

    found = GaussianInformation.of(pool, target)
    given: list[int] = []
    for step in range(2):
        if given:
            seen = joint[given][:, given]
            joint_now = joint - joint[:, given] @ torch.linalg.solve(seen, joint[given])
        else:
            joint_now = joint
        left = [row for row in range(6) if places(row)[0] not in given]
        epig = [np.mean([information(joint_now, places(r), places(6 + t)) for t in range(3)]) for r in left]
        np.testing.assert_allclose(found.epig()[left].numpy(), epig, rtol=1e-8)
        bald = [0.5 * float(torch.logdet(joint_now[places(r)][:, places(r)]) - torch.logdet(pool.noise[0])) for r in left]
        np.testing.assert_allclose(found.bald()[left].numpy(), bald, rtol=1e-8)
        found.choose(step)
        given += places(step)


def classes(s: int, n: int, c: int, seed: int) -> Tensor:
    return (2 * randn(s, n, c, seed=seed)).softmax(-1)


def entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum())


def test_information_of_classes_is_that_of_all_labels_enumerated() -> None:
    pool, target = classes(8, 4, 3, seed=1), classes(8, 2, 3, seed=2)
    found = ClassInformation(pool, target, seeded(0))
    for row in range(4):
        mixed = entropy(pool[:, row].mean(0))
        within = sum(entropy(p) for p in pool[:, row]) / 8
        assert float(found.bald()[row]) == pytest.approx(mixed - within)
        wanted = 0.0
        for t in range(2):
            joint = torch.einsum("sc,sd->cd", pool[:, row], target[:, t]) / 8
            wanted += mixed + entropy(target[:, t].mean(0)) - entropy(joint)
        assert float(found.epig()[row]) == pytest.approx(wanted / 2)


def test_given_a_label_that_is_not_known_information_is_the_mean_over_what_it_may_be() -> None:
    """Two rows' joint information with the weights by enumeration; labels of the first are draws, so about."""
    pool = classes(64, 5, 3, seed=3)
    found = ClassInformation(pool, pool, seeded(1))
    first = found.bald()
    found.choose(0)
    second = found.bald()
    for row in range(1, 5):
        joint = torch.einsum("sc,sd->cd", pool[:, 0], pool[:, row]) / 64
        within = sum(entropy(p) + entropy(q) for p, q in zip(pool[:, 0], pool[:, row], strict=True)) / 64
        both = entropy(joint) - within
        assert float(first[0] + second[row]) == pytest.approx(both, rel=0.15)


def test_a_batch_does_not_ask_the_same_thing_twice() -> None:
    """Five copies of the most telling row, and others: by itself each copy is best, together one is enough."""
    means = torch.cat([3 * randn(50, 1, 1, seed=1).expand(50, 5, 1), randn(50, 5, 1, seed=2)], 1)
    pool = RegressionPredictive(means, 0.01 * torch.ones(1, 1, 1).double())
    assert set(query_predictive(pool, 4, "bald")) <= set(range(5))
    for method in ("batchbald", "variance"):
        assert len(set(query_predictive(pool, 4, method)) & set(range(5))) == 1
    p = torch.cat([classes(64, 1, 4, seed=3).expand(64, 5, 4), (randn(64, 5, 4, seed=4)).softmax(-1)], 1)
    assert set(query_predictive(ClassPredictive(p), 4, "bald")) <= set(range(5))
    assert len(set(query_predictive(ClassPredictive(p), 4, "batchbald")) & set(range(5))) < 4


def test_a_row_of_the_target_tells_nothing_about_itself() -> None:
    """Almost without noise that would be more than all that rows tell about others."""
    together = randn(200, 1, 1, seed=1) + 0.3 * randn(200, 12, 1, seed=2)
    pool = RegressionPredictive(
        torch.cat([together, 5 * randn(200, 12, 1, seed=3)], 1), torch.full((1, 1, 1), 1e-10).double()
    )
    assert int(query_predictive(pool, 1, "epig")[0]) < 12
    p = classes(64, 5, 3, seed=3)
    whole = ClassInformation(p, p[:, 1:3], seeded(0)).epig()
    others = ClassInformation(p, p[:, 1:3], seeded(0), torch.tensor([1, 2])).epig()
    torch.testing.assert_close(others[[0, 3, 4]], whole[[0, 3, 4]])
    one = ClassInformation(p, p[:, 2:3], seeded(0)).epig()[1]
    torch.testing.assert_close(others[1], one / 2)


def test_epig_asks_about_the_target() -> None:
    """Half of the rows move with the target, the others more, but by themselves."""
    with_target, alone = randn(200, 1, 1, seed=1), 5 * randn(200, 1, 1, seed=2)
    spread = 0.1 * randn(200, 10, 1, seed=3)
    means = torch.cat([with_target.expand(200, 5, 1), alone.expand(200, 5, 1)], 1) + spread
    noise = torch.ones(1, 1, 1).double()
    target = RegressionPredictive(with_target.expand(200, 3, 1).clone(), noise)
    pool = RegressionPredictive(means, noise)
    assert query_predictive(pool, 1, "epig", target=target)[0] < 5
    assert query_predictive(pool, 1, "batchbald")[0] >= 5


@pytest.mark.parametrize("method", NUMBER_METHODS)
def test_fitted_modules_are_asked(method: Method) -> None:
    x = torch.rand(80, 1, generator=seeded(0)) * 2 - 1
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    fitted = bali.fit(module, (x, x[:, 0].sin()), bali.likelihoods.Gaussian(), epochs=3, verbose=False, seed=0)
    pool = torch.linspace(-1, 1, 40)[:, None]
    chosen = bali.active.query(fitted, pool, 3, method, n_samples=64)
    assert len(set(chosen.tolist())) == 3
    assert chosen.dtype == np.int64
    np.testing.assert_array_equal(chosen, bali.active.query(fitted, pool.numpy(), 3, method, n_samples=64))


def test_estimators_are_asked_with_frames() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    y = np.where(frame["a"] * frame["b"] > 0, "yes", "no")
    model = bali.BALIClassifier(max_iter=30, n_members=1, n_samples=32, random_state=0).fit(frame, y)
    for method in ("epig", "bald", "batchbald"):
        chosen = bali.active.query(model, frame, 5, method, target=frame[:10])
        assert len(set(chosen.tolist())) == 5
    with pytest.raises(ValueError, match="'variance' is for numbers"):
        bali.active.query(model, frame, 5, "variance")


def test_bad_questions_are_told() -> None:
    pool = numbers(4, 1, seed=1)
    with pytest.raises(ValueError, match="n must be between 1 and the 4 rows"):
        query_predictive(pool, 5)
    with pytest.raises(ValueError, match="method must be one of epig, bald, batchbald, variance"):
        bali.active.query(cast(Any, None), None, 1, "best")  # type: ignore[arg-type]


def test_rows_are_chosen_in_the_order_of_what_they_tell() -> None:
    pool = numbers(8, 1, seed=5)
    best = max(itertools.permutations(range(8), 1), key=lambda rows: information_with_weights(pool, list(rows)))
    assert query_predictive(pool, 3, "batchbald")[0] == best[0]


def information_with_weights(pool: RegressionPredictive, rows: list[int]) -> float:
    joint = covariance(pool)[rows][:, rows]
    return 0.5 * float(torch.logdet(joint)) - 0.5 * len(rows) * math.log(float(pool.noise[0]))
