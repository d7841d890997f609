"""Pictures of predictive distributions.

Functions draw on an `Axes` that they are given; `new_figure` makes one without any global state or display. Colours
are from the palette of Okabe and Ito, which people with any of the usual colour deficiencies can tell apart; classes
differ in their markers too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bali.predictive.mixtures import ClassPredictive, RegressionPredictive

Array = NDArray[np.float64]

BLUE, ORANGE, VERMILLION, INK, MUTED = "#0072B2", "#E69F00", "#D55E00", "#222222", "#6B6B6B"
CLASS_COLOURS = (BLUE, VERMILLION)
CLASS_MARKERS = ("o", "^")

#: From the first class's colour over white (undecided) to the second one's, all lighter than the points.
PROBABILITY = LinearSegmentedColormap.from_list("bali-probability", ["#4A9BCB", "#A5CFE7", "#FFFFFF", "#F4C4A3", "#E28C55"])
#: White is certain; the darker, the less the model claims to know.
UNCERTAINTY = LinearSegmentedColormap.from_list("bali-uncertainty", ["#FFFFFF", "#D5DDE6", "#8C9FB5", "#40566F"])


def new_figure(rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, row by row, each `width` by `height` inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=150)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def predictive_band(
    ax: Axes,
    x: ArrayLike,
    predictive: RegressionPredictive,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    truth: Callable[[Array], Array] | None = None,
) -> None:
    """Mean of a prediction with bands of one and (faint) two standard deviations of a new observation.

    `x` are the inputs of the prediction, in ascending order, `data` are observed (x, y) and `truth` is the function
    behind them. The vertical range follows data and truth, so a band may leave the picture where little is known.
    """
    inputs = _flat(x)
    mean, std = predictive.mean, predictive.std
    if mean.shape != (len(inputs), 1):
        raise ValueError(f"need a prediction of one output for {len(inputs)} inputs, got shape {tuple(mean.shape)}")
    centre, spread = _flat(mean), _flat(std)
    ax.fill_between(inputs, centre - 2 * spread, centre + 2 * spread, color=BLUE, alpha=0.13, lw=0, label="± 2 std")
    ax.fill_between(inputs, centre - spread, centre + spread, color=BLUE, alpha=0.27, lw=0, label="± 1 std")
    shown = [centre]
    if truth is not None:
        true_values = truth(inputs)
        shown = [true_values]
        ax.plot(inputs, true_values, color=INK, lw=1.4, ls=(0, (4, 2)), label="true function", zorder=3)
    ax.plot(inputs, centre, color=BLUE, lw=2.2, label="mean", zorder=4)
    if data is not None:
        observed_x, observed_y = _flat(data[0]), _flat(data[1])
        shown.append(observed_y)
        size, edge = (30, 0.7) if len(observed_x) <= 100 else (11, 0.4)
        ax.scatter(
            observed_x, observed_y, s=size, color=ORANGE, edgecolors=INK, linewidths=edge, label="observations", zorder=5
        )
    low, high = (float(end) for end in (min(v.min() for v in shown), max(v.max() for v in shown)))
    margin = 0.45 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.set_xlim(inputs[0], inputs[-1])
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    _tidy(ax)
    legend = ax.legend(fontsize="small", loc="upper left", framealpha=0.75, edgecolor="none")
    legend.set_zorder(6)


def square_grid(x: ArrayLike, *, margin: float = 1.0, n: int = 121) -> Array:
    """n × n points, (n, n, 2), that cover two-dimensional inputs and a margin around them."""
    points = np.asarray(x, dtype=np.float64)
    low, high = points.min(0) - margin, points.max(0) + margin
    columns, rows = (np.linspace(low[i], high[i], n) for i in (0, 1))
    return np.stack(np.meshgrid(columns, rows), -1)


def class_surface(
    ax: Axes,
    grid: Array,
    predictive: ClassPredictive,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    show: Literal["probability", "uncertainty"] = "probability",
) -> None:
    """A two-class prediction over the plane, with a colour bar.

    `grid` is (rows, columns, 2) as from `square_grid`, and `predictive` has one row for each of its points. The
    probability of the second class is shown with the decision boundary and the lines where the model gives odds of
    nine to one; the uncertainty is the entropy of the predicted class, in bits, with lines at ¼, ½ and ¾.
    """
    shape = grid.shape[:2]
    probabilities = predictive.probabilities
    if grid.ndim != 3 or grid.shape[2] != 2 or tuple(probabilities.shape) != (shape[0] * shape[1], 2):
        raise ValueError(
            f"need a grid (rows, columns, 2) and two probabilities for each of its points, "
            f"got shapes {grid.shape} and {tuple(probabilities.shape)}"
        )
    xs, ys = grid[..., 0], grid[..., 1]
    second = _flat(probabilities[:, 1]).reshape(shape)
    if show == "probability":
        values, cmap, label = second, PROBABILITY, "probability of the second class"
    else:
        values, cmap, label = _flat(predictive.entropy).reshape(shape) / np.log(2), UNCERTAINTY, "entropy (bits)"
    ax.contourf(xs, ys, values, levels=np.linspace(0, 1, 21), cmap=cmap, vmin=0, vmax=1)
    if show == "probability":
        ax.contour(xs, ys, second, levels=[0.1, 0.9], colors=INK, linewidths=0.8, linestyles="dotted")
    else:
        ax.contour(xs, ys, values, levels=[0.25, 0.5, 0.75], colors=INK, linewidths=0.7, alpha=0.7)
    ax.contour(xs, ys, second, levels=[0.5], colors=INK, linewidths=1.6)
    if data is not None:
        points, classes = np.asarray(data[0], dtype=np.float64), np.asarray(data[1])
        for k, (colour, marker) in enumerate(zip(CLASS_COLOURS, CLASS_MARKERS, strict=True)):
            own = points[classes == k]
            ax.scatter(own[:, 0], own[:, 1], s=24, c=colour, marker=marker, edgecolors="white", linewidths=0.7, zorder=5)
    ax.set_aspect("equal")
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")
    _tidy(ax)
    _colour_bar(ax, cmap, label)


def _flat(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelcolor=INK, labelsize="small")


def _colour_bar(ax: Axes, cmap: Colormap, label: str) -> None:
    """A bar for values from 0 to 1, as high as the axes."""
    figure = ax.get_figure()
    assert figure is not None
    beside = ax.inset_axes((1.03, 0.0, 0.035, 1.0))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), cmap), cax=beside, ticks=[0, 0.25, 0.5, 0.75, 1], label=label)
    bar.outline.set(edgecolor=MUTED, linewidth=0.6)
    beside.tick_params(colors=MUTED, labelcolor=INK, labelsize="small")
