"""A vision transformer of two layers on 10,000 images of Fashion-MNIST, beside Adam.

    python examples/vision_transformer.py [--epochs 2] [--data fashion_mnist]

An image is a sequence of 16 patches. The patches' embedding is a linear layer; torch's own encoder layers follow, and the
mean over patches goes to the last layer. All of them have posteriors; layer norms and the places' vectors are trained beside
them. `bali.fit` has no settings here, and Adam, at two rates, takes as many steps as it took. With `--epochs` both are
shorter. Where Fashion-MNIST cannot be had, scikit-learn's digits, which are always there, take its place.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

import bali
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks import datasets

#: Images to train on, so that it takes minutes.
N_TRAIN = 10_000
#: Of Adam's batches, which is also what `bali.fit` chooses for so many.
BATCH = 256


class Images(NamedTuple):
    x_train: Tensor  # (n, 1, side, side)
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def images(name: str) -> Images:
    if name != "digits":
        try:
            split = datasets.load(name).split(0)
        except datasets.DataError as error:
            print(f"{error}\nUsing scikit-learn's digits instead.")
        else:
            parts = (split.X_train[:N_TRAIN], split.X_test)
            x, x_test = (torch.as_tensor(part).float().reshape(-1, 1, 28, 28) for part in parts)
            mean, std = x.mean(), x.std()
            y, y_test = torch.as_tensor(split.y_train[:N_TRAIN]).long(), torch.as_tensor(split.y_test).long()
            return Images((x - mean) / std, y, (x_test - mean) / std, y_test)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 8.0 - 1.0, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return Images(x[train], y[train], x[test], y[test])


class VisionTransformer(nn.Module):
    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.patch = side // 4
        self.embedding, self.place = nn.Linear(self.patch**2, width), nn.Parameter(0.1 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = unfold(x, self.patch, stride=self.patch).mT  # (n, 16, pixels of a patch)
        return self.head(self.norm(self.encoder(self.embedding(patches) + self.place)).mean(1))


def batches(x: Tensor, y: Tensor, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randint(len(x), (size,), generator=generator)
        yield x[rows], y[rows]


def fit_adam(network: nn.Module, data: Images, steps: int, rate: float) -> tuple[float, float]:
    """Test NLL and accuracy; the rate falls to zero along a cosine."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for x, y in batches(data.x_train, data.y_train, BATCH, steps):
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        logits = torch.cat([network(x) for x in data.x_test.split(1000)])
    return float(cross_entropy(logits, data.y_test)), float((logits.argmax(-1) == data.y_test).float().mean())


def fit_bali(network: nn.Module, data: Images, epochs: int | None) -> tuple[float, float, int]:
    """The same, of a mixture over weight samples, and the number of steps."""
    fitted = bali.fit(network, (data.x_train, data.y_train), bali.likelihoods.Categorical(), epochs=epochs, seed=0)
    predictive = fitted.predict(data.x_test, n_samples=16)
    assert isinstance(predictive, ClassPredictive)
    nll, accuracy = -bali.metrics.log_likelihood(predictive, data.y_test), bali.metrics.accuracy(predictive, data.y_test)
    return nll, accuracy, len(fitted.history.losses[0])


def main(epochs: int | None = None, data: str = "fashion_mnist", width: int = 64) -> dict[str, tuple[float, float]]:
    """Test NLL and accuracy of each."""
    loaded = images(data)
    found: dict[str, tuple[float, float]] = {}

    def network() -> nn.Module:
        torch.manual_seed(0)
        return VisionTransformer(loaded.x_train.shape[-1], width)

    def show(name: str, seconds: float) -> None:
        nll, accuracy = found[name]
        print(f"{name:<17} NLL {nll:.4f}  accuracy {accuracy:.4f}  {seconds:.0f} s", flush=True)

    start = time.perf_counter()
    *scores, steps = fit_bali(network(), loaded, epochs)
    found["BALI"] = (scores[0], scores[1])
    show("BALI", time.perf_counter() - start)
    for rate in (0.001, 0.003):
        start = time.perf_counter()
        found[f"Adam, rate {rate:g}"] = fit_adam(network(), loaded, steps, rate)
        show(f"Adam, rate {rate:g}", time.perf_counter() - start)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, help="at most so many; by default training stops by itself")
    parser.add_argument("--data", default="fashion_mnist", help="fashion_mnist, mnist or digits")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.data)
