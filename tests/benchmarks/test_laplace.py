"""Laplace approximations against Gaussians in closed form; and what is said where laplace-torch is missing."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from bali_benchmarks.baselines import State, Task
from bali_benchmarks.baselines.adam import averaged_weights
from bali_benchmarks.baselines.laplace import KroneckerLaplace, LastLayerLaplace
from bali_benchmarks.baselines.perceptrons import forward, layers

NOISE, PRECISION = 0.3, 2.0


def data(generator: torch.Generator, classes: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(2, 25, 3, generator=generator, dtype=torch.float64)
    if classes:
        return x, torch.randint(classes, (2, 25), generator=generator)
    return x, torch.randn(2, 25, 1, generator=generator, dtype=torch.float64)


def with_ones(features: torch.Tensor) -> torch.Tensor:
    return torch.cat([features, torch.ones_like(features[..., :1])], -1)


class TestAgainstClosedForms:
    __test__ = importlib.util.find_spec("laplace") is not None  # an optional extra

    def test_last_layer_of_a_regression(self) -> None:
        """The posterior of linear regression on the last layer's inputs φ: precision ΦᵀΦ / σ² + λ."""
        generator = torch.Generator().manual_seed(0)
        task = Task((3, 4, 1), "tanh", 2, 25, classification=False, dtype=torch.float64)
        method = LastLayerLaplace(prior_precision=PRECISION)
        x, y = data(generator)
        state = method.start(task, generator) | {"noise_variance": torch.tensor([NOISE, 2 * NOISE], dtype=torch.float64)}
        state = method.finish(task, state, x, y)
        features = with_ones(layers(task, averaged_weights(state), x)[0][-1])
        noise = state["noise_variance"][:, None, None]
        precision = features.mT @ features / noise + PRECISION * torch.eye(5, dtype=torch.float64)
        scale = state["posterior_scale"]  # the library keeps noise and prior precision in float32
        torch.testing.assert_close(
            scale @ scale.mT @ precision, torch.eye(5, dtype=torch.float64).expand(2, -1, -1), atol=1e-5, rtol=1e-5
        )
        outputs = method.outputs(task, state, x, 20_000, generator)
        variance = (features @ (scale @ scale.mT) * features).sum(-1)
        torch.testing.assert_close(outputs.var(0)[..., 0], variance, rtol=0.06, atol=0.0)
        mean = layers(task, averaged_weights(state), x)[1][-1]
        assert ((outputs.mean(0) - mean)[..., 0].abs() < 5 * (variance / 20_000).sqrt()).all()

    def test_last_layer_of_a_classification(self) -> None:
        """The generalised Gauss–Newton matrix: Σ (diag p − p pᵀ) ⊗ φφᵀ, weights before biases."""
        generator = torch.Generator().manual_seed(0)
        task = Task((3, 4, 3), "tanh", 2, 25, classification=True, dtype=torch.float64)
        method = LastLayerLaplace(prior_precision=PRECISION)
        x, y = data(generator, classes=3)
        state = method.finish(task, method.start(task, generator), x, y)
        inputs, (*_, z) = layers(task, averaged_weights(state), x)
        p = z.softmax(-1)
        hessian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        jacobian = torch.stack([_jacobian(row) for row in inputs[-1].flatten(0, 1)]).reshape(2, 25, 3, 15)
        precision = (jacobian.mT @ hessian @ jacobian).sum(1) + PRECISION * torch.eye(15, dtype=torch.float64)
        scale = state["posterior_scale"]  # the library keeps noise and prior precision in float32
        torch.testing.assert_close(
            scale @ scale.mT @ precision, torch.eye(15, dtype=torch.float64).expand(2, -1, -1), atol=1e-5, rtol=1e-5
        )

    def test_kronecker_factors_of_one_linear_layer(self) -> None:
        """Weights and bias are independent: precisions XᵀX / σ² + λ and n / σ² + λ."""
        generator = torch.Generator().manual_seed(0)
        task = Task((3, 1), "tanh", 2, 25, classification=False, dtype=torch.float64)
        method = KroneckerLaplace(prior_precision=torch.tensor([PRECISION, 5.0]))
        x, y = data(generator)
        state = method.start(task, generator) | {"noise_variance": torch.full((2,), NOISE, dtype=torch.float64)}
        state = method.finish(task, state, x, y)
        prior = torch.tensor([PRECISION, 5.0], dtype=torch.float64)
        covariance = torch.linalg.inv(x.mT @ x / NOISE + prior[:, None, None] * torch.eye(3, dtype=torch.float64))
        variance = (x @ covariance * x).sum(-1) + 1 / (25 / NOISE + prior)[:, None]
        outputs = method.outputs(task, state, x, 20_000, generator)[..., 0]
        torch.testing.assert_close(outputs.var(0), variance, rtol=0.06, atol=0.0)
        assert ((outputs.mean(0) - (x @ state["average.0"][:, :-1])[..., 0]).abs() < 5 * (variance / 20_000).sqrt()).all()

    def test_predictions_are_those_of_the_linearised_network(self) -> None:
        """Draws a hundred million times smaller move the network itself as the draws move its linearisation."""
        generator = torch.Generator().manual_seed(0)
        task = Task((3, 4, 1), "relu", 2, 25, classification=False, dtype=torch.float64)
        method = KroneckerLaplace(prior_precision=1e-2)
        x, y = data(generator)
        state = method.finish(task, method.start(task, generator), x, y)
        outputs = method.outputs(task, state, x, 3, torch.Generator().manual_seed(5))
        network = partial(forward, task, x=x)
        weights = averaged_weights(state)
        tiny = 1e-8
        shrunk = {name: value * (tiny if "_std" in name else 1.0) for name, value in state.items()}
        drawn = _drawn_weights(method, task, shrunk)
        for s in range(3):
            moved = [w + d[s] for w, d in zip(weights, drawn, strict=True)]
            slope = (network(moved) - network(weights)) / tiny
            torch.testing.assert_close(outputs[s] - network(weights), slope, rtol=1e-4, atol=1e-6)

    def test_before_the_end_it_is_map(self) -> None:
        generator = torch.Generator().manual_seed(0)
        task = Task((3, 4, 1), "relu", 2, 25, classification=False, dtype=torch.float64)
        x, _ = data(generator)
        for method in (LastLayerLaplace(), KroneckerLaplace()):
            state = method.start(task, generator)
            assert torch.equal(
                method.outputs(task, state, x, 9, generator)[0], layers(task, averaged_weights(state), x)[1][-1]
            )


def _drawn_weights(method: KroneckerLaplace, task: Task, state: State) -> list[torch.Tensor]:
    """Deviations of all layers for three draws, read off a linear network layer by layer: its outputs at unit vectors."""
    generator = torch.Generator().manual_seed(5)
    drawn = []
    for i, weight in enumerate(averaged_weights(state)):
        n_in, n_out = weight.shape[1] - 1, weight.shape[2]
        layer = {"average.0": torch.zeros_like(weight)}
        layer |= {f"{name.rsplit('.', 1)[0]}.0": v for name, v in state.items() if name.endswith(f".{i}") and "_" in name}
        single = Task((n_in, n_out), "identity", task.members, 1, classification=False, dtype=torch.float64)
        units = torch.cat([torch.zeros(1, n_in), torch.eye(n_in)]).double().expand(task.members, -1, -1)
        bias, *rows = method.outputs(single, layer, units, 3, generator).unbind(2)
        drawn.append(torch.stack([row - bias for row in rows] + [bias], 2))
    return drawn


def _jacobian(features: torch.Tensor) -> torch.Tensor:
    """Of three outputs with respect to the matrix (3, D), row by row, and the biases."""
    return torch.cat([torch.kron(torch.eye(3, dtype=features.dtype), features[None]), torch.eye(3, dtype=features.dtype)], 1)


class TestWithoutTheLibrary:
    task = Task((1, 2, 1), "relu", 1, 5, classification=False)

    def test_it_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "laplace", None)
        with pytest.raises(ImportError, match=r"pip install 'bali-benchmarks\[peers\]'"):
            LastLayerLaplace().start(self.task, torch.Generator())

    def test_a_torchvision_for_another_torch(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "laplace.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
        monkeypatch.delitem(sys.modules, "laplace", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ImportError, match="install torch and torchvision from the same index"):
            LastLayerLaplace().start(self.task, torch.Generator())
