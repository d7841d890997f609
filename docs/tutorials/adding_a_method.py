# %% [markdown]
# # Adding a method to the comparison
#
# The benchmarks hold fourteen other methods to one contract: the same networks, one protocol, one budget. Here
# is a fifteenth.
#
# ## What a method is
#
# A frozen dataclass whose fields are its settings. It says how to start, what a step does with a mini-batch,
# and what the networks' outputs are under draws from the posterior. All tensors have K members in front: many
# networks are trained as one batch of matrices.
#
# The example is the diagonal form of SWAG (Maddox et al., 2019, "A simple baseline for Bayesian uncertainty in
# deep learning"): gradient descent with a constant rate, whose weights wander about; their mean and variance
# make a Gaussian.

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines import METHODS, BaselineRegressor, Method, State, Task
from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.method import Setting
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, packed, per_member, unpacked, updated_noise

MOMENTUM, RATE = 0.9, 0.01  # the latter of the moving averages


@dataclass(frozen=True)
class DiagonalSWAG(Method):
    title: ClassVar[str] = "SWAG, diagonal"
    citation: ClassVar[str] = "Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, NeurIPS 2019"
    grid = tuple({"learning_rate": rate, "prior_precision": p} for rate in (3e-3, 1e-2, 3e-2) for p in (0.1, 1.0))

    learning_rate: Setting = 1e-2
    prior_precision: Setting = 1.0

    def start(self, task: Task, generator: torch.Generator) -> State:
        weights = initial_weights(task, generator)
        still = [torch.zeros_like(w) for w in weights]
        noise = weights[0].new_ones(task.members)
        return (
            packed(weights)
            | packed(still, "speed")
            | packed(weights, "mean")
            | packed(still, "variance")
            | {"noise_variance": noise}
        )

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        rows = gradient_rows(task, unpacked(state), x, y, state["noise_variance"])
        new: dict[str, list[Tensor]] = {"weight": [], "speed": [], "mean": [], "variance": []}
        kept = (unpacked(state, name) for name in ("weight", "speed", "mean", "variance"))
        for weight, speed, mean, variance, gradient in zip(*kept, rows.weight_gradients(), strict=True):
            pull = gradient - per_member(self.prior_precision, weight) / task.n_data * weight
            pull = pull / pull.flatten(1).norm(dim=1).clamp_min(1.0)[:, None, None]  # no step runs away
            new["speed"].append(MOMENTUM * speed + per_member(self.learning_rate, weight) * pull)
            new["weight"].append(weight + new["speed"][-1])
            apart = new["weight"][-1] - mean
            new["mean"].append(mean + RATE * apart)
            new["variance"].append((1 - RATE) * (variance + RATE * apart.square()))
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, rows.outputs, y)
        return {key: value for name, parts in new.items() for key, value in packed(parts, name).items()} | {
            "noise_variance": noise
        }

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        drawn = []
        for mean, variance in zip(unpacked(state, "mean"), unpacked(state, "variance"), strict=True):
            noise = torch.randn(n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            drawn.append(mean + variance.sqrt() * noise)
        return forward(task, drawn, x[None])


METHODS["swag"] = DiagonalSWAG

# %% [markdown]
# ## Beside the others
#
# The protocol holds a fifth of the rows out, trains all six settings of the grid side by side, takes the best
# with its number of steps, and trains anew. It is the same for every method, so that a comparison is one of
# methods.

# %%
import numpy as np

import bali

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(300, 1))
X = X[np.abs(X[:, 0]) > 0.5]  # a gap in the middle
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X))
new_X = rng.uniform(-2, 2, size=(300, 1))
new_X = new_X[np.abs(new_X[:, 0]) > 0.5]
new_y = np.sin(2 * new_X[:, 0]) + 0.1 * rng.normal(size=len(new_X))

models = {name: BaselineRegressor(name, max_iter=600, random_state=0).fit(X, y) for name in ("swag", "map", "mc_dropout")}
models["bali"] = bali.BALIRegressor(random_state=0).fit(X, y)
for name, model in models.items():
    prediction = model.pred_dist(new_X)
    scores = bali.metrics.rmse(prediction, new_y), bali.metrics.log_likelihood(prediction, new_y)
    print(f"{name:>10}: error {scores[0]:.3f}, log-likelihood {scores[1]:.3f}")

# %%
import matplotlib.pyplot as plt

grid = np.linspace(-4, 4, 200)[:, None]
figure, axes = plt.subplots()
for name in ("swag", "mc_dropout", "bali"):
    epistemic = models[name].pred_dist(grid).epistemic[:, 0].sqrt()
    axes.plot(grid[:, 0], epistemic, label=name)
axes.plot(X[:, 0], np.zeros(len(X)), "|", color="C4", label="rows to learn from")
axes.set_xlabel("x")
axes.set_ylabel("what it does not know (std)")
axes.legend()

# %% [markdown]
# ## Into the repository
#
# The class goes to a file of its own in `benchmarks/bali_benchmarks/baselines`, with a row in `table.py`; the
# contract test then holds it to what all methods promise. Give it a test of its own on a case whose answer is
# known. `bali-benchmarks methods --method swag` runs it on the published splits. [Methods to compare
# with](../baselines.md) has the protocol in full.
