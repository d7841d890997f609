"""Files of states: damaged or crafted ones are refused as such, with nothing changed, and leftovers of killed saves go."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali import ModelFileError, files

KIND = "inference state"
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def start() -> bali.LayerwiseInference:
    make = lambda parameters: torch.optim.Adam(parameters, lr=1e-3)  # noqa: E731
    generator = torch.Generator().manual_seed(1)
    return bali.LayerwiseInference(network(), bali.likelihoods.Gaussian(), 20, optimizer=make, generator=generator)


def stepped() -> bali.LayerwiseInference:
    run, generator = start(), torch.Generator().manual_seed(2)
    for _ in range(2):
        run.step(torch.randn(20, 3, generator=generator), torch.randn(20, 1, generator=generator))
    return run


def tensor(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda _meta, tensors: tensors.update({name: change(tensors[name])})


CRAFTED: dict[str, Change] = {
    "no field": lambda meta, _t: meta.pop("steps"),
    "new field": lambda meta, _t: meta.update(hook=1),
    "steps that are text": lambda meta, _t: meta.update(steps="2"),
    "layers that are a list": lambda meta, _t: meta.update(layers=[]),
    "output layer that is none": lambda meta, _t: meta.update(output_layer="7"),
    "output layer that is a hidden one": lambda meta, _t: meta.update(output_layer="0"),
    "weight of averages": lambda meta, _t: meta.update(ema_weight=math.nan),
    "groups without parameters": lambda meta, _t: meta["others"]["param_groups"]["0"].pop("params"),
    "state of other parameters": lambda meta, _t: meta["others"]["state"].update({"9": {}}),
    "optimizer without its steps": lambda _m, tensors: tensors.pop("/optimizer/state/0/step"),
    "NaN in a mean": tensor("0/mean", lambda t: t * math.nan),
    "huge mean": tensor("3/mean", lambda t: t * 1e30),
    "mean of whole numbers": tensor("0/mean", lambda t: t.long()),
    "mean of one row": tensor("0/mean", lambda t: t[:1]),
    "negative precision": tensor("0/precision", torch.neg),
    "precision that is a diagonal": tensor("0/precision", lambda t: t.diagonal().clone()),
    "negative squares": tensor("0/mean_squared_gradient", lambda t: -t - 1.0),
    "no scale": lambda _m, tensors: tensors.pop("3/scale"),
    "new tensor": lambda _m, tensors: tensors.update(hook=torch.zeros(1)),
    "statistics that are not finite": tensor("/buffer/1.running_mean", lambda t: t / 0.0),
    "variances below zero": tensor("/buffer/1.running_var", torch.neg),
    "parameter that is NaN": tensor("/parameter/1.weight", lambda t: t * math.nan),
    "short generator": tensor("generator", lambda t: t[:16].clone()),
    "generator out of its bounds": tensor("generator", lambda t: torch.full_like(t, 255)),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_state_is_refused_and_nothing_changes(change: Change, tmp_path: Path) -> None:
    path, run = tmp_path / "run.bali", start()
    stepped().save(path)
    meta, tensors = files.read(path, KIND)
    change(meta, tensors)
    files.write(path, KIND, meta, tensors)
    before = run.state_dict()
    with pytest.raises(ModelFileError) as caught:
        run.load(path)
    assert str(path) in str(caught.value)
    after = run.state_dict()
    assert before["meta"] == after["meta"]
    assert all(torch.equal(value, after["tensors"][name]) for name, value in before["tensors"].items())


def test_the_message_about_another_state_is_short(tmp_path: Path) -> None:
    path = tmp_path / "run.bali"
    stepped().save(path)
    meta, tensors = files.read(path, KIND)
    meta["prior_precision"]["0"] = [1.0] * 10**5
    files.write(path, KIND, meta, tensors)
    with pytest.raises(ValueError, match="the saved state has prior_precision") as caught:
        start().load(path)
    assert not isinstance(caught.value, ModelFileError)
    assert len(str(caught.value)) < 1500


def test_what_a_killed_save_left_is_removed_by_the_next_and_others_stay(tmp_path: Path) -> None:
    path, run = tmp_path / "run.bali", stepped()
    child = os.fork()
    if child == 0:
        with files.replacing(path) as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob(".run.bali.*.part"))) == 1
    with files.replacing(path) as file:  # another writer, which is not at its end
        assert len(list(tmp_path.iterdir())) == 1
        run.save(path)
        assert len(list(tmp_path.iterdir())) == 2
        file.write(b"later")
    assert [found.name for found in tmp_path.iterdir()] == ["run.bali"]
    assert path.read_bytes() == b"later"


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "model.bali", files._read
    files.write(path, "a kind", {"a": 1}, {"x": torch.zeros(3)})

    def replaced_meanwhile(path: Path, kind: str) -> Any:
        monkeypatch.setattr(files, "_read", read)
        files.write(path, "a kind", {"a": 2}, {"x": torch.ones(5)})
        raise files.ModelFileError("parts of two files")

    monkeypatch.setattr(files, "_read", replaced_meanwhile)
    meta, tensors = files.read(path, "a kind")
    assert meta == {"a": 2}
    assert torch.equal(tensors["x"], torch.ones(5))


def test_a_damaged_file_that_nobody_replaces_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read, tries = tmp_path / "model.bali", files._read, []
    path.write_bytes(b"no model")

    def counted(path: Path, kind: str) -> Any:
        tries.append(path)
        return read(path, kind)

    monkeypatch.setattr(files, "_read", counted)
    with pytest.raises(files.ModelFileError):
        files.read(path, "a kind")
    assert len(tries) == 1
