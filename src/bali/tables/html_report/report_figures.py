"""The figures of the report. Each function draws on a figure that it is given.

They hold no text of the user's (names of columns or classes): that stands in the captions, where any script and
any length is welcome.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from bali.tables.html_report import holdout
from bali.tables.html_report.holdout import ClassHoldout, DurationHoldout, RegressionHoldout
from bali.tables.html_report.svg import ACCENT, INK, MUTED, PAPER, SECOND

#: More points than this are hard to tell apart and make the page heavy.
MAX_POINTS = 400


def shown_rows(n: int) -> NDArray[np.intp]:
    """The rows that are drawn: all of them, or a random part that is the same every time."""
    if n <= MAX_POINTS:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, MAX_POINTS, replace=False))


def learning_curve(figure: Figure, loss: list[float], steps: list[int], scores: list[float]) -> None:
    """Negative log-likelihoods of the batches and of the validation rows, step by step."""
    axes = figure.subplots()
    training = np.asarray(loss)
    axes.plot(np.arange(1, len(loss) + 1), training, color=ACCENT, linewidth=1.1, label="training rows")
    seen = training
    if scores:
        validation = -np.asarray(scores)
        axes.plot(steps, validation, color=SECOND, marker="o", markersize=3.5, label="validation rows")
        seen = np.concatenate([training, validation])
    # The first steps may be far off; the curve's later part is what there is to see.
    late = np.concatenate([training[len(training) // 20 :], seen[len(training) :]])
    low, high = late.min(), max(np.quantile(late, 0.98), seen[len(training) :].max(initial=-np.inf))
    margin = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("step")
    axes.set_ylabel("loss per row (lower is better)")
    legend(figure)


# --- regression -------------------------------------------------------------------------------------------------


def interval_coverage(figure: Figure, held: RegressionHoldout | DurationHoldout) -> None:
    axes = figure.subplots()
    curve = holdout.coverage_curve(held)
    ends = np.concatenate([[0.0], curve.nominal, [1.0]])
    _diagonal(axes)
    axes.fill_between(
        ends,
        np.concatenate([[0.0], curve.low, [1.0]]),
        np.concatenate([[0.0], curve.high, [1.0]]),
        color=MUTED,
        alpha=0.18,
        linewidth=0,
        label="range of chance",
    )
    axes.plot(curve.nominal, curve.observed, color=ACCENT, marker="o", markersize=3.5, label="this model")
    if isinstance(held, RegressionHoldout):
        axes.plot([0.9], [held.inside.mean()], color=SECOND, marker="D", markersize=6, linestyle="", label="90 % intervals")
    _percentages(axes)
    axes.set_xlabel("probability that the interval promises")
    axes.set_ylabel("rows inside it")
    legend(figure)


def where_truth_falls(figure: Figure, held: RegressionHoldout | DurationHoldout) -> None:
    axes = figure.subplots()
    values = held.transforms
    n_bins = 10 if len(values) >= 50 else 5
    counts, edges = np.histogram(values, n_bins, (0.0, 1.0))
    low, high = holdout.chance_range(len(values), 1 / n_bins)
    axes.axhspan(float(low), float(high), facecolor=MUTED, alpha=0.18, zorder=0.5)
    axes.bar(
        edges[:-1], counts / len(values), 1 / n_bins, align="edge", color=ACCENT, alpha=0.8, edgecolor=PAPER, linewidth=1.2
    )
    for end, label in ((low, "range of chance"), (high, None)):
        axes.axhline(float(end), color=INK, linestyle="--", linewidth=1.0, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.08 * max(float(high), counts.max() / len(values)))
    axes.set_xticks([0, 0.5, 1], ["below all that\nwas expected", "at the\nmedian", "above all that\nwas expected"])
    axes.get_xticklabels()[0].set_horizontalalignment("left")
    axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("rows")
    legend(figure)


def predicted_against_true(figure: Figure, held: RegressionHoldout) -> None:
    axes = figure.subplots()
    rows = shown_rows(len(held.y))
    both = np.concatenate([held.y[rows], held.mean[rows]])
    ends = [both.min(), both.max()]
    axes.plot(ends, ends, color=MUTED, linestyle="--", linewidth=1.0)
    for chosen, colour, label in _inside_and_outside(held, rows):
        axes.vlines(held.y[chosen], held.low[chosen], held.high[chosen], color=colour, alpha=0.35, linewidth=1.0)
        axes.plot(held.y[chosen], held.mean[chosen], color=colour, linestyle="", marker="o", markersize=3.2, label=label)
    value_axes(axes)
    axes.set_xlabel("true value")
    axes.set_ylabel("predicted, with 90 % interval")
    legend(figure)


def residuals(figure: Figure, held: RegressionHoldout) -> None:
    axes = figure.subplots()
    rows = shown_rows(len(held.y))
    for height in (-2.0, 0.0, 2.0):
        axes.axhline(height, color=MUTED, linestyle="--", linewidth=1.0)
    scaled = held.residual / held.std
    for chosen, colour, label in _inside_and_outside(held, rows):
        axes.plot(held.mean[chosen], scaled[chosen], color=colour, linestyle="", marker="o", markersize=3.2, label=label)
    largest = max(3.0, float(np.abs(scaled[rows]).max()))
    axes.set_ylim(-1.1 * largest, 1.1 * largest)
    value_axes(axes)
    axes.set_xlabel("predicted value")
    axes.set_ylabel("error, in stated standard deviations")
    legend(figure)


def _inside_and_outside(held: RegressionHoldout, rows: NDArray[np.intp]) -> list[tuple[NDArray[np.intp], str, str]]:
    inside = held.inside[rows]
    groups = [(rows[inside], ACCENT, "inside its interval"), (rows[~inside], SECOND, "outside")]
    return [group for group in groups if len(group[0])]


def error_against_std(figure: Figure, held: RegressionHoldout) -> None:
    axes = figure.subplots()
    rows = shown_rows(len(held.y))
    error = np.abs(held.residual)
    axes.plot(
        held.std[rows], error[rows], color=ACCENT, alpha=0.35, linestyle="", marker="o", markersize=3.2, markeredgewidth=0,
        label="a row",
    )  # fmt: skip
    groups = holdout.uncertainty_groups(held.std)
    stated = [float(np.sqrt(np.mean(held.std[g] ** 2))) for g in groups]
    observed = [float(np.sqrt(np.mean(error[g] ** 2))) for g in groups]
    axes.plot(stated, observed, color=SECOND, marker="o", markersize=5, label="typical error")
    ends = np.array([held.std.min(), held.std.max()])
    axes.plot(ends, ends, color=INK, linestyle="--", linewidth=1.0, label="as stated")
    axes.set_ylim(0, 1.1 * max(float(np.quantile(error[rows], 0.99)), *observed, float(ends[1])))
    value_axes(axes)
    axes.set_xlabel("stated uncertainty (standard deviation)")
    axes.set_ylabel("size of the error")
    legend(figure)


# --- classification ---------------------------------------------------------------------------------------------


def reliability(figure: Figure, held: ClassHoldout) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    stated, true = holdout.stated_probabilities(held)
    bins = holdout.reliability(stated, true)
    x, y = np.array([b.stated for b in bins]), np.array([b.observed for b in bins])
    _diagonal(upper)
    upper.vlines(x, [b.low for b in bins], [b.high for b in bins], color=ACCENT, alpha=0.35, linewidth=3.5)
    upper.plot(x, y, color=ACCENT, marker="o", markersize=5, linewidth=1.2)
    _percentages(upper)
    upper.set_ylabel("came true")
    counts, edges = np.histogram(stated, 10, (0.0, 1.0))
    lower.bar(edges[:-1], counts, 0.1, align="edge", color=ACCENT, alpha=0.75, edgecolor=PAPER, linewidth=1.2)
    lower.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    lower.grid(visible=False, axis="x")
    lower.set_ylabel("rows")
    lower.set_xlabel("stated probability")


def receiver_operating_characteristic(figure: Figure, held: ClassHoldout) -> None:
    axes = figure.subplots()
    false_positive, true_positive, _ = roc_curve(held.y == 1, held.probabilities[:, 1])
    _diagonal(axes)
    axes.fill_between(false_positive, true_positive, color=ACCENT, alpha=0.12, linewidth=0)
    axes.plot(false_positive, true_positive, color=ACCENT)
    _percentages(axes)
    axes.set_xlabel("false alarms")
    axes.set_ylabel("found")


def error_against_entropy(figure: Figure, held: ClassHoldout) -> None:
    axes = figure.subplots()
    groups = holdout.uncertainty_groups(held.entropy)
    wrong = [float((~held.correct[g]).mean()) for g in groups]
    stated = [float((1 - held.confidence[g]).mean()) for g in groups]
    place = np.arange(1, len(groups) + 1)
    axes.bar(place, wrong, 0.72, color=ACCENT, label="wrong")
    axes.plot(place, stated, color=SECOND, linestyle="", marker="D", markersize=6, label="wrong, says the model")
    axes.set_xlim(0.4, len(groups) + 0.6)
    axes.set_xticks([1, len(groups)] if len(groups) > 1 else [1], ["surest rows", "least sure rows"][: len(groups)])
    if len(groups) > 2:
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.set_ylim(0, min(1.0, 1.1 * max(*wrong, *stated, 0.03)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("rows")
    legend(figure)


def legend(figure: Figure) -> None:
    """Above the axes, where it hides nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), columnspacing=1.3, handletextpad=0.6)


def _diagonal(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.0)


def value_axes(axes: Axes) -> None:
    """Large numbers as 250k or 1.5M."""
    for axis in (axes.xaxis, axes.yaxis):
        if max(abs(end) for end in axis.get_view_interval()) >= 1e5:
            axis.set_major_formatter(EngFormatter(sep=""))


def _percentages(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
