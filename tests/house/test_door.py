"""After `import bali`, every public name works, and costs only what it needs."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import bali

ROOT = Path(__file__).parents[2]
#: What takes long to load and is needed by some parts of the library only.
HEAVY = {"sklearn", "pandas", "matplotlib", "scipy", "rich", "pyarrow", "jinja2", "typer", "joblib", "polars"}


def heavy_modules_after(code: str) -> set[str]:
    """Those of the heavy packages, and torch, that are loaded by some code in a new interpreter."""
    shown = "print('loaded:', *sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}\n{shown}"], capture_output=True, text=True, check=True)
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("loaded:"))
    return set(line.split()) & (HEAVY | {"torch"})


def names_in_the_readme() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"(?<![\w./-])bali\.([A-Za-z_]\w*)", text)))


def test_every_name_of_the_readme_works() -> None:
    names = names_in_the_readme()
    assert {"BALIRegressor", "LayerwiseInference", "load", "metrics", "plots"} <= set(names)
    assert [name for name in names if not hasattr(bali, name)] == []


@pytest.mark.parametrize("name", bali.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(bali, name).__doc__


def test_modules_are_modules_and_lora_is_a_function() -> None:
    assert all(isinstance(module, ModuleType) for module in (bali.metrics, bali.plots, bali.likelihoods, bali.distributed))
    assert isinstance(bali.lora, FunctionType)


def test_names_work_whatever_was_imported_before() -> None:
    """A submodule that was loaded does not hide what the door names."""
    code = "import bali, bali.layers.modules, bali.predictive.metrics; assert callable(bali.lora); assert bali.metrics.rmse"
    heavy_modules_after(code)


def test_a_name_that_is_none_is_said_to_be_none() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bali.nothing


def test_the_door_alone_loads_nothing() -> None:
    assert heavy_modules_after("import bali; dir(bali); bali.__version__") == set()


@pytest.mark.parametrize("name", ["LayerwiseInference", "MNIW", "likelihoods", "Predictive", "stack", "lora", "distributed"])
def test_the_core_loads_torch_and_nothing_else_that_is_heavy(name: str) -> None:
    assert heavy_modules_after(f"import bali; bali.{name}") == {"torch"}


def processor_seconds(code: str) -> float:
    """Of a new interpreter, by the processor's own clock: a busy machine changes it little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_core_takes_hardly_longer_than_torch() -> None:
    """The best of some rounds of each: 1.10 times as long was measured."""
    rounds = [[processor_seconds(f"import {what}") for what in ("torch", "bali; bali.LayerwiseInference")] for _ in range(4)]
    torch_alone, with_bali = (min(times) for times in zip(*rounds, strict=True))
    assert with_bali < 1.25 * torch_alone
