"""Embeddings of any number of tokens: the posterior of a linear layer on rows with a single one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import inference, mlp, randn, seeded
from torch import Tensor, nn
from torch.nn import functional

from bali.gram import cross, input_gram, token_rows, tokens
from bali.layers import find_layers
from bali.mniw import MNIW
from bali.moments import Moments

EXACT = 1e-10
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


def dense(posterior: MNIW) -> Tensor:
    return torch.diag(posterior.precision[:, 0])


@pytest.mark.parametrize("update", ["mean", "natural"])
@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("options", [{}, {"noise_every": 2}, {"noise": "sample"}], ids=["plain", "noise_every", "sample"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_posterior_and_prediction_are_those_of_one_hot_rows(
    update: str, reparam: str, options: dict[str, Any], weighted: bool
) -> None:
    """Most tokens, and one that never occurs; everything that is drawn is the same."""
    if update == "natural" and "noise_every" in options:
        options = {}
    x, y = torch.randint(TOKENS - 1, (N, 2), generator=seeded(1)), torch.randint(2, (N,), generator=seeded(2))
    weight = torch.linspace(0.1, 2.0, N) if weighted else None
    runs = [
        inference(module, "categorical", 40, update=update, reparam=reparam, prior_variance=2.0, **options)
        for module in pair()
    ]
    for _ in range(14):
        for run in runs:
            run.step(x, y, sample_weight=weight)
    (one, _), (two, _) = (run.posteriors.values() for run in runs)
    assert one.precision.shape == (TOKENS, 1)
    for ours, theirs in ((dense(one), two.precision), (one.mean, two.mean), (one.scale, two.scale)):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    for method in ("weight", "local"):
        first, second = (run.predict(x, 5, method=method).mean for run in runs)  # type: ignore[attr-defined]
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def test_reduced_sharing_leaves_tokens_alone() -> None:
    x, y = torch.randint(TOKENS, (N, 2), generator=seeded(1)), torch.randint(2, (N,), generator=seeded(2))
    runs = [inference(pair()[0], "categorical", 40, sharing=sharing) for sharing in ("reduce", {"3.0": "reduce"})]
    for run in runs:
        run.step(x, y)
    assert torch.equal(runs[0].posteriors["0"].precision, runs[1].posteriors["0"].precision)


def test_products_of_tokens_are_those_of_dense_rows() -> None:
    index, y, root = torch.randint(TOKENS, (N,), generator=seeded(1)), randn(N, SIZE, seed=2), randn(N, seed=3).abs()
    rows = token_rows(index, TOKENS, torch.float64)
    full = functional.one_hot(index, TOKENS).double()
    assert torch.equal(rows.to_dense(), full)
    assert torch.equal(tokens(rows), index)
    for r in (None, root):
        gram = torch.diag(input_gram(rows, bias=False, root=r)[:, 0])
        torch.testing.assert_close(gram, input_gram(full, bias=False, root=r), rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(
            cross(rows, y, bias=False, root=r), cross(full, y, bias=False, root=r), rtol=EXACT, atol=EXACT
        )


# --- a diagonal precision as a column -------------------------------------------------------------------------------


def twins() -> tuple[MNIW, MNIW]:
    """The same distribution with its precision as a column and as a matrix."""
    mean, root, column = randn(TOKENS, SIZE, seed=1), randn(SIZE, SIZE, seed=2), randn(TOKENS, 1, seed=3).square() + 0.1
    scale = root @ root.T + torch.eye(SIZE).double()
    return MNIW(mean, column, scale, 9.0), MNIW(mean, torch.diag(column[:, 0]), scale, 9.0)


def test_every_number_of_a_column_is_that_of_the_matrix() -> None:
    column, matrix = twins()
    index = torch.randint(TOKENS, (N,), generator=seeded(1))
    rows, full = token_rows(index, TOKENS, torch.float64), functional.one_hot(index, TOKENS).double()
    y, weights, noise = randn(N, SIZE, seed=5), randn(TOKENS, SIZE, seed=6), torch.eye(SIZE).double()
    moments = [Moments.of(x, y, bias=False) for x in (rows, full)]
    posteriors = [prior.condition(m) for prior, m in zip((column, matrix), moments, strict=True)]
    pairs = [
        (column.log_prob(weights, noise), matrix.log_prob(weights, noise)),
        (column.log_evidence(moments[0]), matrix.log_evidence(moments[1])),
        (posteriors[0].mean, posteriors[1].mean),
        (posteriors[0].scale, posteriors[1].scale),
        (posteriors[0].kl(column), posteriors[1].kl(matrix)),
        (column.row_variance(rows), matrix.row_variance(full)),
        (column.row_variance(full), matrix.row_variance(full)),
        (column.sample_weights((2,), seeded(1)), matrix.sample_weights((2,), seeded(1))),
        (column.precision_solve(weights), matrix.precision_solve(weights)),
        (MNIW.from_natural(column.natural()).mean, MNIW.from_natural(matrix.natural()).mean),
        (column.predictive(full).inflation, matrix.predictive(full).inflation),
        (moments[0].shifted(weights).yy, moments[1].shifted(weights).yy),
        (torch.diag(column.covariance_as(torch.float64)[:, 0]), matrix.covariance_as(torch.float64)),
    ]
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(column.precision_solve(weights), matrix.precision_solve(weights), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("bad", [0.0, -1.0, torch.nan, torch.inf])
def test_columns_that_are_no_precision_are_refused(bad: float) -> None:
    column, _ = twins()
    column.precision[2] = bad
    with pytest.raises(ArithmeticError, match="MNIW: precision has a diagonal with entries that are not positive"):
        column.precision_factor  # noqa: B018


def test_many_tokens_take_no_square_of_memory() -> None:
    """A matrix of 60,000 tokens squared would have 29 GB."""
    x, y = torch.randint(60_000, (50, 2), generator=seeded(1)), torch.randint(2, (50,), generator=seeded(2))
    module = nn.Sequential(nn.Embedding(60_000, 4), nn.Flatten(), nn.Linear(8, 2))
    assert find_layers(module)["0"].n_inputs == 60_000
    run = inference(module, "categorical", 50)
    values = [float(run.step(x, y)) for _ in range(10)]
    assert values[-1] > values[0]
    assert run.posteriors["0"].precision.shape == (60_000, 1)
