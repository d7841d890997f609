"""Short seeded runs of `LayerwiseInference` whose numbers are recorded: a change that is meant to change none must not.

All are in float64, so that another machine or version of torch gives the same numbers up to rounding. The recording has two
numbers for every tensor. Write it again where a change is meant, with src, benchmarks and tests on the path:
python tests/support/seeded_runs.py
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.inference.prediction import Method
from bali_benchmarks.some_members import take_members
from support import distributed_cases as cases
from support.networks import data, inference, mlp, randn
from support.sequences import Headed, Letters, Sequences
from support.tolerances import MANY_STEPS

RECORDING = Path(__file__).parents[1] / "inference" / "seeded_runs.json"

Results = dict[str, Tensor]


def convolution() -> nn.Module:
    body = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten())
    return cases.fixed(nn.Sequential(body, nn.Linear(48, 3)).double())


def trained(module: nn.Module, x: Tensor, y: Tensor, likelihood: str = "categorical", steps: int = 4) -> Results:
    run = inference(module, likelihood, effective_size=40)
    values = [run.step(x, y) for _ in range(steps)]
    return cases.results(run) | {"log-likelihoods": torch.stack(values)}


def on_sequences(inner: nn.Module, width: int) -> Results:
    """(n, 5, 4) sequences through one module and a linear layer."""
    x = randn(24, 5, 4, seed=1)
    return trained(
        cases.fixed(Headed(Sequences(inner), nn.Linear(5 * width, 3)).double()), x, data("categorical", 24, 4, 3)[1]
    )


def tokens() -> Results:
    return trained(cases.fixed(Letters(4, 3).double()), *data("categorical", 24, 4, 3))


def images() -> Results:
    return trained(convolution(), randn(24, 16, seed=1), data("categorical", 24, 4, 3)[1])


def some_members() -> Results:
    """Five members for two steps, then three of them for two more."""
    x, y = data("gaussian", 24, 4, 2)
    run = inference(bali.stack([mlp((4, 5, 2), seed=k) for k in range(5)]), effective_size=40)
    for _ in range(2):
        run.step(x, y, momentum=0.5)
    taken = take_members(run, [4, 0, 2])
    for _ in range(2):
        taken.step(x, y, momentum=0.5)
    return cases.results(taken)


def resumed() -> Results:
    """Two steps, a file, two more steps from it."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "BALI_TEST_FOLDER", folder)
        return cases.going_on(cases.ALONE)


def predictions() -> Results:
    """Of a regression, by every method; and what its health says."""
    x, y = data("gaussian", 24, 4, 2)
    run = inference(mlp((4, 6, 2)), effective_size=40)
    for _ in range(5):
        run.step(x, y)
    found: Results = {}
    for method in get_args(Method):
        for noise in ("mode", "sample"):
            predicted = run.predict(x[:6], 7, method=method, noise=noise, generator=torch.Generator().manual_seed(2))
            found |= {f"{method} {noise} mean": predicted.mean, f"{method} {noise} std": predicted.std}
    for layer in run.health().layers:
        numbers = [layer.effective_dof, layer.condition_number, layer.noise, layer.averaged_rows, layer.log_evidence]
        found[f"health {layer.name}"] = torch.tensor(numbers, dtype=torch.float64)
    return found


def _case(name: str) -> Callable[[], Results]:
    return lambda: cases.CASES[name](cases.ALONE)


#: By name; most of them are also run by several processes together.
RUNS: dict[str, Callable[[], Results]] = {
    "regression": _case("regression"),
    "classification": _case("classification"),
    "weights of rows": _case("weights of rows"),
    "means": _case("means"),
    "exact inputs": _case("exact inputs"),
    "prior about weights": _case("prior about weights"),
    "other parameters": _case("other parameters, weights of rows"),
    "batch norm": _case("batch norm"),
    "wide layers": _case("wide layers"),
    "blocks": _case("blocks"),
    "parts of batches": _case("parts of batches"),
    "local noise": _case("local noise"),
    "local noise of sequences": _case("local noise of sequences"),
    "stack": _case("stack"),
    "convolution": images,
    "attention": lambda: on_sequences(nn.MultiheadAttention(4, 2, batch_first=True), 4),
    "GRU": lambda: on_sequences(nn.GRU(4, 3, batch_first=True), 3),
    "embedding": tokens,
    "members": some_members,
    "resume": resumed,
    "predictions": predictions,
}
#: Cases of `distributed_cases.py`, under the names they are recorded by.
TWO_PROCESSES = {name: f"two processes, {name}" for name in ("regression", "local noise", "going on", "stack")}


def run_seeded(name: str) -> Results:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # for modules that start with torch's own weights
        return RUNS[name]()


def summary(results: Results) -> dict[str, list[float]]:
    """A projection and the root mean square of every tensor."""
    found = {}
    for name, tensor in results.items():
        flat = tensor.double().reshape(-1)
        waves = torch.cos(torch.arange(1.0, len(flat) + 1, dtype=torch.float64))
        found[name] = [float(flat @ waves) / len(flat) ** 0.5, float(flat.square().mean().sqrt())]
    return found


def assert_as_recorded(name: str, results: Results) -> None:
    recorded, found = json.loads(RECORDING.read_text(encoding="utf-8"))[name], summary(results)
    assert found.keys() == recorded.keys()
    for key, (projection, size) in recorded.items():
        assert found[key] == pytest.approx([projection, size], rel=0, abs=MANY_STEPS * max(size, 1e-6)), key


if __name__ == "__main__":
    from support.starting_processes import results_of_processes

    torch.set_num_threads(1)
    recording = {name: summary(run_seeded(name)) for name in RUNS}
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["BALI_TEST_FOLDER"] = temporary
        of_first = results_of_processes(Path(temporary))[2, 0]
    recording |= {key: summary(of_first[name]) for name, key in TWO_PROCESSES.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in recording.items())
    RECORDING.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
