"""Files of tensors: safetensors with a JSON header and a digest of both. Reading never executes anything.

They appear when they are complete, whoever else writes to the same place and whatever is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line needs names from here before it needs torch
    from torch import Tensor

try:
    import fcntl
except ImportError:  # a system without such locks: parts of killed writers stay, as nobody can tell them from others
    fcntl = None  # type: ignore[assignment]

FORMAT = "bali"
VERSION = 1
#: Characters of a header: more than any model needs, and little enough to be read at once.
LONGEST_HEADER = 2**25
#: Values in a header: each takes up to thirty times the memory of its characters.
MOST_VALUES = 2**21
#: What a file is whose content cannot be right, and what to do.
DAMAGED = "is damaged or was written by another version of bali", "; train the model again"
_HEADER = {"format", "kind", "version", "meta", "by_column"}
#: How often a file may be replaced while it is read.
_MOST_REPLACED = 20


class ModelFileError(ValueError):
    """A file cannot be read as what it should be; the message says what is wrong with it."""


def write(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write in one move: an existing file is replaced only by a complete new one."""
    from safetensors.torch import save

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
    if _is_too_long(header):
        raise ModelFileError(f"what is to be written about {kind!r} beside its tensors is too long for a header")
    laid_out = {name: t.mT if name in by_column else t for name, t in tensors.items()}
    stored = {name: t.detach().cpu().contiguous() for name, t in laid_out.items()}
    data = save(stored, metadata=header | {"digest": _digest(header, stored)})
    target = Path(path)
    if target.exists() and not target.is_file():
        raise ModelFileError(f"{os.fspath(path)!r} is not an ordinary file and cannot be replaced; name another one")
    with replacing(target) as file:
        file.write(data)


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `target` when it is complete, or vanishes if something goes wrong."""
    target = real(target)
    settle(target)
    with part_of(target) as part:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        take_place(part, target)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header's `meta` and the tensors of a file of this kind. Whatever is wrong with the file is a `ModelFileError`.

    A file is opened more than once to be read: if another took its place meanwhile, that one is read instead.
    """
    for _ in range(_MOST_REPLACED):
        before = _identity(path)
        try:
            return _read(path, kind)
        except ModelFileError:
            if _identity(path) == before:
                raise
    return _read(path, kind)


def _identity(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Another one for every file that takes this place."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {os.fspath(path)!r}")
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import safe_open

    with refusing(path, "is truncated or not a bali file"), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        _check_header(header, kind)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    with refusing(path, "has a damaged header"):
        digest = header.pop("digest", None)  # files of early versions have none
        if digest is not None and digest != _digest(header, tensors):
            raise ModelFileError("is damaged: its content is not what was written")
        if set(header) != _HEADER:
            raise ModelFileError(f"has a damaged header (fields {sorted(header)})")
        int(header["version"])
        meta, by_column = json.loads(header["meta"]), json.loads(header["by_column"])
        if not isinstance(meta, dict):
            raise ModelFileError("has a damaged header (meta is no object)")
        return meta, tensors | {name: tensors[name].mT for name in by_column}


@contextmanager
def refusing(path: str | os.PathLike[str], problem: str, remedy: str = "") -> Iterator[None]:
    """Errors of any kind become a `ModelFileError` that names the file. One that is raised inside is the problem itself."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)!r} {error}") from error
    except Exception as error:  # also of recursion and of memory: a file can ask for both
        shown = str(error) or type(error).__name__
        raise ModelFileError(f"{os.fspath(path)!r} {problem} ({shown[:300]}){remedy}") from error


def _check_header(header: Mapping[str, str], kind: str) -> None:
    if header.get("format") != FORMAT:
        raise ModelFileError("was not written by bali")
    version = header.get("version", "")
    if version.isdecimal() and int(version[:9]) > VERSION:
        raise ModelFileError(f"has format version {version[:9]}, this bali reads up to {VERSION}: upgrade bali-torch")
    if header.get("kind") != kind:
        raise ModelFileError(f"holds a {header.get('kind', '')[:50]!r}, expected a {kind!r}")
    if _is_too_long(header):
        raise ModelFileError(f"has a damaged header (more than {LONGEST_HEADER:,} characters or {MOST_VALUES:,} values)")


def _is_too_long(header: Mapping[str, str]) -> bool:
    n_values = sum(text.count(mark) for text in header.values() for mark in ",[{")
    return n_values > MOST_VALUES or sum(map(len, header.values())) > LONGEST_HEADER


def _digest(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the header, and of each tensor's name, type, shape and bytes."""
    import torch

    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- what is not complete yet -----------------------------------------------------------------------------------------


@contextmanager
def part_of(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """A name beside `path` to write to, `.NAME.xxxxxxxx.part`, with a lock on it; removed at the end if it is still there.

    The system takes the lock away when the writer ends, so a part without one is what a killed writer left.
    """
    while True:
        part = _made(path, is_folder=is_folder)
        with _locked(part, wait=True):
            if not part.exists():  # `settle` of another writer came between making and locking
                continue
            try:
                yield part
            finally:
                remove(part)
            return


def settle(path: Path) -> None:
    """Finish or remove what killed writers of this file or folder left; what is being written just now stays."""
    path = real(path)
    if not path.parent.is_dir():
        return
    name = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.(part|new|old)")
    with suppress(PermissionError):  # who may only read here has nothing to settle
        left = sorted(found for found in path.parent.iterdir() if name.fullmatch(found.name))
        # A new one before the old one, which is needed only if there is no new one.
        for found in (f for suffix in (".new", ".old", ".part") for f in left if f.suffix == suffix):
            with _locked(found, wait=False) as mine:
                if mine:
                    _settle_one(found, path)


def _settle_one(found: Path, path: Path) -> None:
    takes_the_place = found.suffix == ".new" or (found.suffix == ".old" and not found.with_suffix(".new").exists())
    if takes_the_place and not path.exists():
        found.rename(path)
    elif found.suffix != ".old" or path.exists():
        remove(found)


def take_place(part: Path, path: Path) -> None:
    """A complete file replaces another, and those who may read that one may read this one."""
    take_mode(part, path)
    part.replace(path)


def take_mode(part: Path, path: Path) -> None:
    if path.exists():
        shutil.copymode(path, part)


def real(path: Path) -> Path:
    """Where links lead to; `Path.resolve` raises an error of its own for links in a circle."""
    return Path(os.path.realpath(path))


def _made(path: Path, *, is_folder: bool) -> Path:
    """An empty one that may be read by those who may read `path`, or by whom the system lets, if there is none yet."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        with suppress(FileExistsError):
            if is_folder:
                part.mkdir(0o700 if path.exists() else 0o777)
            else:
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if path.exists() else 0o666))
            return part


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the lock was free (or waited for). It is of the file or folder, whatever it is called later."""
    if fcntl is None:
        yield False
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        except OSError:  # another has it, or this file system knows no locks
            free = False
        yield free
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
