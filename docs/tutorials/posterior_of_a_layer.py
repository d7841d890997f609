# %% [markdown]
# # The posterior of one layer
#
# How a step of the paper's algorithm turns a mini-batch into a posterior over a layer's weights: by hand, with
# the symbols of [The method](../method.md), and at the end the library does the same.
#
# A layer is a regression problem. Its inputs X are known from the forward pass, its targets Y come from the
# backward pass, and a linear regression with a conjugate prior has a posterior in closed form.
#
# ## A network and a batch
#
# Two layers, one input, one output. A column of ones stands for the bias; weights W have a row for each input,
# the bias last.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import bali

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.rand(80, 1) * 4 - 2
y = torch.sin(2 * x) + 0.1 * torch.randn(80, 1)
N, alpha = len(x), 0.5

net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))


def with_ones(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, torch.ones(len(rows), 1)], 1)


# %% [markdown]
# ## Forward: X and Z
#
# Z = X W are the first layer's outputs, before the activation. They are what the layer is judged by.

# %%
X = with_ones(x)  # (B, D_x)
W = torch.cat([net[0].weight.T, net[0].bias[None]]).detach()  # (D_x, D_y)
Z = (X @ W).requires_grad_()  # (B, D_y)
print("X", tuple(X.shape), " W", tuple(W.shape), " Z", tuple(Z.shape))

# %% [markdown]
# ## Backward: G
#
# The gradient of each row's log-likelihood with respect to its own outputs says where they should have been.
# The noise Σ of the output is not known yet; the first step takes the identity.

# %%
residual = y - net[2](torch.tanh(Z))
(G,) = torch.autograd.grad(-0.5 * residual.square().sum(), Z)
print("G", tuple(G.shape))

# %% [markdown]
# ## Targets: Y
#
# Y = Z + G D moves every output uphill, with a step whose size does not depend on the scale of the gradients: D
# = diag(α / √Ψgg), where Ψgg is a moving average of the mean of g². In the first step it is the mean of this
# batch.

# %%
D = torch.diag(alpha / G.square().mean(0).sqrt())
Y = (Z + G @ D).detach()
print("root mean square of the moves, by output:", [round(float(m), 3) for m in (Y - Z).detach().square().mean(0).sqrt()])

# %% [markdown]
# ## Posterior: R⁻¹, M, U, u
#
# The prior is a matrix-normal inverse-Wishart, Σ ~ W⁻¹(U₀, u₀) and W | Σ ~ MN(M₀, R₀, Σ), and so is the
# posterior:
#
#     R⁻¹ = R₀⁻¹ + XᵀX
#     M   = R (R₀⁻¹M₀ + XᵀY)
#     U   = U₀ + M₀ᵀR₀⁻¹M₀ + YᵀY − MᵀR⁻¹M
#     u   = u₀ + N

# %%
D_x, D_y = W.shape
R0_inverse, M0 = torch.eye(D_x) / 10.0, torch.zeros(D_x, D_y)
U0, u0 = 0.01 * N * torch.eye(D_y), D_y + 1.0

R_inverse = R0_inverse + X.T @ X
M = torch.linalg.solve(R_inverse, R0_inverse @ M0 + X.T @ Y)
U = U0 + M0.T @ R0_inverse @ M0 + Y.T @ Y - M.T @ R_inverse @ M
u = u0 + N
print("M\n", M)

# %% [markdown]
# `bali.MNIW` is this distribution, and `condition` is this update:

# %%
prior = bali.MNIW(M0, R0_inverse, U0, u0)
posterior = prior.condition(bali.Moments.of(X, Y, bias=False))
torch.testing.assert_close(posterior.mean, M)
torch.testing.assert_close(posterior.scale, U)

# %% [markdown]
# ## A sample of the weights
#
# Σ is taken at its mode, U / (u + D_y + 1). Then W = M + R^½ A (Σ^½)ᵀ, with standard normal A. vec(W) has the
# covariance Σ ⊗ R: two small matrices instead of one with (D_x D_y)² entries. The next forward pass is made
# with such a sample.

# %%
samples = posterior.sample_weights((2000,), torch.Generator().manual_seed(0))
R, Sigma = torch.linalg.inv(R_inverse), U / (u + D_y + 1)
print(f"variance of the first weight: {R[0, 0] * Sigma[0, 0]:.5f}, of 2,000 samples: {samples[:, 0, 0].var():.5f}")

# %%
figure, axes = plt.subplots(figsize=(4.6, 3.4))
axes.plot(samples[:500, 0, 0], samples[:500, 1, 0], ".", markersize=3, alpha=0.5, label="samples of the posterior")
axes.plot(W[0, 0], W[1, 0], "s", label="the weight before the step")
axes.plot(M[0, 0], M[1, 0], "o", label="posterior mean M")
axes.set_xlabel("weight of x")
axes.set_ylabel("bias")
axes.set_title("first unit of the first layer")
axes.legend()

# %% [markdown]
# ## The same by the library
#
# `LayerwiseInference` does this for all layers at once. With α, N_eff = N and a prior variance of 10 for this
# layer, its first step arrives at the same M, R⁻¹ and U.

# %%
inference = bali.LayerwiseInference(
    net, bali.likelihoods.Gaussian(), n_data=N, step_size=alpha, prior_variance={"0": 10.0, "2": 10.0}, noise_floor=0.01
)
inference.step(x, y)
first = inference.posteriors["0"]
print("largest difference of the means:", f"{(first.mean - M).abs().max():.1e}")
torch.testing.assert_close(first.mean, M)
torch.testing.assert_close(first.precision.dense(), R_inverse)
torch.testing.assert_close(first.scale, U)

# %% [markdown]
# From then on the sums are moving averages: XᵀX, XᵀY and YᵀY of older batches came from other weights, and fade
# at the rate β. More steps, and a prediction mixes forward passes with weight samples:

# %%
for step in range(150):
    inference.step(x, y, ema_rate=0.2 if step < 100 else 0.05)
grid = torch.linspace(-3.5, 3.5, 200)[:, None]
prediction = inference.predict(grid, n_samples=128, generator=torch.Generator().manual_seed(0))

figure, axes = plt.subplots()
low, high = prediction.interval(0.9)
axes.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.25, label="90 % interval")
axes.plot(grid[:, 0], prediction.mean[:, 0], label="mean")
axes.plot(x[:, 0], y[:, 0], ".", markersize=4, label="observed")
axes.set_xlabel("x")
axes.set_ylabel("y")
axes.legend()

# %% [markdown]
# [The method](../method.md) goes on from here: why U is computed from residuals, what the paper leaves open,
# and what `bali.fit` does differently.
