# %% [markdown]
# # Which label next
#
# Labels cost money. `bali.active.query` says which rows of a pool to have labelled, so that few labels tell much.
#
# ## A pool
#
# Two thousand points of a curve that is flat on the left and wild on the right. Twelve labels to begin with, all on
# the left.

# %%
import numpy as np
import torch
from torch import nn

import bali

rng = np.random.default_rng(0)
pool = np.sort(rng.uniform(-2, 2, 2000)).astype(np.float32)[:, None]


def label(x):
    return (np.where(x > 0, np.sin(6 * x) * x, 0.0) + 0.05 * rng.normal(size=x.shape)).astype(np.float32)


def fit(x, y):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    return bali.fit(module, (x, y), bali.likelihoods.Gaussian(), epochs=150, members=2, seed=0, verbose=False)


# %% [markdown]
# ## Ask, label, fit again
#
# "epig" chooses the rows whose labels tell most about the predictions at the pool itself, together: a batch does not
# ask the same thing twice.


# %%
x = rng.uniform(-2, 0, (12, 1)).astype(np.float32)
y = label(x)
for _ in range(3):
    chosen = bali.active.query(fit(x, y), pool, 8, "epig")
    new = pool[chosen]
    x, y = np.concatenate([x, new]), np.concatenate([y, label(new)])
    print(f"{len(x)} labels; asked for: {np.sort(new[:, 0]).round(2)}")
print(f"{(x[12:] > 0).mean():.0%} of the labels asked for are on the right, where none were before")

# %% [markdown]
# The same works for classes, with "epig", "batchbald" or "bald", for `BALIRegressor` and `BALIClassifier`, for frames;
# and from the command line, `bali query MODEL pool.csv -n 20` writes the rows to label next.
