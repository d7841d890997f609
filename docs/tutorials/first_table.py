# %% [markdown]
# # First table
#
# From a table of numbers to predictions with intervals that can be trusted, in a few lines.
#
# ## Data
#
# Prices of three hundred made-up flats, in thousands: area, storey, and the age of the house. Small old flats
# are the cheap ones; very old houses are dear again.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n = 300
flats = pd.DataFrame({"area": rng.uniform(25, 140, n), "storey": rng.integers(0, 8, n), "age": rng.uniform(0, 90, n)})
flats["price"] = 40 + 3.2 * flats.area + 6 * flats.storey + 0.03 * (flats.age - 45) ** 2 + 12 * rng.normal(size=n)
print(flats.round(1).head(3).to_string(index=False))

# %% [markdown]
# ## Fit
#
# There is nothing to set. `BALIRegressor` scales the columns, trains several networks that see them in several
# ways, keeps what does best on rows that it held out, and fits the noise on these.

# %%
from sklearn.model_selection import train_test_split

import bali

columns = ["area", "storey", "age"]
known, new = train_test_split(flats, test_size=0.25, random_state=0)
model = bali.BALIRegressor(random_state=0).fit(known[columns], known["price"])

# %% [markdown]
# ## Predict
#
# `predict` gives the mean and, if asked, the standard deviation of a new observation. `predict_interval` gives
# the two ends between which a price lies with the probability you name.

# %%
mean, std = model.predict(new[columns], return_std=True)
low, high = model.predict_interval(new[columns], coverage=0.9)

inside = ((low < new["price"]) & (new["price"] < high)).mean()
error = np.sqrt(np.mean((mean - new["price"]) ** 2))
print(f"typical error {error:.1f}, standard deviation that the model states {std.mean():.1f}, noise in the data 12")
print(f"{inside:.0%} of {len(new)} new prices lie inside their 90 % interval")

# %% [markdown]
# The stated uncertainty and the error that came out are of one size, which is what one wants. Here is every new
# flat with its interval:

# %%
import matplotlib.pyplot as plt

order = np.argsort(mean)
figure, axes = plt.subplots()
axes.vlines(mean[order], low[order], high[order], alpha=0.35, label="90 % interval")
axes.plot(mean[order], new["price"].to_numpy()[order], "o", markersize=3, color="C1", label="true price")
axes.plot([mean.min(), mean.max()], [mean.min(), mean.max()], "--", color="C2", linewidth=1, label="prediction")
axes.set_xlabel("predicted price")
axes.set_ylabel("price")
axes.legend()

# %% [markdown]
# ## Where it knows nothing
#
# No flat in the table is larger than 140 m². `pred_dist` tells the two parts of the variance apart: `aleatoric`
# is the noise, `epistemic` what the model does not know and more data would tell.

# %%
far = pd.DataFrame({"area": [80.0, 140.0, 250.0, 500.0], "storey": 2, "age": 40.0})
prediction = model.pred_dist(far)
for area, epistemic, aleatoric in zip(
    far.area, prediction.epistemic[:, 0].sqrt(), prediction.aleatoric[:, 0].sqrt(), strict=True
):
    print(f"{area:5.0f} m²: does not know ± {epistemic:5.1f}, noise ± {aleatoric:4.1f}")

# %% [markdown]
# ## Keep it
#
# One file, which holds no code: whoever reads it executes nothing.

# %%
model.save("flats.bali")
again = bali.load("flats.bali")
assert (again.predict(new[columns]) == mean).all()

# %% [markdown]
# Next: [the same from the command line, and how to read its report](reading_the_report.py). With classes
# instead of numbers, use `BALIClassifier`, which has `predict_proba`. [With
# scikit-learn](../howto/scikit-learn.md) has pipelines, grid search and weights.
