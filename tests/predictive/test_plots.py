"""Pictures show the numbers they were given."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from bali.predictive import plots
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive


def wave(n: int = 50) -> tuple[np.ndarray, RegressionPredictive]:
    """Mean sin(x), and a standard deviation that grows with x."""
    x = np.linspace(0, 3, n)
    means = torch.tensor(np.stack([np.sin(x) - x, np.sin(x) + x]))[..., None]
    return x, RegressionPredictive(means, 0.04 * torch.eye(1, dtype=torch.float64)[None])


def ramp(grid: np.ndarray) -> ClassPredictive:
    """The second class's probability is the logistic function of 4 x₁: the boundary is x₁ = 0."""
    p = torch.sigmoid(torch.tensor(4.0 * grid[..., 0].reshape(-1)))
    return ClassPredictive(torch.stack([1 - p, p], -1)[None])


def labelled(ax: Axes) -> dict[str, object]:
    handles, labels = ax.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def saved(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def test_band_shows_mean_and_standard_deviations() -> None:
    x, predictive = wave()
    figure, (ax,) = plots.new_figure()
    plots.predictive_band(ax, x, predictive, (x[::5], np.sin(x[::5])), np.sin)
    parts = labelled(ax)
    assert set(parts) == {"± 2 std", "± 1 std", "true function", "mean", "observations"}
    lines = {str(line.get_label()): line for line in ax.get_lines()}
    np.testing.assert_allclose(np.asarray(lines["mean"].get_ydata()), np.sin(x))
    np.testing.assert_allclose(np.asarray(lines["true function"].get_ydata()), np.sin(x))
    std = np.sqrt(x**2 + 0.04)
    for collection, width in zip(ax.collections[:2], (2, 1), strict=True):
        corners = np.asarray(collection.get_paths()[0].vertices)
        assert corners[:, 1].max() == pytest.approx((np.sin(x) + width * std).max())
        assert corners[:, 1].min() == pytest.approx((np.sin(x) - width * std).min())
    assert saved(figure).startswith(b"\x89PNG")


def test_band_keeps_data_in_view_where_it_widens() -> None:
    x, predictive = wave()
    _, (ax,) = plots.new_figure()
    observed = np.array([-2.5, 0.1, 4.0])
    plots.predictive_band(ax, x, predictive, (np.array([0.5, 1.0, 1.5]), observed), np.sin)
    low, high = ax.get_ylim()
    assert low < -2.5
    assert 4.0 < high < 8.0
    assert ax.get_xlim() == (0.0, 3.0)


def test_band_alone_needs_neither_data_nor_truth() -> None:
    x, predictive = wave()
    _, (ax,) = plots.new_figure()
    plots.predictive_band(ax, x[:, None], predictive)
    assert set(labelled(ax)) == {"± 2 std", "± 1 std", "mean"}


def test_band_refuses_what_does_not_fit() -> None:
    x, predictive = wave()
    _, (ax,) = plots.new_figure()
    with pytest.raises(ValueError, match="49 inputs"):
        plots.predictive_band(ax, x[:-1], predictive)


def test_square_grid_covers_the_points() -> None:
    grid = plots.square_grid([[0.0, 1.0], [2.0, 5.0]], margin=0.5, n=11)
    assert grid.shape == (11, 11, 2)
    np.testing.assert_allclose(grid[0, 0], [-0.5, 0.5])
    np.testing.assert_allclose(grid[-1, -1], [2.5, 5.5])
    np.testing.assert_allclose(grid[0, -1], [2.5, 0.5])  # columns go along x₁


@pytest.mark.parametrize(("show", "label"), [("probability", "probability"), ("uncertainty", "entropy")])
def test_surface_shows_points_boundary_and_scale(show: Literal["probability", "uncertainty"], label: str) -> None:
    points = np.array([[-1.0, 0.0], [-0.5, 1.0], [-0.7, 0.4], [0.8, 0.2]])
    grid = plots.square_grid(points, n=41)
    figure, (ax,) = plots.new_figure()
    plots.class_surface(ax, grid, ramp(grid), (points, [0, 0, 0, 1]), show=show)
    contours = [c for c in ax.collections if isinstance(c, ContourSet)]
    boundary = next(c for c in contours if list(c.levels) == [0.5])
    vertices = np.concatenate([np.asarray(path.vertices) for path in boundary.get_paths()])
    np.testing.assert_allclose(vertices[:, 0], 0.0, atol=0.02)
    scatters = [c for c in ax.collections if isinstance(c, PathCollection)]
    assert [len(np.asarray(c.get_offsets())) for c in scatters] == [3, 1]
    (bar,) = ax.child_axes
    assert label in bar.get_ylabel()
    assert saved(figure).startswith(b"\x89PNG")


def test_uncertainty_is_the_entropy_in_bits() -> None:
    grid = plots.square_grid([[-2.0, -1.0], [2.0, 1.0]], n=41)
    _, (ax,) = plots.new_figure()
    plots.class_surface(ax, grid, ramp(grid), show="uncertainty")
    lines = next(c for c in ax.collections if isinstance(c, ContourSet) and list(c.levels) == [0.25, 0.5, 0.75])
    half = np.asarray(lines.get_paths()[1].vertices)[:, 0]
    p = 1 / (1 + np.exp(-4 * np.abs(half)))
    bits = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    np.testing.assert_allclose(bits, 0.5, atol=0.02)


def test_surface_refuses_what_does_not_fit() -> None:
    grid = plots.square_grid([[0.0, 0.0], [1.0, 1.0]], n=5)
    _, (ax,) = plots.new_figure()
    with pytest.raises(ValueError, match="two probabilities"):
        plots.class_surface(ax, grid[:4], ramp(grid))
    three = ClassPredictive(torch.full((1, 25, 3), 1 / 3))
    with pytest.raises(ValueError, match="two probabilities"):
        plots.class_surface(ax, grid, three)


def test_classes_differ_in_colour_and_marker() -> None:
    assert len(set(plots.CLASS_COLOURS)) == len(set(plots.CLASS_MARKERS)) == 2


def test_no_global_plotting_state_is_touched() -> None:
    code = "import sys, bali_benchmarks.demo; print('matplotlib.pyplot' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
