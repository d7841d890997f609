"""A character-level transformer with a posterior for every projection, beside Adam at the same number of steps.

    python examples/char_transformer.py [--steps 300]

Both train the same network, made of torch's own encoder layers, on the same batches of a text that `bali.datasets.sentences`
makes up. Embeddings, attention, feed-forward layers and the last layer have posteriors; layer norms are trained by Adam in
the same steps, and in a second run of BALI the attention is too. BALI's score is that of a mixture over weight samples.
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


class CharTransformer(nn.Module):
    def __init__(self, n_characters: int, context: int, width: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(n_characters, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        h = self.encoder(self.embedding(x) + self.position(places), mask=self.mask, is_causal=True)
        return self.head(self.norm(h))


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


def fit_bali(network: nn.Module, train: Tensor, validation: Tensor, steps: int, exclude: list[str]) -> float:
    """The same, of a mixture over weight samples; the rate of the moving averages falls too, along a line."""
    inference = bali.LayerwiseInference(
        network,
        bali.likelihoods.Categorical(),
        n_data=len(train),
        effective_size=min(len(train), 3500),
        step_size=0.3,
        ema_rate=lambda step: 0.8 - 0.75 * step / steps,
        reparam="none",
        target_noise=False,
        exclude=exclude,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        generator=torch.Generator().manual_seed(0),
    )
    assert inference.others.optimizer is not None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(inference.others.optimizer, steps)
    for x, y in batches(train, 64, steps):
        inference.step(x, y)
        schedule.step()
    return -float(inference.predict(validation[:, :-1], 16).log_prob(validation[:, 1:].flatten()).mean())


def main(steps: int = 300, width: int = 64, length: int = 200_000, context: int = 32) -> dict[str, float]:
    train, validation, n_characters = windows(length, context)

    def network() -> nn.Module:
        torch.manual_seed(0)
        return CharTransformer(n_characters, context, width)

    found = {}
    for rate in (3e-3, 1e-2, 2e-2):
        start = time.perf_counter()
        found[f"Adam, rate {rate:g}"] = fit_adam(network(), train, validation, steps, rate)
        print(
            f"Adam, rate {rate:<6g} NLL {found[f'Adam, rate {rate:g}']:.4f}  {time.perf_counter() - start:.0f} s", flush=True
        )
    attention = [f"encoder.layers.{i}.self_attn" for i in range(2)]
    for name, exclude in {"BALI": [], "BALI, attention by Adam": attention}.items():
        start = time.perf_counter()
        found[name] = fit_bali(network(), train, validation, steps, exclude)
        print(f"{name}  NLL {found[name]:.4f}  {time.perf_counter() - start:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    main(parser.parse_args().steps)
