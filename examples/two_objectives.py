"""Bayesian optimisation of a simulator with two objectives, by BoTorch on the posterior of a network.

    python examples/two_objectives.py [--queries 20]

Strength and lightness of a beam by height and width. The network is trained again at every fifth query; in between its
output layers take in each run in closed form. Needs BoTorch: pip install 'bali-torch[botorch]'.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from botorch.acquisition.multi_objective.monte_carlo import qExpectedHypervolumeImprovement
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor, nn

import bali

REFERENCE = torch.tensor([0.0, -1.3], dtype=torch.float64)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
FIRST, EVERY = 12, 5


def simulate(x: Tensor) -> Tensor:
    """Strength, and the weight with a minus."""
    height, width = x[:, :1], x[:, 1:]
    return torch.cat([width * height**2 * (1.2 - 0.4 * torch.cos(5 * width)), -height * (0.3 + width)], 1)


def volume(y: Tensor) -> float:
    return float(Hypervolume(REFERENCE).compute(y[is_non_dominated(y)]))


def main(queries: int = 20, epochs: int | None = None) -> dict[str, float]:
    """Dominated volumes: of the queries, and of as many runs spread evenly."""
    x = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(FIRST).double()
    y = simulate(x)
    for query in range(queries):
        if query % EVERY == 0:
            torch.manual_seed(query)
            module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)).double()
            likelihood = bali.likelihoods.Gaussian()
            fitted = bali.fit(module, (x, y), likelihood, members=2, epochs=epochs, seed=query, verbose=False)
            regression = fitted.output_regression(x, 16)
        model = bali.BoTorchModel(regression)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optimizers that were stopped after a few steps, and of other ways to ask
            acquisition = qExpectedHypervolumeImprovement(model, REFERENCE, NondominatedPartitioning(REFERENCE, Y=y))
            torch.manual_seed(query)
            new, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=32, options={"maxiter": 20})
        x, y = torch.cat([x, new]), torch.cat([y, simulate(new)])
        regression = regression.condition(x[-1:], y[-1:])
        print(f"{len(x)} runs: dominated volume {volume(y):.4f}")
    evenly = simulate(torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(len(x)).double())
    found = {"queries": volume(y), "evenly": volume(evenly)}
    print(f"as many, spread evenly: {found['evenly']:.4f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=None)
    main(**vars(parser.parse_args()))
