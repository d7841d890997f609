"""A figure with its title and what it shows in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from bali.tables.html_report.svg import inline_svg


class Picture(NamedTuple):
    title: str
    caption: str  # any text: the template escapes it
    svg: Markup


def picture(name: str, title: str, caption: str, paint: Callable[..., None], *arguments: Any) -> Picture:
    """What `paint` draws on a figure; `name` is the document's own for it."""

    def on(figure: Figure) -> None:
        paint(figure, *arguments)

    return Picture(title, caption, Markup(inline_svg(name, f"{title}. {caption}", on)))
