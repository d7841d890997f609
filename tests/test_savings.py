"""Options that save work, against the plain update they stand in for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import assert_same_posteriors, batches, data, inference, mlp, seeded
from oracles import assert_close

import bali
from bali.layers import StackedLinear
from bali.mlp import stacked_mlp

STEPS = 25


def run(steps: int = STEPS, *, size: int = 40, likelihood: str = "categorical", **settings: Any) -> bali.LayerwiseInference:
    """A small network; with size 40 every batch is all the data, in another order."""
    options: dict[str, Any] = {
        "n_data": 40,
        "ema_rate": 0.2,
        "effective_size": 30.0,
        "reparam": "none",
        "target_noise": False,
    }
    made = inference(mlp((3, 6, 5, 2)), likelihood, **(options | settings))
    for x, y in batches(*data(likelihood, 40, 3, 2), size, steps):
        made.step(x, y)
    return made


def moments() -> torch.Tensor:
    return bali.input_moments(data("categorical", 40, 3, 2)[0])


# --- exact input statistics -----------------------------------------------------------------------------------------


def test_input_moments_are_the_mean_outer_product_in_one_piece_or_many() -> None:
    x = data("categorical", 40, 3, 2)[0]
    explicit = torch.cat([x, torch.ones(40, 1, dtype=x.dtype)], -1)
    assert_close(bali.input_moments(x), explicit.mT @ explicit / 40)
    assert_close(bali.input_moments(iter([x[:7], x[7:30], x[30:]])), explicit.mT @ explicit / 40)
    assert bali.input_moments(x.float()).dtype == torch.float64


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_exact_inputs_change_nothing_where_each_batch_is_all_the_data(likelihood: str) -> None:
    x = data(likelihood, 40, 3, 2)[0]
    plain, exact = run(likelihood=likelihood), run(likelihood=likelihood, input_moments=bali.input_moments(x))
    for name, expected in plain.posteriors.items():
        found = exact.posteriors[name]
        if name == "0":
            assert_close(found.precision, expected.precision)
            # U is about the previous mean: what one step explains is not taken off it.
            assert bool((torch.linalg.eigvalsh(found.scale - expected.scale) > -1e-9).all())
        elif likelihood == "categorical":
            assert_close(found.mean, expected.mean, 1e-8)
            assert_close(found.scale, expected.scale, 1e-8)
    if likelihood == "categorical":
        assert_close(exact.posteriors["0"].mean, plain.posteriors["0"].mean, 1e-8)


def test_exact_inputs_with_small_batches_have_the_precision_of_all_the_data() -> None:
    found = run(size=8, input_moments=moments()).posteriors["0"]
    prior = 1.0 / (10.0 / 4)  # the default prior variance is 10 / (D + 1)
    assert_close(found.precision, 30.0 * moments() + prior * torch.eye(4, dtype=torch.float64))


def test_a_layer_without_bias_takes_its_part_of_the_moments() -> None:
    x, y = data("categorical", 40, 3, 2)
    made = inference(mlp((3, 6, 2), bias=False), "categorical", n_data=40, input_moments=moments())
    made.step(x, y)
    assert_close(made.posteriors["0"].precision, x.mT @ x + (4 / 10) * torch.eye(3, dtype=torch.float64))


def test_input_moments_that_do_not_fit_are_refused() -> None:
    x, y = data("categorical", 40, 3, 2)
    with pytest.raises(ValueError, match=r"needs \(4, 4\)"):
        inference(mlp((3, 6, 2)), "categorical", n_data=40, input_moments=torch.eye(3)).step(x, y)
    embedded = torch.nn.Sequential(torch.nn.Tanh(), mlp((3, 6, 2)))
    with pytest.raises(ValueError, match="called once, with the module's input"):
        inference(embedded, "categorical", n_data=40, input_moments=moments()).step(x, y)
    with pytest.raises(ValueError, match="need update='mean'"):
        inference(mlp((3, 6, 2)), "categorical", n_data=40, input_moments=moments(), update="natural")
    for bad, message in [(x[0], "needs rows"), (x[:0], "at least one row"), (x / 0.0, "NaN or infinite")]:
        with pytest.raises(ValueError, match=message):
            bali.input_moments(bad)
    with pytest.raises(ValueError, match="at least one row"):
        bali.input_moments(iter([]))


# --- U every so many steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True], ids=["averaged inputs", "exact inputs"])
def test_means_and_precisions_do_not_depend_on_how_often_noise_moves(exact: bool) -> None:
    settings: dict[str, Any] = {"input_moments": moments()} if exact else {}
    plain, saving = run(size=8, **settings), run(size=8, noise_every=7, **settings)
    for name, expected in plain.posteriors.items():
        assert_close(saving.posteriors[name].mean, expected.mean, 1e-9)
        assert_close(saving.posteriors[name].precision, expected.precision, 1e-9)


def test_noise_moves_at_the_first_ten_steps_and_then_at_multiples() -> None:
    made = inference(mlp((3, 6, 2)), "categorical", n_data=40, target_noise=False, noise_every=4)
    moved = []
    previous = None
    for step, (x, y) in enumerate(batches(*data("categorical", 40, 3, 2), 16, 20), start=1):
        made.step(x, y)
        scale = made.posteriors["0"].scale
        if previous is None or not torch.equal(scale, previous):
            moved.append(step)
        previous = scale
    assert moved == [*range(1, 11), 12, 16, 20]


@pytest.mark.parametrize(
    "settings", [{"target_noise": True, "reparam": "weight"}, {"target_noise": True, "reparam": "local"}]
)
def test_noisy_targets_with_noise_every(settings: dict[str, Any]) -> None:
    """Weight noise needs XᵀX of the batch, so U moves along; local noise is in the rows, and U may stay."""
    plain, saving = run(13, size=8, **settings), run(13, size=8, noise_every=50, **settings)
    if settings["reparam"] == "weight":
        assert_same_posteriors(plain, saving, rtol=0.0, atol=0.0)
    else:  # the noise drawn depends on U, so only the size of things can be compared
        for name, expected in plain.posteriors.items():
            assert_close(saving.posteriors[name].mean, expected.mean, 0.5)
        assert torch.equal(saving.posteriors["0"].scale, run(10, size=8, noise_every=50, **settings).posteriors["0"].scale)


def test_the_output_layer_of_a_regression_always_moves_its_noise() -> None:
    early, late = (run(steps, likelihood="gaussian", noise_every=50) for steps in (12, 14))
    assert torch.equal(early.posteriors["0"].scale, late.posteriors["0"].scale)
    assert not torch.equal(early.posteriors["4"].scale, late.posteriors["4"].scale)


def test_weighted_members_with_noise_every_are_as_they_are_alone() -> None:
    x, y = data("categorical", 20, 3, 2)
    weight = torch.rand(3, 20, generator=seeded(3), dtype=torch.float64)
    together = stacked_mlp(3, (3, 5, 2), "tanh").double()
    with torch.no_grad():
        for parameter in together.parameters():
            parameter.normal_(generator=seeded(4))

    def trained(members: list[int]) -> bali.LayerwiseInference:
        module = bali.layers.take_stacked(together, members)
        assert isinstance(module[0], StackedLinear)  # type: ignore[index]
        options: dict[str, Any] = {"n_data": 20, "reparam": "none", "target_noise": False, "noise_every": 5}
        made = bali.LayerwiseInference(module, bali.likelihoods.Categorical(), **options)
        for _ in range(14):
            made.step(x, y, sample_weight=weight[members])
        return made

    stack = trained([0, 1, 2])
    for k in range(3):
        for name, expected in trained([k]).posteriors.items():
            assert_close(stack.posteriors[name].mean[k], expected.mean[0], 1e-8)


def test_noise_every_is_checked() -> None:
    with pytest.raises(ValueError, match="noise_every must be at least 1"):
        inference(mlp((3, 6, 2)), "categorical", n_data=40, noise_every=0)
    with pytest.raises(ValueError, match="need update='mean'"):
        inference(mlp((3, 6, 2)), "categorical", n_data=40, noise_every=2, update="natural")


def test_float32_rows_give_the_posterior_of_float64_rows() -> None:
    """Solves of hidden layers run in the rows' own type; factorisations and averages do not."""
    x, y = data("categorical", 200, 3, 2)
    found = []
    for dtype in (torch.float32, torch.float64):
        made = inference(mlp((3, 6, 5, 2)).to(dtype), "categorical", n_data=200, reparam="none", target_noise=False)
        for _ in range(15):
            made.step(x.to(dtype), y)
        found.append(made.posteriors)
    for name, expected in found[1].items():
        assert found[0][name].mean.dtype == torch.float64
        assert_close(found[0][name].mean, expected.mean, 1e-3)
        assert_close(found[0][name].precision, expected.precision, 1e-3)
        assert_close(found[0][name].scale, expected.scale, 1e-3)
