# %% [markdown]
# # Optimising with BoTorch
#
# A simulator that is slow to run, two numbers to make large, and BoTorch's own acquisition functions on the posterior
# of a network. BoTorch comes with `pip install 'bali-torch[botorch]'`.
#
# ## The simulator
#
# Strength and lightness of a beam, by its height and its width: one costs the other.

# %%
import torch
from torch import nn

import bali


def simulate(x):
    height, width = x[:, :1], x[:, 1:]
    strength = width * height**2 * (1.2 - 0.4 * torch.cos(5 * width))
    return torch.cat([strength, -height * (0.3 + width)], 1)


x = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(12).double()
y = simulate(x)

# %% [markdown]
# ## A network as BoTorch's model
#
# `bali.fit` trains the network; `output_regression` is its posterior with the output layer ready to take in rows in closed
# form. `BoTorchModel` gives joint posteriors over points and both outputs, differentiable in the points.

# %%
import warnings

from botorch.acquisition.multi_objective.monte_carlo import qExpectedHypervolumeImprovement
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated

reference = torch.tensor([0.0, -1.3], dtype=torch.float64)
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def volume(y):
    return Hypervolume(reference).compute(y[is_non_dominated(y)])


def fit(x, y):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    return bali.fit(module, (x, y), bali.likelihoods.Gaussian(), members=2, epochs=100, seed=0, verbose=False)


print(f"dominated volume with {len(x)} runs: {volume(y):.3f}")
for step in range(8):
    if step % 4 == 0:
        regression = fit(x, y).output_regression(x, 16)
    model = bali.BoTorchModel(regression)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimizers that were stopped after a few steps, and of other ways to ask
        acquisition = qExpectedHypervolumeImprovement(model, reference, NondominatedPartitioning(reference, Y=y))
        torch.manual_seed(step)
        new, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=32, options={"maxiter": 20})
    x, y = torch.cat([x, new]), torch.cat([y, simulate(new)])
    regression = regression.condition(x[-1:], y[-1:])
print(f"dominated volume with {len(x)} runs: {volume(y):.3f}")
by_chance = simulate(torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(20).double())
print(f"with 20 runs spread evenly:  {volume(by_chance):.3f}")

# %% [markdown]
# ## Without training
#
# `bali.surrogate` is a network for tens of rows: its hidden layer is drawn, with scales that the rows' evidence sets, and
# its output layer is inferred exactly. It takes a second, and the place of `regression` above.

# %%
model = bali.BoTorchModel(bali.surrogate(x, y, bounds=bounds))
new = torch.tensor([[0.9, 0.9]], dtype=torch.float64)
print(f"strength {float(model.posterior(new).mean[0, 0]):.2f}, by the simulator {float(simulate(new)[0, 0]):.2f}")

# %% [markdown]
# Between two trainings only the output layer takes in what was found, which is a matter of milliseconds. What was
# measured on test functions beside BoTorch's Gaussian process is in [Learning that goes on](../learning.md).
