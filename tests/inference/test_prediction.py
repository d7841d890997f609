"""Predictions: closed forms, Monte Carlo agreement, chunks, memory, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bali
from bali.inference.prediction import Method
from bali.inference.settings import Noise
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from support.networks import data, inference, mlp, parameters, randn, seeded
from support.tolerances import EXACT
from support.tolerances import ROUNDING as CHUNKS  # matrix products of other heights round differently
from support.tolerances import STANDARD_ERRORS as SIGMAS

METHODS: list[Method] = ["weight", "local", "closed-form"]


def regression(module: nn.Module, d_in: int, d_out: int, steps: int = 3, **settings: Any) -> bali.LayerwiseInference:
    x, y = data("gaussian", 40, d_in, d_out)
    run = inference(module, n_data=40, prior_variance=1.0, output_noise_floor=0.05, **settings)
    for _ in range(steps):
        run.step(x, y)
    return run


def predicted(run: bali.LayerwiseInference, x: Tensor, n_samples: int, method: Method, **kw: Any) -> RegressionPredictive:
    found = run.predict(x, n_samples, method=method, **kw)
    assert isinstance(found, RegressionPredictive)
    return found


# --- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["mode", "sample"])
def test_one_layer_in_closed_form_is_the_known_predictive(noise: Noise) -> None:
    run = regression(nn.Linear(3, 2).double(), 3, 2)
    (posterior,) = run.posteriors.values()
    x, y = randn(6, 3, seed=20), randn(6, 2, seed=21)
    found = predicted(run, x, 1, "closed-form", noise=noise)
    expected = posterior.predictive(torch.cat([x, torch.ones(6, 1).double()], 1))
    torch.testing.assert_close(found.mean, expected.location, rtol=EXACT, atol=EXACT)
    shape = posterior.noise_mode() if noise == "mode" else expected.matrix
    log_prob = []
    for location, inflation, row in zip(expected.location, expected.inflation, y, strict=True):
        matrix = (inflation * shape).numpy()
        if noise == "mode":
            log_prob.append(stats.multivariate_normal(location.numpy(), matrix).logpdf(row.numpy()))
        else:
            log_prob.append(stats.multivariate_t(location.numpy(), matrix, int(expected.dof)).logpdf(row.numpy()))
    np.testing.assert_allclose(found.log_prob(y).numpy(), log_prob, rtol=EXACT)
    tail = 1.0 if noise == "mode" else float(expected.dof / (expected.dof - 2))
    covariance = tail * expected.inflation[:, None, None] * shape
    torch.testing.assert_close(found.covariance, covariance, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(found.variance, found.covariance.diagonal(dim1=1, dim2=2), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("noise", "samples"), [("mode", 2_000), ("sample", 300)])
@pytest.mark.parametrize("method", ["weight", "local"])
def test_sampling_one_layer_agrees_with_the_closed_form(noise: Noise, samples: int, method: Method) -> None:
    run = regression(nn.Linear(3, 2).double(), 3, 2)
    x = randn(5, 3, seed=22)
    exact, sampled = (predicted(run, x, n, m, noise=noise) for n, m in ((1, METHODS[2]), (samples, method)))
    spread = exact.epistemic
    assert bool(((sampled.mean - exact.mean).abs() < SIGMAS * (spread / samples).sqrt()).all())
    (posterior,) = run.posteriors.values()
    kurtosis = 3.0 if noise == "mode" else 3.0 + 6.0 / (float(posterior.dof) - 2 + 1 - 4)
    error = spread * ((kurtosis - 1) / samples) ** 0.5
    assert bool(((sampled.epistemic - spread).abs() < SIGMAS * error).all())
    dof = float(posterior.dof)
    # Under "sample" the noise variances are inverse gamma distributed, with this relative variance.
    relative = 0.0 if noise == "mode" else 2.0 / (dof - 2 - 3)
    error = exact.aleatoric * (relative / samples) ** 0.5 + EXACT
    assert bool(((sampled.aleatoric - exact.aleatoric).abs() < SIGMAS * error).all())


def test_integrating_the_output_layer_agrees_with_sampling_it() -> None:
    samples = 1_500
    run = regression(mlp((3, 6, 1)), 3, 1, steps=10)
    x = randn(5, 3, seed=23)
    one, two = (predicted(run, x, samples, method, generator=seeded(k)) for k, method in enumerate(METHODS[::2]))
    error = ((one.epistemic + two.epistemic) / samples).sqrt()
    assert bool(((one.mean - two.mean).abs() < SIGMAS * error).all())
    fourth = (one.means - one.mean).pow(4).mean(0)  # of the wider of the two mixtures' components
    error = (2 * (fourth - one.epistemic.square()) / samples).sqrt()
    assert bool(((one.epistemic - two.epistemic).abs() < SIGMAS * error).all())
    # Components of the closed form are wider, so fewer of them are needed: their means spread less.
    assert bool((two.means.var(0) < one.means.var(0)).all())


def test_class_probabilities_are_those_of_the_sampled_networks() -> None:
    x, y = data("categorical", 40, 3, 3)
    run = inference(mlp((3, 6, 3)), "categorical", 40)
    run.step(x, y)
    found = run.predict(x, 5)
    assert isinstance(found, ClassPredictive)
    assert found.component_probabilities.shape == (5, 40, 3)
    torch.testing.assert_close(found.component_probabilities.sum(-1), torch.ones(5, 40).double())
    with pytest.raises(ValueError, match="closed-form"):
        run.predict(x, 5, method="closed-form")


# --- the same call, the same answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["mode", "sample"])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_call_gives_the_same_prediction(method: Method, noise: Noise) -> None:
    run = regression(mlp((3, 6, 2)), 3, 2)
    x = randn(7, 3, seed=24)
    one, two = (predicted(run, x, 5, method, noise=noise) for _ in range(2))
    assert torch.equal(one.means, two.means)
    assert torch.equal(one.noise, two.noise)
    other = predicted(run, x, 5, method, noise=noise, generator=seeded(99))
    assert not torch.equal(one.means, other.means)


@pytest.mark.parametrize("noise", ["mode", "sample"])
@pytest.mark.parametrize("method", ["weight", "closed-form"])
@pytest.mark.parametrize("chunk_rows", [1, 3, 8, 100])
def test_chunks_are_parts_of_the_whole(method: Method, noise: Noise, chunk_rows: int) -> None:
    run = regression(mlp((3, 6, 2)), 3, 2)
    x, y = randn(10, 3, seed=25), randn(10, 2, seed=26)
    whole, chunked = (predicted(run, x, 4, method, noise=noise, chunk_rows=rows) for rows in (None, chunk_rows))
    torch.testing.assert_close(whole.means, chunked.means, rtol=CHUNKS, atol=CHUNKS)
    torch.testing.assert_close(whole.log_prob(y), chunked.log_prob(y), rtol=EXACT, atol=EXACT)
    assert torch.equal(whole.noise, chunked.noise)
    parts = list(run.posterior().predict_chunks(x, 4, method=method, chunk_rows=chunk_rows))
    assert [part.n_rows for part in parts] == [min(chunk_rows, 10 - start) for start in range(0, 10, chunk_rows)]


@pytest.mark.parametrize(("width", "rows"), [(2, 4096), (200, 2621), (300, 2048), (1000, 2048)])
def test_default_chunks_are_shorter_for_wide_layers(width: int, rows: int) -> None:
    run = inference(mlp((1, width, 1)), n_data=5, reparam="none")
    run.step(randn(5, 1, seed=1), randn(5, 1, seed=2))
    parts = list(run.posterior().predict_chunks(randn(5000, 1, seed=3), 1))
    assert [part.n_rows for part in parts] == [min(rows, 5000 - start) for start in range(0, 5000, rows)]


def test_chunked_local_noise_is_independent_between_rows() -> None:
    run = regression(mlp((3, 6, 1)), 3, 1)
    x = randn(1, 3, seed=27).expand(6, 3)
    found = predicted(run, x, 3, "local", chunk_rows=2)
    assert len(torch.unique(found.means)) == found.means.numel()


BAD: dict[str, dict[str, Any]] = {
    "method must be": {"method": "exact"},
    "noise must be": {"noise": "mean"},
    "n_samples": {"n_samples": 0},
    "chunk_rows": {"chunk_rows": 0},
    "no rows": {"x": torch.zeros(0, 3).double()},
}


@pytest.mark.parametrize(("message", "arguments"), BAD.items(), ids=BAD.keys())
def test_bad_requests_are_refused(message: str, arguments: dict[str, Any]) -> None:
    run = regression(mlp((3, 6, 1)), 3, 1)
    with pytest.raises(ValueError, match=message):
        run.predict(**({"x": randn(2, 3, seed=0)} | arguments))


# --- nothing else changes -------------------------------------------------------------------------------------------


class Failing(nn.Module):
    """Raises in the third forward pass from when it was armed."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("failed on purpose")
        return x


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "raises"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("outer", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_prediction_leaves_everything_as_it_was(fails: bool, method: Method, outer: Any) -> None:
    failing = Failing()
    hidden = mlp((3, 6, 1))
    module = nn.Sequential(hidden[0], nn.Dropout(0.5).eval(), failing, nn.Dropout(0.5), hidden[2])
    run = regression(module, 3, 1)
    failing.left = 3 if fails else -1
    weights, modes = parameters(module), [m.training for m in module.modules()]
    generator, means = run.state.generator.get_state(), [p.mean.clone() for p in run.posteriors.values()]
    with outer():
        if fails:
            with pytest.raises(RuntimeError, match="on purpose"):
                run.predict(randn(4, 3, seed=28), 5, method=method)
        else:
            run.predict(randn(4, 3, seed=28), 5, method=method)
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(module), strict=True))
    assert [m.training for m in module.modules()] == modes
    assert torch.equal(run.state.generator.get_state(), generator)
    assert all(torch.equal(a, p.mean) for a, p in zip(means, run.posteriors.values(), strict=True))
    assert not any(m._forward_hooks for m in module.modules())
    x, y = data("gaussian", 40, 3, 1)
    run.step(x, y)  # and training goes on
    assert run.state.step == 4


MILLION_ROWS = """
import resource, torch, bali
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
run = bali.LayerwiseInference(module, bali.likelihoods.Gaussian(), 1000)
x = torch.randn(1_000_000, 8)
run.step(x[:1000], x[:1000, :2])
run.predict(x[:20_000], 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = 0
for chunk in run.posterior().predict_chunks(x, 64, chunk_rows=20_000):
    rows += len(chunk.mean)
    assert bool(torch.isfinite(chunk.std).all())
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_rows() -> None:
    """64 samples of a million rows would be 512 MB; chunks of them stay far below (ru_maxrss is in kB)."""
    run = subprocess.run([sys.executable, "-c", MILLION_ROWS], capture_output=True, text=True, check=True)
    rows, grown = map(int, run.stdout.split())
    assert rows == 1_000_000
    assert grown < 100_000
