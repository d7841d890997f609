"""What a training is to do; `bali.estimators.defaults` makes one for a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How long and how to train."""

    max_steps: int
    batch_size: int = 2048
    ema_rate: float = 0.3  # at the start
    phase_ends: tuple[float, ...] = (0.5, 0.7, 0.85)  # shares of `max_steps` after which a phase is over in any case
    decay: float = 0.3  # of step size and moving-average rate, from phase to phase: steps are a noise on the weights too
    momentum: float = 0.0
    averaging: float = 1.0  # rate of the averages of the means; 1 keeps the last ones
    warm_up: float = 0.0  # share of `max_steps` in which the step size grows from nothing
    check_every: int = 25
    check_growth: float = 0.06  # checks are apart by at least this share of the steps done: late steps change little
    patience: int = 4  # checks without an improvement of `tolerance` that end a candidate's phase
    tolerance: float = 1e-3
    last_gain: float = 0.05  # of the last phase, above which more steps are advised
    n_samples: int = 8  # weight samples of each member for a check

    def checks_at(self, step: int) -> bool:
        """Early steps change most, so they are looked at more often."""
        apart = self.check_every * max(1, round(self.check_growth * step / self.check_every))
        return step % apart == 0 or step in (5, 10, 15, 20) or step == self.max_steps
