"""What labels of a classification would tell: mutual information from the class probabilities under weight samples.

Labels chosen before are not known. By the chain rule, what the next one tells given them is the mean, over what they may be,
of what it tells once they are: they are drawn from the model, and each draw weighs the weight samples by its likelihood.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Draws of the labels chosen before; for "epig", whose cost is that of rows times target rows, fewer.
_DRAWS, _DRAWS_EPIG = 128, 8
#: Numbers of a product at once.
_AT_ONCE = 2**24


class ClassInformation:
    def __init__(self, pool: Tensor, target: Tensor, generator: torch.Generator) -> None:
        self.pool, self.target = pool, target  # (S, n, C), (S, m, C)
        n_samples = len(pool)
        self._entropies = _entropy(pool)  # (S, n)
        # Whose weight sample each draw is of, and how likely its labels are under all samples.
        self._truth = torch.arange(_DRAWS) % n_samples
        self._truth = self._truth[torch.randperm(_DRAWS, generator=generator)].to(pool.device)
        self._log_weights = torch.zeros(_DRAWS, n_samples, dtype=pool.dtype, device=pool.device)
        self._generator, self._chosen = generator, 0

    def variance(self) -> Tensor:
        raise ValueError("method 'variance' is for numbers; for classes take 'epig', 'batchbald' or 'bald'")

    def _weights(self, most: int) -> Tensor:
        """(K, S), each summing to one: a single one before anything is chosen."""
        return self._log_weights[: most if self._chosen else 1].softmax(-1)

    def bald(self) -> Tensor:
        weights = self._weights(_DRAWS)
        s, n, c = self.pool.shape
        total = torch.zeros(n, dtype=self.pool.dtype, device=self.pool.device)
        at_once = max(1, _AT_ONCE // (n * c))
        for start in range(0, len(weights), at_once):
            some = weights[start : start + at_once]
            mixed = (some @ self.pool.reshape(s, -1)).reshape(len(some), n, c)
            total += (_entropy(mixed) - some @ self._entropies).sum(0)
        return total / len(weights)

    def epig(self) -> Tensor:
        weights = self._weights(_DRAWS_EPIG)
        (s, n, c), m = self.pool.shape, self.target.shape[1]
        target = self.target.reshape(s, -1)  # (S, m C)
        at_once = max(1, _AT_ONCE // (m * c * c))
        total = torch.zeros(n, dtype=self.pool.dtype, device=self.pool.device)
        for weight in weights:
            weighted = target * weight[:, None]
            of_target = _entropy(weighted.sum(0).reshape(m, c)).mean()
            for start in range(0, n, at_once):
                part = self.pool[:, start : start + at_once]
                rows = part.shape[1]
                joint = (part.reshape(s, -1).mT @ weighted).reshape(rows, c, m, c)
                of_both = torch.special.entr(joint).sum((1, 3)).mean(1)
                mixed = torch.einsum("s,snc->nc", weight, part)
                total[start : start + at_once] += _entropy(mixed) + of_target - of_both
        return total / len(weights)

    def choose(self, row: int) -> None:
        p = self.pool[:, row]  # (S, C)
        labels = torch.multinomial(p[self._truth].cpu(), 1, generator=self._generator)[:, 0].to(p.device)
        tiny = torch.finfo(p.dtype).tiny
        self._log_weights = self._log_weights + p.clamp_min(tiny).log().mT[labels]
        self._chosen += 1


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
