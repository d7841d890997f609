"""Calls that nobody should make: an error that names what is wrong, or finite numbers; a failed step changes nothing."""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import nn

import bali
from bali.conjugate.linalg import NumericalError
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.forks import Helper
from bali_benchmarks.faults.original_files import inference, network, original

#: What may come out of a call. A module's own complaint about a tensor is torch's RuntimeError.
EXPECTED = (ValueError, TypeError, NumericalError)
_N = 40
_X = np.random.default_rng(0).normal(size=(_N, 3))
_Y = np.sin(_X[:, 0]) + 0.1 * _X[:, 1]
#: In place of a parameter. None of them asks for much.
_JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, -0.0, math.nan, math.inf, -math.inf, 1e-320, "", "x", "auto", b"x", [], (), {},
    [1, "a"], (0,), (-1,), (2.5,), (3, 3), object(), np.array([1, 2]), np.float64(0.5), np.int64(2), "cpu", "nowhere", 2**40,
]  # fmt: skip


def odd_call(seed: int, folder: Path) -> str:
    """One call of one kind, in a process of its own, as it may end it."""
    kind = list(_KINDS)[seed % len(_KINDS)]
    original("network"), original("regressor")
    return str(_in_fork([kind, seed])["outcome"])


def _called(task: list[Any]) -> dict[str, Any]:
    kind, seed = task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"outcome": f"{kind}: {_KINDS[kind](random.Random(seed))}"}


def _outcome(call: Callable[[], Any], what: str, *, torch_may_complain: bool = False) -> tuple[str, Any]:
    expected = (*EXPECTED, RuntimeError) if torch_may_complain else EXPECTED
    try:
        return "done", call()
    except expected as error:
        if not str(error).strip():
            raise FaultError(f"{what}: {type(error).__name__} without a word") from error
        return "refused", None
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(f"{what}: {type(error).__name__}: {str(error)[:150]}") from error


# --- values -----------------------------------------------------------------------------------------------------------


def _odd_table(rng: random.Random, values: np.ndarray) -> tuple[str, Any]:
    """Something in place of X or y."""
    spoiled = values.copy()
    place = tuple(rng.randrange(n) for n in values.shape)
    spoiled[place] = rng.choice([math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-320, 1e6])
    choices: dict[str, Callable[[], Any]] = {
        f"a cell of {spoiled[place]}": lambda: spoiled,
        "none": lambda: None,
        "empty": lambda: values[:0],
        "one row": lambda: values[:1],
        "two rows": lambda: values[:2],
        "other rows": lambda: values[:-3],
        "flat": lambda: values.ravel(),
        "deep": lambda: values.reshape(*values.shape, 1),
        "no columns": lambda: values[:, :0] if values.ndim > 1 else values[:, None][:, :0],
        "constant": lambda: np.full_like(values, 3.0),
        "of text": lambda: values.astype(str),
        "of words": lambda: np.full(values.shape, "word"),
        "of objects": lambda: values.astype(object),
        "of nothings": lambda: np.full(values.shape, None),
        "of truth values": lambda: values > 0,
        "whole": lambda: (values * 10).astype(np.int64),
        "of small floats": lambda: values.astype(np.float16),
        "complex": lambda: values + 1j,
        "dates": lambda: values.astype("M8[s]"),
        "huge": lambda: values * 1e200,
        "tiny": lambda: values * 1e-200,
        "far": lambda: values + 1e12,
        "lists": lambda: values.tolist(),
        "ragged": lambda: [[1.0], [1.0, 2.0]],
        "a frame": lambda: pd.DataFrame(values),
        "a frame with gaps": lambda: pd.DataFrame(spoiled).mask(pd.DataFrame(values) > 1),
        "sparse": lambda: sparse.csr_matrix(np.atleast_2d(values)),
        "a tensor": lambda: torch.from_numpy(values),
        "text": lambda: "x",
        "a number": lambda: 3.0,
        "backwards": lambda: values[::-1],
        "good": lambda: values,
    }
    name = rng.choice(list(choices))
    return name, choices[name]()


# --- estimators -------------------------------------------------------------------------------------------------------


def _estimator(rng: random.Random) -> str:
    kind, y = rng.choice([(bali.BALIRegressor, _Y), (bali.BALIClassifier, (_Y > 0).astype(float) + (_Y > 0.5))])
    model: Any = kind(max_iter=2, n_members=1, random_state=0)
    said, arguments = [kind.__name__], {"X": _X, "y": y}
    for _ in range(rng.choice([0, 1, 1, 2])):
        name, value = rng.choice(list(model.get_params())), rng.choice(_JUNK)
        model.set_params(**{name: value})
        said.append(f"{name}={str(value)[:20]}")
    for name in rng.choice([(), ("X",), ("y",), ("X", "y"), ("sample_weight",)]):
        found, arguments[name] = _odd_table(rng, np.ones(_N) if name == "sample_weight" else arguments[name])
        said.append(f"{name} {found}")
    what = ", ".join(said)
    outcome, _ = _outcome(lambda: model.fit(**arguments), f"fit of {what}")
    if outcome == "refused":
        return outcome
    found, X = rng.choice([("good", _X), _odd_table(rng, _X)])
    method = rng.choice(["predict", "pred_dist", "score" if found == "good" else "predict"])
    extra = (y,) if method == "score" else ()
    X = arguments["X"] if found == "good" else X
    outcome, predicted = _outcome(lambda: getattr(model, method)(X, *extra), f"{method} at {found} after fit of {what}")
    _check_finite(predicted, f"{method} at {found} after fit of {what}")
    return "fitted, " + outcome


def _check_finite(predicted: Any, what: str) -> None:
    if predicted is None:
        return
    if hasattr(predicted, "mean") and not isinstance(predicted, np.ndarray):
        predicted = predicted.mean if hasattr(predicted, "std") else predicted.probabilities
    values = np.asarray(predicted)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise FaultError(f"{what}: predictions that are not finite")


# --- layerwise inference ----------------------------------------------------------------------------------------------


def _odd_tensor(rng: random.Random, values: np.ndarray) -> tuple[str, Any]:
    name, value = _odd_table(rng, values)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and rng.random() < 0.9:
        value = torch.from_numpy(np.ascontiguousarray(value))
        value = value.float() if value.is_floating_point() and rng.random() < 0.8 else value
    return name, value


def _step(rng: random.Random) -> str:
    x, y = torch.from_numpy(_X).float(), torch.from_numpy(_Y).float()[:, None]
    run, twin = inference(), inference()
    for each in (run, twin):
        each.step(x, y)
    before = _tensors(run)
    method = rng.choice(["step", "step", "step", "accumulate", "predict"])
    of_x, odd_x, of_y, odd_y = "good", x, "good", y
    if method == "predict" or rng.random() < 0.6:
        of_x, odd_x = _odd_tensor(rng, _X)
    else:
        of_y, odd_y = _odd_tensor(rng, _Y[:, None])
    what = f"{method} with x {of_x}, y {of_y}"
    arguments = (odd_x, rng.choice([1, 4, *_JUNK])) if method == "predict" else (odd_x, odd_y)
    outcome, found = _outcome(lambda: getattr(run, method)(*arguments), what, torch_may_complain=of_x != "good")
    if method == "accumulate" and outcome == "done":
        run.step()
    after = _tensors(run)
    if outcome == "refused":
        changed = [name for name, t in before.items() if not torch.equal(t, after[name])]
        if changed:
            raise FaultError(f"{what}: refused, and changed {changed[:3]}")
        for each in (run, twin):
            each.step(x, y)
        if any(not torch.equal(t, _tensors(twin)[name]) for name, t in _tensors(run).items()):
            raise FaultError(f"{what}: refused, and the next step is another")
    elif any(t.is_floating_point() and not t.isfinite().all() for t in after.values()):
        raise FaultError(f"{what}: done, and the state is not finite")
    if method == "predict":
        _check_finite(found, what)
    return outcome


def _tensors(run: bali.LayerwiseInference) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in run.state_dict()["tensors"].items()}


# --- networks ---------------------------------------------------------------------------------------------------------


def _fit(rng: random.Random) -> str:
    arguments: dict[str, Any] = {"epochs": 1, "seed": 0, "verbose": False}
    x, y = torch.from_numpy(_X).float(), torch.from_numpy(_Y).float()[:, None]
    data: Any = (x, y)
    module: Any = network()
    likelihood: Any = bali.likelihoods.Gaussian()
    said = []
    match rng.choice(["x", "y", "data", "module", "likelihood", "option", "option"]):
        case "x":
            found, odd = _odd_tensor(rng, _X)
            data, said = (odd, y), [f"x {found}"]
        case "y":
            found, odd = _odd_tensor(rng, _Y[:, None])
            data, said = (x, odd), [f"y {found}"]
        case "data":
            data = rng.choice([(), (x,), [x, y], (x, y, y), {"x": x}, [(a, b) for a, b in zip(x, y, strict=True)], *_JUNK])
            said = [f"data {str(data)[:20]}"]
        case "module":
            module = rng.choice([nn.Identity(), nn.Linear(3, 2), nn.Linear(4, 1), nn.Sequential(), nn.ReLU(), *_JUNK])
            said = [f"module {str(module)[:20]}"]
        case "likelihood":
            likelihood = rng.choice(["gaussian", "categorical", "nope", bali.likelihoods.Gaussian, nn.MSELoss(), *_JUNK])
            said = [f"likelihood {str(likelihood)[:20]}"]
        case _:
            names = [name for name in inspect.signature(bali.fit).parameters if name not in ("module", "data", "likelihood")]
            name, value = rng.choice(names), rng.choice(_JUNK)
            arguments[name], said = value, [f"{name}={str(value)[:20]}"]
    what = f"bali.fit with {', '.join(said)}"
    outcome, fitted = _outcome(lambda: bali.fit(module, data, likelihood, **arguments), what, torch_may_complain=True)
    if outcome == "done":
        _check_finite(fitted.predict(x, 4), what)
    return outcome


def _load(rng: random.Random) -> str:
    modules = [network(), nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 8)), nn.Identity(), *_JUNK]
    path = rng.choice([original("network").path, original("network").path, original("regressor").path])
    module, likelihood = rng.choice(modules), rng.choice([None, None, bali.likelihoods.Gaussian(), *_JUNK])
    place = rng.choice([path, path, path, str(path), path.parent, *_JUNK])
    what = f"bali.load({str(place)[-20:]}, module={str(module)[:20]}, likelihood={str(likelihood)[:20]})"

    def call() -> Any:
        try:
            return bali.load(place, module=module, likelihood=likelihood)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error

    outcome, loaded = _outcome(call, what)
    if outcome == "done":
        x = torch.from_numpy(_X).float()
        _check_finite(loaded.predict(_X) if isinstance(loaded, bali.BALIRegressor) else loaded.predict(x, 4), what)
    return outcome


_KINDS: dict[str, Callable[[random.Random], str]] = {
    "estimator": _estimator,
    "step": _step,
    "bali.fit": _fit,
    "bali.load": _load,
}
_in_fork = Helper(_called)
