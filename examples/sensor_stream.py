"""A sensor that drifts: batches are taken in without training until they are unlikely, then the network learns on.

    python examples/sensor_stream.py [--days 60]

A row is taken into the output layer in closed form. When `bali.DriftWatch` finds the stream changed, the network is
fitted to the last days with its own posterior as the prior, half of it faded.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import bali

#: Days that a new fit is made from, and when the sensor begins to age.
RECENT, AGES = 5, 30


def day(number: int, n: int = 40) -> tuple[Tensor, Tensor]:
    """Readings by temperature and load; the sensor reads too much when it is hot, more with every day that it ages."""
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(n, 2, generator=generator) * 2 - 1
    age = max(0, number - AGES) / 10
    noise = 0.1 * torch.randn(n, 1, generator=generator)
    return x, torch.sin(2 * x[:, :1]) * x[:, 1:] + 0.3 * age * x[:, :1].clamp_min(0) + noise


def several(days: list[int]) -> tuple[Tensor, Tensor]:
    x, y = zip(*(day(number) for number in days), strict=True)
    return torch.cat(x), torch.cat(y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


def main(days: int = 60, epochs: int | None = None) -> dict[str, object]:
    """The days on which drift was found, and the mean log-likelihood of each day's rows before they were taken in."""
    gaussian = bali.likelihoods.Gaussian()
    fitted = bali.fit(network(), several(list(range(-10, 0))), gaussian, epochs=epochs, seed=0, verbose=False)
    watch = bali.DriftWatch(fitted.predict, *several(list(range(-15, -10))))
    model = fitted.output_regression(day(0)[0])
    drifts: list[int] = []
    scores: list[float] = []
    for number in range(1, days + 1):
        x, y = day(number)
        scores.append(float(model.predict(x).log_prob(y).mean()))
        model = model.condition(x, y)
        if watch.update(x, y):
            print(f"day {number}: {watch}")
            drifts.append(number)
            recent = several(list(range(number - RECENT + 1, number + 1)))
            prior = fitted.as_prior(forget=0.5)
            fitted = bali.fit(network(), recent, gaussian, prior=prior, epochs=epochs, seed=number, verbose=False)
            watch, model = bali.DriftWatch(fitted.predict, *recent), fitted.output_regression(x)
    print(f"mean log-likelihood of {days} days: {sum(scores) / days:.3f}; drift on days {drifts}")
    return {"drifts": drifts, "scores": scores}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=None)
    main(**vars(parser.parse_args()))
