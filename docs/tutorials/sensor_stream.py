# %% [markdown]
# # A sensor that drifts
#
# Rows that come in day after day, a model that takes them in without training, and a word when their law has changed.
#
# ## A stream
#
# A sensor's reading depends on temperature and load. After the thirtieth day it ages and reads too much when it is
# hot.

# %%
import numpy as np
import torch
from torch import nn

import bali

rng = np.random.default_rng(0)


def day(number, n=40):
    x = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    age = max(0, number - 30) / 10
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.3 * age * np.maximum(x[:, :1], 0) + 0.1 * rng.normal(size=(n, 1))
    return x, y.astype(np.float32)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


first = [day(0) for _ in range(10)]
x, y = (np.concatenate(part) for part in zip(*first, strict=True))
gaussian = bali.likelihoods.Gaussian()
fitted = bali.fit(network(), (x, y), gaussian, seed=0, epochs=60, verbose=False)

# %% [markdown]
# ## Watching
#
# `DriftWatch` compares how likely each day's rows are under the model with rows that the model was not trained on but
# fits. What is lacking adds up, so that a small change is found after some days.

# %%
watch = bali.DriftWatch(fitted.predict, *day(0, 200))
for number in range(1, 61):
    today = day(number)
    if watch.update(*today):
        break
print(f"day {number}: {watch}")

# %% [markdown]
# ## Going on
#
# The posterior is the prior of the new days, with half of what the old ones said faded.

# %%
new = [day(number) for _ in range(5)]
x, y = (np.concatenate(part) for part in zip(*new, strict=True))
after = bali.fit(network(), (x, y), gaussian, prior=fitted.as_prior(forget=0.5), seed=1, epochs=60, verbose=False)
x, y = day(number, 500)
for name, model in (("before", fitted), ("after", after)):
    print(f"log-likelihood of new rows {name}: {float(model.predict(x).log_prob(torch.as_tensor(y)).mean()):.2f}")

# %% [markdown]
# ## A row at a time
#
# Single rows need no fit: `condition` takes them into the posterior of the output layer in closed form.

# %%
import time

model = after.output_regression(x)
began = time.perf_counter()
for row in range(20):
    model = model.condition(x[row : row + 1], y[row : row + 1])
seconds = (time.perf_counter() - began) / 20
print(f"a row takes less than a twentieth of a second: {seconds < 0.05}")
print(f"log-likelihood of new rows: {float(model.predict(x).log_prob(torch.as_tensor(y)).mean()):.2f}")
