"""Handwritten digits by one process or by several, on processors or GPUs, without a change of the script.

    python examples/distributed.py
    torchrun --nproc-per-node 2 examples/distributed.py

It saves its state on the way. Stop it and start it again, with another number of processes if you like: it goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import bali
from bali.predictive.mixtures import ClassPredictive


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256, help="rows of a step, on all processes together")
    parser.add_argument("--file", type=Path, default=Path("digits.bali"), help="the state of the run")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    device = bali.distributed.start()  # joins the processes that torchrun started; in a plain run, does nothing
    images, digits = load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32, device=device) / 16
    y = torch.as_tensor(digits, device=device)
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(device)
    train, test = mixed[:1400], mixed[1400:]

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    inference = bali.LayerwiseInference(
        network,
        bali.likelihoods.Categorical(),
        n_data=len(train),
        target_noise=False,
        generator=torch.Generator(device).manual_seed(1),
    )
    if options.file.exists():
        inference.load(options.file)
    while inference.state.step < options.steps:
        # Every process draws the same batch and takes its part of it.
        batches = torch.Generator().manual_seed(inference.state.step)
        chosen = train[torch.randperm(len(train), generator=batches)[: options.batch].to(device)]
        (rows,) = bali.distributed.shard(chosen)
        inference.step(x[rows], y[rows])
        if inference.state.step % 50 == 0 or inference.state.step == options.steps:
            inference.save(options.file)  # written by the first process

    if bali.distributed.rank() == 0:
        predictive = inference.predict(x[test], 64)
        assert isinstance(predictive, ClassPredictive)
        score = predictive.log_prob(y[test]).mean()
        right = (predictive.mean.argmax(-1) == y[test]).float().mean()
        taken = f"{bali.distributed.world_size()} processes, {inference.state.step} steps"
        print(f"{taken}: accuracy {right:.3f}, NLL {-score:.4f}")


if __name__ == "__main__":
    main()
