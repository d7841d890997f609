"""Draws: their moments and distributions against dense algebra and SciPy, and where their randomness comes from."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.sampling import chi_square, standard_normal
from bali.conjugate.symmetric import Symmetric
from support.oracles import Array, array, assert_close, assert_distributed, assert_mean, dense, normal, random_mniw

SAMPLES = 20_000
DOF = 12.0  # enough for the fourth moments that the standard errors rest on


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distribution(seed: int = 0, *batch: int, dof: float = DOF) -> MNIW:
    return replace(random_mniw(np.random.default_rng(seed), 3, 2, batch), dof=dof)


def products(samples: Tensor, mean: Tensor) -> Array:
    """(vec(W) − m)(vec(W) − m)ᵀ for every sample, columns stacked; (S, ..., D_x D_y, D_x D_y)."""
    centred = array((samples - mean).mT.flatten(-2))
    return centred[..., :, None] * centred[..., None, :]


def kron(noise: Tensor, precision: Symmetric) -> Array:
    """Σ ⊗ R, for every batch element."""
    rows = np.linalg.inv(array(precision))
    blocks = np.einsum("...ab,...ij->...aibj", array(noise), rows)
    d = noise.shape[-1] * rows.shape[-1]
    return blocks.reshape(*rows.shape[:-2], d, d)


# --- moments and distributions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_weights_given_the_mode_have_covariance_sigma_kron_r(batch: tuple[int, ...]) -> None:
    q = distribution(1, *batch)
    weights = q.sample_weights((SAMPLES,), generator())
    assert_mean(array(weights), array(q.mean))
    assert_mean(products(weights, q.mean), kron(q.noise_mode(), q.precision))


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_joint_samples_have_the_moments_of_the_distribution(batch: tuple[int, ...]) -> None:
    q = distribution(2, *batch)
    weights, noise = q.sample((SAMPLES,), generator())
    mean_noise = q.scale / (DOF - q.n_outputs - 1)
    if not batch:
        assert_close(mean_noise, np.asarray(stats.invwishart.mean(df=DOF, scale=array(q.scale))))
    assert_mean(array(noise), array(mean_noise))
    assert_mean(array(weights), array(q.mean))
    assert_mean(products(weights, q.mean), kron(mean_noise, q.precision))


def test_weights_scale_with_the_noise_drawn_beside_them() -> None:
    """Given Σ, the whitened square (W−M)ᵀR⁻¹(W−M) has mean D_x Σ: it moves with the Σ drawn beside it."""
    q = distribution(3)
    weights, noise = q.sample((SAMPLES,), generator())
    apart = weights - q.mean
    square = apart.mT @ q.precision.times(apart)
    assert_mean(array(square - q.n_inputs * noise), np.zeros((2, 2)))
    trace = noise.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    assert_mean(array(trace * (square - q.n_inputs * noise)), np.zeros((2, 2)))


@pytest.mark.parametrize("dof", [2.5, 4.0, 30.0])
def test_noise_samples_have_chi_square_ratios(dof: float) -> None:
    """aᵀΣ⁻¹a / aᵀU⁻¹a ~ χ²(u) and aᵀUa / aᵀΣa ~ χ²(u − D_y + 1) for any a: properties of the Wishart."""
    q = replace(random_mniw(np.random.default_rng(4), 2, 3), dof=dof)
    root, scale = array(q.sample_noise_factor((SAMPLES,), generator())), array(q.scale)  # Σ = root rootᵀ
    a = np.array([[1.0], [-2.0], [0.5]])
    through_inverse = np.square(np.linalg.solve(root, a)).sum((1, 2))
    through_noise = np.square(a.T @ root).sum((1, 2))
    assert_distributed(through_inverse / (a.T @ np.linalg.inv(scale) @ a).item(), stats.chi2(dof))
    assert_distributed((a.T @ scale @ a).item() / through_noise, stats.chi2(dof - 2))


def test_noisy_outputs_of_joint_samples_are_the_student_t_prediction() -> None:
    q = distribution(5, dof=4.0)
    x = torch.tensor([[0.5, -1.0, 1.0]], dtype=torch.float64)
    root = q.sample_noise_factor((SAMPLES,), g := generator())
    weights = q.weights_from(standard_normal((SAMPLES, 3, 2), x, g), root)
    outputs = x @ weights + standard_normal((SAMPLES, 1, 2), x, g) @ root.mT
    t = q.predictive(x)
    spread = (t.inflation[0] * t.matrix).diagonal().sqrt()
    for k in range(2):
        expected = stats.t(float(t.dof), loc=float(t.location[0, k]), scale=float(spread[k]))
        assert_distributed(array(outputs[:, 0, k]), expected)


def test_weights_from_is_the_dense_transform() -> None:
    """vec(W − M) = (B ⊗ C⁻ᵀ) vec(A)."""
    q = distribution(6)
    a, b = normal(np.random.default_rng(7), 3, 2), normal(np.random.default_rng(8), 2, 2)
    root = np.linalg.inv(np.linalg.cholesky(array(q.precision))).T
    expected = np.kron(array(b), root) @ array(a).reshape(-1, order="F")
    assert_close((q.weights_from(a, b) - q.mean).mT.flatten(), expected)
    assert_close(root @ root.T, dense(q).rows)


@pytest.mark.parametrize("dof", [0.5, 3.0, 40.0])
def test_chi_square(dof: float) -> None:
    degrees = torch.full((SAMPLES,), dof, dtype=torch.float64)
    assert_distributed(array(chi_square(degrees, generator())), stats.chi2(dof))


def test_standard_normal_follows_the_tensor_it_is_like() -> None:
    draws = standard_normal([SAMPLES], torch.zeros((), dtype=torch.float64), generator())
    assert_distributed(array(draws), stats.norm())
    assert standard_normal((2,), torch.zeros(3, dtype=torch.float32), None).dtype == torch.float32


# --- generators -----------------------------------------------------------------------------------------------------

Draw = Callable[[MNIW, torch.Generator | None], Tensor]
DRAWS: dict[str, Draw] = {
    "sample_noise_factor": lambda q, g: q.sample_noise_factor((4,), g),
    "sample_weights": lambda q, g: q.sample_weights((4,), g),
    "sample: weights": lambda q, g: q.sample((4,), g)[0],
    "sample: noise": lambda q, g: q.sample((4,), g)[1],
    "chi_square": lambda q, g: chi_square(q.scale.diagonal(dim1=-2, dim2=-1), g),
    "standard_normal": lambda q, g: standard_normal((4,), q.mean, g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_come_from_the_generator_alone(name: str) -> None:
    draw, q = DRAWS[name], distribution(9)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = draw(q, generator(0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(draw(q, generator(0)), first)
    assert not torch.equal(draw(q, generator(1)), first)
    g = generator(0)
    assert torch.equal(draw(q, g), first)
    assert not torch.equal(draw(q, g), first)


@pytest.mark.parametrize("name", DRAWS)
def test_without_a_generator_draws_come_from_the_global_state(name: str) -> None:
    draw, q = DRAWS[name], distribution(9)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = draw(q, None), draw(q, None)
        torch.manual_seed(0)
        assert torch.equal(draw(q, None), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_batch_elements_and_samples_are_drawn_independently(batch: tuple[int, ...]) -> None:
    one = distribution(10)
    q = replace(one, mean=one.mean.expand(*batch, 3, 2), scale=one.scale.expand(*batch, 2, 2))
    for draws in (q.sample_noise_factor((4,), generator()), q.sample_weights((4,), generator())):
        assert draws.shape[:-2] == (4, *batch)
        each = draws.reshape(-1, *draws.shape[-2:])
        assert len(torch.unique(each, dim=0)) == len(each)


@pytest.mark.parametrize("dof", [1.0, 0.5, -1.0])
def test_too_small_a_dof_raises(dof: float) -> None:
    q = replace(distribution(11), dof=dof, name="layer 'a'")
    with pytest.raises(ValueError, match=r"layer 'a': dof must exceed D_y - 1 = 1 to sample the noise"):
        q.sample()


def test_one_too_small_dof_in_a_batch_raises() -> None:
    q = replace(distribution(12, 2), dof=torch.tensor([5.0, 1.0]))
    with pytest.raises(ValueError, match="dof must exceed"):
        q.sample_noise_factor()
