# %% [markdown]
# # adding_a_likelihood
#
# From an array of numbers to predictions with intervals that can be trusted, in a few lines.
#
# ## Data
#
# Prices of a hundred and fifty made-up flats: area, storey, and the age of the house.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n = 150
flats = pd.DataFrame({"area": rng.uniform(25, 140, n), "storey": rng.integers(0, 8, n), "age": rng.uniform(0, 90, n)})
price = 40 + 3.2 * flats.area + 6 * flats.storey + 0.03 * (flats.age - 45) ** 2 + 12 * rng.normal(size=n)
print(flats.assign(price=price).round(1).head(3).to_string(index=False))
