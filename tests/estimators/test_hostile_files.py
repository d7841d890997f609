"""Damaged and crafted model files: a `ModelFileError`, or the model that was written; quickly, and nothing else."""

from __future__ import annotations

import copy
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_bytes

import bali
from bali import ModelFileError, files
from bali.estimators.estimator_files import KIND
from bali.tables.table_model import load_table_model
from support.networks import inference, mlp
from support.write_fixtures import FIXTURES, predictions

FOLDER = FIXTURES / "0.2"
DAMAGED = ("regressor.bali", "classifier.bali", "row-noise.bali", "table/model.bali")
OTHERS = ("two-outputs.bali", "stream.bali", "counts.bali", "durations.bali")
MODELS = {name: FOLDER / name for name in (*DAMAGED, *OTHERS)}
NEAR = "noise-by-near-rows.bali"
MODELS[NEAR] = FIXTURES / "0.2-noise-by-near-rows" / NEAR
EACH_MODEL = pytest.mark.parametrize("model", MODELS)
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def load(path: Path) -> Any:
    return load_table_model(path) if path.parent.name == "table" else bali.load(path)


@pytest.fixture
def place(model: str, tmp_path: Path) -> Path:
    """Where to put a changed copy of a model: its folder says which kind of model it is."""
    place = tmp_path / model
    place.parent.mkdir(exist_ok=True)
    return place


def all_predictions(path: Path) -> dict[str, list[Any]]:
    return predictions(path.parent if path.parent.name == "table" else path)


# --- damage ---------------------------------------------------------------------------------------------------------


def damaged(content: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Flipped bits in header and body, bytes set, cut out, doubled or put at the end, and files cut short."""
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(60):
        for low, high in ((0, 8), (8, header), (header, len(content))):
            changed = bytearray(content)
            for at in rng.integers(low, high, rng.integers(1, 4)):
                changed[at] ^= 1 << int(rng.integers(8))
            yield bytes(changed)
        at, length = sorted(rng.integers(0, len(content), 2))
        yield content[:at]
        yield content[:at] + content[length:]
        yield content[:at] + content[at:length] + content[at:]
        yield content[:at] + rng.bytes(int(rng.integers(1, 9))) + content[at:]
        digit = rng.choice([i for i in range(8, header) if chr(content[i]).isdigit()])
        yield content[:digit] + str(rng.integers(10)).encode() + content[digit + 1 :]


@pytest.mark.parametrize("model", DAMAGED)
def test_a_damaged_file_is_refused_or_predicts_the_same(model: str, place: Path) -> None:
    expected = all_predictions(MODELS[model])
    messages = []
    for content in damaged(MODELS[model].read_bytes(), np.random.default_rng(0)):
        place.write_bytes(content)
        try:
            load(place)
        except ModelFileError as error:
            messages.append(str(error))
        else:
            assert all_predictions(place) == expected
    assert len(messages) > 300
    assert all(str(place) in message and len(message) < 1000 for message in messages)


def test_the_state_of_an_inference_has_a_digest_too(tmp_path: Path) -> None:
    run = inference(mlp((3, 4, 1)), "gaussian", n_data=5)
    path = tmp_path / "state"
    run.save(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError, match="not what was written"):
        run.load(path)


@EACH_MODEL
def test_a_file_without_a_digest_is_read(model: str, place: Path) -> None:
    """As files of early versions are."""
    content = MODELS[model].read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    del header["digest"]
    place.write_bytes(safetensors_bytes(safetensors_load(content), metadata=header))
    assert all_predictions(place) == all_predictions(MODELS[model])


# --- files that somebody made -----------------------------------------------------------------------------------------


def at(*keys: str | int, value: Any) -> Change:
    """A change of one value of the header."""

    def change(meta: dict[str, Any], _tensors: dict[str, torch.Tensor]) -> None:
        inner: Any = meta
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def of_file(_meta: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return of_file


def with_nan(mean: torch.Tensor) -> torch.Tensor:
    return mean.clone().index_fill_(0, torch.tensor([0]), math.nan)


def indefinite(matrix: torch.Tensor) -> torch.Tensor:
    """With a positive diagonal."""
    return torch.full_like(matrix, 5.0) - 4.0 * torch.eye(matrix.shape[-1], dtype=matrix.dtype)


RECIPE, POSTERIOR = ("state", "recipe"), ("state", "posterior")
STACK = (*RECIPE, "stacks", 0)
CRAFTED: dict[str, tuple[str, Change]] = {
    "many members": ("regressor.bali", at(*RECIPE, "n_members", value=10**5)),
    "more members than can be counted": ("regressor.bali", at(*RECIPE, "n_members", value=10**400)),
    "wide layers": ("regressor.bali", at(*STACK, "layer_sizes", 1, value=30_000)),
    "no hidden layer": ("regressor.bali", at(*STACK, "layer_sizes", value=[3, 1])),
    "variances of other layers": ("regressor.bali", at(*STACK, "prior_variances", value=[1.0])),
    "many stacks": (
        "regressor.bali",
        lambda meta, _t: meta["state"]["recipe"]["stacks"].extend([meta["state"]["recipe"]["stacks"][0]] * 2000),
    ),
    "no stack": ("regressor.bali", at(*RECIPE, "stacks", value=[])),
    "endless samples": ("regressor.bali", at("parameters", "n_samples", value=10**12)),
    "no samples": ("regressor.bali", at("parameters", "n_samples", value=0)),
    "unknown activation": ("regressor.bali", at(*RECIPE, "activation", value="__import__")),
    "whole number that no tensor can hold": ("regressor.bali", at(*RECIPE, "n_rows", value=10**30)),
    "infinite size": ("regressor.bali", at(*RECIPE, "n_rows", value=math.inf)),
    "NaN as a variance": ("regressor.bali", at(*STACK, "prior_variances", 0, value=math.nan)),
    "negative variance": ("regressor.bali", at(*STACK, "prior_variances", 0, value=-1.0)),
    "a truth value as a number": ("regressor.bali", at(*RECIPE, "course", "step_size", value=True)),
    "another likelihood": ("regressor.bali", at(*STACK, "likelihood", value="categorical")),
    "a likelihood without noise": ("regressor.bali", at(*STACK, "likelihood", value="poisson")),
    "a likelihood of other outputs": ("counts.bali", at(*STACK, "likelihood", value="mixture_of_gaussians")),
    "no likelihood": ("durations.bali", at(*STACK, "likelihood", value="__init__")),
    "recipe without a field": ("regressor.bali", lambda meta, _t: meta["state"]["recipe"].pop("seed")),
    "recipe with a field more": ("regressor.bali", at(*RECIPE, "hook", value=1)),
    "recipe is a list": ("regressor.bali", at(*RECIPE, value=[])),
    "no degrees of freedom": ("regressor.bali", at(*POSTERIOR, "noise_dof", value=0.0)),
    "posterior of any field": ("regressor.bali", at(*POSTERIOR, "hook", value=0.0)),
    "attributes of any name": ("regressor.bali", at("fitted", "predict", value="x")),
    "parameters of any name": ("regressor.bali", at("parameters", "self", value="x")),
    "device of any name": ("regressor.bali", at("parameters", "device", value="meta" * 99)),
    "device that is none": ("regressor.bali", at("parameters", "device", value="nowhere")),
    "another class": ("regressor.bali", at("class", value="BALIClassifier")),
    "no class": ("regressor.bali", at("class", value={"a": 1})),
    "other columns": ("regressor.bali", at("fitted", "n_features_in_", value=4)),
    "other outputs": ("regressor.bali", at("fitted", "n_outputs_", value=2)),
    "classes that are one": ("classifier.bali", at("fitted", "classes_", "values", value=["low", "low", "middle"])),
    "long classes": ("classifier.bali", at("fitted", "classes_", "dtype", value="<U999999999")),
    "classes of objects": ("classifier.bali", at("fitted", "classes_", "dtype", value="M8[s]")),
    "nested classes": ("classifier.bali", at("fitted", "classes_", "values", value=[["a"], ["b"], ["c"]])),
    "no temperature": ("classifier.bali", at(*POSTERIOR, "temperature", value=0.0)),
    "no width": ("classifier.bali", at(*POSTERIOR, "width", value=0.0)),
    "NaN in a mean": ("regressor.bali", tensor("state/0/0/mean", with_nan)),
    "a mean beyond arithmetic": ("regressor.bali", tensor("state/0/0/mean", lambda t: torch.full_like(t, 1e300))),
    "mean of one member": ("regressor.bali", tensor("state/0/0/mean", lambda t: t[:1])),
    "whole numbers as a mean": ("regressor.bali", tensor("state/0/0/mean", lambda t: t.long())),
    "truth values as a mean": ("regressor.bali", tensor("state/0/0/mean", lambda t: t > 0)),
    "negative curvature": ("regressor.bali", tensor("state/0/0/input_values", lambda t: -1.0 - t)),
    "negative curvature of outputs": ("classifier.bali", tensor("state/0/1/output_values", lambda t: -1.0 - t)),
    "negative noise": ("regressor.bali", tensor("state/noise", torch.neg)),
    "noise that is no covariance": ("two-outputs.bali", tensor("state/noise", indefinite)),
    "bins out of order": ("classifier.bali", tensor("state/0/edges", lambda t: t.flip(0))),
    "bins of no number": ("classifier.bali", tensor("state/0/edges", lambda t: torch.full_like(t, math.nan))),
    "bins of other columns": ("classifier.bali", tensor("state/0/counts", lambda t: t + 1)),
    "negative number of bins": ("classifier.bali", tensor("state/0/counts", torch.neg)),
    "offset of another size": ("counts.bali", tensor("state/offset", lambda t: t.repeat(2))),
    "noise of rows without a unit": ("row-noise.bali", tensor("state/row_noise/unit", torch.zeros_like)),
    "noise of rows that is not told": ("row-noise.bali", at(*POSTERIOR, "row_noise_gain", value=None)),
    "noise of rows that is missing": ("regressor.bali", at(*POSTERIOR, "row_noise_gain", value=1.0)),
    "noise of no rows": (NEAR, at(*POSTERIOR, "row_noise_sees", value=7)),
    "noise without its rows": (NEAR, at(*POSTERIOR, "row_noise_rows", value=[])),
    "noise of more inputs": (NEAR, at(*POSTERIOR, "row_noise_rows", 0, "inputs", value=10**7)),
    "near rows that are fewer": (NEAR, at(*POSTERIOR, "row_noise_rows", 0, "near", value=5)),
    "negative target scale": ("regressor.bali", tensor("target_scale_", torch.neg)),
    "input scale of zero": ("regressor.bali", tensor("input_scaling_", torch.zeros_like)),
    "tensor that is missing": ("regressor.bali", lambda _m, tensors: tensors.pop("state/0/1/mean")),
    "tensor of any name": ("regressor.bali", lambda _m, tensors: tensors.update(hook=torch.zeros(1))),
    "unknown kind of column": ("table/model.bali", at("extra", "table", "columns", 0, "kind", value="code")),
    "column without a name": ("table/model.bali", at("extra", "table", "columns", 0, "name", value=None)),
    "columns of the estimator that are other ones": ("table/model.bali", at("state", "columns", 0, "name", value="other")),
    "columns that are other ones": ("table/model.bali", at("extra", "table", "columns", 0, "name", value="other")),
    "no columns": ("table/model.bali", at("extra", "table", "columns", value=[])),
    "median is NaN": ("table/model.bali", at("extra", "table", "columns", 0, "median", value=math.nan)),
    "other task": ("table/model.bali", at("extra", "table", "task", value="regression")),
    "other labels": ("table/model.bali", at("extra", "table", "classes", value=["yes", "no", "perhaps"])),
    "table is text": ("table/model.bali", at("extra", "table", value="x")),
}


@pytest.mark.parametrize(("model", "change"), CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_file_is_refused_before_anything_is_built(model: str, change: Change, place: Path) -> None:
    meta, tensors = files.read(MODELS[model], KIND)
    change(meta, tensors)
    files.write(place, KIND, meta, {name: t.contiguous() for name, t in tensors.items()})
    load(MODELS[model])  # modules are loaded, and not timed
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        load(place)
    assert time.perf_counter() - started < 5.0
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert str(place) in str(caught.value)
    assert len(str(caught.value)) < 1000


JUNK: list[Any] = [None, True, -1, 0, 1e308, 10**30, math.nan, math.inf, "", "x" * 1000, [], [[]], {}, {"a": []}, [None] * 3]


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of the header with a key or position in it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from leaves(value[key])


@EACH_MODEL
def test_any_other_value_in_the_header_loads_or_is_refused(model: str, place: Path) -> None:
    """With a digest that is right. What loads is a model of its own; nothing but a `ModelFileError` comes out."""
    original, tensors = files.read(MODELS[model], KIND)
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(100):
        meta = copy.deepcopy(original)
        places = [found for found in leaves(meta) if "record" not in found[0]]
        container, key = places[rng.integers(len(places))]
        container[key] = JUNK[rng.integers(len(JUNK))]
        files.write(place, KIND, meta, tensors)
        try:
            load(place)
        except ModelFileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("meta", ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000, "9" * 10_000, "[]", "null", "{}", "{"])
def test_headers_of_any_kind(meta: str, tmp_path: Path) -> None:
    header = {"format": "bali", "kind": KIND, "version": "1", "meta": meta, "by_column": "[]"}
    path = tmp_path / "deep"
    path.write_bytes(safetensors_bytes({"a": torch.zeros(2)}, metadata=header))
    with pytest.raises(ModelFileError):
        bali.load(path)
    path.write_bytes(safetensors_bytes({"a": torch.zeros(2)}, metadata=header | {"meta": "{}", "by_column": meta}))
    with pytest.raises(ModelFileError):
        bali.load(path)


def test_a_header_cannot_ask_for_much_more_memory_than_it_has_characters(tmp_path: Path) -> None:
    meta = '{"a": [' + "[]," * 5_000_000 + "[]]}"
    header = {"format": "bali", "kind": KIND, "version": "1", "meta": meta, "by_column": "[]"}
    path = tmp_path / "wide"
    path.write_bytes(safetensors_bytes({"a": torch.zeros(2)}, metadata=header))
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"more than .* values"):
        bali.load(path)
    assert tracemalloc.get_traced_memory()[1] < 5 * len(meta)
    tracemalloc.stop()
    with pytest.raises(ModelFileError, match="too long for a header"):
        files.write(path, KIND, {"a": [0] * 3_000_000}, {})


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bali.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="no model at"):
        load_table_model(tmp_path / "nowhere")
