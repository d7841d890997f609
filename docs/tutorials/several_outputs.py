# %% [markdown]
# # Several outputs at once
#
# Two columns to predict from the same inputs. One model learns both, and knows how their errors hang together.
#
# ## Data
#
# Height and weight of a made-up animal, by its age. Who is taller than others of its age is heavier too.

# %%
import matplotlib.pyplot as plt
import numpy as np

import bali

rng = np.random.default_rng(0)
age = rng.uniform(0, 10, 250)
size = rng.normal(size=250)  # which nobody measured
height = 40 + 50 * np.tanh(age / 4) + 4 * size + rng.normal(size=250)
weight = 5 + 25 * np.tanh(age / 5) ** 2 + 2.5 * size + rng.normal(size=250)
X, Y = age[:, None], np.column_stack([height, weight])

# %% [markdown]
# ## Fit
#
# y has two columns; nothing else changes. The noise is a full covariance: that of the residuals of rows which were
# held out.

# %%
model = bali.BALIRegressor(random_state=0).fit(X[:200], Y[:200])
mean, covariance = model.predict(X[200:], return_cov=True)
print("mean", mean.shape, "covariance", covariance.shape)

noise = covariance[0]
print(f"correlation of the two outputs at one age: {noise[0, 1] / np.sqrt(noise[0, 0] * noise[1, 1]):.2f}")

# %% [markdown]
# ## What the covariance is good for
#
# Somebody measures the height. What does that say about the weight? For a Gaussian it is two lines.

# %%
gain = covariance[:, 1, 0] / covariance[:, 0, 0]
told = mean[:, 1] + gain * (Y[200:, 0] - mean[:, 0])


def error(prediction: np.ndarray) -> float:
    return float(np.sqrt(np.mean((prediction - Y[200:, 1]) ** 2)))


print(f"error of the weight: {error(mean[:, 1]):.2f} from the age, {error(told):.2f} from age and height")
assert error(told) < error(mean[:, 1])

# %%
at_four = model.pred_dist(np.array([[4.0]]))
draws = at_four.sample(400)[:, 0]
figure, axes = plt.subplots(figsize=(4.6, 3.6))
axes.plot(draws[:, 0], draws[:, 1], ".", markersize=3, alpha=0.6, label="drawn from the prediction")
near = np.abs(age - 4) < 0.6
axes.plot(height[near], weight[near], "o", markersize=4, label="animals of about that age")
axes.set_xlabel("height")
axes.set_ylabel("weight")
axes.set_title("at the age of four")
axes.legend()

# %% [markdown]
# Intervals are those of each column on its own: `predict_interval` gives (n, 2) for each end. With `bali.fit`
# it is the same: a network with two outputs and `Gaussian()`; for a covariance that depends on the row,
# `GaussianByRow(correlated=True)` ([Likelihoods](../likelihoods.md)).
