"""The health of layers against dense computations, and the sentences about what is off."""

from __future__ import annotations

import html
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bali
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Dense
from bali.inference.health import Health, LayerHealth
from support.algorithm1 import Algorithm1, Layer
from support.networks import batches, data, inference, linears, mlp
from support.oracles import array, log_evidence_chain
from support.oracles import dense as as_dense
from support.tolerances import EXACT, MANY_STEPS, STEPS

RATES = (0.9, 0.3, 0.3, 0.05, 0.5)


def trained(sizes: tuple[int, ...] = (3, 6, 2), **settings: Any) -> bali.LayerwiseInference:
    run = inference(mlp(sizes), n_data=60, **settings)
    for (x, y), rate in zip(batches(*data("gaussian", 60, sizes[0], sizes[-1]), 20, 5), RATES, strict=True):
        run.step(x, y, rate)
    return run


# --- the numbers ----------------------------------------------------------------------------------------------------


def test_dense_computation() -> None:
    run = trained(effective_size=45.0, noise_floor=0.02, output_noise_floor=0.003)
    health = run.health()
    assert [layer.name for layer in health.layers] == list(run.posteriors)
    for layer in health.layers:
        state = run.state.layers[layer.name]
        assert state.posterior is not None
        precision = array(state.posterior.precision)
        xx = precision - array(state.prior.precision)
        # tr(R Ψxx) is a sum of shares λ/(λ + 1/variance) of the inputs' principal directions.
        assert layer.effective_dof == pytest.approx(np.trace(np.linalg.inv(precision) @ xx), rel=EXACT)
        prior_precision = array(state.prior.precision)[0, 0]
        eigenvalues = np.linalg.eigvalsh(xx)
        assert layer.effective_dof == pytest.approx((eigenvalues / (eigenvalues + prior_precision)).sum(), rel=STEPS)
        assert layer.condition_number == pytest.approx(np.linalg.cond(precision), rel=STEPS)
        d_y, dof = state.posterior.n_outputs, state.prior.n_outputs + 1 + 45.0
        noise = array(state.posterior.scale) / (dof + d_y + 1)
        assert layer.noise == pytest.approx(math.sqrt(np.diagonal(noise).mean()), rel=EXACT)
        floor = 0.003 if layer.has_true_targets else 0.02
        assert layer.noise_floor == pytest.approx(math.sqrt(floor * 45.0 / (dof + d_y + 1)), rel=EXACT)
        assert layer.noise > layer.noise_floor
    assert [layer.has_true_targets for layer in health.layers] == [False, True]
    assert [(layer.n_inputs, layer.n_outputs) for layer in health.layers] == [(4, 6), (7, 2)]


def test_evidence_of_a_regression_is_that_of_its_rows() -> None:
    """One linear layer on all rows is closed-form regression: the evidence is a product of predictions, row after row."""
    x, y = data("gaussian", 12, 3, 2)
    run = inference(nn.Linear(3, 2).double(), n_data=12, reparam="none")
    run.step(x, y)
    (layer,) = run.health().layers
    rows = np.column_stack([array(x), np.ones(12)])
    expected = log_evidence_chain(as_dense(run.state.layers[""].prior), rows, array(y))
    assert layer.log_evidence == pytest.approx(expected / (12 * 2), rel=STEPS)


def test_evidence_of_averaged_pseudo_targets() -> None:
    """The package keeps no targets, the reading of the paper does; their evidence is the same."""
    sizes, floors = (3, 5, 4, 2), (0.01, 0.01, 1e-4)
    run = trained(sizes, reparam="none")
    layers = [
        Layer(
            np.vstack([array(m.weight).T, array(m.bias)]).astype(np.float64), True, 10.0 / (m.in_features + 1), floor, 60.0
        )
        for m, floor in zip(linears(mlp(sizes)), floors, strict=True)
    ]
    reading = Algorithm1(layers, "tanh", "gaussian", 0.5)
    for (x, y), rate in zip(batches(*data("gaussian", 60, 3, 2), 20, 5), RATES, strict=True):
        reading.step(x.numpy(), y.numpy(), rate)
    b = 1.0 - reading.forgotten
    for found, layer in zip(run.health().layers, layers, strict=True):
        xx, xy, yy = (torch.from_numpy(psi / b) for psi in (layer.psi_xx, layer.psi_xy, layer.psi_yy))
        prior = MNIW.prior(found.n_inputs, found.n_outputs, variance=layer.prior_variance, noise=layer.noise_floor * 60.0)
        evidence = float(prior.log_evidence(Moments(xx, xy, yy, 60.0)))
        assert found.log_evidence == pytest.approx(evidence / (60 * found.n_outputs), rel=MANY_STEPS)


def test_stacked_members_are_averaged_and_the_worst_condition_counts() -> None:
    x, y = data("gaussian", 30, 3, 2)
    alone = [inference(mlp((3, 5, 2), seed=k), n_data=30, reparam="none") for k in range(3)]
    stack = inference(bali.stack([mlp((3, 5, 2), seed=k) for k in range(3)]), n_data=30, reparam="none")
    for _ in range(3):
        for run in (*alone, stack):
            run.step(x, y)
    healths = [run.health() for run in alone]
    for index, layer in enumerate(stack.health().layers):
        members = [health.layers[index] for health in healths]
        assert layer.effective_dof == pytest.approx(np.mean([m.effective_dof for m in members]), rel=STEPS)
        assert layer.log_evidence == pytest.approx(np.mean([m.log_evidence for m in members]), rel=STEPS)
        assert layer.noise == pytest.approx(math.sqrt(np.mean([m.noise**2 for m in members])), rel=STEPS)
        assert layer.condition_number == pytest.approx(max(m.condition_number for m in members), rel=STEPS)


# --- how many rows the averages are worth (the recursion: test_effective_rows.py) ---------------------------------------


def test_averaged_rows_of_a_run() -> None:
    """Two batches of 20 and 10 rows at debiased rates 1 and 1/(1 + 0.5)."""
    run = inference(mlp((3, 4, 2)), n_data=60)
    x, y = data("gaussian", 30, 3, 2)
    run.step(x[:20], y[:20], 0.5)
    assert run.health().layers[0].averaged_rows == pytest.approx(20.0)
    run.step(x[20:], y[20:], 0.5)
    expected = 1 / ((1 / 3) ** 2 / 20 + (2 / 3) ** 2 / 10)
    assert run.health().layers[0].averaged_rows == pytest.approx(expected)


def test_rows_without_weight_do_not_count() -> None:
    run = inference(mlp((3, 4, 2)), n_data=60)
    x, y = data("gaussian", 30, 3, 2)
    run.step(x, y, sample_weight=(torch.arange(30) < 12).double())
    assert run.state.rate.effective_rows == pytest.approx(12.0)


def test_averages_are_worth_no_more_rows_than_there_are() -> None:
    run = inference(mlp((3, 4, 2)), n_data=30)
    x, y = data("gaussian", 30, 3, 2)
    for _ in range(4):
        run.step(x, y, 0.1)
    assert run.state.rate.effective_rows > 30
    assert run.health().layers[0].averaged_rows == 30.0


def test_a_loaded_run_is_as_healthy_as_the_saved_one(tmp_path: Path) -> None:
    run = trained()
    run.save(tmp_path / "run.bali")
    other = inference(mlp((3, 6, 2), seed=4), n_data=60)
    other.load(tmp_path / "run.bali")
    assert other.state.rate == run.state.rate
    assert other.health() == run.health()


# --- what is off ------------------------------------------------------------------------------------------------------

SOUND = LayerHealth(
    name="2",
    n_inputs=51,
    n_outputs=1,
    effective_dof=40.0,
    condition_number=1e4,
    noise=0.5,
    noise_floor=0.1,
    jitter_count=0,
    jitter_largest=0.0,
    averaged_rows=400.0,
    log_evidence=-1.2,
    effective_size=400.0,
    has_true_targets=True,
)
OFF: dict[str, tuple[dict[str, Any], str]] = {
    "jitter": ({"jitter_count": 3, "jitter_largest": 1e-8}, "not positive definite 3 times and got a jitter of up to 1e-08"),
    "condition": ({"condition_number": 1e13}, "condition number 1e+13"),
    "no noise left": ({"effective_dof": 399.0}, "399 degrees of freedom for 400 observations"),
    "noise": ({"noise": 0.101}, "the noise is at its floor"),
    "inflated": ({"averaged_rows": 20.0}, "count for 400 observations but average only 20 rows"),
}


@pytest.mark.parametrize(("change", "sentence"), OFF.values(), ids=OFF.keys())
def test_each_problem_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    (problem,) = replace(SOUND, **change).problems()
    assert sentence in problem
    assert problem.startswith("layer '2': ")


def test_a_sound_layer_has_no_problems() -> None:
    assert SOUND.problems() == []
    # Noise of hidden layers is a setting anyway.
    assert replace(SOUND, noise=0.1, has_true_targets=False).problems() == []


def test_singular_precision_has_infinite_condition_number() -> None:
    run = trained((3, 2))
    state = run.state.layers["0"]
    assert state.posterior is not None
    singular = torch.diag(torch.tensor([4.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    singular[2, 3] = singular[3, 2] = 1.0 + 1e-9  # whose factor has to be repaired
    posterior = replace(state.posterior, precision=Dense(singular))
    run.state = replace(run.state, layers={"0": replace(state, posterior=posterior)})
    with pytest.warns(bali.NumericalRepairWarning):
        assert run.health().layers[0].condition_number == math.inf


def test_repairs_are_those_of_the_layer() -> None:
    run = trained()
    for matrix, jitter in {"precision": 1e-10, "noise scale": 1e-6}.items():
        with pytest.warns(bali.NumericalRepairWarning):
            run.setup.repairs.add(f"layer '2': {matrix}", jitter)
    first, last = run.health().layers
    assert (first.jitter_count, first.jitter_largest) == (0, 0.0)
    assert (last.jitter_count, last.jitter_largest) == (2, 1e-6)


# --- as text ----------------------------------------------------------------------------------------------------------


def test_text_table() -> None:
    health = Health((SOUND, replace(SOUND, name="out", condition_number=1e13)))
    heading, first, second, problem = str(health).splitlines()
    assert len(heading) == len(first) == len(second)
    assert first.split() == ["2", "51", "1", "40", "1e+04", "0.5", "0", "0", "400", "-1.2"]
    assert problem == health.problems[0]
    assert [row["condition number"] for row in health.table()] == [1e4, 1e13]


def test_html_table_is_escaped() -> None:
    page = Health((replace(SOUND, name="<b>", condition_number=1e13),))._repr_html_()
    assert "<b>" not in page
    assert page.count(html.escape("<b>")) == 2  # in the table, and in the sentence
    assert page.count("<td>") == len(SOUND.row())
