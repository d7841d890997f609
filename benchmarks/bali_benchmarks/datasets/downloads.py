"""Downloads that go on where they were interrupted, as a downloader for Pooch, which by itself starts anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import requests

OnBytes = Callable[[int, int | None], None]  # is told how many bytes of a file are there, and of how many if known
BLOCK = 2**16
BROKEN_OFF = (requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)


@contextmanager
def plain_session() -> Iterator[requests.Session]:
    """Connections that are kept open from file to file, as some sets are many small files."""
    with requests.Session() as session:
        # Byte ranges count the bytes that are sent: they must be those of the file, not of a compressed copy.
        session.headers["Accept-Encoding"] = "identity"
        yield session


class ResumingDownloader:
    """`downloader(url, output_file, pooch)`, with what has arrived so far in a file that ends in .part.

    A connection that breaks off is taken up again a few times in the same call; after that, and after any other error,
    the .part file stays, and the next call goes on from it.
    """

    def __init__(
        self,
        session: requests.Session,
        on_bytes: OnBytes = lambda done, total: None,
        *,
        attempts: int = 5,
        timeout: float = 30.0,
    ) -> None:
        self._session, self.on_bytes, self.attempts, self.timeout = session, on_bytes, attempts, timeout

    def __call__(self, url: str, output_file: str, pooch: object = None) -> None:
        part = part_file(Path(output_file).parent, url)
        for attempts_left in reversed(range(self.attempts)):
            if self._go_on(url, part, last_attempt=attempts_left == 0):
                break
        part.replace(output_file)

    def _go_on(self, url: str, part: Path, *, last_attempt: bool) -> bool:
        """Add what is missing to the .part file; whether it is complete then."""
        there = part.stat().st_size if part.exists() else 0
        ask = {"Range": f"bytes={there}-"} if there else {}
        with self._session.get(url, headers=ask, stream=True, timeout=self.timeout) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable and not last_attempt:
                part.unlink()  # it is longer than the file, which has changed since
                return False
            response.raise_for_status()
            if not _is_rest(response, there):  # the server sends the file from its beginning, whatever was asked
                there = 0
            length = response.headers.get("Content-Length")
            total = None if length is None else there + int(length)
            with part.open("ab" if there else "wb") as file:
                self.on_bytes(there, total)
                try:
                    for block in response.iter_content(BLOCK):
                        there += file.write(block)
                        self.on_bytes(there, total)
                except BROKEN_OFF:
                    if last_attempt:
                        raise
                    return False
        return True


def part_file(folder: Path, url: str) -> Path:
    return folder / f"{PurePosixPath(urlsplit(url).path).name}.part"


def _is_rest(response: requests.Response, start: int) -> bool:
    """Whether the answer is the part of the file from byte `start` on."""
    partial = response.status_code == requests.codes.partial_content
    return partial and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
