"""The order of the rooms: what each may import, and what stands where."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bali"
#: A room imports only itself and rooms before it.
ROOMS = ["conjugate", "predictive", "layers", "inference", "training", "estimators", "tables", "cli"]
MOST_LINES = 350
#: Packages whose name to import is not the one to install.
INSTALLED_AS = {"sklearn": "scikit-learn"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """Every module that is imported anywhere in a file: in functions and for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in members}
    return found


IMPORTS = {name: imports(path) for name, path in MODULES.items()}


def room_of(module: str) -> str:
    """The room of a module of bali; "" for those at the top."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room: str) -> None:
    allowed = {"bali.files"}
    before = ROOMS[: ROOMS.index(room) + 1]
    wrong = [
        f"{module} imports {imported}"
        for module, names in IMPORTS.items()
        if room_of(module) == room
        for imported in sorted(names)
        if imported.split(".")[0] == "bali" and imported not in allowed and room_of(imported) not in before
    ]
    assert wrong == []


def test_what_serves_all_rooms_imports_none() -> None:
    assert [name for name in IMPORTS["bali.files"] if name.split(".")[0] == "bali"] == []


def test_nothing_else_stands_at_the_top() -> None:
    found = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert found == {*ROOMS, "__init__.py", "files.py", "py.typed"}


def test_the_library_never_imports_its_evidence() -> None:
    wrong = [module for module, names in IMPORTS.items() if any(n.split(".")[0] == "bali_benchmarks" for n in names)]
    assert wrong == []


def test_there_are_no_cycles() -> None:
    """The door, `bali/__init__.py`, is left out: what it names is loaded when it is used."""
    graph = {module: names & set(MODULES) - {"bali"} for module, names in IMPORTS.items() if module != "bali"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_one_name_is_one_module() -> None:
    names = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^A-Za-z0-9_-]", requirement)[0].lower() for requirement in project["dependencies"]}
    packages = {name.split(".")[0] for names in IMPORTS.values() for name in names}
    extras = {
        "botorch",
        "gpytorch",
        "linear_operator",
    }  # of an extra, for one name that is loaded when it is used
    assert {name for name, names in IMPORTS.items() if extras & {n.split(".")[0] for n in names}} == {
        "bali.training.botorch_model"
    }
    outside = packages - set(sys.stdlib_module_names) - {"bali", "bali_benchmarks"} - extras
    assert {INSTALLED_AS.get(name, name) for name in outside} == declared


def test_no_file_is_long() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: n for module, n in lengths.items() if n > MOST_LINES} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_knows(room: str) -> None:
    text = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert 2 <= len(text.splitlines()) <= 5
    assert "not know" in text
