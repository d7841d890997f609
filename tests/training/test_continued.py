"""One fit's posterior as the prior of the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.training.continued import Joined, penalty
from bali.training.examples import InMemory
from support.networks import randn, seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0}


def network(d_out: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, d_out))


def halves(n: int = 400) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Classes by a product; the first half of the rows has x₀ < 0, the second x₀ > 0: each knows a part of the plane."""
    x = torch.randn(n, 2, generator=seeded(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    left = x[:, 0] < 0
    return (x[left], y[left]), (x[~left], y[~left])


def accuracy(fitted: Any, data: tuple[Tensor, Tensor]) -> float:
    return float((fitted.predict(data[0]).probabilities.argmax(1) == data[1]).float().mean())


@pytest.fixture(scope="module")
def first() -> Any:
    return bali.fit(network(), halves()[0], bali.likelihoods.Categorical(), epochs=100, **QUIET)


def test_a_linear_regression_in_two_parts_is_the_regression_on_all_rows() -> None:
    """Where sums of curvatures are exact, so is the whole: mean and width are those of ordinary least squares on both parts.

    The first part tells little of the second weight, the second part is alone 1.5 standard errors off in others.
    """
    x = randn(240, 3, seed=3)
    x[:120] *= torch.tensor([3.0, 0.3, 1.0])
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 1 + 0.5 * randn(240, seed=4)

    def fit(rows: slice, **more: Any) -> Any:
        torch.manual_seed(0)
        data, gaussian = (x[rows], y[rows, None]), bali.likelihoods.Gaussian()
        return bali.fit(nn.Linear(3, 1).double(), data, gaussian, validation=(x, y[:, None]), epochs=250, **QUIET, **more)

    first, alone = fit(slice(0, 120)), fit(slice(120, 240))
    second = fit(slice(120, 240), prior=first)
    phi = torch.cat([x, torch.ones(240, 1)], 1)
    wanted = torch.linalg.lstsq(phi, y[:, None]).solution[:, 0]
    errors = torch.linalg.inv(phi.mT @ phi).diagonal().sqrt() * (y - phi @ wanted).square().mean().sqrt()

    def off(fitted: Any) -> float:
        """Standard errors that the mean is away from the regression on all rows, at most."""
        linear = fitted.module
        found = torch.cat([linear.weight.detach()[0], linear.bias.detach()])
        return float(((found - wanted) / errors).abs().max())

    assert off(second) < 0.25  # a share of what training leaves: one fit to all rows has 0.04
    assert min(off(first), off(alone)) > 1.0
    posterior = second.as_prior().layers[0][""].precision
    precision = posterior.inputs.dense() * posterior.outputs / second.units.scale**2
    torch.testing.assert_close(torch.linalg.inv(precision).diagonal().sqrt(), errors, rtol=0.05, atol=0.0)


def test_with_a_prior_permuted_columns_are_learnt_and_old_ones_kept() -> None:
    """Two tasks: rows around four centres, and the same with their columns in another order. How much is kept differs widely
    from one start to the next, so that it takes a few of them to tell."""
    kept, lost, learnt = (torch.zeros(3) for _ in range(3))
    for start in range(3):
        y = torch.arange(600) % 4
        x = 0.8 * torch.randn(4, 12, generator=seeded(5 + 10 * start))[y]
        x = x + torch.randn(600, 12, generator=seeded(6 + 10 * start))
        old, new = (x, y), (x.flip(1), y)
        torch.manual_seed(start)
        module, categorical = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 4)), bali.likelihoods.Categorical()
        quiet: dict[str, Any] = {"verbose": False, "seed": start, "epochs": 20}
        first = bali.fit(module, old, categorical, **quiet)
        with_prior = bali.fit(module, new, categorical, prior=first, **quiet)
        without = bali.fit(first.module, new, categorical, **quiet)
        learnt[start], kept[start] = accuracy(with_prior, new), accuracy(with_prior, old)
        lost[start] = accuracy(without, old)
    assert float(learnt.min()) > 0.85
    assert bool((kept > lost + 0.1).all())
    assert float(kept.mean()) > float(lost.mean()) + 0.2


@pytest.mark.filterwarnings("ignore::bali.HealthWarning")  # targets of this kind were never seen
def test_sequences_are_scored_against_earlier_data_as_their_observations_one_by_one() -> None:
    """Scores are by observation, and so is what the earlier data add to them."""
    x, y = torch.randn(96, 4, 2, generator=seeded(2)), torch.randint(2, (96, 4), generator=seeded(3))
    rows, loss = (x.reshape(-1, 2), y.reshape(-1)), nn.CrossEntropyLoss()
    torch.manual_seed(0)
    module = nn.Linear(2, 2)
    prior = bali.fit(module, (rows[0], (rows[0][:, 0] > 0).long()), loss, epochs=10, **QUIET)

    def scores(data: tuple[Tensor, Tensor]) -> list[float]:
        fitted = bali.fit(module, data, loss, prior=prior, validation=data, epochs=2, batch_size=len(data[0]), **QUIET)
        return [score for _, score in fitted.history.scores[0]]

    assert scores((x, y)) == pytest.approx(scores(rows), rel=1e-4)


def test_rows_in_memory_keep_what_has_no_curvature() -> None:
    """Each half of the plane is separable: a network is sure of it, and a posterior's curvature hardly holds it."""
    old, new = halves()
    categorical = bali.likelihoods.Categorical()
    kept = bali.fit(network(), old, categorical, memory=60, epochs=100, **QUIET)
    with_rows = bali.fit(network(), new, categorical, prior=kept, epochs=100, **QUIET)
    kept.memory = None
    without = bali.fit(network(), new, categorical, prior=kept, epochs=100, **QUIET)
    assert min(accuracy(with_rows, old), accuracy(with_rows, new)) > 0.85
    assert accuracy(without, old) < 0.5  # what docs/decisions/0020 says it does not do


def test_what_is_forgotten_weighs_less(first: Any) -> None:
    kept, faded = first.as_prior(), first.as_prior(forget=0.75)
    w = randn(3, 24, seed=3)
    assert faded.layers[0]["0"].precision.half_square(w) == pytest.approx(
        0.25 * kept.layers[0]["0"].precision.half_square(w)
    )
    with pytest.raises(ValueError, match="forget must be between 0 and 1"):
        first.as_prior(forget=2.0)


def test_statistics_are_summed(first: Any) -> None:
    """The posterior after the second data has at least the curvature of the first ones, in every layer."""
    second = bali.fit(network(), halves()[0], bali.likelihoods.Categorical(), prior=first, epochs=2, **QUIET)
    for name, before in first.as_prior().layers[0].items():
        after = second.as_prior().layers[0][name]
        traces = [float(p.precision.inputs.diagonal().sum() * p.precision.outputs.trace()) for p in (before, after)]
        assert traces[1] > 1.3 * traces[0]
    assert second.members[0].unseen == {}  # counted in the sum already


def test_the_curvature_is_as_large_as_on_held_out_examples(first: Any, tmp_path: Path) -> None:
    member = first.members[0]
    assert set(member.unseen) == {"0", "2"}
    louder = replace(member, unseen={"0": 3.0, "2": 1.0})
    w = randn(3, 24, seed=3)
    before = first.as_prior().layers[0]["0"].precision.half_square(w) / member.unseen["0"]
    first.members = [louder]
    try:
        assert first.as_prior().layers[0]["0"].precision.half_square(w) == pytest.approx(3.0 * before)
        first.save(tmp_path / "model.bali")
    finally:
        first.members = [member]
    read: Any = bali.load(tmp_path / "model.bali", module=network())
    assert read.members[0].unseen == {"0": 3.0, "2": 1.0}


def test_a_new_output_layer_for_every_task(first: Any) -> None:
    (x, y), (u, v) = halves()
    three = (u, v + (u[:, 1] > 1).long())  # another task: three classes
    head = ["2"]
    prior = first.as_prior(new=head)
    assert set(prior.layers[0]) == {"0"}
    second = bali.fit(network(3), three, bali.likelihoods.Categorical(), prior=prior, epochs=60, **QUIET)
    assert accuracy(second, three) > 0.85
    with pytest.raises(ValueError, match=r"layer '2' has weights of shape \(25, 3\).*as_prior\(new=\['2'\]\)"):
        bali.fit(network(3), three, bali.likelihoods.Categorical(), prior=first, **QUIET)
    again = bali.fit(network(), (x, y), bali.likelihoods.Categorical(), prior=first.as_prior(new=head), epochs=20, **QUIET)
    old_head = again.with_layers_of(first, head)
    assert torch.equal(old_head.members[0].posteriors["2"].mean, first.members[0].posteriors["2"].mean)
    assert torch.equal(old_head.members[0].posteriors["0"].mean, again.members[0].posteriors["0"].mean)


def test_rows_in_memory_are_trained_on_again_and_are_no_statistics() -> None:
    old, new = halves()
    categorical = bali.likelihoods.Categorical()
    first = bali.fit(network(), old, categorical, memory=50, epochs=2, **QUIET)
    assert first.memory is not None
    assert len(first.memory.rows) == 50
    weight = first.as_prior().layers[0]["0"].precision.half_square(randn(3, 24, seed=3))
    first_all, first.memory = first.memory, None
    whole = first.as_prior().layers[0]["0"].precision.half_square(randn(3, 24, seed=3))
    assert weight == pytest.approx(whole * (1 - 50 / first_all.n_seen))
    first.memory = first_all
    second = bali.fit(network(), new, categorical, prior=first, memory=50, epochs=2, **QUIET)
    assert second.memory is not None
    assert second.memory.n_seen == pytest.approx(first_all.n_seen + 0.9 * len(new[0]), abs=1)
    rows = second.memory.rows.x
    assert isinstance(rows, Tensor)
    from_old = (rows[:, 0] < 0).sum()
    assert 10 < int(from_old) < 40


def test_examples_joined_are_taken_in_the_order_asked_for() -> None:
    x, y = randn(5, 2, seed=1), torch.arange(5)
    u, v = randn(3, 2, seed=2), torch.arange(5, 8)
    joined = Joined(InMemory(x, y), InMemory(u, v))
    assert len(joined) == 8
    for index in ([6, 0, 7, 2], [1, 3], [5, 7]):
        found, numbers = joined.take(torch.tensor(index))
        assert numbers.tolist() == index
        torch.testing.assert_close(found, torch.cat([x, u])[index])


def test_a_regression_keeps_its_units_and_members(tmp_path: Path) -> None:
    x = torch.rand(200, 2, generator=seeded(0)) * 4 - 2
    y = 100 + 20 * torch.sin(2 * x[:, 0]) + 3 * torch.randn(200, generator=seeded(1))
    left = x[:, 0] < 0
    first = bali.fit(network(1), (x[left], y[left]), bali.likelihoods.Gaussian(), members=2, epochs=40, **QUIET)
    first.save(tmp_path / "first.bali")
    read = bali.load(tmp_path / "first.bali", module=network(1))
    assert not isinstance(read, bali.BALIRegressor | bali.BALIClassifier)
    second = bali.fit(network(1), (x[~left], y[~left]), bali.likelihoods.Gaussian(), prior=read, epochs=40, **QUIET)
    assert len(second.members) == 2
    assert second.units is not None
    assert first.units is not None
    torch.testing.assert_close(second.units.shift, first.units.shift)
    alone = bali.fit(network(1), (x[~left], y[~left]), bali.likelihoods.Gaussian(), members=2, epochs=40, **QUIET)
    errors = [float((f.predict(x[left]).mean[:, 0] - y[left]).square().mean().sqrt()) for f in (second, alone)]
    assert errors[0] < 0.7 * errors[1]
    with pytest.raises(ValueError, match="the prior has 2 members and 3 are asked for"):
        bali.fit(network(1), (x, y), bali.likelihoods.Gaussian(), prior=first, members=3, **QUIET)


def test_a_prior_of_another_architecture_is_refused(first: Any) -> None:
    other = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))
    with pytest.raises(ValueError, match="layer '2' has weights of shape"):
        bali.fit(other, halves()[1], bali.likelihoods.Categorical(), prior=first, **QUIET)
    with pytest.raises(ValueError, match="that the module does not train"):
        bali.fit(nn.Sequential(nn.Linear(2, 24)), halves()[1], bali.likelihoods.Categorical(), prior=first, **QUIET)
    with pytest.raises(ValueError, match=r"there are no layers in \['head'\]"):
        first.as_prior(new=["head"])


def test_the_penalty_is_nothing_at_the_prior_mean(first: Any) -> None:
    from bali.inference.joint import JointLayer

    prior = first.as_prior()
    layers = {name: JointLayer(p.mean, None, 1.0) for name, p in prior.layers[0].items()}
    layers = prior.of(layers, 0, 100)
    means = {name: layer.mean for name, layer in layers.items()}
    assert penalty(layers, means) == 0.0
    moved = {name: mean + 0.1 for name, mean in means.items()}
    wanted = sum(p.precision.half_square(0.1 * torch.ones_like(p.mean)) for p in prior.layers[0].values()) / 100
    assert penalty(layers, moved) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("prior", ["cpu", False, 1.0])
def test_a_prior_that_is_none_is_refused(prior: Any) -> None:
    with pytest.raises(TypeError, match="prior must be what an earlier"):
        bali.fit(network(), halves()[0], bali.likelihoods.Categorical(), prior=prior, **QUIET)
