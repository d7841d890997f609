"""MNIST with its pixels in another order in every task, one network for all of them, and no row kept.

    python examples/permuted_mnist.py [--tasks 5] [--rows 10000] [--data mnist]

The posterior of a task is the prior of the next. Beside it, training that goes on from the last weights, which forgets.
Where MNIST cannot be had, scikit-learn's digits, which are always there, take its place: `--data digits`.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bali
from bali.training.fitted import Fitted
from bali_benchmarks import datasets


def digits(name: str, n_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training rows and labels, test rows and labels."""
    if name == "digits":
        x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
        parts = x[:1300], y[:1300], x[1300:], y[1300:]
    else:
        split = datasets.load(name).split(0)
        arrays = (split.X_train, split.y_train, split.X_test, split.y_test)
        parts = tuple(torch.from_numpy(a) for a in arrays)  # type: ignore[assignment]
    mean, deviation = parts[0].double().mean(), parts[0].double().std()
    x_train, x_test = ((x.double() - mean).div(deviation).float() for x in parts[::2])
    return x_train[:n_rows], parts[1][:n_rows].long(), x_test, parts[3].long()


def network(n_inputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(n_inputs, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )  # fmt: skip


def main(tasks: int = 5, rows: int = 10_000, data: str = "mnist", epochs: int | None = None) -> dict[str, list[float]]:
    """Accuracies on all tasks after the last, with the posterior as prior and without."""
    x, y, x_test, y_test = digits(data, rows)
    d = x.shape[1]
    orders = [torch.arange(d), *(torch.randperm(d, generator=torch.Generator().manual_seed(t)) for t in range(1, tasks))]
    found: dict[str, list[float]] = {}
    for name in ("posterior as prior", "from the last weights"):
        fitted: Fitted | None = None
        for task, order in enumerate(orders):
            keeps = name == "posterior as prior"
            module = network(d) if keeps or fitted is None else fitted.module
            fitted = bali.fit(
                module,
                (x[:, order], y),
                bali.likelihoods.Categorical(),
                prior=fitted if keeps else None,
                epochs=epochs,
                seed=task,
                verbose=False,
            )
            scores = [
                float((fitted.predict(x_test[:, o]).mean.argmax(1) == y_test).float().mean()) for o in orders[: task + 1]
            ]
            print(f"{name}, {task + 1} tasks: mean accuracy {sum(scores) / len(scores):.4f}, of the first {scores[0]:.4f}")
        found[name] = scores
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument("--epochs", type=int, default=None)
    main(**vars(parser.parse_args()))
