"""Builds sdist and wheel, checks what is in them, installs the wheel into empty environments and runs quick tests there.

    python tools/release.py                    everything; `make release` calls it
    python tools/release.py --environments newest
    python tools/release.py --no-install       builds and checks only
    python tools/release.py --newest-python python3.13

"oldest" has the lowest versions that pyproject.toml allows, "newest" the newest that pip finds. torch is that of
constraints.txt in both, unless --each-torch is given: two further builds of it are downloads of gigabytes. Both take the
Python that runs this, unless another is named.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

try:
    from zopfli.zlib import compress
except ModuleNotFoundError:  # the same format, two per cent larger
    from zlib import compress

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LARGEST_WHEEL = 400_000
#: Tests that need nothing but the library, a minute or so of them.
QUICK_TESTS = (
    "tests/conjugate/test_mniw.py",
    "tests/predictive/test_likelihoods.py",
    "tests/estimators/test_fixtures.py",
    "tests/cli/test_cli.py",
    "tests/cli/test_help.py",
    "tests/tables/test_report.py",
    "tests/tables/test_server.py",
)
#: What an sdist has beside the source.
SDIST_FILES = {
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "PACKAGE.md",
    "README.md",
    "SECURITY.md",
    "pyproject.toml",
    "PKG-INFO",
    ".gitignore",
}


class ReleaseError(RuntimeError):
    """The release is not what it should be."""


def check(holds: bool, message: str) -> None:
    if not holds:
        raise ReleaseError(message)


def source_files() -> set[str]:
    """Of the library, as the repository has them: bali/..."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name.removeprefix("src/") for name in listed.splitlines()}


def check_version() -> str:
    """One version: that of pyproject.toml, with its date in the changelog and in the citation."""
    version = str(PROJECT["version"])
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## {re.escape(version)} – (\d{{4}}-\d{{2}}-\d{{2}})$", changelog, flags=re.MULTILINE)
    if dated is None:
        raise ReleaseError(f"CHANGELOG.md has no section '## {version} – DATE'")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    check(f"\nversion: {version}\n" in citation, f"CITATION.cff does not have version {version}")
    check(f"\ndate-released: {dated[1]}\n" in citation, f"CITATION.cff does not have the changelog's date, {dated[1]}")
    benchmarks = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    check(benchmarks["version"] == version, f"the benchmarks have version {benchmarks['version']}, not {version}")
    return version


def check_metadata(metadata: Message, version: str) -> None:
    wanted = {
        "Name": PROJECT["name"],
        "Version": version,
        "License-Expression": "MIT",
        "License-File": "LICENSE",
        "Requires-Python": PROJECT["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    for name, value in wanted.items():
        check(metadata[name] == value, f"the metadata have {name} {metadata[name]!r}, not {value!r}")
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    check(len(required) == len(PROJECT["dependencies"]), f"the metadata require {required}")
    check("# bali" in metadata.get_payload(), "there is no description")


def check_wheel(wheel: Path, version: str) -> None:
    check(
        wheel.stat().st_size < LARGEST_WHEEL, f"{wheel.name} has {wheel.stat().st_size:,} bytes, {LARGEST_WHEEL:,} at most"
    )
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if not name.endswith("/")}
        info = f"{PROJECT['name'].replace('-', '_')}-{version}.dist-info"
        own = {name for name in names if not name.startswith(f"{info}/")}
        files = source_files()
        check(own == files, f"the wheel lacks {sorted(files - own)[:5]} and has {sorted(own - files)[:5]} too many")
        check("bali/py.typed" in own, "the wheel lacks py.typed")
        check(f"{info}/licenses/LICENSE" in names, "the wheel lacks the licence")
        scripts = opened.read(f"{info}/entry_points.txt").decode()
        check("bali = bali.cli.app:app" in scripts, "the wheel has no command bali")
        check_metadata(email.message_from_bytes(opened.read(f"{info}/METADATA")), version)
    print(f"{wheel.name}: {len(own)} files, {wheel.stat().st_size:,} bytes")


def check_sdist(sdist: Path, version: str) -> None:
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames() if "/" in name}
    wanted = SDIST_FILES | {f"src/{name}" for name in source_files()}
    stray, absent = names - wanted, wanted - names - {".gitignore"}
    check(not stray and not absent, f"the sdist lacks {sorted(absent)[:5]} and has {sorted(stray)[:5]} too many")
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size:,} bytes")


def build(out: Path) -> tuple[Path, Path]:
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    squeezed(wheel)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], check=True)
    return wheel, sdist


def squeezed(wheel: Path) -> None:
    """The wheel with the same files, deflated as well as can be.

    Python's zipfile takes no data that are deflated already, so the archive's few fields are written here: for each file a
    header and the data, and in the end a directory of them.
    """
    with zipfile.ZipFile(wheel) as opened:
        files = [(info, opened.read(info)) for info in opened.infolist()]
    written, directory = bytearray(), bytearray()
    for info, content in files:
        name, data = info.filename.encode(), deflated(content)
        year, month, day, hour, minute, second = info.date_time
        date, clock = (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
        # version, flags (names in UTF-8), method, time, date, sum, sizes, length of the name, no extra field
        about = struct.pack(
            "<5H3L2H", 20, 0x800, zipfile.ZIP_DEFLATED, clock, date, info.CRC, len(data), len(content), len(name), 0
        )
        where = struct.pack("<3H2L", 0, 0, 0, info.external_attr, len(written))
        directory += b"PK\x01\x02" + struct.pack("<BB", 20, info.create_system) + about + where + name
        written += b"PK\x03\x04" + about + name + data
    end = struct.pack("<4H2LH", 0, 0, len(files), len(files), len(directory), len(written), 0)
    wheel.write_bytes(written + directory + b"PK\x05\x06" + end)


def deflated(content: bytes) -> bytes:
    """A raw deflate stream: zlib's have a header of 2 bytes and a sum of 4 at the end."""
    return bytes(compress(content)[2:-4])


def requirements(which: str, *, each_torch: bool = False) -> list[str]:
    """Of the oldest environment `name>=1.2` as `name==1.2.*`; torch as it is pinned, unless each should have its own."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    if which == "newest":
        return [] if each_torch else [torch]
    pinned = [re.sub(r">=([\d.]+)$", r"==\1.*", requirement) for requirement in PROJECT["dependencies"]]
    return [torch if requirement.startswith("torch==") and not each_torch else requirement for requirement in pinned]


def try_wheel(wheel: Path, which: str, base: str, *, each_torch: bool) -> None:
    """An empty environment of the Python `base` with the wheel, in which the quick tests run: away from the source."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([base, "-m", "venv", str(folder / "env")], check=True)
        python = folder / "env" / "bin" / "python"
        pins = requirements(which, each_torch=each_torch)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        install = [str(python), "-m", "pip", "install", "--quiet", str(wheel), "pytest", "hypothesis", *pins]
        subprocess.run(install, check=True, env=environment)
        subprocess.run([str(python), "-m", "pip", "check"], check=True)
        for part in ("tests", "pyproject.toml"):
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
        about = "import bali, numpy, pandas, sklearn, torch, sys; print(bali.__file__, sys.version.split()[0], "
        about += "*(m.__version__ for m in (torch, sklearn, numpy, pandas)))"
        told = subprocess.run([str(python), "-c", about], check=True, cwd=folder, env=environment, stdout=subprocess.PIPE)
        place, *versions = told.stdout.decode().split()
        check(place.startswith(str(folder.resolve() / "env")), f"the tests would run another bali: {place}")
        names = ("Python", "torch", "scikit-learn", "numpy", "pandas")
        print(f"{which}: {', '.join(' '.join(pair) for pair in zip(names, versions, strict=True))}", flush=True)
        # Old libraries warn of newer ones; what tests hold against warnings is held by `make test`.
        command = [str(python), "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *QUICK_TESTS]
        subprocess.run(command, check=True, cwd=folder, env=environment)
        print(f"{which}: passed, {time.monotonic() - started:.0f} s with the installation", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="*", choices=["newest", "oldest"], default=["newest", "oldest"])
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--each-torch", action="store_true")
    parser.add_argument("--oldest-python", default=sys.executable)
    parser.add_argument("--newest-python", default=sys.executable)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    chosen = parser.parse_args()
    try:
        version = check_version()
        wheel, sdist = build(chosen.out)
        check_wheel(wheel, version)
        check_sdist(sdist, version)
        for which in [] if chosen.no_install else chosen.environments:
            base = chosen.newest_python if which == "newest" else chosen.oldest_python
            try_wheel(wheel, which, base, each_torch=chosen.each_torch)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
