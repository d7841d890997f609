"""Hard inputs in float32: results are finite and right, or an error or a repair says which layer is not.

"Right" is compared with the same run in float64. Predictions may differ by a share of their own size (the predictive
standard deviation plus the root mean square of the function), because the rows of a float32 module are rounded.
"""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import bali
from bali.inference.network import Network
from support.networks import inference, mlp, randn
from support.posteriors import parts

N, D = 120, 8
CLOSE = 0.01
CLOSE_WHEN_EXTREME = 0.15  # features or precisions that span more than float32's seven digits
NOISE = 0.05  # of the noise standard deviations of the output


def mixed_scales(x: Tensor) -> Tensor:
    return x * torch.logspace(-6, 6, D, dtype=x.dtype)


def duplicated(x: Tensor) -> Tensor:
    return torch.cat([x[:, : D // 2], x[:, : D // 2]], 1)


def constant(x: Tensor) -> Tensor:
    return torch.cat([x[:, : D // 2], torch.full((len(x), D // 2), 3.0, dtype=x.dtype)], 1)


INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "duplicated columns": duplicated,
    "constant columns": constant,
    "scales 1e-6 to 1e6": mixed_scales,
    "scale 1e6": lambda x: 1e6 * x,
    "scale 1e-6": lambda x: 1e-6 * x,
    "scale 1e3": lambda x: 1e3 * x,
    "one row repeated": lambda x: x[:1].expand(len(x), -1),
    "zeros": torch.zeros_like,
}


@dataclass(frozen=True)
class Case:
    inputs: str
    effective_size: float
    step_size: float
    activation: str
    likelihood: str
    width: int = 16
    steps: int = 4
    reparam: str = "weight"

    @property
    def id(self) -> str:
        kind = f"{self.inputs}, N_eff {self.effective_size:g}, α {self.step_size:g}"
        return f"{kind}, {self.activation}, {self.likelihood}, {self.width} wide"


@dataclass(frozen=True)
class Outcome:
    run: bali.LayerwiseInference
    x: Tensor
    error: bali.NumericalError | None
    warned: set[str]  # names of the matrices in repair warnings

    @property
    def is_reported(self) -> bool:
        return self.error is not None or bool(self.run.setup.repairs.count)


def outcome(case: Case, dtype: torch.dtype) -> Outcome:
    base = randn(N, D, seed=0)
    x = INPUTS[case.inputs](base).float().to(dtype)  # the same numbers in either type
    signal = (torch.sin(base @ randn(D, 2, seed=1)) + 0.1 * randn(N, 2, seed=2)).float().to(dtype)
    y = signal if case.likelihood == "gaussian" else signal.argmax(-1)
    module = mlp((D, case.width, case.width, 2), case.activation).float().to(dtype)
    run = inference(
        module,
        case.likelihood,
        N,
        step_size=case.step_size,
        effective_size=case.effective_size,
        reparam=case.reparam,
    )
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in range(case.steps):
                run.step(x, y)
        except bali.NumericalError as raised:
            error = raised
    assert all(issubclass(w.category, bali.NumericalRepairWarning) for w in caught)
    return Outcome(run, x, error, {str(w.message).partition(" was not")[0] for w in caught})


def assert_finite(run: bali.LayerwiseInference, x: Tensor) -> None:
    for name, posterior in run.posteriors.items():
        for part, values in parts(posterior).items():
            assert bool(torch.isfinite(values).all()), f"{part} of layer {name}"
    predictive = run.predict(x, 3)
    for part in ("mean", "std", "epistemic", "aleatoric"):
        assert bool(torch.isfinite(getattr(predictive, part)).all()), part


def assert_sound(found: Outcome) -> None:
    """Finite, or an error that names a layer; and repairs are warned about once and counted."""
    assert found.warned == set(found.run.setup.repairs.count)
    assert set(found.run.setup.repairs.largest) == set(found.run.setup.repairs.count)
    if found.error is not None:
        assert re.search(r"layer '\d'.*\. \w+", str(found.error)), "the layer and a remedy"
    if found.run.state.step > 0:  # an error leaves what was there before
        assert_finite(found.run, found.x)


EVERYTHING = [
    Case(*parts)
    for parts in itertools.product(INPUTS, (10.0, 1e3, 1e7), (0.5, 10.0), ("relu", "tanh"), ("gaussian", "categorical"))
]


@pytest.mark.parametrize("case", EVERYTHING, ids=lambda case: case.id)
def test_float32_never_hides_a_failure(case: Case) -> None:
    found = outcome(case, torch.float32)
    assert_sound(found)
    assert found.error is not None or found.run.state.step == case.steps


# --- float32 against float64 ----------------------------------------------------------------------------------------


def function_of_means(found: Outcome) -> Tensor:
    """The network at its posterior means, evaluated in float64."""
    module = copy.deepcopy(found.run.module).double()
    Network(module).assign({name: posterior.mean for name, posterior in found.run.posteriors.items()})
    with torch.no_grad():
        return module(found.x.double())


def assert_agree(single: Outcome, double: Outcome, close: float) -> None:
    assert double.error is None
    one, two = function_of_means(single), function_of_means(double)
    stds = [o.run.posteriors["4"].noise_mode().diagonal().sqrt() for o in (single, double)]
    size = stds[1] + two.square().mean(0).sqrt()
    assert float(((one - two).abs() / size).max()) < close
    assert float((stds[0] / stds[1] - 1).abs().max()) < NOISE


def comparable(steps: int, step_size: float, inputs: list[str]) -> list[Case]:
    """Few steps: large ones make runs diverge from the smallest difference, in any precision."""
    return [
        Case(kind, size, step_size, activation, likelihood, steps=steps, reparam="none")
        for kind, size, activation, likelihood in itertools.product(
            inputs, (10.0, 1e3, 1e7), ("relu", "tanh"), ("gaussian", "categorical")
        )
    ]


COMPARED = comparable(3, 0.5, list(INPUTS)) + comparable(1, 10.0, ["plain", "duplicated columns", "constant columns"])
COMPARED.append(Case("scale 1e3", 1e3, 0.5, "relu", "gaussian", 64, 1, "none"))


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: case.id)
def test_float32_agrees_with_float64_unless_it_says_otherwise(case: Case) -> None:
    single, double = outcome(case, torch.float32), outcome(case, torch.float64)
    assert_sound(double)
    if single.is_reported:
        assert_sound(single)
        return
    extreme = case.effective_size > 1e6 or "scale" in case.inputs
    assert_agree(single, double, CLOSE_WHEN_EXTREME if extreme else CLOSE)


@pytest.mark.parametrize(("width", "steps"), [(4, 5), (32, 5), (256, 2), (1024, 1)])
def test_any_width(width: int, steps: int) -> None:
    case = Case("plain", 1e3, 0.5, "relu", "gaussian", width, steps, "none")
    single, double = outcome(case, torch.float32), outcome(case, torch.float64)
    assert not single.is_reported
    assert_finite(single.run, single.x[:8])
    assert_agree(single, double, CLOSE)
