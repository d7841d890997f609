"""Quantiles of mixtures: against bisection, against SciPy where the mixture is one component, and in the tails."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from bali.predictive.quantiles import mixture_cdf, mixture_quantile

LEVELS = [1e-4, 0.05, 0.47, 0.95, 1 - 1e-4]


def bisected(means: Tensor, scales: Tensor, level: float, dof: float | None) -> Tensor:
    """The plain method, on whichever side of the median the distribution function has all its digits."""
    if level > 0.5:
        return -bisected(-means, scales, 1 - level, dof)
    reach = (50 + means.abs().max()) * (1 + scales.max())
    low, high = (torch.full_like(means[0], float(sign * reach)) for sign in (-1, 1))
    for _ in range(200):
        middle = 0.5 * (low + high)
        below = mixture_cdf(means, scales, middle, dof) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def mixtures() -> dict[str, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(16, 10, 2, dtype=torch.float64, generator=g)
    apart = torch.randint(3, (16, 10, 2), generator=g).double()
    scales = 0.1 + torch.rand(16, 1, 2, dtype=torch.float64, generator=g)
    return {
        "overlapping": (normal, scales),
        "far apart": (50 * apart + 0.1 * normal, 0.1 * scales),
        "of very different widths": (normal, 10 ** (6 * scales - 4)),
        "all equal": (torch.ones_like(normal), scales[:1]),
        "far from zero": (1e6 + normal, scales),
    }


@pytest.mark.parametrize("dof", [None, 3.0], ids=["Gaussian", "Student"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", mixtures())
def test_the_quantile_is_where_bisection_finds_it(name: str, level: float, dof: float | None) -> None:
    means, scales = mixtures()[name]
    expected = bisected(means, scales, level, dof)
    found = mixture_quantile(means, scales, level, dof)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("level", LEVELS)
def test_single_precision_is_as_good_as_its_rounding(level: float) -> None:
    means, scales = mixtures()["overlapping"]
    exact = mixture_quantile(means, scales, level)
    single = mixture_quantile(means.float(), scales.float(), level)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_one_component_has_its_own_quantile(level: float) -> None:
    means, scales = torch.tensor([[[2.0]]], dtype=torch.float64), torch.tensor([[[3.0]]], dtype=torch.float64)
    assert mixture_quantile(means, scales, level).item() == pytest.approx(stats.norm(2, 3).ppf(level), rel=1e-12)
    assert mixture_quantile(means, scales, level, 4.0).item() == pytest.approx(stats.t(4, 2, 3).ppf(level), rel=1e-10)


def test_between_components_far_apart_any_median_will_do() -> None:
    means = torch.tensor([[[-50.0]], [[50.0]]], dtype=torch.float64)
    median = mixture_quantile(means, torch.ones_like(means), 0.5)
    assert mixture_cdf(means, torch.ones_like(means), median).item() == pytest.approx(0.5, abs=1e-15)
    assert -50 < median.item() < 50
