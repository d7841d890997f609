"""A step of several parts is the step of the whole batch; passes in a narrow type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import assert_same_posteriors, batches, data, inference, mlp, parameters, randn
from sequences import Letters
from torch import Tensor, nn

import bali
from bali.layer_update import LayerBatch, LayerState, LayerStatistics, layer_statistics

EXACT = 1e-9  # float64 sums in another order, over some steps

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "regression": ("gaussian", {}),
    "classification": ("categorical", {}),
    "natural form": ("gaussian", {"update": "natural"}),
    "means": ("categorical", {"reparam": "none"}),
    "sampled noise": ("categorical", {"noise": "sample"}),
    "exact inputs": ("categorical", {"input_moments": bali.input_moments(data("categorical", 40, 3, 2)[0])}),
    "noise every 3 steps": ("categorical", {"noise_every": 3, "target_noise": False}),
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
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
    assert parts.steps == whole.steps
    assert parts.rate.effective_rows == pytest.approx(whole.rate.effective_rows)
    assert_same_posteriors(parts, whole, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("settings", [{}, {"update": "natural"}, {"noise_every": 3, "target_noise": False}])
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
    assert whole.posteriors["embedding"].precision.shape == (7, 1)
    assert_same_posteriors(parts, whole, rtol=EXACT, atol=EXACT)


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
    assert_same_posteriors(parts, whole, rtol=EXACT, atol=EXACT)
    before = parts.generator.get_state()
    parts.accumulate(x, y)
    assert not torch.equal(parts.generator.get_state(), before)
    parts.step(x, y)
    assert parts.rate.squares < whole.rate.squares


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
    for left, right in zip(parameters(whole.network.module), parameters(parts.network.module), strict=True):
        torch.testing.assert_close(left, right, rtol=EXACT, atol=EXACT)


def test_a_part_that_fails_is_left_out() -> None:
    x, y = data("gaussian", 20, 3, 2)
    whole, parts = two_runs("gaussian")
    whole.step(x, y)
    parts.accumulate(x[:5], y[:5])
    with pytest.raises(bali.NumericalError):
        parts.accumulate(x[5:] * float("nan"), y[5:])
    parts.accumulate(x[5:], y[5:])
    parts.step()
    assert_same_posteriors(parts, whole, rtol=EXACT, atol=EXACT)


def test_a_failed_step_forgets_the_parts() -> None:
    x, y = data("gaussian", 20, 3, 2)
    whole, parts = two_runs("gaussian")
    whole.step(x, y)
    parts.accumulate(x, y + 3.0)
    with pytest.raises(bali.NumericalError):
        parts.step(x * float("nan"), y)
    parts.step(x, y)
    assert_same_posteriors(parts, whole, rtol=0.0, atol=0.0)


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


def narrow_and_plain(likelihood: str, module: nn.Module, **settings: Any) -> list[bali.LayerwiseInference]:
    state = {name: p.float() for name, p in module.state_dict().items()}
    runs = []
    for dtype in (torch.bfloat16, None):
        module.float().load_state_dict(state)
        runs.append(inference(_copy(module), likelihood, 40, forward_dtype=dtype, **settings))
    return runs


def _copy(module: nn.Module) -> nn.Module:
    copied = nn.Sequential(*[type(m)(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in module])  # type: ignore[attr-defined]
    copied.load_state_dict(module.state_dict())
    return copied


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("reparam", ["none", "weight", "local"])
def test_bfloat16_passes_are_close_to_float32_ones(likelihood: str, reparam: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features have 8 bits: within a percent or two. Statistics are float32 all the same, and factors float64."""
    narrow, plain = narrow_and_plain(likelihood, mlp((3, 16, 2)), reparam=reparam)
    types = set()

    def watched(state: LayerState, batch: LayerBatch, settings: Any, **more: bool) -> LayerStatistics:
        found = layer_statistics(state, batch, settings, **more)
        types.add((batch.x[0].dtype, found.moments.xx.dtype if batch.residual is None else torch.float32))
        return found

    monkeypatch.setattr("bali.batch_pass.layer_statistics", watched)
    x, y = data(likelihood, 40, 3, 2)
    x, y = x.float(), y.float() if likelihood == "gaussian" else y
    for run in (narrow, plain):
        for _ in range(3 if reparam == "none" else 1):
            run.step(x, y)
        if reparam == "local":  # with noise of its own: not to be compared, but it runs
            run.step(x, y)
    assert types == {(torch.float32, torch.float32)}
    for name, posterior in narrow.posteriors.items():
        assert posterior.precision_factor.dtype == torch.float64
        if reparam != "local":
            for part in ("mean", "precision", "scale"):
                found, expected = getattr(posterior, part), getattr(plain.posteriors[name], part)
                assert float((found - expected).norm() / expected.norm()) < 0.03
            assert not torch.equal(posterior.mean, plain.posteriors[name].mean)


def test_passes_really_are_narrow() -> None:
    seen: list[torch.dtype] = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            return x

    module = nn.Sequential(nn.Linear(3, 4), Watch(), nn.Linear(4, 2))
    run = inference(module, "categorical", 40, forward_dtype=torch.bfloat16)
    x, y = data("categorical", 40, 3, 2)
    run.step(x.float(), y)
    assert seen == [torch.bfloat16]
    run.predict(x.float(), 2)
    assert set(seen[1:]) == {torch.float32}


@pytest.mark.parametrize("reparam", ["none", "local"])
def test_sequences_can_be_passed_through_in_bfloat16(reparam: str) -> None:
    torch.manual_seed(0)
    run = inference(Letters(4, 3), "categorical", 40, forward_dtype=torch.bfloat16, reparam=reparam)
    x, y = data("categorical", 40, 4, 3)
    values = [float(run.step(x.float(), y)) for _ in range(15)]
    assert values[-1] > values[0]
    assert {posterior.precision_factor.dtype for posterior in run.posteriors.values()} == {torch.float64}


def test_a_regression_is_as_exact_as_its_features() -> None:
    """Targets closer to the outputs than bfloat16 can tell: one linear layer finds them, as its inputs are exact."""
    x = randn(40, 3, seed=1).float().bfloat16().float()
    y = x @ randn(3, 1, seed=2).float() + 100.0
    run = inference(nn.Linear(3, 1), "gaussian", 40, forward_dtype=torch.bfloat16, prior_variance=1e6)
    for _ in range(2):
        run.step(x, y)
    assert float(run.posteriors[""].noise_mode()) < 1e-3  # bfloat16 outputs near 100 are up to 0.25 away


@pytest.mark.parametrize(("dtype", "module"), [(torch.float32, mlp((3, 2)).float()), (torch.bfloat16, mlp((3, 2)))])
def test_narrow_types_are_for_float32_modules(dtype: torch.dtype, module: nn.Module) -> None:
    with pytest.raises(ValueError, match="forward_dtype"):
        inference(module, forward_dtype=dtype)


# --- members --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_every", [1, 3])
def test_members_with_weights_of_their_own_are_networks_of_their_own(noise_every: int) -> None:
    """Also where U is left, and with it all but the diagonal of its statistics."""
    x, y = data("categorical", 20, 3, 2)
    settings: dict[str, Any] = {"reparam": "none", "target_noise": False, "noise_every": noise_every}
    weight = randn(4, 20, seed=9).exp()
    stack = inference(bali.stack([mlp((3, 4, 2), seed=k) for k in range(4)]), "categorical", **settings)
    alone = [inference(mlp((3, 4, 2), seed=k), "categorical", **settings) for k in range(4)]
    for _ in range(14):
        stack.accumulate(x[:7], y[:7], weight[:, :7])
        stack.step(x[7:], y[7:], sample_weight=weight[:, 7:])
        for k, run in enumerate(alone):
            run.step(x, y, sample_weight=weight[k])
    for name, posterior in stack.posteriors.items():
        for k, run in enumerate(alone):
            torch.testing.assert_close(posterior.mean[k], run.posteriors[name].mean, rtol=EXACT, atol=EXACT)
            torch.testing.assert_close(posterior.scale[k], run.posteriors[name].scale, rtol=EXACT, atol=EXACT)
