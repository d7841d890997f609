"""The release script: versions agree, the quick tests it names exist, and it sees a wheel that is wrong."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_version_with_a_date(release: ModuleType) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.check_version())


def test_the_quick_tests_exist(release: ModuleType) -> None:
    assert [name for name in release.QUICK_TESTS if not (ROOT / name).is_file()] == []


def test_the_oldest_versions_are_those_of_the_project(release: ModuleType) -> None:
    oldest = release.requirements("oldest", each_torch=True)
    assert len(oldest) == len(release.PROJECT["dependencies"])
    assert all(re.fullmatch(r"[\w-]+==[\d.]+\.\*", requirement) for requirement in oldest)
    (torch,) = release.requirements("newest")
    assert re.fullmatch(r"torch==[\d.]+", torch)
    assert torch in release.requirements("oldest")


def test_a_wheel_that_is_wrong_is_seen(release: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "bali_torch-0.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("bali/__init__.py", "")
        opened.writestr("notes.txt", "")
    with pytest.raises(release.ReleaseError, match=r"lacks .* and has \['notes.txt'\] too many"):
        release.check_wheel(wheel, "0.0.0")
    wheel.write_bytes(bytes(release.LARGEST_WHEEL))
    with pytest.raises(release.ReleaseError, match="at most"):
        release.check_wheel(wheel, "0.0.0")


def test_a_squeezed_wheel_holds_the_same(release: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "one.whl"
    contents = {"bali/__init__.py": b"x = 1\n" * 200, "bali/naïve.txt": "ψ".encode() * 50, "bali/py.typed": b""}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as opened:
        for name, content in contents.items():
            opened.writestr(zipfile.ZipInfo(name, (2024, 5, 31, 12, 30, 16)), content)
        before = opened.infolist()
    size = wheel.stat().st_size
    release.squeezed(wheel)
    assert wheel.stat().st_size < size / 2
    with zipfile.ZipFile(wheel) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == contents
        for old, new in zip(before, opened.infolist(), strict=True):
            assert (new.date_time, new.external_attr, new.create_system) == (
                old.date_time,
                old.external_attr,
                old.create_system,
            )


@pytest.mark.slow
def test_the_release_builds(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release.py", "--no-install", "--out", str(tmp_path / "dist")])
    release.main()
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
