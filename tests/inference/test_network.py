"""Modules of any shape: what is recorded in a forward pass, and what is refused there."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.inference.network import Network
from support.networks import data, inference, linears, mlp, parameters, randn
from support.posteriors import assert_same_posterior, assert_same_posteriors
from support.tolerances import EXACT

STEPS = 4


class Called(nn.Module):
    """Wraps a function of linear layers, so that a test can write its forward pass in one line."""

    def __init__(self, forward: Callable[..., object], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), forward

    def forward(self, x: Tensor) -> object:
        return self.function(x, *self.layers)


def linear(d_in: int, d_out: int, seed: int) -> nn.Linear:
    return linears(mlp((d_in, d_out), seed=seed))[0]


def trained(module: nn.Module, x: Tensor, y: Tensor, likelihood: str = "gaussian") -> bali.LayerwiseInference:
    run = inference(module, likelihood, len(x), reparam="none")
    for _ in range(STEPS):
        run.step(x, y)
    return run


def assert_equal_layers(first: bali.LayerwiseInference, second: bali.LayerwiseInference) -> None:
    """The same posteriors in the same order, under whatever names."""
    for one, two in zip(first.posteriors.values(), second.posteriors.values(), strict=True):
        assert_same_posterior(one, two, EXACT)


# --- forward passes of any shape ------------------------------------------------------------------------------------


def nested(a: nn.Module, b: nn.Module, c: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Sequential(a, nn.Sequential(nn.Tanh())), nn.Sequential(nn.Sequential(b, nn.Tanh()), c))


FORMS: dict[str, Callable[[nn.Module, nn.Module, nn.Module], nn.Module]] = {
    "nested": nested,
    "written out": lambda a, b, c: Called(lambda x, a, b, c: c(torch.tanh(b(torch.tanh(a(x))))), a, b, c),
    "called by keyword": lambda a, b, c: Called(lambda x, a, b, c: c(torch.tanh(b(input=torch.tanh(a(x))))), a, b, c),
    "ends in squeeze": lambda a, b, c: Called(
        lambda x, *m: m[2](torch.tanh(m[1](torch.tanh(m[0](x))))).squeeze(-1), a, b, c
    ),
    "ends in identity and flatten": lambda a, b, c: nn.Sequential(nested(a, b, c), nn.Identity(), nn.Flatten(0)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_way_a_network_is_written_does_not_matter(
    form: Callable[[nn.Module, nn.Module, nn.Module], nn.Module], likelihood: str
) -> None:
    x, y = data(likelihood, 30, 3, 1)
    plain = trained(mlp((3, 5, 4, 1)), x, y, likelihood)
    other = trained(form(*linears(mlp((3, 5, 4, 1)))), x, y[:, 0], likelihood)
    assert_equal_layers(plain, other)
    one, two = plain.predict(x, 3), other.predict(x, 3)
    torch.testing.assert_close(one.mean, two.mean, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("activation", [nn.GELU, nn.ELU, nn.Softplus, nn.LeakyReLU, nn.Sigmoid, nn.Hardtanh])
def test_any_activation_trains(activation: type[nn.Module]) -> None:
    """A hidden layer explains what a linear regression cannot."""
    x = randn(60, 3, seed=1)
    y = x[:, :1].square() - 1.0
    final = []
    for module in (linear(3, 1, 0), nn.Sequential(linear(3, 20, 0), activation(), linear(20, 1, 1))):
        run = inference(module, n_data=60, prior_variance=1.0)
        final.append([float(run.step(x, y)) for _ in range(80)][-10:])
    assert sum(final[1]) / 10 > sum(final[0]) / 10 + 0.3


def test_in_place_activation_equals_out_of_place() -> None:
    x, y = data("gaussian", 30, 3, 1)
    runs = []
    for inplace in (False, True):
        a, b, c = linears(mlp((3, 6, 5, 1)))
        runs.append(trained(nn.Sequential(a, nn.ReLU(inplace), b, nn.ReLU(inplace), c), x, y))
    assert_same_posteriors(*runs)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
def test_middle_dimensions_are_rows(likelihood: str, reparam: str) -> None:
    x, y = data(likelihood, 24, 3, 2)
    flat = inference(mlp((3, 5, 2)), likelihood, 24, reparam=reparam)
    folded = inference(mlp((3, 5, 2)), likelihood, 24, reparam=reparam)
    for _ in range(STEPS):
        value = folded.step(x.reshape(6, 4, 3), y.reshape(6, 4, *y.shape[1:]))
        torch.testing.assert_close(value, flat.step(x, y), rtol=EXACT, atol=EXACT)
    assert_same_posteriors(flat, folded, tolerance=EXACT)
    methods = ["weight", "local", "closed-form"] if likelihood == "gaussian" else ["weight", "local"]
    for method in methods:
        one = flat.predict(x, 3, method=method)  # type: ignore[arg-type]
        two = folded.predict(x.reshape(6, 4, 3), 3, method=method)  # type: ignore[arg-type]
        torch.testing.assert_close(one.mean, two.mean, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
def test_both_calls_of_a_layer_count(reparam: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer applied to two inputs in turn is the same layer applied to them as rows of one matrix."""
    x, y = data("gaussian", 30, 6, 1)
    numbers = randn(10_000, seed=9)  # drawn row by row, whatever the shape of a draw
    position = 0

    def in_order(shape: tuple[int, ...], **_options: object) -> Tensor:
        nonlocal position
        position += math.prod(shape)
        return numbers[position - math.prod(shape) : position].reshape(shape)

    monkeypatch.setattr(torch, "randn", in_order)

    def in_turn(x: Tensor, shared: nn.Module, last: nn.Module) -> Tensor:
        return last(torch.tanh(shared(x[:, :3])) + torch.tanh(shared(x[:, 3:])))

    def together(x: Tensor, shared: nn.Module, last: nn.Module) -> Tensor:
        return last(torch.tanh(shared(torch.cat([x[:, :3], x[:, 3:]]))).reshape(2, -1, 5).sum(0))

    runs = []
    for function in (in_turn, together):
        position = 0
        run = inference(Called(function, linear(3, 5, 0), linear(5, 1, 1)), n_data=30, reparam=reparam)
        for _ in range(STEPS):
            run.step(x, y)
        runs.append(run)
    assert_same_posteriors(*runs, tolerance=EXACT)


# --- frozen layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [0, 2], ids=["first layer", "middle layer"])
def test_frozen_layers_keep_every_bit_and_pass_gradients_on(frozen: int) -> None:
    x, y = data("gaussian", 30, 3, 1)
    module = mlp((3, 5, 4, 1))
    module[frozen].requires_grad_(False)
    kept = parameters(module[frozen])
    run = trained(module, x, y)
    run.predict(x, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept, parameters(module[frozen]), strict=True))
    assert str(frozen) not in run.posteriors
    assert len(run.posteriors) == 2
    if frozen == 0:  # then the first layer is a transformation of the data
        rest = mlp((3, 5, 4, 1))
        with torch.no_grad():
            inputs = rest[:2](x)
        assert_equal_layers(run, trained(rest[2:], inputs, y))


# --- what is refused ------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[..., object], str]] = {
    "not called": (lambda x, a, b, c: c(a(x)), "layer 'layers.1' was not called"),
    "used through its weight": (
        lambda x, a, b, c: c(nn.functional.linear(a(x), b.weight)),
        "layer 'layers.1' was not called",
    ),
    "without effect": (lambda x, a, b, c: (lambda h: (b(h), c(h))[1])(a(x)), "layer 'layers.1' has no effect"),
    "output changed in place": (
        lambda x, a, b, c: c(torch.relu_(b(a(x)))),
        "output of layer 'layers.1' was changed in place",
    ),
    "output changed by +=": (lambda x, a, b, c: c(b(x).add_(a(x))), "output of layer 'layers.1' was changed in place"),
    "view of output changed": (
        lambda x, a, b, c: c(b(a(x)).view(-1).relu_().view(-1, 3)),
        "'layers.1' was changed in place",
    ),
    "input changed in place": (
        lambda x, a, b, c: (lambda h: c(b(h) + h.mul_(2.0)))(torch.tanh(a(x))),
        "input or output of layer 'layers.1' was changed in place",
    ),
}


@pytest.mark.parametrize(("forward", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_forward_passes_that_hide_something_are_refused(
    forward: Callable[..., object], message: str, likelihood: str
) -> None:
    x, y = data(likelihood, 10, 3, 2)
    module = Called(forward, linear(3, 3, 0), linear(3, 3, 1), linear(3, 2, 2))
    before = parameters(module)
    run = inference(module, likelihood, 10)
    with pytest.raises(bali.UnsupportedLayerError, match=message):
        run.step(x, y)
    assert run.state.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(module), strict=True))


ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sum of outputs": lambda z: z.sum(-1, keepdim=True),
    "shifted": lambda z: z + 1.0,
    "transposed": lambda z: z[: z.shape[1]].T,
    "reversed": lambda z: z.flip(-1),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_regression_must_end_in_a_linear_layer(ending: Callable[[Tensor], Tensor]) -> None:
    x, y = data("gaussian", 10, 3, 1)
    module = Called(lambda x, a, b: ending(b(a(x))), linear(3, 3, 0), linear(3, 2, 1))
    with pytest.raises(ValueError, match="must end in a linear layer"):
        inference(module, n_data=10).step(x, y.expand(-1, 2))


def test_regression_must_end_in_a_linear_layer_even_if_a_relu_cuts_nothing_yet() -> None:
    x, y = data("gaussian", 10, 3, 1)
    last = linear(3, 1, 1)
    with torch.no_grad():
        last.bias.fill_(100.0)
    with pytest.raises(ValueError, match="must end in a linear layer"):
        inference(nn.Sequential(linear(3, 3, 0), nn.Tanh(), last, nn.ReLU()), n_data=10).step(x, y)


def test_regression_must_not_end_in_a_frozen_layer() -> None:
    x, y = data("gaussian", 10, 3, 1)
    module = mlp((3, 4, 1))
    module[2].requires_grad_(False)
    with pytest.raises(ValueError, match="must end in a linear layer"):
        inference(module, n_data=10).step(x, y)


def test_modules_return_one_tensor() -> None:
    with pytest.raises(TypeError, match="one tensor, or an object with `logits`; got tuple"):
        Network(Called(lambda x, a: (a(x), x), linear(3, 2, 0))).forward(randn(4, 3, seed=0))
