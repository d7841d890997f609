"""Files of fitted networks: damaged or crafted ones are refused before anything is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali import ModelFileError, files
from bali.training.fit_checkpoints import KIND as CHECKPOINT
from bali.training.fit_checkpoints import MEMBER_KIND, member_path
from bali.training.fitted_values import KIND

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def fit(**options: Any) -> bali.Fitted:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    likelihood = bali.likelihoods.Gaussian()
    return bali.fit(network(), (x, x.sum(1, keepdim=True)), likelihood, epochs=2, seed=0, verbose=False, **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("fitted") / "f.bali"
    fit(members=2).save(path)
    return path


def tensor(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda _meta, tensors: tensors.update({name: change(tensors[name])})


CRAFTED: dict[str, Change] = {
    "many members": lambda meta, _t: meta.update(members=10**5),
    "no members": lambda meta, _t: meta.update(members=0),
    "one member of two": lambda meta, _t: meta.update(members=1),
    "no field": lambda meta, _t: meta.pop("seed"),
    "new field": lambda meta, _t: meta.update(hook=1),
    "negative width": lambda meta, _t: meta.update(width=-1.0),
    "no degrees of freedom": lambda meta, _t: meta.update(noise_dof=0.0),
    "no temperature": lambda meta, _t: meta.update(temperature=0.0),
    "whole number that no tensor can hold": lambda meta, _t: meta["layers"].update({"0": 10**30}),
    "another layer": lambda meta, _t: meta["layers"].update({"7": 1.0}),
    "a layer less": lambda meta, _t: meta["layers"].pop("0"),
    "likelihood that is a function": lambda meta, _t: meta.update(likelihood="from_log_density"),
    "likelihood without a noise": lambda meta, _t: meta.update(likelihood="Categorical"),
    "output layer that is none": lambda meta, _t: meta.update(output_layer="7"),
    "history that is text": lambda meta, _t: meta.update(history="x"),
    "NaN in a mean": tensor("0/layer/0/mean", lambda t: t * math.nan),
    "huge basis": tensor("1/layer/3/output_basis", lambda t: t * 1e30),
    "mean of whole numbers": tensor("0/layer/0/mean", lambda t: t.long()),
    "mean of truth values": tensor("0/layer/0/mean", lambda t: t > 0),
    "other shape in the second member": tensor("1/layer/0/mean", lambda t: t[:1]),
    "negative curvature": tensor("0/layer/0/input_values", lambda t: -t - 1.0),
    "no basis": lambda _m, tensors: tensors.pop("0/layer/0/input_basis"),
    "new tensor": lambda _m, tensors: tensors.update({"0/layer/0/share": torch.zeros(1)}),
    "negative scale": tensor("scale", torch.neg),
    "scale of two outputs": tensor("scale", lambda t: torch.cat([t, t])),
    "negative noise": tensor("noise", torch.neg),
    "no noise": lambda _m, tensors: tensors.pop("noise"),
    "statistics that are not finite": tensor("0/buffer/1.running_mean", lambda t: t / 0.0),
    "variances below zero": tensor("0/buffer/1.running_var", torch.neg),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_file_is_refused(change: Change, written: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.bali"
    meta, tensors = files.read(written, KIND)
    change(meta, tensors)
    files.write(path, KIND, meta, tensors)
    with pytest.raises(ModelFileError) as caught:
        bali.load(path, module=network())
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_damaged_file_is_refused(written: Path, tmp_path: Path) -> None:
    content, path = written.read_bytes(), tmp_path / "f.bali"
    for at in range(0, len(content), 97):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ModelFileError):
            bali.load(path, module=network())


def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit(checkpoint=path)
    for file, kind, key in ((member_path(path, 0), MEMBER_KIND, "outcome"), (path, CHECKPOINT, "step")):
        meta, tensors = files.read(file, kind)
        del meta[key]
        files.write(file, kind, meta, tensors)
        with pytest.raises(ModelFileError, match="remove it"):
            fit(checkpoint=path)
        file.unlink()  # the file of the training itself is read only where the member is not finished
