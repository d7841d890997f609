# %% [markdown]
# # Reading the report
#
# `bali fit` writes a page for a browser that says how good a model is and whether its uncertainty can be
# trusted. This is how to read it.
#
# ## Make one
#
# A table as they come: numbers, a category, a date, and cells without a value.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(1)
n = 400
area, town = rng.uniform(25, 140, n), rng.choice(["Aberg", "Bedorf", "Cestadt"], n, p=[0.5, 0.3, 0.2])
sold = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
dear = {"Aberg": 1.0, "Bedorf": 1.3, "Cestadt": 2.0}
price = area * [3.0 * dear[name] for name in town] + 0.05 * np.arange(n) + rng.normal(size=n) * (6 + 0.15 * area)
houses = pd.DataFrame({"area": area.round(1), "town": town, "sold": sold.strftime("%Y-%m-%d"), "price": price.round(1)})
houses.loc[rng.choice(n, 25, replace=False), "area"] = np.nan
houses.to_csv("houses.csv", index=False)

# %%
import subprocess


def shell(command: str) -> None:
    """Run a command and show what it says."""
    print(f"$ {command}")
    print(subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout)


shell("bali fit houses.csv --target price --holdout 0.25")

# %% [markdown]
# With `--open`, your browser shows the report at once. [Here is the one that this run
# wrote](reading_the_report/report.html).

# %%
import shutil
from pathlib import Path

Path("keep").mkdir()  # what is in this folder goes beside the page
report = shutil.copy("houses-model/report.html", "keep/report.html")

# %% [markdown]
# ## In short
#
# The first part says in sentences what the rest shows. A tick is good news, an exclamation mark asks you to
# look. Then come the scores, all of rows that were kept aside: the model has never seen them.
#
# ## Can its uncertainty be trusted?
#
# If a model says 90 %, nine of ten true values should lie inside. That can be asked for every probability, and
# the report draws it. The same from the predictions themselves:

# %%
shell("bali predict houses-model houses.csv --out predictions.csv --quiet")
predictions = pd.read_csv("predictions.csv")
print(predictions.head(3).round(1).to_string(index=False))

# %%
import matplotlib.pyplot as plt
from scipy import stats

promised = np.linspace(0.05, 0.95, 19)
reach = stats.norm.ppf(0.5 + promised / 2)
distance = np.abs(houses.price - predictions["mean"]) / predictions["std"]
kept = [(distance < r).mean() for r in reach]

figure, axes = plt.subplots(figsize=(4.2, 3.6))
axes.plot([0, 1], [0, 1], "--", color="C2", linewidth=1, label="as promised")
axes.plot(promised, kept, "o-", markersize=3, label="this model")
axes.set_xlabel("probability that the interval promises")
axes.set_ylabel("rows inside it")
axes.legend()

# %% [markdown]
# Below the dashed line a model is too sure, above it too cautious. (The report uses the rows that were kept
# aside and the exact quantiles; here are all rows, and Gaussian ones.)
#
# ## Predictions and the truth
#
# *Predicted against true* should lie along its dashed line. In *Residuals* look for a pattern: a bend is
# something not learnt, a funnel is noise that depends on the row. This table has a funnel, as larger houses
# scatter more:

# %%
residual = houses.price - predictions["mean"]
parts = pd.qcut(houses.area, 3, labels=["small", "middle", "large"])
for name, group in residual.groupby(parts, observed=True):
    print(f"{name:>6}: residuals ± {group.std():.1f}, stated noise ± {predictions.aleatoric_std[group.index].mean():.1f}")
stated = predictions.aleatoric_std.groupby(parts, observed=True).mean()
assert stated["small"] < stated["large"]

# %% [markdown]
# The stated noise follows it: the residuals of held-out rows showed the funnel, and so every row got a noise of
# its own, as `bali fit` says under "noise" above. Where they show none, the noise is the same in every row.
#
# ## Does it know when it does not know?
#
# *Uncertainty against error*: rows about which the model is less sure should have larger errors. *Most
# uncertain rows* lists them, with the share of the uncertainty that more data would remove. Rows without an
# area come first here, and rightly:

# %%
unsure = predictions["epistemic_std"].groupby(houses.area.isna()).mean()
assert unsure[True] > unsure[False]
print(f"not known ± {unsure[False]:.1f} with an area, ± {unsure[True]:.1f} without one")

# %% [markdown]
# ## Layer health
#
# For who wants to know what the posteriors rest on: how many directions of each layer are decided by data, how
# well conditioned the matrices are, and whether steps had to be refused. "Nothing is off" is what you want to
# read.
#
# [Look at a model](../howto/look-at-a-model.md) has the page where inputs can be moved, and the one to send to
# somebody.
