"""BALI, MAP and MC dropout behind one function: K members trained together, looked at on the way, predicted one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from bali.inference.layerwise import LayerwiseInference
from bali.inference.settings import Reparam
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.mc_dropout import MCDropout
from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.training import taken, train
from bali_benchmarks.reproduce.paper_settings import AdamSetting, PaperSetting
from bali_benchmarks.reproduce.pools import Pool, fit_bali

#: Of a member, at rows (n, D), with so many draws of the weights.
Predict = Callable[[int, Tensor, int], ClassPredictive]
#: Told the number of steps done and how to predict from there.
OnCheck = Callable[[int, Predict], None]


def fit_classifier(
    method: str,
    pool: Pool,
    setting: PaperSetting,
    adam: AdamSetting,
    *,
    seed: int = 0,
    checks: Collection[int] = (),
    on_check: OnCheck | None = None,
) -> Predict:
    """`paper` and `local` are BALI with weight and local reparametrisation; the others follow `adam`."""
    if method in ("paper", "local"):

        def on_step(step: int, inference: LayerwiseInference) -> None:
            if on_check is not None and step in checks:
                on_check(step, _bali(inference))

        reparam: Reparam = "local" if method == "local" else "weight"
        return _bali(fit_bali(pool, setting, seed=seed, reparam=reparam, on_step=on_step))
    prior = adam.weight_decay * pool.n_data  # decay is per row, a prior for all of them
    fitted: Method = MAP(prior_precision=prior, learning_rate=adam.learning_rate)
    if method == "mc_dropout":
        fitted = MCDropout(rate=adam.dropout, prior_precision=prior, learning_rate=adam.learning_rate)
    sizes = (pool.x.shape[1], *setting.hidden, pool.n_classes)
    task = Task(sizes, setting.activation, pool.members, pool.n_data, classification=True)
    generator = torch.Generator().manual_seed(seed)

    def on_checkpoint(step: int, state: State) -> None:
        if on_check is not None:
            on_check(step, _baseline(fitted, task, state, seed))

    start, size = fitted.start(task, generator), setting.batch_size or pool.n_data
    state = train(
        fitted,
        task,
        start,
        pool.x,
        pool.y,
        pool.rows,
        setting.n_steps,
        size,
        generator,
        checkpoints=list(checks),
        on_checkpoint=on_checkpoint,
    )
    return _baseline(fitted, task, state, seed)


def _bali(inference: LayerwiseInference) -> Predict:
    def predict(k: int, x: Tensor, n_samples: int) -> ClassPredictive:
        predictive = inference.take_members([k]).predict(x, n_samples)
        assert isinstance(predictive, ClassPredictive)
        return predictive

    return predict


def _baseline(method: Method, task: Task, state: State, seed: int) -> Predict:
    def predict(k: int, x: Tensor, n_samples: int) -> ClassPredictive:
        own, alone = taken(state, torch.tensor([k])), replace(task, members=1)
        draws = torch.Generator().manual_seed(seed)
        n_draws = 1 if isinstance(method, MAP) else n_samples
        outputs = [method.outputs(alone, own, x[None], 1, draws)[:, 0] for _ in range(n_draws)]
        return ClassPredictive(torch.cat(outputs).softmax(-1))

    return predict
