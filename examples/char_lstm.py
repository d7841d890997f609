"""A character-level LSTM with a posterior for its gates, beside Adam.

    python examples/char_lstm.py [--epochs 5]

Both train the same network on a text that `bali_benchmarks.datasets.sentences` makes up. The embedding, the LSTM's gates and
the last layer all have posteriors, and the score is that of a mixture over weight samples. `bali.fit` has no settings here,
and Adam, at three rates, takes as many steps as it took. With `--epochs` both are shorter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bali
from bali_benchmarks.datasets import sentences

#: Windows of Adam's batches, which is also what `bali.fit` chooses for so many.
BATCH = 256


class CharLSTM(nn.Module):
    def __init__(self, n_characters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_characters, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, n_characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


def windows(length: int, context: int) -> tuple[Tensor, Tensor, int]:
    """Windows of context + 1 characters for training and validation, and the number of different characters."""
    text = sentences(length, seed=0)
    characters = sorted(set(text))
    codes = torch.tensor([characters.index(c) for c in text])
    split = int(0.9 * length)
    train, validation = (part.unfold(0, context + 1, context) for part in (codes[:split], codes[split:]))
    return train, validation, len(characters)


def batches(rows: Tensor, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = rows[torch.randint(len(rows), (size,), generator=generator)]
        yield batch[:, :-1], batch[:, 1:]


def fit_adam(network: nn.Module, train: Tensor, validation: Tensor, steps: int, rate: float) -> float:
    """Validation NLL per character, in nats; the rate falls to zero along a cosine."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for x, y in batches(train, BATCH, steps):
        optimizer.zero_grad()
        cross_entropy(network(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(cross_entropy(network(validation[:, :-1]).flatten(0, 1), validation[:, 1:].flatten()))


def fit_bali(network: nn.Module, train: Tensor, validation: Tensor, epochs: int | None) -> tuple[float, int]:
    """The same, of a mixture over weight samples, and the number of steps."""
    fitted = bali.fit(network, (train[:, :-1], train[:, 1:]), bali.likelihoods.Categorical(), epochs=epochs, seed=0)
    predictive = fitted.predict(validation[:, :-1])
    return -bali.metrics.log_likelihood(predictive, validation[:, 1:].flatten()), len(fitted.history.losses[0])


def main(epochs: int | None = None, width: int = 64, length: int = 200_000, context: int = 32) -> dict[str, float]:
    train, validation, n_characters = windows(length, context)
    found: dict[str, float] = {}

    def network() -> nn.Module:
        torch.manual_seed(0)
        return CharLSTM(n_characters, width)

    def show(name: str, seconds: float) -> None:
        print(f"{name:<17} NLL {found[name]:.4f}  {seconds:.0f} s", flush=True)

    start = time.perf_counter()
    found["BALI"], steps = fit_bali(network(), train, validation, epochs)
    show("BALI", time.perf_counter() - start)
    for rate in (3e-3, 1e-2, 2e-2):
        start = time.perf_counter()
        found[f"Adam, rate {rate:g}"] = fit_adam(network(), train, validation, steps, rate)
        show(f"Adam, rate {rate:g}", time.perf_counter() - start)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, help="at most so many; by default training stops by itself")
    main(parser.parse_args().epochs)
