"""Data sets from their original sources: downloaded, parsed, checked, and kept in the cache."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pooch
from filelock import FileLock
from requests import RequestException, Timeout

from bali_benchmarks.datasets import storage
from bali_benchmarks.datasets.data_error import DataError
from bali_benchmarks.datasets.downloads import ResumingDownloader, plain_session
from bali_benchmarks.datasets.originals import UNREADABLE
from bali_benchmarks.datasets.registry import Entry, RemoteFile


@dataclass(frozen=True)
class Arrived:
    """How far a download has come: file `number` of `n_files`, `done` of its `total` bytes."""

    file: str
    number: int
    n_files: int
    done: int
    total: int | None


OnArrival = Callable[[Arrived], None]


def download(entry: Entry, on_arrival: OnArrival = lambda arrived: None) -> Path:
    """The set's file in the cache, made from its source. An interrupted download goes on where it stopped."""
    cache = storage.cache_folder()
    target, originals = cache / entry.path, cache / "downloads" / entry.name
    with _telling_of_a_full_disk(cache):
        originals.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{originals}.lock"):  # processes that want the same set get it once
            if not target.is_file():
                _get(entry, originals, on_arrival)
                _convert(entry, originals, target)
            shutil.rmtree(originals, ignore_errors=True)
    return target


def _get(entry: Entry, folder: Path, on_arrival: OnArrival) -> None:
    """Bring the set's files into a folder, except those that an earlier, interrupted try has brought there."""
    with plain_session() as session, _quiet_pooch():
        for number, file in enumerate(entry.files, 1):
            on_bytes = partial(_tell, on_arrival, file.name, number, len(entry.files))
            failures = _get_file(file, folder, ResumingDownloader(session, on_bytes))
            if failures:
                raise DataError(
                    f"cannot download {entry.name!r} ({'; '.join(failures)}): connect to the internet and try again, or "
                    f"set {storage.FOLDER_VARIABLE} to a folder that has {entry.path}"
                )


def _tell(on_arrival: OnArrival, file: str, number: int, n_files: int, done: int, total: int | None) -> None:
    on_arrival(Arrived(file, number, n_files, done, total))


def _get_file(file: RemoteFile, folder: Path, downloader: ResumingDownloader) -> list[str]:
    """Try one place after the other; why each failed, or nothing if one did not."""
    failures = []
    for url in file.urls:
        place = pooch.create(folder, base_url="", registry={file.name: file.known_hash}, urls={file.name: url})
        try:
            place.fetch(file.name, downloader=downloader)
            return []
        except RequestException as error:
            failures.append(f"{urlsplit(url).netloc}: {_reason(error)}")
        except ValueError:  # that is how Pooch reports a wrong hash
            failures.append(f"{urlsplit(url).netloc}: {file.name} has another hash than the published file")
    return failures


def _reason(error: RequestException) -> str:
    """Short: the texts of these errors run over several lines."""
    if error.response is not None:
        return f"HTTP status {error.response.status_code}"
    return "no answer in time" if isinstance(error, Timeout) else "no connection"


def _convert(entry: Entry, originals: Path, target: Path) -> None:
    """Nothing is kept of files that are not what they should be, so that the next download starts anew."""
    where = urlsplit(entry.files[0].urls[0]).netloc
    try:
        arrays = entry.parse(originals)
    except UNREADABLE as error:
        shutil.rmtree(originals, ignore_errors=True)
        raise DataError(
            f"what {where} sent for {entry.name!r} cannot be read ({error}); nothing was kept: try again"
        ) from error
    if storage.fingerprint(arrays) != entry.fingerprint:
        shutil.rmtree(originals, ignore_errors=True)
        raise DataError(
            f"what {where} sent for {entry.name!r} is not the published data; nothing was kept: try again, or set "
            f"{storage.FOLDER_VARIABLE} to a folder that has {entry.path}"
        )
    storage.write(target, arrays)


@contextmanager
def _telling_of_a_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DataError(
            f"the disk of {str(folder)!r} is full: free some space and try again, the download goes on where it stopped; "
            f"or keep the data elsewhere, in a folder named by {storage.FOLDER_VARIABLE}"
        ) from error


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Pooch tells of every file on standard error; progress is shown by `on_arrival` instead."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
