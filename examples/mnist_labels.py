"""Labels for handwritten digits, bought ten at a time: those that `bali.active.query` asks for, and random ones.

    python examples/mnist_labels.py [--rounds 8] [--data mnist]

It begins with two labels of each digit, and holds a hundred more out. Where MNIST cannot be had, scikit-learn's digits,
which are always there, take its place: `--data digits`.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bali
from bali_benchmarks import datasets


def images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pool and its labels, test images and theirs; (n, 1, side, side)."""
    if name == "digits":
        x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
        parts = x[:1300], y[:1300], x[1300:], y[1300:]
    else:
        split = datasets.load(name).split(0)
        parts = tuple(torch.from_numpy(a) for a in (split.X_train, split.y_train, split.X_test, split.y_test))  # type: ignore[assignment]
    mean, deviation = parts[0].double().mean(), parts[0].double().std()
    side = round(parts[0][0].numel() ** 0.5)
    x_train, x_test = ((x.double() - mean).div(deviation).float().reshape(-1, 1, side, side) for x in parts[::2])
    return x_train, parts[1].long(), x_test, parts[3].long()


def network(side: int) -> nn.Module:
    torch.manual_seed(0)
    flat = 16 * (side // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(flat, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def main(rounds: int = 8, data: str = "mnist", epochs: int | None = None) -> dict[str, list[float]]:
    """Accuracies after each round."""
    pool, labels, x_test, y_test = images(data)
    held_out, order = slice(0, 100), torch.randperm(len(pool) - 100, generator=torch.Generator().manual_seed(0)) + 100
    first = torch.cat([order[labels[order] == digit][:2] for digit in range(10)])
    found: dict[str, list[float]] = {}
    for name in ("asked for", "at random"):
        chosen, found[name] = first, []
        for _ in range(rounds):
            fitted = bali.fit(
                network(pool.shape[-1]),
                (pool[chosen], labels[chosen]),
                bali.likelihoods.Categorical(),
                validation=(pool[held_out], labels[held_out]),
                epochs=epochs,
                seed=0,
                verbose=False,
            )
            found[name].append(float((fitted.predict(x_test).mean.argmax(1) == y_test).float().mean()))
            print(f"{len(chosen)} labels {name}: accuracy {found[name][-1]:.4f}")
            left = order[~torch.isin(order, chosen)][:3000]
            if name == "asked for":
                left = left[torch.from_numpy(bali.active.query(fitted, pool[left], 10, "batchbald", n_samples=64))]
            chosen = torch.cat([chosen, left[:10]])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument("--epochs", type=int, default=None)
    main(**vars(parser.parse_args()))
