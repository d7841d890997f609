"""Debiased moving averages: their rate, written once, and one step of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class DebiasedRate:
    """The weight of the newest value in a debiased exponential moving average.

    Ψ_t = (1−β_t)Ψ_{t−1} + β_t v_t with Ψ_0 = 0 has total weight b_t = 1 − Π(1−β_s). The debiased average Ψ_t/b_t is
    itself a moving average with rate β_t/b_t, so neither Ψ nor the division need to be kept: `newest` is that
    rate, and every average of one inference is updated by `average.lerp(new, rate)`. The first rate is 1.

    The average is a weighted mean over all rows seen, whose weights sum to 1. Where a value is the mean of `rows` rows,
    each has the value's weight over `rows`; the sum of their squares follows a recursion of its own and tells how many
    rows of equal weight the average is worth.
    """

    weight: float = 0.0  # b_t
    squares: float = 0.0  # Σ of the squared weights of all rows in the debiased average
    newest: float = field(default=0.0, compare=False)  # ρ: the weight of the newest value, which none after it depends on

    def advanced(self, rate: float, rows: float = 1.0) -> DebiasedRate:
        """After one more value, the mean of so many rows, that came in with rate β."""
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"ema_rate must be in (0, 1], got {rate}")
        weight = self.weight + rate * (1.0 - self.weight)  # 1 − (1−b)(1−β), exact at the first step
        newest = rate / weight
        return DebiasedRate(weight, (1.0 - newest) ** 2 * self.squares + newest**2 / rows, newest)

    @property
    def effective_rows(self) -> float:
        """(Σw)²/Σw²: as many equally weighted, independent rows give a mean of the same variance (Kish)."""
        return 1.0 / self.squares if self.squares else 0.0


def averaged(old: Tensor | None, new: Tensor, rate: float) -> Tensor:
    """One step of a moving average whose first value is the first observation."""
    return new if old is None or rate == 1.0 else old.lerp(new, rate)


def averaged_into(old: Tensor | None, new: Tensor, rate: float) -> Tensor:
    """`averaged`, written over the new value where it has room for it."""
    if old is None or rate == 1.0 or old.shape != new.shape:
        return averaged(old, new, rate)
    return new.lerp_(old, 1.0 - rate)
