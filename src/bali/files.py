"""Files of tensors: safetensors with a JSON header. Reading never executes anything."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = "bali"
VERSION = 1


class ModelFileError(ValueError):
    """A file cannot be read as what it should be; the message says what is wrong with it."""


def write(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write in one move: an existing file is replaced only by a complete new one."""
    header = {"format": FORMAT, "kind": kind, "version": str(VERSION), "meta": json.dumps(meta, allow_nan=True)}
    data = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata=header)
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
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
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is truncated or not a bali file ({error})") from error
    if header.get("format") != FORMAT:
        raise ModelFileError(f"{os.fspath(path)!r} was not written by bali")
    if header.get("kind") != kind:
        raise ModelFileError(f"{os.fspath(path)!r} holds a {header.get('kind')!r}, expected a {kind!r}")
    if int(header["version"]) > VERSION:
        raise ModelFileError(
            f"{os.fspath(path)!r} has format version {header['version']}, this bali reads up to {VERSION}: "
            "upgrade bali-torch"
        )
    meta: dict[str, Any] = json.loads(header["meta"])
    return meta, tensors


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
