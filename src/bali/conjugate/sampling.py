"""Random draws, every one from an explicit generator."""

from collections.abc import Sequence

import torch
from torch import Tensor


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def chi_square(dof: Tensor, generator: torch.Generator | None) -> Tensor:
    """Rejection takes a number of draws that depends on `dof`; from a generator of their own, so that ours moves by one.

    What `torch.distributions.Chi2` calls, which hands no generator on.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=dof.device))
    own = torch.Generator(device=dof.device).manual_seed(seed)
    return 2.0 * torch._standard_gamma(0.5 * dof, own)
