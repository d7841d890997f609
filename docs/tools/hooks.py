"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tutorial_runs import ROOT, TUTORIALS, Run, run_of

DOCS = ROOT / "docs"
#: "no" leaves the code of tutorials as it is, for a quick look at the rest.
RUN_TUTORIALS = os.environ.get("BALI_SITE_TUTORIALS", "yes") != "no"
_runs: dict[str, Run] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Diagrams by Python, and a place in the navigation for every tutorial and page that has none yet."""
    fences = [{"name": "mermaid", "class": "mermaid", "format": pages.mermaid}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    assert config.nav is not None
    named = set(_pages(config.nav))
    tutorials = [f"tutorials/{path.stem}.md" for path in sorted(TUTORIALS.glob("*.py"))]
    others = sorted(str(path.relative_to(DOCS)) for folder in (".", "howto") for path in (DOCS / folder).glob("*.md"))
    decisions = sorted(str(path.relative_to(DOCS)) for path in (DOCS / "decisions").glob("0*.md"))
    _section(_section(config.nav, "Method"), "Decisions").extend(decisions)
    _section(config.nav, "Tutorials").extend(place for place in tutorials if place not in named)
    _section(config.nav, "How to").extend(place for place in others if place not in named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place in (f"tutorials/{path.name}" for path in TUTORIALS.glob("*.py")):
        if (static := files.get_file_from_path(place)) is not None:
            files.remove(static)
    for path in _in_order(config):
        print(f"tutorial {path.stem}", file=sys.stderr)
        try:
            run = _runs[path.stem] = run_of(path, execute=RUN_TUTORIALS)
        except (RuntimeError, ValueError) as error:
            raise PluginError(str(error)) from error
        _add(files, config, f"tutorials/{path.stem}.md", pages.tutorial_page(run, path), path)
        for name, content in (run.files or pages.stand_ins(run, path)).items():
            files.append(File.generated(config, f"tutorials/{path.stem}/{name}", content=content))
    for name, place in pages.PROJECT.items():
        _add(files, config, place, (ROOT / name).read_text(encoding="utf-8"), ROOT / name)
    _add(files, config, "reference/commands.md", pages.command_line_page(), DOCS / "reference" / "commands.md")
    for path in sorted(_outside(files) | set(TUTORIALS.glob("*.py"))):
        if str(path.relative_to(ROOT)) not in [*pages.PROJECT, "README.md"]:
            place = f"source/{path.relative_to(ROOT)}.md"
            files.append(File.generated(config, place, content=pages.source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    if place.startswith("source/"):
        return markdown
    if place == "tutorials/README.md":
        markdown = markdown.replace("<!-- tutorials -->", pages.tutorial_list(_runs))
    source = _sources.get(place, DOCS / place)
    return pages.relinked(markdown, source, place, to_source=source.parent == TUTORIALS)


_sources: dict[str, Path] = {}


def _add(files: Files, config: MkDocsConfig, place: str, content: str, source: Path) -> None:
    """A page that is no file in docs/; its links are those of `source`."""
    _sources[place] = source
    files.append(File.generated(config, place, content=content))


def _outside(files: Files) -> set[Path]:
    found: set[Path] = set()
    for file in files.documentation_pages():
        source = _sources.get(file.src_uri, DOCS / file.src_uri)
        found |= pages.linked_outside(file.content_string, source)
    return {path for path in found if path.is_relative_to(ROOT)}


def _in_order(config: MkDocsConfig) -> list[Path]:
    """Tutorials as the navigation has them."""
    assert config.nav is not None
    places = [Path(place) for place in _pages(_section(config.nav, "Tutorials"))]
    return [TUTORIALS / f"{place.stem}.py" for place in places if place.name != "README.md"]


def _pages(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += _pages(target) if isinstance(target, list) else [target]
    return found


def _section(nav: list[Any], title: str) -> list[Any]:
    return next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)
