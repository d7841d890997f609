# %% [markdown]
# # Images, and what is not an image like them
#
# A convolutional network learns five digits. Then it is shown the other five, and noise. Does it notice?
#
# ## Data and network
#
# scikit-learn's digits, eight by eight pixels. The network sees 0 to 4 only.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import bali

images, digits = load_digits(return_X_y=True)
x = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.tensor(digits)
known = y < 5
train_x, train_y, test_x, test_y = x[known][:600], y[known][:600], x[known][600:], y[known][600:]

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(),
    nn.Linear(24 * 16, 32), nn.ReLU(), nn.Linear(32, 5),
)  # fmt: skip

# %% [markdown]
# ## Fit
#
# `members` would train several networks from other initial weights, which sees foreign images better, for as
# many times the time. Here is one.

# %%
fitted = bali.fit(network, (train_x, train_y), bali.likelihoods.Categorical(), seed=0)
prediction = fitted.predict(test_x)
print(f"accuracy on the digits 0 to 4: {bali.metrics.accuracy(prediction, test_y):.3f}")

# %% [markdown]
# ## Foreign images
#
# The network has to name one of its five classes; what it can do is to be unsure. `out_of_distribution` asks
# how well the entropy tells images of two kinds apart: 1 is always, 0.5 is not at all.

# %%
generator = torch.Generator().manual_seed(0)
foreign = {
    "digits 5 to 9": x[~known],
    "digits upside down": test_x.flip(-2),
    "noise": torch.rand(300, 1, 8, 8, generator=generator),
}
predictions = {name: fitted.predict(batch) for name, batch in foreign.items()}
for name, other in predictions.items():
    found = bali.metrics.out_of_distribution(prediction, other)
    print(f"{name:>20}: area under the ROC curve {found.auroc:.3f}, mean entropy {other.entropy.mean():.2f}")

# %%
figure, axes = plt.subplots()
for name, p in {"digits 0 to 4": prediction, **predictions}.items():
    axes.hist(p.entropy.numpy(), bins=25, range=(0, 1.62), density=True, histtype="step", linewidth=1.6, label=name)
axes.set_xlabel("entropy of the prediction (nats)")
axes.set_ylabel("density")
axes.legend()

# %% [markdown]
# Upside down, a 0 is a 0 and a 3 is nearly a 3: not all of them are foreign. What does the surest answer to a
# foreign image look like, and the least sure to a known one?

# %%
others = predictions["digits 5 to 9"]
sure, unsure = others.entropy.argsort()[:4], prediction.entropy.argsort(descending=True)[:4]
figure, several = plt.subplots(2, 4, figsize=(6.0, 3.6))
rows = [(x[~known][i, 0], others.probabilities[i]) for i in sure] + [
    (test_x[i, 0], prediction.probabilities[i]) for i in unsure
]
for axes, (image, p) in zip(several.flat, rows, strict=True):
    axes.imshow(image.numpy(), cmap="gray_r")
    axes.set_title(f"{int(p.argmax())}: {p.max():.0%}", fontsize=9)
    axes.set_axis_off()

# %% [markdown]
# Above: foreign digits that it is sure about. Below: known digits that it is least sure about.
#
# The same on MNIST and Fashion-MNIST, beside other methods, is in [LeNet-5 beside other methods](../lenet.md)
# and [Results](../results.md).
