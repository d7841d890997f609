# %% [markdown]
# # Counts and durations
#
# Visits of a page, years until a machine fails: what is observed is no number with Gaussian noise. A likelihood
# says what it is.
#
# ## Counts
#
# Calls that a line takes in an hour, by the hour of the day. Counts are whole, never negative, and scatter more
# where there are more.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import bali

generator = torch.Generator().manual_seed(0)
hour = torch.rand(1400, 1, generator=generator) * 24
rate = 1 + 9 * torch.exp(-((hour - 11) ** 2) / 18)
busy = torch.empty(2, 1400, 1).exponential_(generator=generator).mean(0)  # some hours are, for no reason in the data
calls = torch.poisson(rate * busy, generator)

# %% [markdown]
# Networks want inputs of a handy size, here hours in units of half a day. `NegativeBinomial` has two outputs,
# log mean and log r, and so can scatter more than a `Poisson`. Which one fits better, rows that neither has
# seen decide.

# %%
x = hour / 12 - 1
fits = {}
for likelihood in (bali.likelihoods.Poisson(), bali.likelihoods.NegativeBinomial()):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, likelihood.n_outputs(calls)))
    fits[type(likelihood).__name__] = bali.fit(net, (x[:400], calls[:400]), likelihood, seed=0)

for name, fitted in fits.items():
    prediction = fitted.predict(x[400:])
    print(
        f"{name:>16}: log-likelihood {bali.metrics.log_likelihood(prediction, calls[400:]):.3f}, "
        f"{bali.metrics.interval_coverage(prediction, calls[400:]):.0%} inside their 90 % interval"
    )

# %% [markdown]
# The Poisson is too sure of itself, as it must be: its variance is its mean. Quantiles of counts are whole
# numbers, so that their intervals hold rather more than they promise.

# %%
day = torch.linspace(0, 24, 97)[:, None]
prediction = fits["NegativeBinomial"].predict(day / 12 - 1)
low, middle, high = prediction.quantiles([0.05, 0.5, 0.95])[..., 0]

figure, axes = plt.subplots()
axes.fill_between(day[:, 0], low, high, step="mid", alpha=0.25, label="90 % interval")
axes.step(day[:, 0], middle, where="mid", label="median")
axes.plot(hour[:400, 0], calls[:400, 0], ".", markersize=3, color="C1", label="observed")
axes.set_xlabel("hour of the day")
axes.set_ylabel("calls")
axes.legend()

# %% [markdown]
# ## Durations
#
# Machines of which some still run when the study ends: of those one knows only that they last longer. To drop
# them, or to take the end of the study for their end, would be wrong in the same direction.
# `bali.likelihoods.durations` takes times and events, 1 where it was over.

# %%
load = torch.rand(500, 1, generator=generator) * 2 - 1
lasts = 2 * torch.exp(-0.8 * load[:, 0]) * torch.empty(500).exponential_(generator=generator) ** 0.6
seen_for = torch.full((500,), 2.5)
event = (lasts <= seen_for).long()
years = bali.likelihoods.durations(torch.minimum(lasts, seen_for), event)
print(f"{int((event == 0).sum())} of 500 machines still run after two and a half years")

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
fitted = bali.fit(net, (load[:400], years[:400]), bali.likelihoods.Weibull(), seed=0)

times = torch.linspace(0.05, 6, 120)
light, heavy = fitted.predict(torch.tensor([[-0.8], [0.8]])).survival(times)
concordance = bali.metrics.concordance(fitted.predict(load[400:]), years[400:])
print(f"of two machines, the one that is predicted to last longer does so in {concordance:.0%} of the pairs")

# %%
figure, axes = plt.subplots()
for curve, name, which in ((light, "light load", load[:, 0] < -0.6), (heavy, "heavy load", load[:, 0] > 0.6)):
    (line,) = axes.plot(times, curve, label=name)
    truth = [(lasts[which] > t).float().mean() for t in times]
    axes.plot(times, truth, ":", color=line.get_color(), label=f"{name}, what really happened")
axes.axvline(2.5, color="C2", linewidth=1)
axes.annotate(" end of the study", (2.5, 0.12), color="C2")
axes.set_xlabel("years")
axes.set_ylabel("share that still runs")
axes.legend()

# %% [markdown]
# Right of the line nothing was observed; there the curves rest on the shape of the Weibull alone.
# `LogNormalDuration` has another one, and held-out rows say which is better. [Likelihoods](../likelihoods.md)
# has all of them, and bounds of other kinds.
#
# Who has a table and no network asks for the same by a word: `BALIRegressor(likelihood="counts")` and
# `"durations"` try several of them, and held-out rows tell. `bali fit` notices counts by itself, and takes
# durations by `--time` and `--event`.
