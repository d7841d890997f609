"""Weights shared over positions, every one of which is a row: against rows written out by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from support.networks import data, inference, linears, mlp, randn
from support.posteriors import assert_same_posterior, assert_same_posteriors
from support.shared_positions import images, one_by_one
from support.tolerances import EXACT

STEPS = 4


def first_posterior(x: Tensor, z: Tensor, g: Tensor, n_eff: float, step_size: float = 0.5) -> MNIW:
    """Plain conditioning on the targets of a first step."""
    targets = z + step_size * g / g.square().mean(0).sqrt()
    d = x.shape[1]
    prior = MNIW.prior(d + 1, z.shape[1], variance=10.0 / (d + 1), noise=0.01 * n_eff)
    return prior.condition(Moments.of(x, targets, bias=True).rescale_(n_eff))


def test_the_first_step_conditions_on_rows_written_out() -> None:
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
    run = inference(module, n_data=50)
    run.step(x, y)
    expected = first_posterior(patches.flatten(0, 1), z.flatten(0, 1), g.flatten(0, 1), 50.0)
    assert_same_posterior(run.posteriors["0"], expected, EXACT)


def test_positions_that_are_all_alike_are_one() -> None:
    """Then the network is that of a single position: an example counts as one observation."""
    x, y = data("gaussian", 20, 3, 2)
    _, shared = one_by_one()
    single = mlp((3, 4, 2))
    for linear, other in zip(linears(single), linears(shared), strict=True):
        linear.load_state_dict(other.state_dict())
    run, plain = (inference(module, n_data=20, reparam="none") for module in (shared, single))
    for _ in range(STEPS):
        run.step(x[..., None].expand(20, 3, 5), y)
        plain.step(x, y)
    for one, two in zip(run.posteriors.values(), plain.posteriors.values(), strict=True):
        assert_same_posterior(one, two, EXACT)


def test_whole_weights_are_repeated_examples() -> None:
    x, y = images("gaussian", 6)
    weight = torch.tensor([1, 2, 0, 3, 1, 1])
    runs = [inference(one_by_one()[0], n_data=20, reparam="none") for _ in range(2)]
    for _ in range(STEPS):
        runs[0].step(x, y, sample_weight=weight)
        runs[1].step(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    assert_same_posteriors(*runs, tolerance=EXACT)


def test_rows_need_not_belong_to_examples() -> None:
    class Pairs(nn.Module):
        """A hidden layer on a number of rows that is no multiple of the number of examples."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = mlp((3, 4))[0], mlp((4, 1))[0]

        def forward(self, x: Tensor) -> Tensor:
            z = self.hidden(torch.cat([x, x[:1]]))
            return self.head(z[:-1] + z[-1:])

    x, y = data("gaussian", 6, 3, 1)
    run = inference(Pairs(), n_data=6)
    values = [float(run.step(x, y)) for _ in range(10)]
    assert values[-1] > values[0]
    assert list(run.posteriors) == ["hidden", "head"]
