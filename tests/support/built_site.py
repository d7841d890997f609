"""The site as files: what its pages hold and link to, read with the standard library."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
#: Attributes by which a page makes a browser fetch something.
_FETCHES = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src"), ("use", "href")}


@dataclass
class Page:
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.page.links.append(given["href"])
        self.page.fetched += [given[name] for name in given if (tag, name) in _FETCHES]
        if tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.page.fetched.append(given["href"])


def read_page(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def read_site(folder: Path) -> dict[Path, Page]:
    """All pages but the one that a server shows for what is not there, whose links are those of a server."""
    return {path: read_page(path) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}


def dead_links(site: dict[Path, Page]) -> list[str]:
    """Links between pages that lead to no file, or to no place in it."""
    dead = []
    for path, page in site.items():
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(parts.fragment)
            if not file.exists() or (anchor and file in site and anchor not in site[file].ids):
                dead.append(f"{path.name}: {link}")
    return dead


def fetched_elsewhere(site: dict[Path, Page]) -> list[str]:
    return [f"{path.name}: {link}" for path, page in site.items() for link in page.fetched if urlsplit(link).netloc]


def build_site(out: Path, *, run_tutorials: bool) -> str:
    """What MkDocs says; warnings are errors."""
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "BALI_SITE_TUTORIALS": "yes" if run_tutorials else "no"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a folder's files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
