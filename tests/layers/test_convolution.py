"""Convolutions: against the modules themselves and against linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bali
from bali.conjugate.moments import with_ones
from bali.inference.prediction import Method
from bali.layers.convolution import Convolution, ConvolutionLayer
from support.networks import data, inference, mlp, randn, seeded
from support.posteriors import assert_same_posterior, assert_same_posteriors, member
from support.shared_positions import images, one_by_one
from support.tolerances import EXACT, MANY_STEPS

KINDS: list[type[Convolution]] = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
STEPS = 4
METHODS: tuple[Method, ...] = ("weight", "local")


# --- a convolution is rows times a matrix ---------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Convolution, Tensor]:
    """A convolution with any options, and inputs for it."""
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> Any:
        return draw(st.tuples(*[st.integers(low, high)] * dims))

    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    groups = draw(st.sampled_from([1, 2, 3]))
    module = KINDS[dims - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel_size=each(1, 3),
        stride=1 if padding == "same" else each(1, 3),
        padding=each(0, 2) if padding == "numbers" else padding,
        dilation=each(1, 2),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    size = draw(st.tuples(*[st.integers(5, 6)] * dims))
    return module.double(), randn(2, module.in_channels, *size, seed=draw(st.integers(0, 99)))


@given(case=convolutions())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_rows_times_the_weight_matrix_are_the_outputs(case: tuple[Convolution, Tensor]) -> None:
    module, x = case
    layer = ConvolutionLayer("conv", module)
    z = module(x).detach()
    rows = layer.input_rows(x)
    assert rows.shape[-1] == layer.in_features
    products = (with_ones(rows, None) if layer.has_bias else rows) @ layer.weights()
    torch.testing.assert_close(products, layer.output_rows(z), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(layer.from_rows(products, z), z, rtol=EXACT, atol=EXACT)
    replacement = torch.randn_like(layer.weights())
    layer.assign(replacement)
    assert torch.equal(layer.weights(), replacement)
    products = (with_ones(rows, None) if layer.has_bias else rows) @ replacement
    torch.testing.assert_close(layer.from_rows(products, z), module(x).detach(), rtol=EXACT, atol=EXACT)


def test_inputs_without_a_dimension_of_examples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 'conv' .* of 4 dimensions, got shape \(1, 5, 5\)"):
        ConvolutionLayer("conv", nn.Conv2d(1, 1, 2)).input_rows(torch.zeros(1, 5, 5))


class OwnConvolution(nn.Conv1d):
    def _conv_forward(self, *args: Any) -> Tensor:
        return 2.0 * super()._conv_forward(*args)


def test_convolutions_of_their_own_are_refused() -> None:
    with pytest.raises(bali.UnsupportedLayerError, match="'0' \\(OwnConvolution\\)"):
        inference(nn.Sequential(OwnConvolution(2, 2, 1), nn.Flatten(), nn.Linear(4, 1)))


# --- a network with one is a network of linear layers ---------------------------------------------------------------


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_one_by_one_convolutions_are_linear_layers(likelihood: str, reparam: str, weighted: bool) -> None:
    x, y = images(likelihood)
    weight = torch.rand(len(x), generator=seeded(5)).double() if weighted else None
    runs = [inference(m, likelihood, 20, reparam=reparam) for m in one_by_one()]
    for _ in range(STEPS):
        one, two = (run.step(x, y, sample_weight=weight) for run in runs)
        torch.testing.assert_close(one, two, rtol=EXACT, atol=EXACT)
    assert_same_posteriors(*runs, tolerance=EXACT)
    for method in METHODS:
        one, two = (run.predict(x, 3, method=method).mean for run in runs)
        torch.testing.assert_close(one, two, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("options", [{"target_noise": False}, {"about_weights": True}, {"effective_size": 7.5}], ids=str)
def test_other_settings_work_with_convolutions(options: dict[str, Any]) -> None:
    x, y = images("gaussian")
    runs = [inference(m, n_data=20, **options) for m in one_by_one()]
    for _ in range(14):
        for run in runs:
            run.step(x, y)
    assert_same_posteriors(*runs, tolerance=MANY_STEPS)


def test_a_group_is_a_convolution_of_its_own() -> None:
    x, y = images("gaussian")
    x = torch.cat([x, x.flip(-1)], 1)
    grouped = nn.Conv2d(6, 4, 2, groups=2).double()
    halves = [nn.Conv2d(3, 2, 2).double() for _ in range(2)]

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = halves

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first(x[:, :3]), self.second(x[:, 3:])], 1)

    with torch.no_grad():
        for k, half in enumerate(halves):
            half.weight.copy_(grouped.weight[2 * k : 2 * k + 2])
            assert half.bias is not None
            assert grouped.bias is not None
            half.bias.copy_(grouped.bias[2 * k : 2 * k + 2])
    heads = [mlp((8, 2), seed=6) for _ in range(2)]
    bodies = (grouped, Halves())
    one, two = (
        inference(nn.Sequential(body, nn.Tanh(), nn.Flatten(), head), n_data=20, reparam="none")
        for body, head in zip(bodies, heads, strict=True)
    )
    for _ in range(STEPS):
        one.step(x, y)
        two.step(x, y)
    grouped_posterior = one.posteriors["0"]
    assert grouped_posterior.mean.shape == (2, 13, 2)
    assert grouped_posterior.precision.dense().shape == (2, 13, 13)
    for k, name in enumerate(("0.first", "0.second")):
        assert_same_posterior(member(grouped_posterior, k), two.posteriors[name], EXACT)


# --- training, prediction -------------------------------------------------------------------------------------------


def small() -> nn.Sequential:
    """A network for images of 8 × 8, always with the same first weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Conv2d(1, 4, 3, padding="same", padding_mode="circular")
        second = nn.Conv2d(4, 6, 3, stride=2, groups=2)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(54, 2)).double()


def bars(n: int) -> tuple[Tensor, Tensor]:
    """Images of one line, with noise: class 0 is horizontal, class 1 vertical. No pixel alone tells."""
    generator = seeded(1)
    x = 0.3 * torch.randn(n, 1, 8, 8, generator=generator, dtype=torch.float64)
    y, place = torch.randint(2, (n,), generator=generator), torch.randint(8, (n,), generator=generator)
    for image, vertical, line in zip(x, y, place, strict=True):
        image[0, :, line] += vertical
        image[0, line] += 1 - vertical
    return x, y


def test_a_small_network_tells_lines_apart() -> None:
    x, y = bars(300)
    run = inference(small(), "categorical", 200)
    for step in range(60):
        rows = torch.randperm(200, generator=seeded(step))[:50]
        run.step(x[rows], y[rows])
    predictions = [run.predict(x[200:], 10, method=method) for method in METHODS]
    for predictive in predictions:
        right = predictive.probabilities.argmax(-1) == y[200:]  # type: ignore[attr-defined]
        assert float(right.double().mean()) > 0.9


REFUSED: dict[str, tuple[Callable[[bali.LayerwiseInference, Tensor, Tensor], object], dict[str, Any], str]] = {
    "exact inputs": (lambda run, x, y: run.step(x, y), {"input_moments": torch.eye(10)}, "input_moments need a linear"),
}


@pytest.mark.parametrize(("use", "options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_for_linear_input_layers_is_refused(use: Any, options: dict[str, Any], message: str) -> None:
    x, y = bars(10)
    with pytest.raises(ValueError, match=message):
        use(inference(small(), "categorical", 10, **options), x, y)


def test_a_regression_must_end_in_a_linear_layer() -> None:
    x, y = data("gaussian", 10, 3, 2)
    with pytest.raises(ValueError, match="must end in a linear layer"):
        inference(nn.Sequential(nn.Conv1d(3, 2, 1), nn.Flatten()).double()).step(x[..., None], y)
