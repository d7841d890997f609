# %% [markdown]
# # A pretrained network
#
# Somebody trained a network, and it says nothing about how sure it is. There are three ways to a posterior,
# from one pass over the data to a little training.
#
# ## The network
#
# Digits of eight by eight pixels, a perceptron, and Adam until it knows the training images by heart.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import bali

images, digits = load_digits(return_X_y=True)
split = train_test_split(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits), test_size=0.5, random_state=0)
x, new_x, y, new_y = split

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(150):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()

with torch.no_grad():
    plain = network(new_x).softmax(-1)
log_likelihood = plain[torch.arange(len(new_y)), new_y].log().mean()
print(f"accuracy {(plain.argmax(-1) == new_y).float().mean():.3f}, log-likelihood {log_likelihood:.3f}")
wrong = plain.argmax(-1) != new_y
print(
    f"mistakes: {int(wrong.sum())}, of which it was more than 95 % sure: {int((plain[wrong].max(-1).values > 0.95).sum())}"
)

# %% [markdown]
# ## All layers, no training
#
# With `epochs=0` the weights stay what they are. One pass over the data measures the curvature around them, and
# held-out examples fit the width of the posterior and the temperature. For those take examples that the network
# was not trained on: by heart, it is always right.

# %%
held_out, test_x, test_y = (new_x[:300], new_y[:300]), new_x[300:], new_y[300:]
fits = {}
fits["all layers, as they are"] = bali.fit(
    network, (x, y), bali.likelihoods.Categorical(), epochs=0, validation=held_out, seed=0
)

# %% [markdown]
# ## The last layer, trained a little
#
# `only` names what may change; everything else stays, and the prior is about the weights that are there.

# %%
fits["last layer, five epochs"] = bali.fit(
    network, (x, y), bali.likelihoods.Categorical(), only=["4"], epochs=5, validation=held_out, seed=0
)

# %% [markdown]
# ## Adapters of low rank
#
# `bali.lora` freezes a network and puts two thin layers beside the ones it names. They have posteriors like any
# other.

# %%
import copy

adapted = bali.lora(copy.deepcopy(network), ["0", "2"], rank=4)
fits["adapters of rank 4"] = bali.fit(adapted, (x, y), bali.likelihoods.Categorical(), epochs=5, validation=held_out, seed=0)

# %% [markdown]
# ## Side by side

# %%
p = plain[300:]
found = {"the network itself": (p, p[torch.arange(len(test_y)), test_y].clamp_min(1e-30).log().mean())}
for name, fitted in fits.items():
    prediction = fitted.predict(test_x)
    found[name] = (prediction.probabilities, bali.metrics.log_likelihood(prediction, test_y))
for name, (p, score) in found.items():
    print(f"{name:>24}: accuracy {(p.argmax(-1) == test_y).float().mean():.3f}, log-likelihood {score:.3f}")

# %%
figure, axes = plt.subplots()
for name, (p, _) in found.items():
    confidence = p.max(-1).values
    wrong = p.argmax(-1) != test_y
    axes.hist(confidence[wrong].numpy(), bins=20, range=(0.3, 1), histtype="step", linewidth=1.6, label=name)
axes.set_xlabel("probability stated for the predicted class")
axes.set_ylabel("mistakes")
axes.set_title("how sure it was where it was wrong")
axes.legend(loc="upper left")

# %% [markdown]
# As many mistakes, but the network with a posterior was rarely sure of them. What is frozen in your module
# stays frozen, batch norms included; [Pretrained networks](../torch.md#pretrained-networks) has the rest.
