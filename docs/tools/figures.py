"""Figures as inline SVG in the colours of the site, light or dark: one copy of each, which follows the reader's choice."""

from __future__ import annotations

import io
import re
from html import escape

from cycler import cycler
from matplotlib.figure import Figure

# Stand-ins for colours of the page, which no figure uses otherwise.
INK, MUTED, GRID = "#01fe00", "#01fe01", "#01fe02"
_ROLES = {INK: "--md-default-fg-color", MUTED: "--md-default-fg-color--light", GRID: "--md-default-fg-color--lightest"}
#: Told apart by most eyes, and against white and black.
COLOURS = ("#3d85c6", "#e0772f", "#3f9e6b", "#b565c9", "#c9a227")

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bali",
    "figure.figsize": (6.4, 3.4),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "image.cmap": "cividis",
}


def as_svg(figure: Figure, name: str) -> str:
    """An <svg> element without blank lines, whose ids begin with `name`: those of a page are all different."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = f'<svg {box[0]} role="img" aria-label="{escape(_description(figure))}">' + svg[svg.index(">") + 1 :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL).replace("xlink:href", "href")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"font(-family:|: [\d.]+px) [^;\"]*", r"font\1 var(--md-text-font-family)", svg)
    for stand_in, role in _ROLES.items():
        svg = svg.replace(stand_in, f"var({role})")
    return re.sub(r"\n\s*", "\n", svg).strip()


def _description(figure: Figure) -> str:
    """What the figure says of itself: titles and labels of its axes."""
    titles = [axes.get_title() for axes in figure.axes]
    labels = [f"{axes.get_ylabel()} against {axes.get_xlabel()}" for axes in figure.axes if axes.get_ylabel()]
    return "; ".join([*filter(None, titles), *labels]) or "figure"
