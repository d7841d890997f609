"""The paper's synthetic sets: BALI with its settings and with the defaults, Bayes by backprop with the paper's three KL
weights, and local reparametrisation.

Networks, priors and noise are those of `demo.py`. The paper gives no step size, rate or number of steps for these sets.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from bali.estimators import BALIClassifier, BALIRegressor
from bali.inference.health import HealthWarning
from bali.inference.settings import Reparam
from bali.predictive import metrics, plots
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali_benchmarks import demo
from bali_benchmarks.baselines.bayes_by_backprop import BayesByBackprop
from bali_benchmarks.baselines.method import State, Task
from bali_benchmarks.baselines.training import taken, train
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.regression import QUICK_DEFAULTS

#: Steps of BALI: as many as give the paper's picture.
N_STEPS = 1500
#: Of Bayes by backprop, which needs more of them.
KL_WEIGHTS, BBB_STEPS, BBB_RATE = (1.0, 0.1, 0.01), 3000, 1e-2
#: In a quick run.
QUICK_BBB_STEPS = 60
#: How often the log-likelihood is looked at while weight and local reparametrisation are compared.
N_CHECKS, CHECK_SAMPLES = 30, 64
QUICK_CHECKS, QUICK_CHECK_SAMPLES = 6, 16
REPARAMS: dict[str, Reparam] = {"BALI-W": "weight", "BALI-L": "local"}


def setting_of(job: Job) -> demo.Setting:
    setting = next(s for s in demo.settings() if s.data.name == job.name)
    return setting.quick() if job.quick else replace(setting, n_steps=N_STEPS)


def _names() -> list[str]:
    return [setting.data.name for setting in demo.settings()]


# --- BALI -------------------------------------------------------------------------------------------------------


def jobs(quick: bool) -> list[Job]:
    costs = {"paper": 2 if quick else 60, "ours": 2 if quick else 80}
    return [Job("synthetic", name, method, None, quick, cost) for name in _names() for method, cost in costs.items()]


def run(job: Job) -> list[Line]:
    setting = setting_of(job)
    if job.method == "ours":
        found, changed = fit_defaults(setting, quick=job.quick)
        _draw(job, "defaults", [(f"{job.name}, defaults", found)])
        return [_line(setting, found) | {"settings": changed}]
    found = demo.experiment(setting)
    _draw(job, "synthetic", [(job.name, found)])
    return [_line(setting, found)]


def fit_defaults(setting: demo.Setting, *, quick: bool) -> tuple[demo.Experiment, dict[str, Any]]:
    """The estimators as they are; and what was changed of them for a quick look."""
    data, started = setting.data, time.perf_counter()
    changed = QUICK_DEFAULTS if quick else {}
    estimator = BALIRegressor if data.task == "regression" else BALIClassifier
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, HealthWarning):  # so few rows are few, and its steps are in the line
            warnings.simplefilter("ignore", kind)
        model = estimator(random_state=setting.seed, **changed).fit(data.x_train, data.y_train)
    found = demo.scored(setting, lambda x: model.pred_dist(x.double().numpy()), started)
    return replace(found, result=replace(found.result, n_steps=model.n_iter_)), changed


def _line(setting: demo.Setting, found: demo.Experiment) -> Line:
    scores = {name: value for name, value in asdict(found.result).items() if name != "name"}
    kept = ("init_std", "prior_std", "width", "n_samples", "reparam")
    settings = {name: getattr(setting, name) for name in kept}
    return scores | {"settings": settings, "seed": setting.seed, "seconds": round(found.result.seconds, 1)}


def _draw(job: Job, kind: str, experiments: Sequence[tuple[str, demo.Experiment]]) -> None:
    """All panels of some experiments side by side; of a classification the probability and the uncertainty."""
    if job.images is None:
        return
    job.images.mkdir(parents=True, exist_ok=True)
    panels = [(title, demo.panels(found)) for title, found in experiments]
    rows = len(panels[0][1])
    figure, axes = plots.new_figure(rows, len(panels), width=5.6)
    for column, (title, shows) in enumerate(panels):
        for row, show in enumerate(shows):
            ax = axes[row * len(panels) + column]
            show(ax)
            ax.set_title(title)
    figure.savefig(job.images / image_name(kind, job.name), dpi=100)


def image_name(kind: str, name: str) -> str:
    return f"reproduce-{kind}-{name}.png"


# --- Bayes by backprop ------------------------------------------------------------------------------------------


def bbb_jobs(quick: bool) -> list[Job]:
    return [Job("bbb-synthetic", name, "BBB", None, quick, 4 if quick else 400) for name in _names()]


def bbb_run(job: Job) -> list[Line]:
    """One line for each KL weight; the three are fitted together."""
    setting = replace(setting_of(job), n_steps=QUICK_BBB_STEPS if job.quick else BBB_STEPS)
    started = time.perf_counter()
    predict = fit_bbb(setting, KL_WEIGHTS)
    found = [demo.scored(setting, predict(k), started) for k in range(len(KL_WEIGHTS))]
    _draw(job, "bbb", [(f"{job.name}, KL weight {weight:g}", e) for weight, e in zip(KL_WEIGHTS, found, strict=True)])
    seconds = round(time.perf_counter() - started, 1)
    settings = {"learning_rate": BBB_RATE, "prior_variance": 1.0, "width": setting.width}
    return [
        _line(setting, e) | {"kl_weight": weight, "settings": settings, "seconds": seconds}
        for weight, e in zip(KL_WEIGHTS, found, strict=True)
    ]


def fit_bbb(setting: demo.Setting, kl_weights: Sequence[float]) -> Callable[[int], Callable[[Tensor], Predictive]]:
    """Fits one network for each weight on the KL divergence; gives the prediction function of each."""
    data, members = setting.data, len(kl_weights)
    classes = data.task == "classification"
    method = BayesByBackprop(kl_weight=torch.tensor(kl_weights), prior_variance=1.0, learning_rate=BBB_RATE)
    x = torch.as_tensor(data.x_train, dtype=torch.float32)
    y = torch.as_tensor(data.y_train) if classes else torch.as_tensor(data.y_train, dtype=torch.float32)[:, None]
    n = len(x)
    sizes = (x.shape[1], *[setting.width] * 3, 2 if classes else 1)
    task = Task(sizes, "tanh", members, n, classes)
    generator = torch.Generator().manual_seed(setting.seed)
    rows = torch.arange(n).expand(members, -1)
    state: State = train(method, task, method.start(task, generator), x, y, rows, setting.n_steps, n, generator)

    def of_member(k: int) -> Callable[[Tensor], Predictive]:
        own, alone = taken(state, torch.tensor([k])), replace(task, members=1)

        def predict(places: Tensor) -> Predictive:
            draws = torch.Generator().manual_seed(setting.seed)
            outputs = torch.cat([method.outputs(alone, own, places[None], 1, draws)[:, 0] for _ in range(setting.n_samples)])
            if classes:
                return ClassPredictive(outputs.softmax(-1))
            return RegressionPredictive(outputs, method.noise_variance(own).reshape(1, 1, 1))

        return predict

    return of_member


# --- local reparametrisation ------------------------------------------------------------------------------------


def local_jobs(quick: bool) -> list[Job]:
    return [Job("local-reparam", name, "both", None, quick, 4 if quick else 150) for name in _names()]


def local_run(job: Job) -> list[Line]:
    """Curves of the log-likelihood with weight samples and with independent noise on every row's outputs."""
    checks = (QUICK_CHECKS, QUICK_CHECK_SAMPLES) if job.quick else (N_CHECKS, CHECK_SAMPLES)
    started = time.perf_counter()
    lines = [local_curve(setting_of(job), name, *checks) for name in REPARAMS]
    if job.images is not None:
        draw_curves({line["variant"]: line for line in lines}, job.name, job.images / image_name("local", job.name))
    return [line | {"seconds": round(time.perf_counter() - started, 1)} for line in lines]


def local_curve(setting: demo.Setting, variant: str, n_checks: int, n_samples: int) -> Line:
    """Training and test log-likelihood at `n_checks` steps."""
    inference = demo.start(replace(setting, reparam=REPARAMS[variant]))
    data = setting.data
    x, y = (torch.as_tensor(v, dtype=torch.float32) for v in (data.x_train, data.y_train))
    x_test = torch.as_tensor(data.x_test, dtype=torch.float32)
    every = max(1, setting.n_steps // n_checks)
    line: Line = {"variant": variant, "steps": [], "train": [], "test": []}
    for step in range(1, setting.n_steps + 1):
        inference.step(x, y)
        if step % every == 0:
            line["steps"].append(step)
            for part, inputs, observed in (("train", x, data.y_train), ("test", x_test, data.y_test)):
                line[part].append(metrics.log_likelihood(inference.predict(inputs, n_samples), observed))
    line |= {"log_likelihood_train": line["train"][-1], "log_likelihood_test": line["test"][-1]}
    return line | {"seed": setting.seed}


def draw_curves(lines: dict[str, Line], title: str, path: Path, against: Sequence[str] = ("steps",)) -> None:
    """Negative log-likelihoods against steps, and seconds: of new rows solid, of training rows dashed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plots.new_figure(1, len(against), width=6.4 if len(against) == 1 else 5.4)
    for ax, unit in zip(axes, against, strict=True):
        for (name, line), colour in zip(lines.items(), (plots.BLUE, plots.VERMILLION, plots.ORANGE), strict=False):
            for part, style in (("test", "-"), ("train", "--")):
                ax.plot(line[unit], [-v for v in line[part]], style, color=colour, label=f"{name}, {part}")
        ax.set_xlabel(unit)
        ax.set_ylabel("negative log-likelihood")
    figure.suptitle(title)
    # Curves go everywhere: below them is the only place that is free whatever they do.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(lines), frameon=False)
    figure.savefig(path, dpi=100)
