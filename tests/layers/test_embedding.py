"""Embeddings of any number of tokens: the posterior of a linear layer on rows with a single one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments, cross, input_gram
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Diagonal
from bali.inference.prediction import Method
from bali.layers.kinds import find_layers
from support.networks import inference, mlp, randn, seeded
from support.oracles import assert_close
from support.posteriors import assert_same_posterior
from support.tolerances import MANY_STEPS

N, TOKENS, SIZE = 12, 7, 3


class OneHot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.one_hot(x, TOKENS).double()


def pair() -> tuple[nn.Module, nn.Module]:
    """The same network with an embedding, and with a linear layer on one-hot rows."""
    linear, head = nn.Linear(TOKENS, SIZE, bias=False).double(), [mlp((2 * SIZE, 2), seed=3) for _ in range(2)]
    embedding = nn.Embedding(TOKENS, SIZE).double()
    with torch.no_grad():
        linear.weight.copy_(randn(SIZE, TOKENS, seed=4))
        embedding.weight.copy_(linear.weight.T)
    return (
        nn.Sequential(embedding, nn.Tanh(), nn.Flatten(), head[0]),
        nn.Sequential(nn.Sequential(OneHot(), linear), nn.Tanh(), nn.Flatten(), head[1]),
    )


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("noise", ["mode", "sample"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_posterior_and_prediction_are_those_of_one_hot_rows(reparam: str, noise: Any, weighted: bool) -> None:
    """Most tokens, and one that never occurs; everything that is drawn is the same."""
    x, y = torch.randint(TOKENS - 1, (N, 2), generator=seeded(1)), torch.randint(2, (N,), generator=seeded(2))
    weight = torch.linspace(0.1, 2.0, N) if weighted else None
    runs = [inference(module, "categorical", 40, reparam=reparam, prior_variance=2.0) for module in pair()]
    for _ in range(14):
        for run in runs:
            run.step(x, y, sample_weight=weight)
    (one, _), (two, _) = (run.posteriors.values() for run in runs)
    assert isinstance(one.precision, Diagonal)
    assert one.precision.values.shape == (TOKENS,)
    assert_same_posterior(one, two, MANY_STEPS)
    methods: tuple[Method, ...] = ("weight", "local")
    for method in methods:
        first, second = (run.predict(x, 5, method=method, noise=noise).mean for run in runs)
        assert_close(first, second, MANY_STEPS)


def test_products_of_tokens_are_those_of_dense_rows() -> None:
    index, y, root = torch.randint(TOKENS, (N,), generator=seeded(1)), randn(N, SIZE, seed=2), randn(N, seed=3).abs()
    rows = Tokens(index, TOKENS, torch.float64)
    full = functional.one_hot(index, TOKENS).double()
    assert rows.shape == full.shape
    for r in (None, root):
        assert_close(input_gram(rows, bias=False, root=r), input_gram(full, bias=False, root=r))
        assert_close(cross(rows, y, bias=False, root=r), cross(full, y, bias=False, root=r))
    assert rows.to(torch.float32).input_gram(bias=False, root=None).dtype == torch.float32


# --- a diagonal precision -------------------------------------------------------------------------------


def twins() -> tuple[MNIW, MNIW]:
    """The same distribution with its precision as a diagonal and as a matrix."""
    mean, root, entries = randn(TOKENS, SIZE, seed=1), randn(SIZE, SIZE, seed=2), randn(TOKENS, seed=3).square() + 0.1
    scale = root @ root.T + torch.eye(SIZE).double()
    return MNIW(mean, Diagonal(entries, "MNIW: precision"), scale, 9.0), MNIW(mean, torch.diag(entries), scale, 9.0)


def test_every_number_of_a_diagonal_is_that_of_the_matrix() -> None:
    diagonal, matrix = twins()
    index = torch.randint(TOKENS, (N,), generator=seeded(1))
    rows, full = Tokens(index, TOKENS, torch.float64), functional.one_hot(index, TOKENS).double()
    y, weights, noise = randn(N, SIZE, seed=5), randn(TOKENS, SIZE, seed=6), torch.eye(SIZE).double()
    moments = [Moments.of_rooted(x, y, bias=False, root=None) for x in (rows, full)]
    posteriors = [prior.condition(m) for prior, m in zip((diagonal, matrix), moments, strict=True)]
    pairs = [
        (diagonal.log_prob(weights, noise), matrix.log_prob(weights, noise)),
        (diagonal.log_evidence(moments[0]), matrix.log_evidence(moments[1])),
        (posteriors[0].mean, posteriors[1].mean),
        (posteriors[0].scale, posteriors[1].scale),
        (posteriors[0].kl(diagonal), posteriors[1].kl(matrix)),
        (diagonal.row_variance(rows), matrix.row_variance(full)),
        (diagonal.row_variance(full), matrix.row_variance(full)),
        (diagonal.sample_weights((2,), seeded(1)), matrix.sample_weights((2,), seeded(1))),
        (diagonal.precision.solve(weights), matrix.precision.solve(weights)),
        (diagonal.predictive(full).inflation, matrix.predictive(full).inflation),
        (moments[0].shifted(weights).yy, moments[1].shifted(weights).yy),
    ]
    for one, two in pairs:
        assert_close(one, two)
    for q in twins():
        q.precision.keep_inverse()
        assert_close(q.precision.solve(weights), matrix.precision.solve(weights))


@pytest.mark.parametrize("bad", [0.0, -1.0, torch.nan, torch.inf])
def test_diagonals_that_are_no_precision_are_refused(bad: float) -> None:
    diagonal, _ = twins()
    diagonal.precision.values[2] = bad
    with pytest.raises(ArithmeticError, match="MNIW: precision has a diagonal with entries that are not positive"):
        diagonal.precision.factor  # noqa: B018


def test_many_tokens_take_no_square_of_memory() -> None:
    """A matrix of 60,000 tokens squared would have 29 GB."""
    x, y = torch.randint(60_000, (50, 2), generator=seeded(1)), torch.randint(2, (50,), generator=seeded(2))
    module = nn.Sequential(nn.Embedding(60_000, 4), nn.Flatten(), nn.Linear(8, 2))
    assert find_layers(module)["0"].n_inputs == 60_000
    run = inference(module, "categorical", 50)
    values = [float(run.step(x, y)) for _ in range(10)]
    assert values[-1] > values[0]
    assert run.posteriors["0"].precision.values.shape == (60_000,)
