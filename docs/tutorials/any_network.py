# %% [markdown]
# # Any torch network
#
# Take a module that you would train with Adam, give it to `bali.fit` with data and a likelihood, and get a
# posterior over its weights.
#
# ## A network
#
# Short signals in noise, of three kinds: a slow wave, a fast wave, and a step. A convolution looks for shapes,
# a recurrent layer reads them in order, a linear layer decides. Nothing in it is special to bali.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import bali

generator = torch.Generator().manual_seed(0)
KINDS = ["slow wave", "fast wave", "step"]


def signals(n: int, noise: float) -> tuple[Tensor, Tensor]:
    """n noisy signals (n, 1, 40) and their kinds (n,)."""
    t, kind = torch.linspace(0, 1, 40), torch.randint(3, (n,), generator=generator)
    start = torch.rand(n, 1, generator=generator)
    shapes = [torch.sin(2 * math.pi * (t + start)), torch.sin(8 * math.pi * (t + start)), (t > start).float() * 2 - 1]
    clean = torch.stack(shapes, 1)[torch.arange(n), kind]
    return (clean + noise * torch.randn(n, 40, generator=generator))[:, None], kind


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv1d(1, 8, kernel_size=5, stride=2)
        self.read = nn.GRU(8, 12, batch_first=True)
        self.decide = nn.Linear(12, len(KINDS))

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.read(torch.relu(self.look(x)).mT)
        return self.decide(steps[:, -1])


# %% [markdown]
# ## Fit
#
# No optimiser, no rate, no schedule, no number of epochs. A tenth of the examples is held out to decide when to
# stop and how wide the posterior is.

# %%
x, kind = signals(600, noise=0.5)
torch.manual_seed(0)
fitted = bali.fit(Reader(), (x, kind), bali.likelihoods.Categorical(), seed=0)
print(fitted)

# %%
new_x, new_kind = signals(300, noise=0.5)
prediction = fitted.predict(new_x)
print(f"accuracy {bali.metrics.accuracy(prediction, new_kind):.3f}")
print(f"calibration error {bali.metrics.expected_calibration_error(prediction, new_kind):.3f}")

# %% [markdown]
# ## How sure, and why not
#
# The entropy of a prediction is its whole uncertainty, in nats. Its epistemic part is the mutual information
# between the class and the weights: what is left to learn. Signals with more noise than any the network has
# seen are harder; signals of no known kind are foreign.

# %%
t = torch.linspace(0, 1, 40)
cases = {
    "as in training": new_x,
    "three times the noise": signals(300, noise=1.5)[0],
    "five times as large": 5 * signals(300, noise=0.5)[0],
}
for name, inputs in cases.items():
    p = fitted.predict(inputs)
    print(f"{name:>22}: entropy {p.entropy.mean():.2f}, of which epistemic {p.mutual_information.mean():.2f}")

# %%
figure, several = plt.subplots(1, 3, figsize=(7.2, 2.6), sharey=True)
order = prediction.entropy.argsort()
for axes, row in zip(several, (order[0], order[len(order) // 2], order[-1]), strict=True):
    axes.plot(t, new_x[row, 0], linewidth=1.2)
    best = int(prediction.probabilities[row].argmax())
    axes.set_title(f"{KINDS[best]} {prediction.probabilities[row, best]:.0%}\n(is: {KINDS[new_kind[row]]})", fontsize=9)

# %% [markdown]
# The surest, a middling and the least sure prediction.
#
# ## What comes out
#
# `fitted.posteriors` has a matrix-normal for each weight matrix, `fitted.module` is a plain module with mean
# weights, and `fitted.sample(n)` gives modules with weights drawn from the posterior: functions that all
# explain the data.

# %%
for name, posterior in fitted.posteriors.items():
    print(f"{name:>24}: mean {tuple(posterior.mean.shape)}")
logits = torch.stack([module(new_x[order[-1:]])[0] for module in fitted.sample(5)])
print("five networks about the least sure signal:", logits.softmax(-1).argmax(-1).tolist())

# %% [markdown]
# [Training your own network](../torch.md) has data sets and loaders, several members, checkpoints, and what to
# do when something is off; [Which layers have a posterior](../layers.md) the kinds of layers.
