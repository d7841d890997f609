"""The picture of the study: for each method a panel, with two marks for each hyperparameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bali.predictive.plots import BLUE, INK, MUTED, VERMILLION, new_figure
from bali_benchmarks.defaults_study.cases import FACTORS, Line
from bali_benchmarks.defaults_study.costs import BAR, ChangeCost, costs
from bali_benchmarks.defaults_study.sensitivity_fits import LABELS, METHODS

#: By factor: colour, marker and what it is called.
MARKS = dict(zip(FACTORS, ((BLUE, "<", "a third of it"), (VERMILLION, ">", "three times it")), strict=True))
#: Costs are shown to scale up to this many nats either way, and by their logarithms beyond.
LINEAR_TO = 0.1
TICKS = (-10.0, -1.0, -0.1, 0.0, BAR, 0.1, 0.2, 0.4, 1.0, 10.0, 100.0, 1000.0)


def drawn_costs(lines: Sequence[Line]) -> dict[str, list[ChangeCost]]:
    """By method, what there is to draw."""
    found = {method: [cost for cost in costs(lines, method) if cost.mean is not None or cost.diverged] for method in METHODS}
    return {method: own for method, own in found.items() if own}


def draw(lines: Sequence[Line], path: Path) -> bool:
    """Whether there was anything to draw."""
    every = drawn_costs(lines)
    if not every:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = min(len(every), 2)
    figure, panels = new_figure(-(-len(every) // 2), columns, width=5.2, height=3.1)
    means = [cost.mean.mean for own in every.values() for cost in own if cost.mean is not None]
    low, high = min([*means, -LINEAR_TO]), max([*means, LINEAR_TO])
    for ax in panels[len(every) :]:
        ax.set_visible(False)
    for ax, (method, own) in zip(panels, every.items(), strict=False):
        _panel(ax, METHODS[method].title, own)
        ax.set_xscale("symlog", linthresh=LINEAR_TO)
        ax.set_xlim(1.6 * low, 1.6 * high)
        ax.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if 1.6 * low <= tick <= 1.6 * high]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        ax.tick_params(labelsize="small")
        ax.set_xlabel(f"test log-likelihood lost, nats a row (logarithmic beyond {LINEAR_TO:g})", fontsize="small")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=len(MARKS) + 1, frameon=False, fontsize="small")
    figure.savefig(path)
    return True


def _panel(ax: Axes, title: str, own: Sequence[ChangeCost]) -> None:
    names = list(dict.fromkeys(cost.hyperparameter for cost in own))
    ax.axvspan(-1e9, BAR, color=MUTED, alpha=0.12, lw=0)
    ax.axvline(0.0, color=INK, lw=0.8)
    for cost in own:
        colour, marker, _ = MARKS[cost.factor]
        row = names.index(cost.hyperparameter) + (-0.13 if cost.factor < 1 else 0.13)  # neither hides the other
        if cost.mean is not None:
            ax.plot(cost.mean.mean, row, marker, color=colour, markersize=7, alpha=0.85, clip_on=False)
        if cost.diverged:
            text, at_edge = f"{cost.diverged} diverged", ax.get_yaxis_transform()
            ax.text(1.0, row, text, color=colour, fontsize="x-small", ha="right", va="center", transform=at_edge)
    ax.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="y", color=MUTED, alpha=0.25, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(title, fontsize="medium", loc="left")


def _legend() -> list[Line2D]:
    marks = [Line2D([], [], color=c, marker=m, ls="", markersize=8, label=label) for c, m, label in MARKS.values()]
    return [*marks, Line2D([], [], color=MUTED, alpha=0.25, lw=8, label=f"at most {BAR:g}")]
