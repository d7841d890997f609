"""Leading dimensions: a batch of distributions behaves like each of them by itself, in every public method."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from support.natural import natural
from support.oracles import assert_close, normal, positive_definite, random_mniw
from support.tolerances import ROUNDING

BATCH = (2, 3)
D_X, D_Y, N = 4, 3, 6


class Inputs(NamedTuple):
    q: MNIW
    other: MNIW
    x: Tensor
    y: Tensor
    weights: Tensor
    noise: Tensor

    @property
    def moments(self) -> Moments:
        return Moments.of(self.x, self.y, bias=False)


def inputs(dof: str, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    q, other = (random_mniw(rng, D_X, D_Y, BATCH, diagonal=diagonal) for diagonal in (False, True))
    if dof == "one number":
        q, other = replace(q, dof=5.5), replace(other, dof=7.0)
    rows = normal(rng, *BATCH, N, D_X), normal(rng, *BATCH, N, D_Y)
    return Inputs(q, other, *rows, normal(rng, *BATCH, D_X, D_Y), positive_definite(rng, D_Y, BATCH))


def element(inputs: Inputs, i: int, j: int) -> Inputs:
    def of(q: MNIW) -> MNIW:
        dof = q.dof[i, j] if isinstance(q.dof, Tensor) else q.dof
        return MNIW(q.mean[i, j], replace(q.precision, values=q.precision.values[i, j]), q.scale[i, j], dof)

    return Inputs(of(inputs.q), of(inputs.other), *(t[i, j] for t in inputs[2:] if isinstance(t, Tensor)))


def parameters(q: MNIW) -> tuple[Tensor, ...]:
    return q.mean, q.precision.dense(), q.scale, torch.as_tensor(q.dof), q.precision.factor, q.scale_factor


METHODS: dict[str, Callable[[Inputs], tuple[Tensor, ...]]] = {
    "factors": lambda v: (v.q.precision.factor, v.q.scale_factor),
    "precision_times": lambda v: (v.q.precision.times(v.weights), v.other.precision.times(v.weights)),
    "another mean and scale": lambda v: parameters(replace(v.q, mean=v.weights, scale=v.noise)),
    "conversion": lambda v: (v.q.precision.to(torch.float32).factor_as(torch.float64),),
    "condition": lambda v: parameters(v.q.condition(v.moments)),
    "condition, diagonal precision": lambda v: parameters(v.other.condition(v.moments)),
    "natural": lambda v: tuple(natural(v.q)),
    "noise_mode": lambda v: (v.q.noise_mode(), v.q.noise_mode_factor()),
    "weights_from": lambda v: (v.q.weights_from(v.weights, v.noise),),
    "log_prob": lambda v: (v.q.log_prob(v.weights, v.noise),),
    "log_evidence": lambda v: (v.q.log_evidence(v.moments),),
    "kl": lambda v: (v.q.kl(v.other), v.other.kl(v.q)),
    "row_variance": lambda v: (v.q.row_variance(v.x), v.q.row_variance(v.x[..., :-1])),
    "predictive": lambda v: tuple(v.q.predictive(v.x)),
}


@pytest.mark.parametrize("dof", ["one each", "one number"])
@pytest.mark.parametrize("method", METHODS)
def test_batch_is_each_by_itself(method: str, dof: str) -> None:
    batch = inputs(dof)
    together = METHODS[method](batch)
    for i, j in np.ndindex(*BATCH):
        alone = METHODS[method](element(batch, i, j))
        for whole, part in zip(together, alone, strict=True):
            assert_close(whole[i, j] if whole.shape[:2] == BATCH else whole, part, ROUNDING)


def test_one_prior_for_a_batch_of_data_sets() -> None:
    batch = inputs("one number")
    prior = element(batch, 0, 0).q
    together, evidence = prior.condition(batch.moments), prior.log_evidence(batch.moments)
    for i, j in np.ndindex(*BATCH):
        moments = element(batch, i, j).moments
        for whole, part in zip(parameters(together)[:3], parameters(prior.condition(moments))[:3], strict=True):
            assert_close(whole[i, j], part, ROUNDING)
        assert_close(evidence[i, j], prior.log_evidence(moments), ROUNDING)


def test_one_set_of_rows_for_a_batch_of_distributions() -> None:
    batch = inputs("one each")
    x = batch.x[0, 0]
    together = batch.q.predictive(x)
    without_ones = batch.q.row_variance(x[:, :-1])
    for i, j in np.ndindex(*BATCH):
        q = element(batch, i, j).q
        for whole, part in zip(together, q.predictive(x), strict=True):
            assert_close(whole[i, j], part, ROUNDING)
        assert_close(without_ones[i, j], q.row_variance(x[:, :-1]), ROUNDING)


@pytest.mark.parametrize("shape", [(), (5,), (5, 1)], ids=str)
def test_sample_shapes_stand_before_the_batch(shape: tuple[int, ...]) -> None:
    q = inputs("one each").q
    weights, noise = q.sample(shape)
    assert weights.shape == q.sample_weights(shape).shape == (*shape, *BATCH, D_X, D_Y)
    assert noise.shape == q.sample_noise_factor(shape).shape == (*shape, *BATCH, D_Y, D_Y)
    assert q.log_prob(weights, noise).shape == (*shape, *BATCH)
