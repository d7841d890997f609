"""Random draws, every one from an explicit generator."""

from collections.abc import Sequence

import torch
from torch import Tensor


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def chi_square(dof: Tensor, generator: torch.Generator | None) -> Tensor:
    """torch's gamma sampler takes no generator, so it runs on a forked global state that is seeded from ours."""
    seed = int(torch.randint(2**62, (), generator=generator, device=dof.device))
    with torch.random.fork_rng(devices=[] if dof.device.type == "cpu" else [dof.device]):
        torch.manual_seed(seed)
        return torch.distributions.Chi2(dof).sample()
