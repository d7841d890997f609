# %% [markdown]
# # Tasks one after the other
#
# A network that learns one task, then another, without keeping the rows of the first: the posterior of one fit is
# the prior of the next.
#
# ## Three tasks
#
# Handwritten digits of 8 × 8 pixels. In each task the pixels are in another order, so that each is a problem of its
# own, and one network is to solve all of them.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import bali

x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = (x.float() - 5) / 6
train, test = slice(0, 1300), slice(1300, None)
orders = [torch.arange(64)] + [torch.randperm(64, generator=torch.Generator().manual_seed(t)) for t in (1, 2)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracies(fitted, n_tasks):
    found = [fitted.predict(x[test][:, order]).probabilities.argmax(1) for order in orders[:n_tasks]]
    return " ".join(f"{(labels == y[test]).float().mean():.2f}" for labels in found)


# %% [markdown]
# ## Without a prior
#
# Training goes on from the weights of the last task, as one would do it with any optimizer. What was learnt first is
# forgotten.

# %%
likelihood = bali.likelihoods.Categorical()
fitted = None
for task, order in enumerate(orders):
    module = network() if fitted is None else fitted.module
    fitted = bali.fit(module, (x[train][:, order], y[train]), likelihood, epochs=15, seed=task, verbose=False)
    print(f"after task {task + 1}, accuracy on tasks so far: {accuracies(fitted, task + 1)}")

# %% [markdown]
# ## With the last posterior as the prior
#
# Each layer's prior is now what the tasks before have left: a mean, and a precision that is the sum of their
# curvatures, a Kronecker product for each layer. No row is kept.

# %%
fitted = None
for task, order in enumerate(orders):
    data = x[train][:, order], y[train]
    fitted = bali.fit(network(), data, likelihood, prior=fitted, epochs=15, seed=task, verbose=False)
    print(f"after task {task + 1}, accuracy on tasks so far: {accuracies(fitted, task + 1)}")

# %% [markdown]
# `fitted.as_prior(forget=0.1)` lets a tenth of what is known fade, for streams that change slowly;
# `bali.fit(..., memory=100)` keeps a hundred rows beside the posterior; and `fitted.as_prior(new=["2"])` gives the next
# task an output layer of its own. What was measured on MNIST is in [Learning that goes on](../learning.md).
