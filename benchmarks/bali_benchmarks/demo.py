"""The paper's synthetic experiments: three small sets fitted, scored and drawn.

Networks have three hidden layers of tanh units. Scales are the paper's: σ_init = 3 and σ_r = 80 for regression, 1 and 20 for
classification, as variances on the layers' own weights (σ²/(D + 1), and σ² for the first layer, which sees raw inputs).
Step size and rate, which the paper does not give for these sets, are those of its regression benchmark. Every step takes in
all the data.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from bali.inference.layerwise import LayerwiseInference
from bali.inference.settings import Reparam
from bali.predictive import metrics, plots
from bali.predictive.likelihoods import Bernoulli, Gaussian
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali_benchmarks.datasets.synthetic import SyntheticData, sinc, sines_trend, two_moons
from bali_benchmarks.initial_weights import draw_initial_weights, unit_variances

STEP_SIZE, EMA_RATE, NOISE_FLOOR = 0.3, 0.2, 0.01
#: The paper's, for the output as for every layer. It keeps the standard deviation of an observation above 0.1, five times
#: the noise in sines-trend, so the intervals there hold more than they should.
OUTPUT_NOISE_FLOOR = 0.01
#: How far from the data "outside" is, in units of x.
OUTSIDE = 0.5


@dataclass(frozen=True)
class Setting:
    """One experiment."""

    data: SyntheticData
    init_std: float  # σ_init
    prior_std: float  # σ_r
    n_steps: int = 300  # as many as fit in the time that somebody will wait for a first look
    width: int = 256
    n_samples: int = 256
    n_grid: int = 400
    seed: int = 0
    reparam: Reparam = "weight"

    def quick(self) -> Setting:
        """A small network and few steps: for a look, not for the numbers."""
        return replace(self, n_steps=150, width=64, n_samples=64, n_grid=self.n_grid // 2)

    def ema_rate(self, step: int) -> float:
        """β, divided by 5 after 60 % of the steps and again after 80 %."""
        return EMA_RATE / 5 ** ((step > 0.6 * self.n_steps) + (step > 0.8 * self.n_steps))


@dataclass(frozen=True)
class Result:
    """Scores of one experiment. `fit` is RMSE or accuracy, `calibration` the coverage of 90 % intervals or the ECE."""

    name: str
    task: str
    n_train: int
    n_steps: int
    fit_train: float
    fit_test: float
    log_likelihood_test: float
    calibration_test: float
    std_inside: float  # mean over test inputs
    std_outside: float  # mean over inputs at a distance of OUTSIDE from the range of the training inputs
    seconds: float


@dataclass(frozen=True)
class Experiment:
    """A fitted set: what was predicted where, and how good that is."""

    data: SyntheticData
    grid: plots.Array  # (n, 1), or (n, n, 2)
    on_grid: Predictive
    result: Result


def settings() -> list[Setting]:
    return [
        Setting(sines_trend(), init_std=3.0, prior_std=80.0),
        Setting(sinc(), init_std=3.0, prior_std=80.0),
        Setting(two_moons(), init_std=1.0, prior_std=20.0, n_grid=64),
    ]


def run(out: Path, *, quick: bool = False, console: Console | None = None) -> list[Result]:
    """Fit the three sets, print a table, and write pictures and `results.json` to the folder `out`."""
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [setting.quick() if quick else setting for setting in settings()]
    with _one_thread(), _progress(console, chosen) as reporters:
        experiments = [experiment(setting, reporter) for setting, reporter in zip(chosen, reporters, strict=True)]
    results = [e.result for e in experiments]
    console.print(_table(results))
    written = [*draw(experiments, out), out / "results.json"]
    written[-1].write_text(json.dumps([asdict(r) for r in results], indent=2) + "\n", encoding="utf-8")
    console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    return results


# --- one experiment ---------------------------------------------------------------------------------------------


def start(setting: Setting) -> LayerwiseInference:
    """Before the first step."""
    data, generator = setting.data, torch.Generator().manual_seed(setting.seed)
    sizes = [data.x_train.shape[1], *[setting.width] * 3, 1]
    network = _perceptron(sizes)
    unit = unit_variances(sizes, first=1.0)
    draw_initial_weights(network, {name: setting.init_std**2 * v for name, v in unit.items()}, generator)
    return LayerwiseInference(
        network,
        Gaussian() if data.task == "regression" else Bernoulli(),
        len(data.x_train),
        step_size=STEP_SIZE,
        prior_variance={name: setting.prior_std**2 * v for name, v in unit.items()},
        noise_floor=NOISE_FLOOR,
        output_noise_floor=OUTPUT_NOISE_FLOOR,
        reparam=setting.reparam,
        generator=generator,
    )


def fit(setting: Setting, on_step: Callable[[float], None] | None = None) -> LayerwiseInference:
    """Train on all rows at every step; `on_step` is told the log-likelihood."""
    inference = start(setting)
    x, y = _tensor(setting.data.x_train), _tensor(setting.data.y_train)
    for step in range(1, setting.n_steps + 1):
        log_likelihood = inference.step(x, y, setting.ema_rate(step))
        if on_step is not None:
            on_step(float(log_likelihood))
    return inference


def experiment(setting: Setting, on_step: Callable[[float], None] | None = None) -> Experiment:
    """Fit, score and predict."""
    started = time.perf_counter()
    inference = fit(setting, on_step)
    return scored(setting, lambda x: inference.predict(x, setting.n_samples), started)


def scored(setting: Setting, predict: Callable[[torch.Tensor], Predictive], started: float) -> Experiment:
    """The scores of a fit that began at `started`; what is scored or drawn is predicted from the same weight samples."""
    data = setting.data
    grid = _grid(data, setting.n_grid)
    places = [data.x_train, data.x_test, _outside(data.x_train), grid.reshape(-1, data.x_train.shape[1])]
    everywhere = predict(_tensor(np.concatenate(places)))
    ends = np.cumsum([len(p) for p in places])
    train, test, outside, on_grid = (
        everywhere.rows(slice(end - len(place), end)) for place, end in zip(places, ends, strict=True)
    )
    result = Result(
        name=data.name,
        task=data.task,
        n_train=len(data.x_train),
        n_steps=setting.n_steps,
        fit_train=_fit_score(train, data.y_train),
        fit_test=_fit_score(test, data.y_test),
        log_likelihood_test=metrics.log_likelihood(test, data.y_test),
        calibration_test=_calibration(test, data.y_test),
        std_inside=_mean_std(test),
        std_outside=_mean_std(outside),
        seconds=time.perf_counter() - started,
    )
    return Experiment(data, grid, on_grid, result)


def _perceptron(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


def _grid(data: SyntheticData, n: int) -> plots.Array:
    """Inputs to draw: the data's range and as much again around it."""
    if data.task == "regression":
        return np.linspace(-2.0, 2.0, n)[:, None]
    return plots.square_grid(data.x_train, margin=1.5, n=n)


def _outside(x: plots.Array) -> plots.Array:
    """Points on the border of the box that holds x, moved out by OUTSIDE: two in one dimension, 400 in two."""
    low, high = x.min(0) - OUTSIDE, x.max(0) + OUTSIDE
    if x.shape[1] == 1:
        return np.stack([low, high])
    t = np.linspace(0.0, 1.0, 100)[:, None]
    corners = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    sides = [start + t * (end - start) for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True)]
    return np.concatenate(sides)


def _fit_score(predictive: Predictive, y: np.ndarray) -> float:
    if isinstance(predictive, RegressionPredictive):
        return metrics.rmse(predictive, y)
    assert isinstance(predictive, ClassPredictive)
    return metrics.accuracy(predictive, y)


def _calibration(predictive: Predictive, y: np.ndarray) -> float:
    if isinstance(predictive, RegressionPredictive):
        return metrics.interval_coverage(predictive, y, 0.9)
    assert isinstance(predictive, ClassPredictive)
    return metrics.expected_calibration_error(predictive, y)


def _mean_std(predictive: Predictive) -> float:
    """Of a new observation, or of the probability of the second class under uncertain weights."""
    assert isinstance(predictive, RegressionPredictive | ClassPredictive)
    return float(predictive.std[:, -1].mean())


# --- pictures and tables ----------------------------------------------------------------------------------------


def draw(experiments: Sequence[Experiment], out: Path) -> list[Path]:
    """One picture for each experiment, and all of them in `overview.png`."""
    paths = []
    for e in experiments:
        shows = panels(e)
        figure, axes = plots.new_figure(1, len(shows), width=5.6 if len(shows) > 1 else 6.8)
        for ax, show in zip(axes, shows, strict=True):
            show(ax)
        paths.append(out / f"{e.data.name}.png")
        figure.savefig(paths[-1])
    shows = [show for e in experiments for show in panels(e)]
    figure, axes = plots.new_figure(len(shows) // 2, 2, width=5.6, height=3.8)
    for ax, show in zip(axes, shows, strict=True):
        show(ax)
    paths.append(out / "overview.png")
    figure.savefig(paths[-1], dpi=120)
    return paths


def panels(e: Experiment) -> list[Callable[[Axes], None]]:
    """What there is to draw of an experiment, each on its own axes."""
    data = (e.data.x_train, e.data.y_train)
    predictive = e.on_grid
    if isinstance(predictive, RegressionPredictive):

        def band(ax: Axes) -> None:
            plots.predictive_band(ax, e.grid, predictive, data, e.data.truth)
            ax.set_title(e.data.name)

        return [band]
    assert isinstance(predictive, ClassPredictive)

    def probability(ax: Axes) -> None:
        plots.class_surface(ax, e.grid, predictive, data)
        ax.set_title(e.data.name)

    def uncertainty(ax: Axes) -> None:
        plots.class_surface(ax, e.grid, predictive, data, show="uncertainty")
        ax.set_title(f"{e.data.name}: uncertainty")

    return [probability, uncertainty]


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    table.caption = (
        "fit: on the training rows; the rest: on 1,000 new ones. std: of a new observation, or of the class "
        f"probability under uncertain weights; out: {OUTSIDE} beyond the range of the training inputs."
    )
    table.add_column("data", no_wrap=True)
    for header in ("fit", "log-lik.", "calibration", "std in", "std out"):
        table.add_column(header, justify="right", no_wrap=True)
    for r in results:
        regression = r.task == "regression"
        table.add_row(
            r.name,
            f"{'RMSE' if regression else 'accuracy'} {r.fit_train:.3f}",
            f"{r.log_likelihood_test:.3f}",
            f"{r.calibration_test:.1%} in 90%" if regression else f"ECE {r.calibration_test:.3f}",
            f"{r.std_inside:.3f}",
            f"{r.std_outside:.3f}",
        )
    return table


@contextmanager
def _progress(console: Console, chosen: Sequence[Setting]) -> Iterator[list[Callable[[float], None]]]:
    """One bar for each experiment; gives the functions to call at every step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("log-likelihood {task.fields[shown]}"),
    )
    with Progress(*columns, console=console) as bars:
        names = [f"{s.data.name:<11}" for s in chosen]
        tasks = [bars.add_task(name, total=s.n_steps, shown="–", start=False) for name, s in zip(names, chosen, strict=True)]

        def reporter(index: int) -> Callable[[float], None]:
            def on_step(log_likelihood: float) -> None:
                bars.start_task(tasks[index])
                bars.update(tasks[index], advance=1, shown=f"{log_likelihood:6.3f}")

            return on_step

        yield [reporter(i) for i in range(len(tasks))]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices of a few hundred rows are too small to share: more threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
