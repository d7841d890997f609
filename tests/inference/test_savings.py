"""What saves work, against the plain update that it stands in for: exact input statistics, stacks, narrow rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bali
from bali.layers.modules import StackedLinear
from bali_benchmarks.some_members import take_stacked
from bali_benchmarks.stacked_mlp import stacked_mlp
from support.networks import batches, data, inference, mlp, seeded
from support.oracles import assert_close
from support.posteriors import assert_same_posterior, member
from support.tolerances import FLOAT32_STEPS
from support.tolerances import STEPS as AFTER_STEPS

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
            assert_close(found.mean, expected.mean, AFTER_STEPS)
            assert_close(found.scale, expected.scale, AFTER_STEPS)
    if likelihood == "categorical":
        assert_close(exact.posteriors["0"].mean, plain.posteriors["0"].mean, AFTER_STEPS)


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
    for bad, message in [(x[0], "needs rows"), (x[:0], "at least one row"), (x / 0.0, "NaN or infinite")]:
        with pytest.raises(ValueError, match=message):
            bali.input_moments(bad)
    with pytest.raises(ValueError, match="at least one row"):
        bali.input_moments(iter([]))


# --- members and types ----------------------------------------------------------------------------------------------


def test_weighted_members_are_as_they_are_alone() -> None:
    x, y = data("categorical", 20, 3, 2)
    weight = torch.rand(3, 20, generator=seeded(3), dtype=torch.float64)
    together = stacked_mlp(3, (3, 5, 2), "tanh").double()
    with torch.no_grad():
        for parameter in together.parameters():
            parameter.normal_(generator=seeded(4))

    def trained(members: list[int]) -> bali.LayerwiseInference:
        module = take_stacked(together, members)
        assert isinstance(module.get_submodule("0"), StackedLinear)
        options: dict[str, Any] = {"n_data": 20, "reparam": "none", "target_noise": False}
        made = bali.LayerwiseInference(module, bali.likelihoods.Categorical(), **options)
        for _ in range(14):
            made.step(x, y, sample_weight=weight[members])
        return made

    stack = trained([0, 1, 2])
    for k in range(3):
        for name, expected in trained([k]).posteriors.items():
            assert_same_posterior(member(stack.posteriors[name], k), member(expected, 0), AFTER_STEPS)


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
        assert_same_posterior(found[0][name], expected, FLOAT32_STEPS)
