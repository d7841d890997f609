"""BALI, MAP and MC dropout as courses: K members trained together, step by step, that can be kept and gone on with.

`paper` and `local` are BALI with weight and local reparametrisation; the others follow the table of Adam's settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bali.inference.layerwise import LayerwiseInference
from bali.inference.settings import Reparam
from bali.predictive.likelihoods import Categorical, Gaussian
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.mc_dropout import MCDropout
from bali_benchmarks.baselines.method import Method, Task
from bali_benchmarks.baselines.training import Batches, taken
from bali_benchmarks.initial_weights import draw_initial_weights
from bali_benchmarks.reproduce.paper_settings import AdamSetting, PaperSetting
from bali_benchmarks.reproduce.pools import Pool
from bali_benchmarks.some_members import take_members
from bali_benchmarks.stacked_mlp import stacked_mlp

#: Of a member, at rows (n, D), with so many draws of the weights.
Predict = Callable[[int, Tensor, int], ClassPredictive]
Kept = tuple[dict[str, Any], dict[str, Tensor]]


class Course(ABC):
    """A training that has taken `step` steps. What is random in it hangs on one seed and on nothing outside."""

    def __init__(self, pool: Pool, setting: PaperSetting, generator: torch.Generator) -> None:
        self.pool, self.setting, self.step, self.generator = pool, setting, 0, generator
        size = setting.batch_size or pool.n_data
        rows = pool.rows[:1] if pool.shares_rows else pool.rows
        self.batches = Batches(rows, size, generator) if size < pool.n_data else None
        self._every_row = pool.batch(rows) if self.batches is None else None  # which need no shuffling

    def advance(self) -> None:
        """One more step."""
        batch = self._every_row if self.batches is None else self.pool.batch(next(self.batches))
        assert batch is not None
        self.step += 1
        self.take(*batch)

    @abstractmethod
    def take(self, x: Tensor, y: Tensor) -> None:
        """A mini-batch: x (K, B, D), or (B, D) where all members see the same rows."""

    @abstractmethod
    def predict(self, k: int, x: Tensor, n_samples: int) -> ClassPredictive:
        """Of member k at rows (n, D). Predictions change nothing: training goes on as without them."""

    @abstractmethod
    def own_state(self) -> Kept:
        """What changes from step to step: numbers and names, and tensors."""

    @abstractmethod
    def take_over(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `own_state` gave."""

    def keep(self) -> Kept:
        """All that the same course needs to go on exactly."""
        meta, tensors = self.own_state()
        tensors = {f"own/{name}": value for name, value in tensors.items()} | {"generator": self.generator.get_state()}
        next_row = 0
        if self.batches is not None:
            tensors["order"], next_row = self.batches.order.to(torch.int32), self.batches.next_row
        return {"step": self.step, "next_row": next_row, "own": meta}, tensors

    def go_on(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        # Copied, because where a tensor lies in a file decides how its memory is aligned, and that the last bit of products.
        own = {name.removeprefix("own/"): t.clone() for name, t in tensors.items() if name.startswith("own/")}
        self.take_over(meta["own"], own)
        self.generator.set_state(tensors["generator"].clone())
        self.step = meta["step"]
        if self.batches is not None:
            self.batches.order, self.batches.next_row = tensors["order"].long(), meta["next_row"]


class BaliCourse(Course):
    def __init__(self, pool: Pool, setting: PaperSetting, *, seed: int = 0, reparam: Reparam = "weight") -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(pool, setting, generator)
        sizes = [pool.x.shape[1], *setting.hidden, pool.n_classes or 1]
        unit = setting.unit_variances(sizes)
        network = stacked_mlp(pool.members, sizes, setting.activation)
        draw_initial_weights(network, {name: setting.init_std**2 * v for name, v in unit.items()}, generator)
        self.inference = LayerwiseInference(
            network,
            Categorical() if pool.n_classes else Gaussian(),
            pool.n_data,
            step_size=setting.step_size,
            prior_variance={name: setting.prior_variance * v for name, v in unit.items()},
            noise_floor=setting.noise_floor,
            output_noise_floor=setting.output_noise_floor,
            effective_size=setting.effective_share * pool.n_data,
            reparam=reparam,
            target_noise=setting.target_noise,
            generator=generator,
        )

    def take(self, x: Tensor, y: Tensor) -> None:
        self.inference.step(x, y, self.setting.rate_at(self.step))

    def predict(self, k: int, x: Tensor, n_samples: int) -> ClassPredictive:
        predictive = take_members(self.inference, [k]).predict(x, n_samples)
        assert isinstance(predictive, ClassPredictive)
        return predictive

    def own_state(self) -> Kept:
        saved = self.inference.state_dict()
        return saved["meta"], saved["tensors"]

    def take_over(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.inference.load_state_dict({"meta": meta, "tensors": tensors})


class AdamCourse(Course):
    """MAP and MC dropout."""

    def __init__(self, method: str, pool: Pool, setting: PaperSetting, adam: AdamSetting, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(pool, setting, generator)
        prior = adam.weight_decay * pool.n_data  # decay is per row, a prior for all of them
        self.method: Method = MAP(prior_precision=prior, learning_rate=adam.learning_rate)
        if method == "mc_dropout":
            self.method = MCDropout(rate=adam.dropout, prior_precision=prior, learning_rate=adam.learning_rate)
        sizes = (pool.x.shape[1], *setting.hidden, pool.n_classes)
        self.task = Task(sizes, setting.activation, pool.members, pool.n_data, classification=True)
        self.state, self.seed = self.method.start(self.task, generator), seed

    def take(self, x: Tensor, y: Tensor) -> None:
        rows = x.expand(self.task.members, -1, -1) if self.pool.shares_rows else x
        self.state = self.method.step(self.task, self.state, rows, y, self.generator)

    def predict(self, k: int, x: Tensor, n_samples: int) -> ClassPredictive:
        own, alone = taken(self.state, torch.tensor([k])), replace(self.task, members=1)
        draws = torch.Generator().manual_seed(self.seed)
        n_draws = 1 if isinstance(self.method, MAP) else n_samples
        outputs = [self.method.outputs(alone, own, x[None], 1, draws)[:, 0] for _ in range(n_draws)]
        return ClassPredictive(torch.cat(outputs).softmax(-1))

    def own_state(self) -> Kept:
        return {}, self.state

    def take_over(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.state = dict(tensors)


def classifier_course(method: str, pool: Pool, setting: PaperSetting, adam: AdamSetting, *, seed: int = 0) -> Course:
    if method in ("paper", "local"):
        return BaliCourse(pool, setting, seed=seed, reparam="local" if method == "local" else "weight")
    return AdamCourse(method, pool, setting, adam, seed=seed)
