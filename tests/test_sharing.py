"""Weights shared over positions, as rows of positions or of examples: against rows written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import assert_same_posteriors, data, inference, linears, mlp, randn
from shared_positions import images, one_by_one
from torch import Tensor, nn

import bali
from bali.mniw import MNIW
from bali.moments import Moments

EXACT = 1e-10  # the same float64 numbers, summed in another order
STEPS = 4


def first_posterior(x: Tensor, z: Tensor, g: Tensor, n_eff: float, step_size: float = 0.5) -> MNIW:
    """Plain conditioning on the targets of a first step."""
    targets = z + step_size * g / g.square().mean(0).sqrt()
    d = x.shape[1]
    prior = MNIW.prior(d + 1, z.shape[1], variance=10.0 / (d + 1), noise=0.01 * n_eff)
    return prior.condition(Moments.of(x, targets, bias=True).rescale_(n_eff))


@pytest.mark.parametrize("sharing", ["expand", "reduce", {"0": "reduce"}, {"3": "reduce"}], ids=str)
def test_the_first_step_conditions_on_rows_written_out(sharing: Any) -> None:
    """Every patch cut out by hand."""
    n, positions = 6, 4
    x, y = randn(n, 1, 2 + positions, seed=1), randn(n, 2, seed=2)
    module = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(2 * positions, 2)).double()
    patches = torch.stack([x[:, 0, p : p + 3] for p in range(positions)], 1)  # (n, positions, 3)
    convolution, _, _, head = module
    assert isinstance(convolution, nn.Conv1d)
    assert convolution.bias is not None
    z = patches @ convolution.weight[:, 0].detach().T + convolution.bias.detach()
    z.requires_grad_(True)
    output = head(torch.tanh(z).transpose(1, 2).flatten(1))
    (g,) = torch.autograd.grad(-0.5 * (y - output).square().sum(), z)
    z = z.detach()
    run = inference(module, n_data=50, sharing=sharing)
    run.step(x, y)
    if sharing in ("reduce", {"0": "reduce"}):
        expected = first_posterior(patches.mean(1), z.mean(1), g.sum(1), 50.0)
    else:
        expected = first_posterior(patches.flatten(0, 1), z.flatten(0, 1), g.flatten(0, 1), 50.0)
    for part in ("mean", "precision", "scale"):
        torch.testing.assert_close(getattr(run.posteriors["0"], part), getattr(expected, part), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_positions_that_are_all_alike_are_one(sharing: Any) -> None:
    """Then the network is that of a single position, and an example counts as one observation either way."""
    x, y = data("gaussian", 20, 3, 2)
    _, shared = one_by_one()
    single = mlp((3, 4, 2))
    for linear, other in zip(linears(single), linears(shared), strict=True):
        linear.load_state_dict(other.state_dict())
    run, plain = inference(shared, n_data=20, sharing=sharing, reparam="none"), inference(single, n_data=20, reparam="none")
    for _ in range(STEPS):
        run.step(x[..., None].expand(20, 3, 5), y)
        plain.step(x, y)
    for one, two in zip(run.posteriors.values(), plain.posteriors.values(), strict=True):
        for part in ("mean", "precision", "scale"):
            torch.testing.assert_close(getattr(one, part), getattr(two, part), rtol=EXACT, atol=EXACT)


def test_observed_positions_are_never_reduced() -> None:
    """A regression with targets at every position has an observation at every position."""
    x, y = data("gaussian", 24, 3, 2)
    runs = [inference(mlp((3, 2)), n_data=24, sharing=sharing) for sharing in ("expand", "reduce")]
    for run in runs:
        run.step(x.reshape(6, 4, 3), y.reshape(6, 4, 2))
    assert_same_posteriors(*runs, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_whole_weights_are_repeated_examples(sharing: Any) -> None:
    x, y = images("gaussian", 6)
    weight = torch.tensor([1, 2, 0, 3, 1, 1])
    runs = [inference(one_by_one()[0], n_data=20, reparam="none", sharing=sharing) for _ in range(2)]
    for _ in range(STEPS):
        runs[0].step(x, y, sample_weight=weight)
        runs[1].step(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    assert_same_posteriors(*runs, rtol=EXACT, atol=EXACT)


def test_sharing_is_checked() -> None:
    with pytest.raises(ValueError, match="sharing must be one of expand, reduce"):
        inference(mlp((3, 2)), sharing="sum")
    with pytest.raises(ValueError, match="sharing names unknown layers \\['7'\\]"):
        inference(mlp((3, 2)), sharing={"7": "reduce"})


def test_rows_that_are_of_no_example_are_not_reduced() -> None:
    class Pairs(nn.Module):
        """A hidden layer on a number of rows that is no multiple of the number of examples."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = mlp((3, 4))[0], mlp((4, 1))[0]

        def forward(self, x: Tensor) -> Tensor:
            z = self.hidden(torch.cat([x, x[:1]]))
            return self.head(z[:-1] + z[-1:])

    x, y = data("gaussian", 6, 3, 1)
    with pytest.raises(bali.UnsupportedLayerError, match="layer 'hidden' has 7 rows for 6 examples"):
        inference(Pairs(), sharing="reduce").step(x, y)


def test_states_of_another_sharing_are_refused() -> None:
    x, y = images("gaussian", 6)
    run, other = (inference(one_by_one()[0], n_data=20, sharing=sharing) for sharing in ("expand", "reduce"))
    run.step(x, y)
    with pytest.raises(ValueError, match="the saved state has sharing expand, this inference has reduce"):
        other.load_state_dict(run.state_dict())
