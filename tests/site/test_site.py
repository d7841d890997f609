"""The site: it builds without a warning, every link leads somewhere, nothing is fetched, and a browser has no complaint."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import matplotlib.image
import numpy as np
import pytest

import bali
from support.browser import NAMES, Browser, find_browser
from support.built_site import ROOT, Page, build_site, dead_links, fetched_elsewhere, read_site, serving
from support.pages import PAGES, blocks_of, code_on

sys.path.insert(0, str(ROOT / "docs" / "tools"))
import tutorial_runs

# The site's own script chooses the colours, a moment after the page is there.
COLOURED = """(async () => {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches ? 'slate' : 'default';
  for (let i = 0; i < 100 && ![dark, null].includes(document.body.getAttribute('data-md-color-scheme')); i++)
    await new Promise(go => setTimeout(go, 50));
})()"""
SEARCH = """(async () => {
  const field = document.querySelector('.md-search__input');
  field.focus(); field.value = 'censored durations';
  for (const kind of ['input', 'keyup']) field.dispatchEvent(new KeyboardEvent(kind, {bubbles: true}));
  for (let i = 0; i < 100; i++) {
    const found = [...document.querySelectorAll('.md-search-result__link')].map(a => a.href);
    if (found.length) return found;
    await new Promise(go => setTimeout(go, 100));
    field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
  }
  return [];
})()"""
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
LOOKS: list[tuple[int, Literal["light", "dark"]]] = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]
#: Pages with formulas, which stand in boxes like code.
FORMULAS = {"method.html"}
#: Of one tutorial, and of all together, in seconds of one processor core.
LONGEST, LONGEST_IN_ALL = 60.0, 600.0


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the runs of tutorials that are not there yet."""
    folder = tmp_path_factory.mktemp("site")
    build_site(folder, run_tutorials=False)
    return folder


@pytest.fixture(scope="module")
def pages(quick: Path) -> dict[Path, Page]:
    return read_site(quick)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with Browser(path, tmp_path_factory.mktemp("profile")) as running:
        yield running


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 60
    assert dead_links(pages) == []


def test_no_page_fetches_anything_from_elsewhere(quick: Path, pages: dict[Path, Page]) -> None:
    assert fetched_elsewhere(pages) == []
    for style in quick.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")) == []


def test_every_document_is_a_page(quick: Path) -> None:
    documents = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    documents = [path.with_name("index.html") if path.stem == "README" else path for path in documents]
    documents += [Path("tutorials") / f"{path.stem}.html" for path in TUTORIALS]
    documents += [Path("project") / f"{name}.html" for name in ("changelog", "contributing", "security")]
    assert [str(path) for path in documents if not (quick / path).exists()] == []


def test_no_code_is_left_out(quick: Path) -> None:
    """All that stands in a box is a block of a document, of a tutorial or of a docstring, or what `--help` says."""
    known = {_squeezed(block.text) for page in PAGES for block in blocks_of(page)}
    known |= {_squeezed(cell.source) for path in TUTORIALS for cell in tutorial_runs.cells_of(path)}
    left_out = []
    for path in sorted(quick.rglob("*.html")):
        name = str(path.relative_to(quick))
        if name.startswith("source/"):  # files to read, which have their own tests
            continue
        for code in code_on(path):
            made = name.startswith("tutorials/") or (name == "reference/commands.html" and code.startswith("$ bali"))
            formula = name in FORMULAS and "bali" not in code and "import" not in code
            if _squeezed(code) not in known and not made and not formula:
                left_out.append((name, code))
    assert [name for name, _ in left_out] == ["reference/algorithm.html"]  # test_code_blocks.py runs it
    assert "bali.AveragedMeans(" in left_out[0][1]


def _squeezed(code: str) -> str:
    return "".join(code.split())


def test_the_reference_has_every_public_name(pages: dict[Path, Page], quick: Path) -> None:
    ids = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "reference"))
    modules = {name for name in bali.__all__ if type(getattr(bali, name)).__name__ == "module"}
    assert [name for name in bali.__all__ if name not in modules and f"bali.{name}" not in ids] == []
    for module in modules:
        public = [name for name in getattr(getattr(bali, module), "__all__", []) if not name.startswith("_")]
        assert [name for name in public if f"bali.{module}.{name}" not in ids] == [], module


def test_parameters_are_described(browser: Browser, quick: Path) -> None:
    """Every row of a table of parameters is one, and what it says can be seen."""
    script = """[...document.querySelectorAll('.doc-section-item')].map(
      row => [row.querySelector('code').textContent, row.querySelector('.doc-md-description').offsetHeight])"""
    with serving(quick) as address:
        rows = [
            row
            for name in ("estimators", "networks", "algorithm")
            for row in browser.look(f"{address}/reference/{name}.html", script=script).answer
        ]
    assert len(rows) > 30
    assert [name for name, _ in rows if not re.fullmatch(r"[a-z_, ]+", name)] == []
    assert [name for name, height in rows if not height] == []


def test_commands_are_in_the_reference(quick: Path) -> None:
    text = (quick / "reference" / "commands.html").read_text(encoding="utf-8")
    for option in ("--open", "--what-if", "--host", "--target"):
        assert option in text


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_landing_page(
    width: int, scheme: Literal["light", "dark"], browser: Browser, quick: Path, tmp_path: Path
) -> None:
    script = "[...document.querySelectorAll('.md-button--primary')].map(a => a.textContent.trim())"
    with serving(quick) as address:
        sight = browser.look(f"{address}/index.html", width=width, scheme=scheme, script=script, first=COLOURED)
    (tmp_path / "page.png").write_bytes(sight.png)
    assert sight.complaints == []
    assert [url for url in sight.requests if not url.startswith((address, "blob:"))] == []
    assert sight.overflowing == []
    assert len(sight.answer) == 3  # doors
    image = matplotlib.image.imread(io.BytesIO(sight.png), format="png")[..., :3]
    background = np.median(image, axis=(0, 1))
    assert (background > 0.9).all() if scheme == "light" else (background < 0.25).all()


@pytest.mark.parametrize("served", [True, False])
def test_search_finds(served: bool, browser: Browser, quick: Path) -> None:
    """From a server, and in pages that are opened as files."""
    with serving(quick) as address:
        sight = browser.look(f"{address}/index.html" if served else quick / "index.html", script=SEARCH)
    assert sight.complaints == []
    assert any("likelihoods.html" in link for link in sight.answer), sight.answer


def test_a_diagram_is_drawn_without_a_script(quick: Path) -> None:
    text = (quick / "architecture.html").read_text(encoding="utf-8")
    assert '<div class="diagram"><svg' in text
    assert "layer_update.py" in text.partition('<div class="diagram">')[2].partition("</svg>")[0]


def test_links_are_checked(tmp_path: Path) -> None:
    """The check itself: it sees what is wrong."""
    (tmp_path / "a.html").write_text("<a href='b.html'>b</a> <a href='a.html#there'>x</a> <a href='#here' id=here>y</a>")
    assert dead_links(read_site(tmp_path)) == ["a.html: b.html", "a.html: a.html#there"]
    (tmp_path / "a.html").write_text("<script src='https://example.org/x.js'></script>")
    assert fetched_elsewhere(read_site(tmp_path)) == ["a.html: https://example.org/x.js"]


# --- tutorials --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_text_and_code(path: Path) -> None:
    cells = tutorial_runs.cells_of(path)
    assert {cell.kind for cell in cells} == {"text", "code"}
    run = tutorial_runs.Run(cells)
    assert len(run.title) > 5
    assert run.summary.endswith((".", "?"))
    for cell in cells:
        if cell.kind == "code":
            compile(cell.source, path.name, "exec")
        else:
            assert "```" not in cell.source  # nobody would run it


def test_a_run_keeps_what_came_out(tmp_path: Path) -> None:
    tutorial = tmp_path / "small.py"
    tutorial.write_text(
        "# %% [markdown]\n# # Small\n#\n# A paragraph.\n\n# %%\nimport matplotlib.pyplot as plt\n"
        "from pathlib import Path\n\n"
        "print(6 * 7)\nfigure, axes = plt.subplots()\naxes.plot([0, 1])\nPath('keep').mkdir()\n"
        "written = Path('keep/x.html').write_text('x')\n"
    )
    out = tmp_path / "small.json"
    command = [sys.executable, tutorial_runs.__file__, str(tutorial), str(out)]
    subprocess.run(command, check=True, env=os.environ | {"MPLBACKEND": "agg"})
    run = tutorial_runs.Run.read(out)
    assert (run.title, run.summary, run.cells[1].printed, run.files) == ("Small", "A paragraph.", "42", {"x.html": "x"})
    (svg,) = run.cells[1].figures
    assert "var(--md-default-fg-color" in svg
    assert "#01fe0" not in svg


def test_a_tutorial_runs_again_when_something_changes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("# %%\n1\n")
    other.write_text("# %%\n2\n")
    assert tutorial_runs.key(one) == tutorial_runs.key(one)
    assert tutorial_runs.key(one) != tutorial_runs.key(other)


# --- all of it --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every tutorial run, unless it was before."""
    folder = tmp_path_factory.mktemp("whole")
    build_site(folder, run_tutorials=True)
    return folder


@pytest.mark.slow
def test_every_page_in_a_browser(whole: Path, browser: Browser, tmp_path: Path) -> None:
    wrong = []
    assert dead_links(read_site(whole)) == []
    with serving(whole) as address:
        for path in sorted(whole.rglob("*.html")):
            name = path.relative_to(whole)
            for width, scheme in ((400, "dark"), (1280, "light")) if name.parts[0] == "source" else LOOKS:
                # The choice of colours would be remembered for the next page.
                sight = browser.look(
                    f"{address}/{name}",
                    width=width,
                    scheme=scheme,  # type: ignore[arg-type]
                    first=COLOURED,
                    script="localStorage.clear()",
                )
                (tmp_path / f"{str(name).replace('/', '-')}-{width}-{scheme}.png").write_bytes(sight.png)
                elsewhere = [url for url in sight.requests if not url.startswith((address, "blob:"))]
                wrong += [f"{name} {width} {scheme}: {what}" for what in sight.complaints + sight.overflowing + elsewhere]
    assert wrong == []


@pytest.mark.slow
def test_tutorials_are_quick(whole: Path) -> None:
    seconds = {path.stem: tutorial_runs.run_of(path).seconds or 0.0 for path in TUTORIALS}
    print(seconds, sum(seconds.values()))
    assert {name: s for name, s in seconds.items() if s > LONGEST} == {}
    assert sum(seconds.values()) < LONGEST_IN_ALL
