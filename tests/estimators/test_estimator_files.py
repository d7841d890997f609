"""Files: what was written comes back, an old file survives a failed write, and nothing foreign is believed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as safetensors_bytes

import bali
from bali import files
from support.networks import data, inference, mlp

META: dict[str, Any] = {"steps": 3, "rate": 0.1 + 0.2, "name": "Zürich", "layers": {"0": [2, 3]}, "floor": float("inf")}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    return {
        "matrix": matrix,
        "by columns": matrix.mT.contiguous().mT,
        "batch by columns": torch.randn(2, 3, 4).mT,
        "strided": torch.arange(12).reshape(3, 4)[:, ::2],
        "float32": matrix.float(),
        "counter": torch.tensor(7),
        "generator": generator.get_state(),
        "empty": torch.zeros(0, 3),
    }


def header_bytes(**changes: str | None) -> bytes:
    """A file like the package's own, with some header fields changed or (None) left out."""
    header: dict[str, str | None] = {"format": "bali", "kind": "test", "version": "1", "meta": "{}", "by_column": "[]"}
    kept = {key: value for key, value in (header | changes).items() if value is not None}
    return safetensors_bytes({"a": torch.zeros(2)}, metadata=kept)


# --- what was written comes back ------------------------------------------------------------------------------------


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path, written = tmp_path / "state", tensors()
    files.write(path, "test", META, written)
    meta, found = files.read(path, "test")
    assert meta == META
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype
        # How a matrix lies in memory is kept too, because rounding depends on it.
        assert found[name].mT.is_contiguous() == tensor.mT.is_contiguous() if tensor.dim() > 1 else True


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for steps in (1, 2):
        files.write(str(path), "test", {"steps": steps}, tensors())
    assert files.read(path, "test")[0] == {"steps": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_files_have_the_permissions_of_ordinary_files(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    files.write(tmp_path / "state", "test", {}, tensors())
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


# --- failed writes --------------------------------------------------------------------------------------------------


def fail(*_args: object, **_kwargs: object) -> None:
    raise OSError("no space left on device")


FAILURES: dict[str, tuple[object, str]] = {
    "while writing": (os, "fsync"),
    "while replacing": (Path, "replace"),
    "while setting permissions": (shutil, "copymode"),
}


@pytest.mark.parametrize(("owner", "function"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_write_leaves_the_old_file(
    owner: object, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    files.write(path, "test", {"steps": 1}, tensors())
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail)
        with pytest.raises(OSError, match="no space"):
            files.write(path, "test", {"steps": 2}, tensors())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert files.read(path, "test")[0] == {"steps": 1}


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    files.write(path, "test", {"steps": 1}, tensors())

    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(path, "test", {"steps": 2}, tensors())
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert files.read(path, "test")[0] == {"steps": 1}


def test_meta_that_is_no_json_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        files.write(tmp_path / "state", "test", {"oops": object()}, tensors())
    assert not list(tmp_path.iterdir())


# --- foreign and damaged files --------------------------------------------------------------------------------------


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    return buffer.getvalue()


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, buffer)
    return buffer.getvalue()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated or not a bali file"),
    "random bytes": (bytes(range(7, 256)) * 40, "truncated or not a bali file"),
    "text": (b"step,loss\n1,0.5\n" * 20, "truncated or not a bali file"),
    "zip": (zipped(), "truncated or not a bali file"),
    "torch.save": (torch_file(), "truncated or not a bali file"),
    "pickle": (pickle.dumps({"a": 1}), "truncated or not a bali file"),
    "safetensors without a header": (safetensors_bytes({"a": torch.zeros(2)}), "not written by bali"),
    "safetensors of another program": (safetensors_bytes({}, metadata={"format": "pt"}), "not written by bali"),
    "newer version": (header_bytes(version="2"), r"format version 2.*upgrade"),
    "newer version with another header": (header_bytes(version="9", kind=None, meta=None), "format version 9"),
    "other kind": (header_bytes(kind="estimator"), "holds a 'estimator', expected a 'test'"),
    "no version": (header_bytes(version=None), "damaged header"),
    "version is no number": (header_bytes(version="new"), "damaged header"),
    "no meta": (header_bytes(meta=None), "damaged header"),
    "meta is cut": (header_bytes(meta=json.dumps(META)[:-4]), "damaged header"),
}


@pytest.mark.parametrize(("content", "message"), FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_files_are_refused_with_the_reason(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(bali.ModelFileError, match=message) as caught:
        files.read(path, "test")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.write(path, "test", META, tensors())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(bali.ModelFileError, match="truncated"):
        files.read(path, "test")


@pytest.mark.parametrize("place", ["nowhere", "."], ids=["missing", "directory"])
def test_what_is_no_file_is_not_found(place: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file at"):
        files.read(tmp_path / place, "test")


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    harm, path = tmp_path / "harm", tmp_path / "bomb"
    content = pickle.dumps(Bomb(harm))
    pickle.loads(content)
    assert harm.exists()  # it would work
    harm.unlink()
    path.write_bytes(content)
    x, y = data("gaussian", 20, 3, 1)
    run = inference(mlp((3, 4, 1)), n_data=20)
    run.step(x, y)
    with pytest.raises(bali.ModelFileError):
        run.load(path)
    assert not harm.exists()
    assert run.state.step == 1


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(files.ModelFileError, match="not an ordinary file"):
        files.write(pipe, "thing", {}, {})
    assert pipe.is_fifo()
