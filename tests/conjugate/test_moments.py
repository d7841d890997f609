"""Sufficient statistics against the rows they stand for, and the moving average against its definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bali.conjugate.averages import DebiasedRate, averaged, averaged_into
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Diagonal
from support.oracles import array, assert_close, fast, normal, seeds, sizes
from support.tolerances import EXACT

BATCHES = [(), (3,), (2, 3)]
batches = st.sampled_from(BATCHES)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)


def of_rows(x: Tensor, y: Tensor) -> Moments:
    """Sums of outer products over explicit rows."""
    a, b = array(x), array(y)

    def gram(left: np.ndarray, right: np.ndarray) -> Tensor:
        return torch.from_numpy(np.einsum("...ni,...nj->...ij", left, right))

    return Moments(gram(a, a), gram(a, b), gram(b, b), x.shape[-2])


def inputs(moments: Moments) -> Tensor:
    assert moments.xx is not None
    return moments.xx.dense()


def assert_same(actual: Moments, expected: Moments) -> None:
    assert_close(inputs(actual), inputs(expected))
    for name in ("xy", "yy"):
        assert_close(getattr(actual, name), getattr(expected, name))
    n, n_expected = (torch.as_tensor(m.n, dtype=torch.float64) for m in (actual, expected))
    assert_close(n, n_expected.expand_as(n))


class Rows:
    def __init__(self, seed: int, d_x: int = 3, d_y: int = 2, n: int = 6, batch: tuple[int, ...] = ()) -> None:
        self.rng = np.random.default_rng(seed)
        self.x, self.y = normal(self.rng, *batch, n, d_x), normal(self.rng, *batch, n, d_y)


rows = st.builds(Rows, seeds, sizes, sizes, st.integers(1, 8), batches)


# --- moments --------------------------------------------------------------------------------------------------------


@fast
@given(rows)
def test_bias_is_a_last_column_of_ones(data: Rows) -> None:
    assert_same(Moments.of(data.x, data.y, bias=True), of_rows(with_ones(data.x), data.y))
    assert_same(Moments.of(data.x, data.y, bias=False), of_rows(data.x, data.y))


@pytest.mark.parametrize("bias", [False, True])
@fast
@given(rows)
def test_weights_repeat_rows(bias: bool, data: Rows) -> None:
    counts = torch.from_numpy(data.rng.integers(0, 4, size=data.x.shape[-2]))
    counts[0] = 1
    repeated = Moments.of(data.x.repeat_interleave(counts, -2), data.y.repeat_interleave(counts, -2), bias=bias)
    assert_same(Moments.of(data.x, data.y, bias=bias, weight=counts.double()), repeated)


@pytest.mark.parametrize("bias", [False, True])
def test_each_batch_element_has_its_own_weights(bias: bool) -> None:
    data = Rows(0, batch=(2, 3))
    weight = torch.from_numpy(data.rng.uniform(size=(2, 3, 6)))
    together = Moments.of(data.x, data.y, bias=bias, weight=weight)
    assert isinstance(together.n, Tensor)
    for i, j in np.ndindex(2, 3):
        root = weight[i, j].sqrt()[:, None]
        x = with_ones(data.x[i, j]) if bias else data.x[i, j]
        alone = of_rows(root * x, root * data.y[i, j])
        assert_same(
            Moments(inputs(together)[i, j], together.xy[i, j], together.yy[i, j], together.n[i, j]),
            Moments(alone.xx, alone.xy, alone.yy, float(weight[i, j].sum())),
        )


@fast
@given(rows, seeds)
def test_moments_of_disjoint_rows_add(data: Rows, seed: int) -> None:
    more = Rows(seed, data.x.shape[-1], data.y.shape[-1], 5, tuple(data.x.shape[:-2]))
    both = Moments.of(torch.cat([data.x, more.x], -2), torch.cat([data.y, more.y], -2), bias=True)
    assert_same(Moments.of(data.x, data.y, bias=True) + Moments.of(more.x, more.y, bias=True), both)


def test_rescaled_to_a_multiple_repeats_the_data() -> None:
    data = Rows(1, n=6)
    repeated = Moments.of(data.x.repeat(4, 1), data.y.repeat(4, 1), bias=True)
    assert_same(Moments.of(data.x, data.y, bias=True).rescale_(24.0), repeated)


def test_rescaled_with_a_count_for_each_batch_element() -> None:
    data = Rows(2, batch=(2,))
    weight = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1.0, 1, 1, 1, 1, 1]]).double()
    scaled = Moments.of(data.x, data.y, bias=True, weight=weight).rescale_(12.0)
    for k, kept in enumerate([3, 6]):
        x, y = (v[k, :kept].repeat(12 // kept, 1) for v in (data.x, data.y))
        assert_same(Moments(inputs(scaled)[k], scaled.xy[k], scaled.yy[k], 12.0), Moments.of(x, y, bias=True))


@fast
@given(rows)
def test_target_scale_scales_the_columns_of_y(data: Rows) -> None:
    scale = normal(data.rng, *data.y.shape[:-2], data.y.shape[-1])
    scaled = Moments.of(data.x, data.y, bias=True).rescale_(data.x.shape[-2], scale)
    assert_same(scaled, of_rows(with_ones(data.x), data.y * scale.unsqueeze(-2)))


def test_moments_without_inputs_can_be_rescaled_too() -> None:
    data, scale = Rows(5), torch.tensor([2.0, -1.0]).double()
    whole, part = (Moments.of(data.x, data.y, bias=True) for _ in range(2))
    whole, part = whole.rescale_(20.0, scale), replace(part, xx=None).rescale_(20.0, scale)
    assert torch.equal(part.xy, whole.xy)
    assert torch.equal(part.yy, whole.yy)
    assert part.xx is None
    assert (part + part).xx is None
    assert part.to(torch.float32).xx is None


@fast
@given(rows)
def test_shift_adds_a_linear_function_of_x(data: Rows) -> None:
    x = with_ones(data.x)
    weights = normal(data.rng, *x.shape[:-2], x.shape[-1], data.y.shape[-1])
    shifted = Moments.of(data.x, data.y, bias=True).shifted(weights)
    assert_same(shifted, of_rows(x, data.y + x @ weights))
    assert_same(shifted.shifted(-weights), of_rows(x, data.y))


def test_one_shift_for_a_batch_and_a_batch_of_shifts_for_one() -> None:
    one, many = Rows(3), Rows(4, batch=(2, 3))
    w_one, w_many = normal(one.rng, 3, 2), normal(one.rng, 2, 3, 3, 2)
    assert_same(Moments.of(many.x, many.y, bias=False).shifted(w_one), of_rows(many.x, many.y + many.x @ w_one))
    shifted = Moments.of(one.x, one.y, bias=False).shifted(w_many)
    y = one.y + one.x @ w_many
    expected = of_rows(one.x.expand(2, 3, 6, 3), y)
    assert_close(shifted.xy, expected.xy)
    assert_close(shifted.yy, expected.yy)


@fast
@given(rows)
def test_pseudo_targets_need_only_the_gradient_products(data: Rows) -> None:
    """Y = XW + GD: XᵀY = XᵀX W + XᵀG D and YᵀY = WᵀXᵀXW + WᵀXᵀGD + D(XᵀG)ᵀW + D GᵀG D, without forming Y."""
    x, g = with_ones(data.x), data.y
    w = normal(data.rng, *x.shape[:-2], x.shape[-1], g.shape[-1])
    step = torch.from_numpy(data.rng.uniform(0.1, 2.0, size=(*g.shape[:-2], g.shape[-1])))
    got = Moments.of(data.x, g, bias=True).rescale_(data.x.shape[-2], step).shifted(w)
    d, xx, xg, gg = torch.diag_embed(step), x.mT @ x, x.mT @ g, g.mT @ g
    assert_close(got.xy, xx @ w + xg @ d)
    assert_close(got.yy, w.mT @ xx @ w + w.mT @ xg @ d + d @ xg.mT @ w + d @ gg @ d)
    assert_same(got, of_rows(x, x @ w + g @ d))


def test_a_diagonal_of_inputs_is_its_matrix() -> None:
    data, diagonal = Rows(6), torch.tensor([2.0, 0.5, 1.0]).double()
    weights = normal(data.rng, 3, 2)
    some, same = (
        Moments(xx, normal(np.random.default_rng(9), 3, 2), torch.eye(2).double(), 4.0)
        for xx in (Diagonal(diagonal.clone()), torch.diag(diagonal))
    )
    assert_same(some.shifted(weights), same.shifted(weights))
    assert isinstance((some + some).xx, Diagonal)
    assert_same(some + some, same + same)
    assert_same(some + same, same + some)
    assert_same(some.rescale_(12.0), same.rescale_(12.0))
    assert isinstance(some.xx, Diagonal)


def test_conversion_keeps_the_count() -> None:
    moments = Moments.of(*(v.float() for v in (Rows(5).x, Rows(5).y)), bias=True)
    assert inputs(moments).dtype == torch.float32
    wide = moments.to(torch.float64)
    assert {inputs(wide).dtype, wide.xy.dtype, wide.yy.dtype} == {torch.float64}
    assert_same(wide, moments)


# --- moving average -------------------------------------------------------------------------------------------------

rates = st.floats(1e-9, 1.0)


@fast
@given(st.lists(rates, min_size=1, max_size=20), seeds)
def test_debiased_average_is_psi_over_b(betas: list[float], seed: int) -> None:
    """Ψ_t and b_t as sums over the values: value s has weight β_s Π_{r>s}(1−β_r)."""
    values = np.random.default_rng(seed).standard_normal((len(betas), 2, 3))
    debiased, average = DebiasedRate(), None
    for t, beta in enumerate(betas):
        debiased = debiased.advanced(beta)
        average = averaged(average, torch.from_numpy(values[t]), debiased.newest)
        later = [math.prod(1.0 - b for b in betas[s + 1 : t + 1]) for s in range(t + 1)]
        weight = np.array(betas[: t + 1]) * later
        assert_close(average, np.einsum("s,sij->ij", weight, values[: t + 1]) / weight.sum())
        assert debiased.weight == pytest.approx(weight.sum(), rel=EXACT)
        assert debiased.weight == pytest.approx(1.0 - math.prod(1.0 - b for b in betas[: t + 1]), abs=EXACT)


@fast
@given(rates)
def test_first_rate_is_exactly_one(beta: float) -> None:
    assert DebiasedRate().advanced(beta).newest == 1.0


def test_constant_rate_has_the_bias_of_the_paper() -> None:
    debiased = DebiasedRate()
    for t in range(1, 30):
        debiased = debiased.advanced(0.1)
        assert debiased.newest == pytest.approx(0.1 / (1.0 - 0.9**t), rel=EXACT)


def test_rate_of_one_forgets_everything() -> None:
    forgetting = DebiasedRate().advanced(0.3).advanced(1.0)
    assert forgetting.newest == 1.0
    assert forgetting.weight == 1.0
    assert forgetting.advanced(0.25).newest == 0.25


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_rates_outside_the_unit_interval_raise(rate: float) -> None:
    debiased = DebiasedRate(0.5)
    with pytest.raises(ValueError, match=r"ema_rate must be in \(0, 1\]"):
        debiased.advanced(rate)
    assert debiased.weight == 0.5


@pytest.mark.parametrize("rate", [0.25, 0.75, 1.0])
@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=["same shape", "one average for each"])
def test_an_average_written_over_the_new_value_is_the_same(rate: float, shape: tuple[int, ...]) -> None:
    old, new = normal(np.random.default_rng(7), *shape), normal(np.random.default_rng(8), 4)
    kept = old.clone()
    assert_close(averaged_into(old, new.clone(), rate), averaged(old, new, rate))
    assert torch.equal(old, kept)
    assert torch.equal(averaged_into(None, new, rate), new)


def test_averaged() -> None:
    old, new = normal(np.random.default_rng(6), 2, 4)
    assert_close(averaged(old, new, 0.25), 0.75 * old + 0.25 * new)
    assert torch.equal(averaged(None, new, 0.25), new)
    assert torch.equal(averaged(old, new, 1.0), new)
