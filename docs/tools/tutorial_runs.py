"""Tutorials are Python files in the percent format of notebooks; this runs one and keeps what came out.

`# %% [markdown]` begins a cell of text, in comments, and `# %%` one of code. Code is run cell by cell, in an empty folder
and with one thread; what a cell prints and the figures that it leaves open are kept behind it. The run is a JSON file whose
name has a hash of the tutorial and of the library's source, so that a tutorial is run again when either changes, and only
then.

    python docs/tools/tutorial_runs.py docs/tutorials/first_table.py run.json
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
RUNS = ROOT / "build" / "tutorials"
#: Of one tutorial, in seconds; a slow machine may take longer than the minute that is promised, a hanging one may not.
PATIENCE = 600.0
_CELL = re.compile(r"^# %%.*\n", flags=re.MULTILINE)


@dataclass
class Cell:
    kind: str  # "text" or "code"
    source: str
    printed: str = ""
    figures: list[str] = field(default_factory=list)  # <svg> elements


@dataclass
class Run:
    cells: list[Cell]
    seconds: float | None = None  # None: the code was not run
    files: dict[str, str] = field(default_factory=dict)  # what it left in the folder `keep`, to go beside the page

    @property
    def title(self) -> str:
        return re.search(r"^# (.+)$", self.cells[0].source, flags=re.MULTILINE)[1]  # type: ignore[index]

    @property
    def summary(self) -> str:
        """The first paragraph after the title."""
        return " ".join(self.cells[0].source.split("\n\n")[1].split())

    @classmethod
    def read(cls, path: Path) -> Run:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls([Cell(**cell) for cell in content["cells"]], content["seconds"], content["files"])


def cells_of(tutorial: Path) -> list[Cell]:
    text = tutorial.read_text(encoding="utf-8")
    heads, bodies = _CELL.findall(text), _CELL.split(text)[1:]
    cells = [_cell("[markdown]" in head, body) for head, body in zip(heads, bodies, strict=True)]
    if not cells or cells[0].kind != "text" or not re.match(r"# .+\n\n\S", cells[0].source):
        raise ValueError(
            f"{tutorial.name} must begin with a cell of text: a title ('# # ...'), and a paragraph that says what it is"
        )
    return cells


def _cell(is_text: bool, body: str) -> Cell:
    if is_text:
        return Cell("text", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip())
    return Cell("code", body.strip())


def key(tutorial: Path) -> str:
    """A hash of everything that decides what comes out."""
    digest = hashlib.sha256()
    sources = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "docs" / "tools").glob("*.py")])
    if "bali_benchmarks" in tutorial.read_text(encoding="utf-8"):
        sources += sorted((ROOT / "benchmarks" / "bali_benchmarks" / "baselines").glob("*.py"))
    for path in [tutorial, *sources]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def run_of(tutorial: Path, *, execute: bool = True) -> Run:
    """The kept run of a tutorial, or a new one."""
    kept = RUNS / f"{tutorial.stem}-{key(tutorial)}.json"
    if kept.exists():
        return Run.read(kept)
    if not execute:
        return Run(cells_of(tutorial))
    kept.parent.mkdir(parents=True, exist_ok=True)
    for older in RUNS.glob(f"{tutorial.stem}-*.json"):
        older.unlink()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the command `bali` is
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg", "COLUMNS": "100", "PATH": path}
    command = [sys.executable, __file__, str(tutorial), str(kept)]
    done = subprocess.run(command, env=os.environ | one_thread, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise RuntimeError(f"the tutorial {tutorial.name} failed:\n{done.stdout}{done.stderr}")
    return Run.read(kept)


def execute(tutorial: Path) -> Run:
    """Every cell in turn. Seconds are those of a processor core, so that a busy machine does not count."""
    cells, names = cells_of(tutorial), {"__name__": tutorial.stem}
    for number, cell in enumerate(cells):
        if cell.kind == "code":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(cell.source, f"{tutorial.name}, cell {number}", "exec", dont_inherit=True), names)
            cell.printed = printed.getvalue().rstrip()
            cell.figures = list(open_figures(f"f{number}"))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(Path("keep").glob("*"))}
    return Run(cells, sum(u.ru_utime + u.ru_stime for u in used), files)


def open_figures(name: str) -> Iterator[str]:
    import matplotlib.pyplot as plt
    from figures import as_svg

    for number in plt.get_fignums():
        yield as_svg(plt.figure(number), f"{name}-{number}")
    plt.close("all")


def main(tutorial: str, out: str) -> None:
    import matplotlib.style
    import torch
    from figures import STYLE

    torch.set_num_threads(1)
    matplotlib.style.use(STYLE)
    warnings.simplefilter("error")
    # gpytorch's, when BoTorch is imported; the tests let it pass, too (pyproject.toml).
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    path, kept = Path(tutorial).resolve(), Path(out).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found: dict[str, Any] = asdict(execute(path))
        os.chdir(kept.parent)
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
