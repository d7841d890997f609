"""A step of several parts is the step of the whole batch; passes in a narrow type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.conjugate.symmetric import Diagonal
from bali.inference.passes import batch_pass
from bali.predictive.mixtures import ClassPredictive
from support.networks import batches, data, inference, mlp, parameters, randn
from support.oracles import relative_error
from support.posteriors import assert_same_members, assert_same_posteriors
from support.posteriors import parts as parts_of
from support.sequences import Letters
from support.tolerances import STEPS

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "regression": ("gaussian", {}),
    "classification": ("categorical", {}),
    "prior about weights": ("gaussian", {"about_weights": True}),
    "means": ("categorical", {"reparam": "none"}),
    "exact inputs": ("categorical", {"input_moments": bali.input_moments(data("categorical", 40, 3, 2)[0])}),
    "targets of the mean": ("categorical", {"target_noise": False}),
}
each_setting = pytest.mark.parametrize(("likelihood", "settings"), SETTINGS.values(), ids=SETTINGS.keys())


def two_runs(likelihood: str, **settings: Any) -> tuple[bali.LayerwiseInference, bali.LayerwiseInference]:
    one, two = (inference(mlp((3, 6, 5, 2)), likelihood, 40, effective_size=25, **settings) for _ in range(2))
    return one, two


@each_setting
@pytest.mark.parametrize("last_part_in_step", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_give_the_posterior_of_the_whole(
    likelihood: str, settings: dict[str, Any], last_part_in_step: bool, weighted: bool
) -> None:
    whole, parts = two_runs(likelihood, **settings)
    weight = randn(16, seed=4).exp() if weighted else None
    for x, y in batches(*data(likelihood, 40, 3, 2), 16, 12):
        expected = whole.step(x, y, sample_weight=weight)
        cuts = [(x[i:j], y[i:j], None if weight is None else weight[i:j]) for i, j in ((0, 3), (3, 4), (4, 16))]
        for px, py, pw in cuts[:-1] if last_part_in_step else cuts:
            parts.accumulate(px, py, pw)
        px, py, pw = cuts[-1]
        found = parts.step(px, py, sample_weight=pw) if last_part_in_step else parts.step()
        torch.testing.assert_close(found, expected, rtol=STEPS, atol=STEPS)
    assert parts.state.step == whole.state.step
    assert parts.state.rate.effective_rows == pytest.approx(whole.state.rate.effective_rows)
    assert_same_posteriors(parts, whole, tolerance=STEPS)


@pytest.mark.parametrize("settings", [{}, {"target_noise": False}, {"reparam": "none"}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_sequences_give_the_posterior_of_the_whole(settings: dict[str, Any], weighted: bool) -> None:
    """Tokens, whose precision is diagonal, and layers that are called several times."""
    torch.manual_seed(0)
    module = Letters(4, 3).double()
    state, runs = module.state_dict(), []
    for _ in range(2):
        module = Letters(4, 3).double()
        module.load_state_dict(state)
        runs.append(inference(module, "categorical", effective_size=25, **settings))
    whole, parts = runs
    weight = randn(16, seed=4).exp() if weighted else None
    for x, y in batches(*data("categorical", 40, 4, 3), 16, 12):
        whole.step(x, y, sample_weight=weight)
        parts.accumulate(x[:5], y[:5], None if weight is None else weight[:5])
        parts.step(x[5:], y[5:], sample_weight=None if weight is None else weight[5:])
    assert isinstance(whole.posteriors["embedding"].precision, Diagonal)
    assert_same_posteriors(parts, whole, tolerance=STEPS)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("target_noise", [False, True])
def test_parts_with_noise_of_their_own_are_summed_likewise(likelihood: str, target_noise: bool) -> None:
    """One part has the draws of a whole batch; and with the sum of two of them, statistics count twice the rows."""
    whole, parts = two_runs(likelihood, reparam="local", target_noise=target_noise)
    x, y = data(likelihood, 40, 3, 2)
    for run in (whole, parts):
        run.step(x, y)
    whole.step(x, y)
    parts.accumulate(x, y)
    parts.step()
    assert_same_posteriors(parts, whole, tolerance=STEPS)
    before, values = parts.state.generator.get_state(), [parts.accumulate(x, y) for _ in range(2)]
    assert not torch.equal(*values)  # other noise for every part,
    assert torch.equal(parts.state.generator.get_state(), before)  # which a step makes part of the state
    parts.step(x, y)
    assert not torch.equal(parts.state.generator.get_state(), before)
    whole.step(x, y)
    assert parts.state.rate.squares < whole.state.rate.squares


def test_other_parameters_take_the_gradient_of_all_parts() -> None:
    x, y = data("gaussian", 20, 3, 2)

    def run() -> bali.LayerwiseInference:
        module = nn.Sequential(mlp((3, 6)), nn.LayerNorm(6), mlp((6, 2))).double()
        return inference(module, n_data=20, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))

    whole, parts = run(), run()
    for _ in range(4):
        whole.step(x, y)
        parts.accumulate(x[:5], y[:5])
        parts.step(x[5:], y[5:])
    for left, right in zip(parameters(whole.module), parameters(parts.module), strict=True):
        torch.testing.assert_close(left, right, rtol=STEPS, atol=STEPS)


def test_a_part_that_fails_is_left_out() -> None:
    x, y = data("gaussian", 20, 3, 2)
    whole, parts = two_runs("gaussian")
    whole.step(x, y)
    parts.accumulate(x[:5], y[:5])
    with pytest.raises(bali.NumericalError):
        parts.accumulate(x[5:] * float("nan"), y[5:])
    parts.accumulate(x[5:], y[5:])
    parts.step()
    assert_same_posteriors(parts, whole, tolerance=STEPS)


def test_a_failed_step_forgets_the_parts() -> None:
    x, y = data("gaussian", 20, 3, 2)
    whole, parts = two_runs("gaussian")
    whole.step(x, y)
    parts.accumulate(x, y + 3.0)
    with pytest.raises(bali.NumericalError):
        parts.step(x * float("nan"), y)
    parts.step(x, y)
    assert_same_posteriors(parts, whole)


def test_nothing_to_step_with_and_nothing_to_save() -> None:
    x, y = data("gaussian", 20, 3, 2)
    run, _ = two_runs("gaussian")
    with pytest.raises(ValueError, match="step needs x and y"):
        run.step()
    with pytest.raises(ValueError, match="step needs x and y"):
        run.step(x)
    with pytest.raises(ValueError, match="no rows"):
        run.step(x[:0], y[:0])
    saved = run.state_dict()
    run.accumulate(x, y)
    with pytest.raises(RuntimeError, match="accumulated"):
        run.state_dict()
    run.load_state_dict(saved)  # which forgets them
    with pytest.raises(ValueError, match="step needs x and y"):
        run.step()


# --- narrow passes --------------------------------------------------------------------------------------------------


def in_bfloat16(wanted: bool = True) -> torch.autocast:
    """Passes in a narrow type are the user's own affair."""
    return torch.autocast("cpu", torch.bfloat16, enabled=wanted)


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("reparam", ["none", "weight", "local"])
def test_bfloat16_passes_are_close_to_float32_ones(likelihood: str, reparam: str) -> None:
    """Features have 8 bits: within a percent or two. Statistics are float32 all the same, and factors float64."""
    narrow, plain = (inference(mlp((3, 16, 2)).float(), likelihood, 40, reparam=reparam) for _ in range(2))
    x, y = data(likelihood, 40, 3, 2)
    x, y = x.float(), y.float() if likelihood == "gaussian" else y
    for run in (narrow, plain):
        with in_bfloat16(run is narrow):
            for _ in range(3 if reparam == "none" else 1):
                run.step(x, y)
            if reparam == "local":  # with noise of its own: not to be compared, but it runs
                run.step(x, y)
            accumulated = batch_pass(run.setup, run.state, x, y, None, None)
            for name in run.posteriors:
                moments = accumulated.take(name).moments
                wide = name == run.state.output_layer  # true targets are always taken in in float64
                assert {moments.xy.dtype, moments.yy.dtype} == {torch.float64 if wide else torch.float32}
    for name, posterior in narrow.posteriors.items():
        assert posterior.precision.factor.dtype == torch.float64
        if reparam != "local":
            others = parts_of(plain.posteriors[name])
            assert all(relative_error(found, others[part]) < 0.03 for part, found in parts_of(posterior).items())
            assert not torch.equal(posterior.mean, plain.posteriors[name].mean)


def test_the_algebra_is_never_narrow() -> None:
    """The precision of a linear layer is that of float32 passes: its inputs are as they are, only outputs are rounded."""
    x, y = data("categorical", 40, 3, 2)
    narrow, plain = (inference(mlp((3, 2)).float(), "categorical", 40, reparam="none") for _ in range(2))
    with in_bfloat16():
        narrow.step(x.float(), y)
    plain.step(x.float(), y)
    assert torch.equal(narrow.posteriors["0"].precision.dense(), plain.posteriors["0"].precision.dense())
    assert torch.equal(*(run.posteriors["0"].precision.factor for run in (narrow, plain)))


def test_weights_that_move_inside_of_one_autocast_are_seen() -> None:
    """It keeps the narrow copies of a module's weights as long as it lasts, unless it is told to forget them."""
    x, y = data("categorical", 40, 3, 2)
    inside, outside = (inference(mlp((3, 16, 2)).float(), "categorical", 40) for _ in range(2))
    with in_bfloat16():
        for _ in range(3):
            inside.step(x.float(), y)
        predicted = inside.predict(x.float(), 5)
    for _ in range(3):
        with in_bfloat16():
            outside.step(x.float(), y)
    assert_same_posteriors(inside, outside)
    expected = outside.predict(x.float(), 5)
    assert isinstance(predicted, ClassPredictive)
    assert isinstance(expected, ClassPredictive)
    assert torch.equal(predicted.component_probabilities, expected.component_probabilities)
    assert predicted.component_probabilities.dtype == torch.float32


def test_passes_really_are_narrow() -> None:
    seen: list[torch.dtype] = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            return x

    module = nn.Sequential(nn.Linear(3, 4), Watch(), nn.Linear(4, 2))
    run = inference(module, "categorical", 40)
    x, y = data("categorical", 40, 3, 2)
    with in_bfloat16():
        run.step(x.float(), y)
    assert seen == [torch.bfloat16]
    run.predict(x.float(), 2)
    assert set(seen[1:]) == {torch.float32}


@pytest.mark.parametrize("reparam", ["none", "local"])
def test_sequences_can_be_passed_through_in_bfloat16(reparam: str) -> None:
    torch.manual_seed(0)
    run = inference(Letters(4, 3), "categorical", 40, reparam=reparam)
    x, y = data("categorical", 40, 4, 3)
    with in_bfloat16():
        values = [float(run.step(x.float(), y)) for _ in range(15)]
    assert values[-1] > values[0]
    assert {posterior.precision.factor.dtype for posterior in run.posteriors.values()} == {torch.float64}


def test_a_regression_is_as_exact_as_its_features() -> None:
    """Targets closer to the outputs than bfloat16 can tell: one linear layer finds them, as its inputs are exact."""
    x = randn(40, 3, seed=1).float().bfloat16().float()
    y = x @ randn(3, 1, seed=2).float() + 100.0
    run = inference(nn.Linear(3, 1), "gaussian", 40, prior_variance=1e6)
    with in_bfloat16():
        for _ in range(2):
            run.step(x, y)
    assert float(run.posteriors[""].noise_mode()) < 1e-3  # bfloat16 outputs near 100 are up to 0.25 away


# --- members --------------------------------------------------------------------------------------------------------


def test_members_with_weights_of_their_own_are_networks_of_their_own() -> None:
    x, y = data("categorical", 20, 3, 2)
    settings: dict[str, Any] = {"reparam": "none", "target_noise": False}
    weight = randn(4, 20, seed=9).exp()
    stack = inference(bali.stack([mlp((3, 4, 2), seed=k) for k in range(4)]), "categorical", **settings)
    alone = [inference(mlp((3, 4, 2), seed=k), "categorical", **settings) for k in range(4)]
    for _ in range(14):
        stack.accumulate(x[:7], y[:7], weight[:, :7])
        stack.step(x[7:], y[7:], sample_weight=weight[:, 7:])
        for k, run in enumerate(alone):
            run.step(x, y, sample_weight=weight[k])
    assert_same_members(stack, dict(enumerate(alone)), STEPS)
