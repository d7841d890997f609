"""Matplotlib figures as part of a page: inline SVG whose colours and fonts are the page's own.

A figure is drawn in stand-in colours, one for each role, which are then replaced by the page's CSS variables. So it
follows the reader's choice of light or dark, and there is one copy of it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import matplotlib.style
from markupsafe import Markup
from matplotlib.figure import Figure

# Stand-ins, which no figure would use otherwise. The names are those of the variables in style.css.
INK, MUTED, GRID, ACCENT, SECOND, PAPER = (f"#01fe0{i}" for i in range(6))
_ROLES = {INK: "ink", MUTED: "muted", GRID: "grid", ACCENT: "accent", SECOND: "second", PAPER: "card"}

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud and found
    "text.parse_math": False,
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "hatch.color": MUTED,
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def inline_svg(name: str, description: str, paint: Callable[[Figure], None], size: tuple[float, float] = (4.8, 3.4)) -> str:
    """What `paint` draws, as an <svg> element that scales with its box; `description` is for those who cannot see it."""
    buffer = io.StringIO()
    # Starts from Matplotlib's defaults, not from the user's settings; `hashsalt` makes ids the same every time.
    with matplotlib.style.context(["default", _STYLE | {"svg.hashsalt": name}]):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    drawn = buffer.getvalue()
    return _themed(drawn[drawn.index("<svg") :], name, description)


def _themed(svg: str, name: str, description: str) -> str:
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    opening = f'<svg {box[0]} role="img" aria-label="{escape(description)}">'
    svg = opening + svg[svg.index(">") + 1 :]
    svg = svg.replace("xlink:href", "href")
    # Ids are the document's, which holds several figures.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"font(-family:|: [\d.]+px) [^;\"]*", r"font\1 var(--font)", svg)  # Matplotlib's versions differ
    svg = re.sub(r"\n\s*", "\n", svg)
    for stand_in, role in _ROLES.items():
        svg = svg.replace(stand_in, f"var(--{role})")
    return svg


class Picture(NamedTuple):
    title: str
    caption: str  # any text: the template escapes it
    svg: Markup


def picture(name: str, title: str, caption: str, paint: Callable[..., None], *arguments: Any) -> Picture:
    """What `paint` draws on a figure; `name` is the document's own for it."""

    def on(figure: Figure) -> None:
        paint(figure, *arguments)

    return Picture(title, caption, Markup(inline_svg(name, f"{title}. {caption}", on)))
