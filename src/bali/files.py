"""Files of tensors: safetensors with a JSON header. Reading never executes anything."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = "bali"
VERSION = 1


class ModelFileError(ValueError):
    """A file cannot be read as what it should be; the message says what is wrong with it."""


def write(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write in one move: an existing file is replaced only by a complete new one."""
    # How a matrix lies in memory decides how products with it are rounded. It is kept, so that a run that goes on from
    # a file is the same run to the last bit.
    by_column = [name for name, t in tensors.items() if t.dim() > 1 and not t.is_contiguous() and t.mT.is_contiguous()]
    header = {
        "format": FORMAT,
        "kind": kind,
        "version": str(VERSION),
        "meta": json.dumps(meta, allow_nan=True),
        "by_column": json.dumps(by_column),
    }
    stored = {name: t.mT if name in by_column else t for name, t in tensors.items()}
    data = save({name: t.detach().cpu().contiguous() for name, t in stored.items()}, metadata=header)
    target = Path(path)
    if target.exists() and not target.is_file():
        raise ModelFileError(f"{os.fspath(path)!r} is not an ordinary file and cannot be replaced; name another one")
    with replacing(target) as file:
        file.write(data)


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `target` when it is complete, or vanishes if something goes wrong."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header's `meta` and the tensors of a file of this kind."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            meta, by_column = _checked_header(path, kind, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is truncated or not a bali file ({error})") from error
    return meta, {name: t.mT if name in by_column else t for name, t in tensors.items()}


def _checked_header(path: str | os.PathLike[str], kind: str, header: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """`meta` and the names of tensors that lie in columns."""
    shown = repr(os.fspath(path))
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{shown} was not written by bali")
    version = header.get("version", "")
    if version.isdecimal() and int(version) > VERSION:
        raise ModelFileError(f"{shown} has format version {version}, this bali reads up to {VERSION}: upgrade bali-torch")
    if header.get("kind") != kind:
        raise ModelFileError(f"{shown} holds a {header.get('kind')!r}, expected a {kind!r}")
    try:
        int(version)
        return json.loads(header["meta"]), json.loads(header["by_column"])
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{shown} has a damaged header ({error!r})") from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
