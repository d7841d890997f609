"""Downloads that break off: what has arrived is kept, and only the rest is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from bali_benchmarks.datasets.downloads import ResumingDownloader, part_file, plain_session
from support.data_server import Server, running_server

CONTENT = np.random.default_rng(0).bytes(1_000_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_server() as server:
        yield server


@pytest.fixture
def downloader() -> Iterator[ResumingDownloader]:
    with plain_session() as session:
        yield ResumingDownloader(session, attempts=2)


def test_a_broken_connection_is_taken_up_again(server: Server, downloader: ResumingDownloader, tmp_path: Path) -> None:
    server.files["f.bin"], server.cuts, server.cut_at = CONTENT, 1, 600_000
    downloader(f"{server.url}/f.bin", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == CONTENT
    first, second = server.ranges()
    assert first is None
    assert second is not None
    assert 500_000 < int(second.removeprefix("bytes=").removesuffix("-")) <= 600_000
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_the_next_call_goes_on_from_the_part(server: Server, downloader: ResumingDownloader, tmp_path: Path) -> None:
    url, part = f"{server.url}/f.bin", part_file(tmp_path, f"{server.url}/f.bin")
    server.files["f.bin"], server.cuts, server.cut_at = CONTENT, 2, 300_000
    with pytest.raises(requests.RequestException):
        downloader(url, str(tmp_path / "out"))
    there = part.read_bytes()
    assert 400_000 < len(there) <= 600_000
    assert CONTENT.startswith(there)
    downloader(url, str(tmp_path / "out"))
    assert server.ranges()[-1] == f"bytes={len(there)}-"
    assert (tmp_path / "out").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(server: Server, downloader: ResumingDownloader, tmp_path: Path) -> None:
    server.files["f.bin"], server.cuts, server.cut_at, server.knows_ranges = CONTENT, 1, 600_000, False
    downloader(f"{server.url}/f.bin", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_part_that_is_too_long_is_thrown_away(server: Server, downloader: ResumingDownloader, tmp_path: Path) -> None:
    url = f"{server.url}/f.bin"
    server.files["f.bin"] = CONTENT
    part_file(tmp_path, url).write_bytes(CONTENT + b"more")
    downloader(url, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert server.ranges() == [f"bytes={len(CONTENT) + 4}-", None]
