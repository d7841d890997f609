"""A character-level LSTM with a posterior for its gates, beside Adam at the same number of steps.

    python examples/char_lstm.py [--steps 300]

Both train the same network on the same batches of a text that `bali.datasets.sentences` makes up. BALI's score is that of a
mixture over weight samples. The embedding, the LSTM's gates and the last layer all have posteriors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bali
from bali.datasets import sentences


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
    for x, y in batches(train, 64, steps):
        optimizer.zero_grad()
        cross_entropy(network(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(cross_entropy(network(validation[:, :-1]).flatten(0, 1), validation[:, 1:].flatten()))


def fit_bali(network: nn.Module, train: Tensor, validation: Tensor, steps: int) -> float:
    """The same, of a mixture over weight samples; the rate of the moving averages falls too, along a line."""
    inference = bali.LayerwiseInference(
        network,
        bali.likelihoods.Categorical(),
        n_data=len(train),
        step_size=0.3,
        ema_rate=lambda step: 1.0 - 0.9 * step / steps,
        target_noise=False,
        generator=torch.Generator().manual_seed(0),
    )
    for x, y in batches(train, 64, steps):
        inference.step(x, y)
    return -float(inference.predict(validation[:, :-1], 16).log_prob(validation[:, 1:].flatten()).mean())


def main(steps: int = 300, width: int = 64, length: int = 200_000, context: int = 32) -> dict[str, float]:
    train, validation, n_characters = windows(length, context)

    def network() -> nn.Module:
        torch.manual_seed(0)
        return CharLSTM(n_characters, width)

    found = {}
    for rate in (3e-3, 1e-2, 2e-2):
        start = time.perf_counter()
        found[f"Adam, rate {rate:g}"] = fit_adam(network(), train, validation, steps, rate)
        print(
            f"Adam, rate {rate:<6g} NLL {found[f'Adam, rate {rate:g}']:.4f}  {time.perf_counter() - start:.0f} s", flush=True
        )
    start = time.perf_counter()
    found["BALI"] = fit_bali(network(), train, validation, steps)
    print(f"BALI              NLL {found['BALI']:.4f}  {time.perf_counter() - start:.0f} s")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    main(parser.parse_args().steps)
