# %% [markdown]
# # Adding a likelihood
#
# Wind comes from a direction, and 359° is next to 1°. None of the built-in likelihoods knows that. Two ways to
# one that does.
#
# ## Data
#
# The direction of the wind over a day, as an angle between −π and π, which turns through north around noon.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, distributions, nn

import bali

generator = torch.Generator().manual_seed(0)
hour = torch.rand(400, 1, generator=generator) * 2 - 1
angle = 3 * hour + 2.6 + 0.35 * torch.randn(400, 1, generator=generator)
angle = (angle + math.pi) % (2 * math.pi) - math.pi

# %% [markdown]
# ## From a distribution of torch
#
# Outputs z have a last dimension of what the distribution needs. Two of them are a point in the plane, whose
# direction is the mean direction; the third is the logarithm of the concentration. Gradients are autograd's, in
# float64.


# %%
def von_mises(z: Tensor) -> distributions.Distribution:
    centre = torch.atan2(z[..., 1], z[..., 0])
    return distributions.VonMises(centre, z[..., 2].clamp(-5, 5).exp())


likelihood = bali.likelihoods.from_distribution(von_mises, n_outputs=3)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, likelihood.n_outputs(angle)))
fitted = bali.fit(net, (hour[:300], angle[:300]), likelihood, seed=0)
print(fitted)

# %% [markdown]
# ## Is it right?
#
# The log-density against SciPy, and a network that learns: these are the two tests that every likelihood of the
# library has.

# %%
from scipy import stats

z = torch.tensor([[1.0, 0.0, 1.2]])
ours, _ = likelihood.evaluate(z, torch.tensor([[0.4]]))
theirs = stats.vonmises.logpdf(0.4, kappa=math.exp(1.2), loc=0.0)
assert abs(float(ours) - theirs) < 1e-5


def turned(a: Tensor, b: Tensor) -> Tensor:
    """The angle between two directions."""
    return (a - b + math.pi).remainder(2 * math.pi) - math.pi


with torch.no_grad():
    out = fitted.module(hour[300:])
    error = turned(torch.atan2(out[:, 1], out[:, 0]), angle[300:, 0]).square().mean().sqrt()
print(f"typical error {error:.2f}; the noise has a standard deviation of 0.35")

# %%
as_numbers = bali.fit(
    nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)),
    (hour[:300], angle[:300]),
    bali.likelihoods.Gaussian(),
    seed=0,
)
day = torch.linspace(-1, 1, 200)[:, None]
with torch.no_grad():
    out = fitted.module(day)
figure, axes = plt.subplots()
axes.plot(hour[:, 0], angle[:, 0], ".", markersize=3, label="observed", color="C1")
axes.plot(day[:, 0], torch.atan2(out[:, 1], out[:, 0]), ".", markersize=3, label="von Mises")
axes.plot(day[:, 0], as_numbers.predict(day).mean[:, 0], label="as if angles were numbers", color="C2")
axes.set_xlabel("time of the day")
axes.set_ylabel("direction (−π to π)")
axes.legend()

# %% [markdown]
# Where the direction jumps from π to −π, who takes angles for numbers predicts the opposite direction.
#
# What a distribution of torch does not have, a prediction does not have: there are no quantiles of directions,
# and asking for them is an error that says so.

# %%
try:
    fitted.predict(day).interval(0.9)
except bali.predictive.predictive_base.UndefinedError as error_message:
    print(error_message)

# %% [markdown]
# ## From a log-density
#
# Where torch has no distribution, the logarithm of the density of each row is enough. Predictions then have
# log-probabilities only.


# %%
def wrapped_cauchy(z: Tensor, y: Tensor) -> Tensor:
    """Heavier tails: log density of each row, (..., n)."""
    centre, spread = torch.atan2(z[..., 1], z[..., 0]), z[..., 2].clamp(-5, 5).exp()
    return spread.sinh().log() - math.log(2 * math.pi) - (spread.cosh() - (y[..., 0] - centre).cos()).log()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 3))
heavy = bali.fit(net, (hour[:300], angle[:300]), bali.likelihoods.from_log_density(wrapped_cauchy, n_outputs=3), seed=0)
for name, model in {"von Mises": fitted, "wrapped Cauchy": heavy}.items():
    score = model.predict(hour[300:]).log_prob(angle[300:]).mean()
    print(f"{name:>15}: log-likelihood of new rows {score:.3f}")

# %% [markdown]
# The noise of these angles is Gaussian, and the likelihood with light tails wins. A likelihood for the library
# itself is a subclass of `FamilyLikelihood`, with checks of y and its own tests:
# [Contributing](../../CONTRIBUTING.md#adding-a-likelihood).
