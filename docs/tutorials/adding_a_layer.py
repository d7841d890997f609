# %% [markdown]
# # Adding a kind of layer
#
# A module of your own gets a posterior when it says how it is rows times a weight matrix. That is a small
# class.
#
# ## The module
#
# A linear layer on sines and cosines of its inputs, with fixed random frequencies: a smooth function of any
# shape. What it learns is `weight` and `bias`.

# %%
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bali


class Waves(nn.Module):
    """cos and sin of x times `frequencies`, then a linear map."""

    def __init__(self, n_in: int, n_waves: int, n_out: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2 * torch.randn(n_in, n_waves))
        self.weight = nn.Parameter(torch.randn(n_out, 2 * n_waves) * (2 * n_waves) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def features(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.weight.T + self.bias


# %% [markdown]
# `bali.fit` trains what it does not know by Adam and gives it no posterior. The paper's algorithm, which has no
# optimiser, refuses it, and says why:

# %%
torch.manual_seed(0)
network = nn.Sequential(Waves(1, 20, 16), nn.Tanh(), nn.Linear(16, 1))
try:
    bali.LayerwiseInference(network, bali.likelihoods.Gaussian(), n_data=100)
except bali.UnsupportedLayerError as error:
    print(error)

# %% [markdown]
# ## The layer
#
# A `Layer` turns inputs and outputs into rows and back, and a weight matrix, bias row last, into the module's
# parameters and back. Here only the inputs are special: a row is the sines and cosines, not x itself.

# %%
from bali.layers.kinds import KINDS
from bali.layers.layer import Layer


class WavesLayer(Layer):
    def __init__(self, name: str, module: Waves) -> None:
        self.name, self._module = name, module
        self.has_bias = True
        self.out_features, self.in_features = module.weight.shape

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def weight(self) -> Tensor:
        return self._module.weight

    def input_rows(self, x: Tensor) -> Tensor:
        return self._module.features(x)

    def output_rows(self, z: Tensor) -> Tensor:
        return z

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows

    def weights(self) -> Tensor:
        return torch.cat([self._module.weight.detach().T, self._module.bias.detach()[None]])

    @torch.no_grad()
    def assign(self, weights: Tensor) -> None:
        self._module.weight.copy_(weights[:-1].T)
        self._module.bias.copy_(weights[-1])


KINDS[Waves] = WavesLayer

# %% [markdown]
# ## What must hold
#
# Rows times the weight matrix are the module's outputs, and weights survive the way into the module and back.
# In the repository, a line in the table of `tests/layers/test_layer_kinds.py` checks this and more, for every
# kind.

# %%
x = torch.rand(120, 1) * 4 - 2
layer = WavesLayer("waves", network[0])
rows = torch.cat([layer.input_rows(x), torch.ones(120, 1)], 1)
torch.testing.assert_close(rows @ layer.weights(), network[0](x))

before = layer.weights()
layer.assign(torch.zeros_like(before))
layer.assign(before)
torch.testing.assert_close(layer.weights(), before)

# %% [markdown]
# ## And it learns
#
# Nothing else had to be told: moments, updates, posteriors, predictions and files know rows only.

# %%
y = torch.sin(3 * x) * x + 0.1 * torch.randn(120, 1)
fitted = bali.fit(network, (x, y), bali.likelihoods.Gaussian(), seed=0)
print(fitted)
print({name: tuple(posterior.mean.shape) for name, posterior in fitted.posteriors.items()})

# %%
grid = torch.linspace(-3.5, 3.5, 240)[:, None]
prediction = fitted.predict(grid)
low, high = prediction.interval(0.9)
figure, axes = plt.subplots()
axes.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.25, label="90 % interval")
axes.plot(grid[:, 0], prediction.mean[:, 0], label="mean")
axes.plot(x[:, 0], y[:, 0], ".", markersize=4, label="observed")
axes.set_xlabel("x")
axes.set_ylabel("y")
axes.legend()

# %% [markdown]
# A module that is several weight matrices in one, as attention is, takes a `Composite`: [Adding a kind of
# layer](../layers.md#adding-a-kind-of-layer).
