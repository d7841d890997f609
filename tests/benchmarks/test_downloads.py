"""Sets from their sources, here a server on this machine that sends the original formats and misbehaves on demand."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from bali_benchmarks import datasets
from bali_benchmarks.datasets import DataError
from bali_benchmarks.datasets.registry import ENTRIES, Entry, RemoteFile
from bali_benchmarks.datasets.sources import Arrived
from support.data_server import Server, running_server
from support.small_sets import LIKE, Arrays, arrays_like, original_files, small_entry, use_only


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, no folder, and no proxy between us and the server."""
    monkeypatch.delenv("BALI_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    return tmp_path / "bali"


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


Offer = Callable[[str], tuple[Entry, Arrays]]


@pytest.fixture
def offer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Let the server have a small set of the format of a known one, and the registry know it."""

    def offered(name: str) -> tuple[Entry, Arrays]:
        arrays = arrays_like(name)
        entry = small_entry(name, arrays, server.url)
        server.files |= original_files(name, arrays)
        use_only(monkeypatch, entry)
        return entry, arrays

    return offered


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKE)
def test_a_set_is_fetched_once_and_kept(
    name: str, offer: Offer, server: Server, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, arrays = offer(name)
    first = datasets.load(name)
    assert sorted(path for path, _ in server.asked) == sorted(file.name for file in entry.files)
    assert files_in(cache) == sorted([entry.path.as_posix(), f"downloads/{name}.lock"])
    second = datasets.load(name)
    assert len(server.asked) == len(entry.files)  # no further ones
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.X.ravel(), np.concatenate([v.ravel() for k, v in arrays.items() if k[0] in "Xx"]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("content", [b"", b"<html>log in to the network of this hotel</html>\n", b"1,2\n3\n", b"\x1f\x8b"])
def test_what_is_not_the_format_is_refused(name: str, content: bytes, offer: Offer, server: Server, cache: Path) -> None:
    offer(name)
    server.files = dict.fromkeys(server.files, content)
    with pytest.raises(DataError, match=f"for '{name}' cannot be read .*; nothing was kept"):
        datasets.load(name)
    assert files_in(cache) == [f"downloads/{name}.lock"]


def test_fractions_are_no_row_numbers(offer: Offer, server: Server) -> None:
    offer("yacht")
    server.files["index_test_1.txt"] = b"1.5\n3\n"
    with pytest.raises(DataError, match=r"index_test_1\.txt has numbers that are not whole"):
        datasets.load("yacht")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        (
            "spam",
            {"spambase.zip": original_files("telescope", arrays_like("telescope"))["magic.zip"]},
            "has no spambase.data",
        ),
        ("diabetes", {"data.csv": b"HighBP,Diabetes_binary\n1,0\n"}, "there are no columns HighChol, CholCheck"),
        ("mnist", {"t10k-labels-idx1-ubyte.gz": b""}, "cannot be read"),
    ],
)
def test_another_file_of_the_same_kind_is_refused(
    name: str, change: dict[str, bytes], complaint: str, offer: Offer, server: Server
) -> None:
    offer(name)
    server.files |= change
    with pytest.raises(DataError, match=complaint):
        datasets.load(name)


# --- interrupted downloads --------------------------------------------------------------------------------------


def test_an_interrupted_fetch_goes_on(offer: Offer, server: Server, cache: Path) -> None:
    entry, _ = offer("yacht")
    third = entry.files[2].name

    def interrupt(arrived: Arrived) -> None:
        if arrived.number == 3 and arrived.done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.fetch("yacht", interrupt)
    assert f"downloads/yacht/{third}.part" in files_in(cache)
    # As if the interruption had come after the first byte of it:
    part = cache / "downloads" / "yacht" / f"{third}.part"
    part.write_bytes(server.files[third][:1])
    server.asked.clear()
    assert datasets.load("yacht").n_splits == 3
    assert server.asked[0] == (third, "bytes=1-")
    assert [path for path, _ in server.asked] == [file.name for file in entry.files[2:]]


def test_progress_is_told(offer: Offer) -> None:
    entry, _ = offer("yacht")
    seen: list[Arrived] = []
    datasets.fetch("yacht", seen.append)
    assert [a.number for a in seen] == sorted(a.number for a in seen)
    ends = {a.file: a for a in seen}
    assert list(ends) == [file.name for file in entry.files]
    assert all(a.done == a.total and a.n_files == len(entry.files) for a in ends.values())


def test_two_at_once_download_once(offer: Offer, server: Server) -> None:
    entry, _ = offer("yacht")
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(datasets.fetch, ["yacht", "yacht"]))
    assert paths[0] == paths[1]
    assert len(server.asked) == len(entry.files)


# --- what can go wrong ------------------------------------------------------------------------------------------


def test_other_data_than_the_published_are_not_kept(offer: Offer, server: Server, cache: Path) -> None:
    offer("spam")
    server.files |= original_files("spam", arrays_like("spam", seed=1))
    with pytest.raises(DataError, match="for 'spam' is not the published data; nothing was kept"):
        datasets.load("spam")
    assert files_in(cache) == ["downloads/spam.lock"]


def with_files(entry: Entry, monkeypatch: pytest.MonkeyPatch, *files: RemoteFile) -> None:
    monkeypatch.setitem(ENTRIES, entry.name, replace(entry, files=files))


def test_a_wrong_hash_is_not_kept(offer: Offer, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = offer("spam")
    with_files(entry, monkeypatch, replace(entry.files[0], known_hash="md5:" + 32 * "0"))
    with pytest.raises(DataError, match=r"spambase.zip has another hash than the published file"):
        datasets.load("spam")
    assert files_in(cache) == ["downloads/spam.lock"]


@pytest.mark.parametrize("bad", ["missing", "wrong", "unreachable"])
def test_the_next_place_is_tried(bad: str, offer: Offer, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, arrays = offer("spam")
    known_hash = hashlib.md5(server.files["spambase.zip"]).hexdigest()
    server.files["wrong/spambase.zip"] = b"something else"
    first = "http://127.0.0.1:9/spambase.zip" if bad == "unreachable" else f"{server.url}/{bad}/spambase.zip"
    urls = (first, f"{server.url}/spambase.zip")
    with_files(entry, monkeypatch, RemoteFile("spambase.zip", urls, f"md5:{known_hash}"))
    np.testing.assert_array_equal(datasets.load("spam").y, arrays["y"])


def test_no_network(offer: Offer, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    entry, _ = offer("spam")
    with_files(entry, monkeypatch, RemoteFile("spambase.zip", ("http://127.0.0.1:9/spambase.zip",)))
    with pytest.raises(DataError, match="no connection") as caught:
        datasets.load("spam")
    assert "connect to the internet and try again, or set BALI_DATA to a folder that has classification/spam.npz" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert not (cache / entry.path).exists()


@pytest.mark.parametrize("status", [404, 500, 503])
def test_an_error_of_the_server_is_named(status: int, offer: Offer, server: Server) -> None:
    offer("spam")
    server.statuses["spambase.zip"] = status
    with pytest.raises(DataError, match=f"127.0.0.1:[0-9]+: HTTP status {status}"):
        datasets.load("spam")


def test_a_disk_that_fills_while_downloading(
    offer: Offer, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, _ = offer("spam")

    class FullDisk(io.FileIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ordinary = Path.open
    with monkeypatch.context() as disk:
        disk.setattr(
            Path, "open", lambda path, mode="r": FullDisk(path, "w") if path.suffix == ".part" else ordinary(path, mode)
        )
        with pytest.raises(DataError, match="is full: free some space and try again"):
            datasets.load("spam")
    assert not (cache / entry.path).exists()
    assert len(datasets.load("spam").y) == 20


def test_a_disk_that_fills_while_writing_the_cache(
    offer: Offer, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("spam")

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"PK")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(np, "savez_compressed", full)
        with pytest.raises(DataError, match="is full: free some space and try again"):
            datasets.load("spam")
    assert files_in(cache) == ["downloads/spam.lock", "downloads/spam/spambase.zip"]
    assert len(datasets.load("spam").y) == 20
    assert len(server.asked) == 1  # what had arrived was used


def test_other_errors_of_the_disk_are_left_alone(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("spam")

    def refused(file: Any, **arrays: Any) -> None:
        raise PermissionError(errno.EACCES, "not allowed")

    monkeypatch.setattr(np, "savez_compressed", refused)
    with pytest.raises(PermissionError):
        datasets.load("spam")
