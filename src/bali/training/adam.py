"""Adam (Kingma and Ba, 2015) for one tensor: a few numbers that a fit needs beside its networks.

torch's own imports the compiler when the first one is made. That takes a second, longer than what it is needed for here.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Adam:
    def __init__(self, like: Tensor, rate: float, betas: tuple[float, float]) -> None:
        self.rate, self.betas, self.n_steps = rate, betas, 0
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)  # moments of the gradients

    def step(self, gradient: Tensor, share: float = 1.0) -> Tensor:
        """What to add to make a function with this gradient larger, by this share of the rate."""
        self.n_steps += 1
        keep_first, keep_second = self.betas
        self.first.lerp_(gradient, 1.0 - keep_first)
        self.second.lerp_(gradient.square(), 1.0 - keep_second)
        spread = (self.second / (1.0 - keep_second**self.n_steps)).sqrt()
        return self.first * (share * self.rate / (1.0 - keep_first**self.n_steps)) / (spread + 1e-8)
