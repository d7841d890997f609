"""Pages that are made when the site is built: tutorials and what came out of them, files that are linked to, commands."""

from __future__ import annotations

import io
import re
from pathlib import Path

import merm
from tutorial_runs import ROOT, Cell, Run

#: Files of the repository that are pages of the site: its place for each.
PROJECT = {f"{name.upper()}.md": f"project/{name}.md" for name in ("changelog", "contributing", "security")}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".yml": "yaml"}


def tutorial_page(run: Run, path: Path) -> str:
    parts = [_cell(cell) for cell in run.cells]
    if run.seconds is None:
        parts.insert(1, "!!! warning\n\n    The code was not run when this page was built; `make site` runs it.\n")
        end = ""
    else:
        seconds = max(round(run.seconds), 1)
        end = (
            f" When this page was made it was run, in {seconds} s of one processor core; what it printed and drew is above."
        )
    parts.append(
        f'<p class="made" markdown>This page is [one Python file]({path.name}).{end} Its cells are those of a notebook: '
        "an editor that knows notebooks opens it as one.</p>\n"
    )
    return "\n".join(parts)


def stand_ins(run: Run, path: Path) -> dict[str, str]:
    """Of a tutorial that was not run, empty files where it links to what it would leave."""
    links = [link for cell in run.cells for link in re.findall(rf"\]\({path.stem}/([^)]+)\)", cell.source)]
    return dict.fromkeys(links, "<!DOCTYPE html><title>not run</title>") if run.seconds is None else {}


def _cell(cell: Cell) -> str:
    if cell.kind == "text":
        return f"{cell.source}\n"
    parts = [f"```python\n{cell.source}\n```\n"]
    if cell.printed:
        parts.append(f'<div class="printed" markdown>\n```text\n{cell.printed}\n```\n</div>\n')
    parts += [f'<div class="drawn">{svg}</div>\n' for svg in cell.figures]
    return "\n".join(parts)


def source_page(path: Path) -> str:
    """A file of the repository, to read."""
    language = _LANGUAGES.get(path.suffix, "text")
    name = path.relative_to(ROOT)
    front = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n"
    return f"{front}````{language}\n{path.read_text(encoding='utf-8')}````\n"


def command_line_page() -> str:
    """What `--help` says of every command, by Typer's own writer of documents."""
    import typer.main
    from typer.cli import get_docs_for_click

    from bali.cli.app import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="bali")
    text = get_docs_for_click(obj=command, ctx=context, name="bali", title="Commands and options")
    return "What `--help` says. [The command `bali`](../command-line.md) shows every command at work.\n\n".join(
        re.split(r"(?<=^# Commands and options\n\n)", text, maxsplit=1, flags=re.MULTILINE)
    )


def linked_outside(markdown: str, page: Path) -> set[Path]:
    """Files outside docs/ that a page links to."""
    docs, found = ROOT / "docs", set()
    for _, target, _ in _LINK.findall(markdown):
        if "://" not in target and (file := (page.parent / target).resolve()).is_file() and not file.is_relative_to(docs):
            found.add(file)
    return found


def place_of(file: Path) -> str | None:
    """Where in the site a file of the repository is, if its own name does not say so."""
    docs, name = ROOT / "docs", str(file.relative_to(ROOT))
    if name in PROJECT:
        return PROJECT[name]
    if file == ROOT / "README.md":
        return "index.md"
    if file.parent == docs / "tutorials" and file.suffix == ".py":
        return f"tutorials/{file.stem}.md"
    if not file.is_relative_to(docs):
        return f"source/{name}.md"
    return None


def relinked(markdown: str, source: Path, place: str, *, to_source: bool = False) -> str:
    """A page's links, which are those of the repository, as links between pages of the site."""

    def link(match: re.Match[str]) -> str:
        opening, target, anchor = match.groups()
        file = (source.parent / target).resolve()
        if "://" in target or not file.exists() or not file.is_relative_to(ROOT):
            return match[0]
        if file.is_dir():
            file = file / "README.md"
        there = f"source/{file.relative_to(ROOT)}.md" if to_source and file == source else place_of(file)
        there = there or str(file.relative_to(ROOT / "docs"))
        up = "../" * (len(Path(place).parts) - 1)
        return f"{opening}{up}{there}{anchor or ''})"

    return _LINK.sub(link, markdown)


def mermaid(source: str, *_: object, **__: object) -> str:
    """A diagram as an <svg> in the page's colours, so that no script has to be fetched to draw it."""
    plain = re.sub(r'\|"(.*?)"\|', r"|\1|", re.sub(r"<br\s*/?>", " – ", source))  # merm breaks lines by itself
    svg = merm.render_diagram(plain)
    box = re.search(r'viewBox="([-\d.]+) ([-\d.]+) ([-\d.]+) ([-\d.]+)"', svg)
    assert box is not None
    left, top, width, height = (float(number) for number in box.groups())
    wider = f"{left - 90} {top} {width + 180} {height}"
    svg = f'<svg viewBox="{wider}" role="img" aria-label="diagram">{svg[svg.index(">") + 1 :]}'
    svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL).replace("#333333", "currentColor")
    return f'<div class="diagram">{re.sub(chr(10) + r" *", "", svg)}</div>'


def tutorial_list(runs: dict[str, Run]) -> str:
    """Every tutorial with the seconds of its run, and of all."""
    out = io.StringIO()
    for stem, run in runs.items():
        seconds = "" if run.seconds is None else f" *{max(round(run.seconds), 1)} s*"
        out.write(f"- **[{run.title}]({stem}.md)**{seconds}<br>{run.summary}\n")
    took = [run.seconds for run in runs.values() if run.seconds is not None]
    if took:
        out.write(f"\nThat is {sum(took) / 60:.1f} minutes of one processor core for all {len(took)}.\n")
    return out.getvalue()
