"""Row-wise prediction: every row has the distribution that it has under weight samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bali
from bali.inference.local_noise import RowNoise
from bali.inference.prediction import Method
from bali.inference.settings import Noise
from bali_benchmarks.stacked_mlp import stacked_mlp
from support.networks import batches, data, inference, mlp, randn, seeded
from support.oracles import array, assert_mean
from support.tolerances import SMALLEST_P_VALUE


def trained(likelihood: str = "gaussian", **settings: Any) -> bali.LayerwiseInference:
    made = inference(mlp((3, 6, 2)), likelihood, n_data=60, effective_size=10.0, **settings)
    for x, y in batches(*data(likelihood, 60, 3, 2), 30, 20):
        made.step(x, y)
    return made


def components(made: bali.LayerwiseInference, x: Tensor, n: int, method: Method, noise: Noise = "mode") -> Tensor:
    """(S, n, D) means of a regression."""
    return made.predict(x, n, method=method, noise=noise).means  # type: ignore[attr-defined]


@pytest.mark.parametrize("noise", ["mode", "sample"])
def test_a_row_has_the_distribution_it_has_under_weight_samples(noise: Noise) -> None:
    made, x = trained(), randn(4, 3, seed=20)
    methods: tuple[Method, ...] = ("weight", "rowwise")
    one, other = (array(components(made, x, 4000, method, noise)) for method in methods)
    for row in range(4):
        for output in range(2):
            test = stats.ks_2samp(one[:, row, output], other[:, row, output])
            assert test.pvalue > SMALLEST_P_VALUE, (row, output)


def test_samples_of_a_row_are_independent_of_each_other() -> None:
    made, x = trained(), randn(300, 3, seed=20)
    z = array(components(made, x, 200, "rowwise"))
    z = (z - z.mean(0)) / z.std(0)
    neighbours = (z[:-1] * z[1:]).mean((0, 2))  # one number for each row
    assert abs(neighbours.mean()) < 5 / np.sqrt(neighbours.size * 199)


def test_a_single_layer_has_its_closed_form() -> None:
    made = inference(mlp((3, 2)), "categorical", n_data=60)
    for x, y in batches(*data("categorical", 60, 3, 2), 30, 20):
        made.step(x, y)
    posterior, x = made.posteriors["0"], randn(2, 3, seed=20)
    layer = made.setup.network.layers["0"]
    layer.assign(posterior.mean)
    row_noise = RowNoise(layer, posterior, x, 3000, "mode", seeded(1))
    samples = []
    for s in range(3000):
        with torch.no_grad(), row_noise.of_sample(s):
            samples.append(array(layer.module(x)))
    z = np.stack(samples)
    closed = posterior.predictive(torch.cat([x, torch.ones(2, 1, dtype=x.dtype)], -1))
    assert_mean(z, array(closed.location))
    covariance = array((closed.inflation - 1)[:, None, None] * posterior.noise_mode())
    centred = z - array(closed.location)
    assert_mean(np.einsum("sni,snj->snij", centred, centred), covariance)


def test_stacked_members_and_chunks() -> None:
    module = stacked_mlp(3, (3, 5, 2), "tanh").double()
    made = bali.LayerwiseInference(module, bali.likelihoods.Categorical(), 40, generator=seeded(2))
    for x, y in batches(*data("categorical", 40, 3, 2), 20, 8):
        made.step(x, y)
    x = randn(11, 3, seed=21)
    found, expected = (made.predict(x, 400, method=m, chunk_rows=4).probabilities for m in ("rowwise", "weight"))  # type: ignore[attr-defined]
    assert found.shape == (11, 2)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.05)


def test_the_layer_computes_again_afterwards_even_if_something_fails() -> None:
    made, x = trained(), randn(4, 3, seed=20)
    before = made.module(x)
    made.predict(x, 5, method="rowwise")
    assert "forward" not in vars(made.setup.network.layers["0"].module)
    assert torch.equal(made.module(x), before)
    layer = made.setup.network.layers["0"]
    row_noise = RowNoise(layer, made.posteriors["0"], x, 2, "mode", seeded(1))
    with pytest.raises(RuntimeError, match="halfway"), row_noise.of_sample(0):
        raise RuntimeError("halfway")
    assert "forward" not in vars(layer.module)


def test_a_module_whose_input_is_changed_first_is_refused() -> None:
    made = inference(nn.Sequential(nn.Tanh(), mlp((3, 6, 2))), "categorical", n_data=40)
    x, y = data("categorical", 40, 3, 2)
    made.step(x, y)
    with pytest.raises(ValueError, match="method 'rowwise' needs a linear layer"):
        made.predict(x, 2, method="rowwise")
