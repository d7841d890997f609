"""What the paper leaves open, one thing at a time: regression with its settings, each time read otherwise in one point.

Five published and five seeded random splits of a set are trained side by side, all readings from the same seed, so that
what a reading is worth is a paired difference.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bali.inference.settings import Noise
from bali.predictive.mixtures import RegressionPredictive
from bali_benchmarks import datasets
from bali_benchmarks.datasets import Split
from bali_benchmarks.reproduce.courses import BaliCourse
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.long_runs import NoWatch, Unfinished, train
from bali_benchmarks.reproduce.paper_settings import REGRESSION, PaperSetting
from bali_benchmarks.reproduce.pools import Pool, split_of, table_pool
from bali_benchmarks.reproduce.regression import scores
from bali_benchmarks.some_members import take_members

SETS = ("concrete", "redwine", "kin8nm")
#: Splits of each of the two kinds.
N_SPLITS, QUICK_SPLITS = 5, 1


@dataclass(frozen=True)
class Reading:
    """One way to read the paper."""

    title: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the setting
    #: Added to the degrees of freedom of every layer, as multiples of D_y + 1 and of N − N_eff.
    dof_outputs: float = 0.0
    dof_rows: float = 0.0
    noise: Noise = "mode"  # of a prediction


READINGS = {
    "base": Reading("as everywhere on this page"),
    "initial-small": Reading("initial weights a third as large", {"init_std": 1 / 3}),
    "initial-large": Reading("initial weights three times as large", {"init_std": 3.0}),
    "scaled-inputs": Reading("the first layer divides its inputs by √(D + 1) too", {"scales_inputs": True}),
    "floor-as-printed": Reading("least output noise 0.01, as printed", {"output_noise_floor": 0.01}),
    "floor-lower": Reading("least output noise 1e-6", {"output_noise_floor": 1e-6}),
    "u0-zero": Reading("u₀ = 0, not D_y + 1", dof_outputs=-1.0),
    "noise-mean": Reading("Σ is the mean of its distribution, not the mode", dof_outputs=-2.0),
    "rows-in-dof": Reading("u = u₀ + N, not u₀ + N_eff", dof_rows=1.0),
    "noise-drawn": Reading("predictions draw Σ", noise="sample"),
    "targets-from-mean": Reading("targets start at the mean's outputs", {"target_noise": False}),
    "rate-constant": Reading("β does not fall", {"rate_drop": 1.0}),
    "prior-narrow": Reading("σ_r² is a standard deviation", {"prior_variance": "root"}),
}


def jobs(quick: bool) -> list[Job]:
    cost = {"concrete": 130, "redwine": 200, "kin8nm": 250}
    sets = SETS[:1] if quick else SETS
    return [Job("readings", name, reading, None, quick, 2 if quick else cost[name]) for name in sets for reading in READINGS]


def run(job: Job) -> list[Line]:
    setting = REGRESSION[job.name].quick() if job.quick else REGRESSION[job.name].shortened(job.share)
    reading, n_splits = READINGS[job.method], QUICK_SPLITS if job.quick else N_SPLITS
    data = datasets.load(job.name)
    splits = [split_of(data, setting, k, published=published) for published in (True, False) for k in range(n_splits)]
    pool = table_pool(_of_one_length(splits), 0)
    course = ReadingCourse(pool, setting_of(reading, setting), reading)
    unfinished = None
    if job.unfinished is not None:
        unfinished = Unfinished(job.unfinished, asdict(course.setting) | asdict(reading))
    spent = train(course, setting.n_steps, NoWatch(), unfinished=unfinished)
    start = time.process_time()
    lines = [scores(course.predictive(k), y) for k, y in enumerate(pool.y_test)]
    seconds = round(spent + time.process_time() - start, 1)
    common = {"settings": asdict(course.setting), "seconds": seconds}
    return [line | {"published": k < n_splits} | common for k, line in enumerate(lines)]


def setting_of(reading: Reading, setting: PaperSetting) -> PaperSetting:
    changes = dict(reading.changes)
    if changes.get("prior_variance") == "root":
        changes["prior_variance"] = setting.prior_variance**0.5
    return replace(setting, **changes)


class ReadingCourse(BaliCourse):
    """BALI with other degrees of freedom: they are set after the first step, whose own weight is soon nothing."""

    def __init__(self, pool: Pool, setting: PaperSetting, reading: Reading) -> None:
        super().__init__(pool, setting)
        self.reading = reading

    def take(self, x: Tensor, y: Tensor) -> None:
        super().take(x, y)
        inference, reading = self.inference, self.reading
        if self.step == 1 and (reading.dof_outputs or reading.dof_rows):
            missing = self.pool.n_data * (1.0 - self.setting.effective_share)
            layers = {}
            for name, layer in inference.state.layers.items():
                added = reading.dof_outputs * (layer.prior.n_outputs + 1) + reading.dof_rows * missing
                layers[name] = replace(layer, prior=replace(layer.prior, dof=layer.prior.dof + added))
            inference.state = replace(inference.state, layers=layers)

    def predictive(self, k: int) -> RegressionPredictive:
        """Of member k at its own test rows, in the units of the targets."""
        standard = take_members(self.inference, [k]).predict(
            self.pool.x_test[k], self.setting.n_samples, noise=self.reading.noise
        )
        assert isinstance(standard, RegressionPredictive)
        scale, mean = (torch.tensor([value[k]], dtype=torch.float64) for value in (self.pool.scale, self.pool.mean))
        return RegressionPredictive(standard.means.double(), standard.noise.double()).affine(scale, mean)


def _of_one_length(splits: list[Split]) -> list[Split]:
    """Published and random splits may differ by a row or two, which stacked members may not."""
    n = min(len(split.y_train) for split in splits)
    return [Split(s.X_train[:n], s.y_train[:n], s.X_test, s.y_test) for s in splits]
