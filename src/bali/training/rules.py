"""The rules of `bali.fit`: how fast to go, how strong the prior is, when to stop. docs/networks.md has the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bali.inference.joint import Pace
from bali.layers.layer import Layer

#: Layers of more inputs or outputs are cut into blocks, each with factors of its own: a step then costs about what Adam's
#: does however wide they are, and on MNIST it is not worse.
MAX_BLOCK = 600
#: Multiplications in the forward passes of a wait that is cheap, and how many times longer than usual it may be for that.
_CHEAP, _LONGER = 2.5e9, 4


@dataclass(frozen=True)
class Rules:
    """Numbers that serve every network; a factor of three either way costs little."""

    step_size: float = 1.0  # α of a single layer; L layers have a share of 1/L each, as their steps add up in the outputs
    kl_bound: float = 2e-3  # nats an observation that a step may change the outputs by
    momentum: float = 0.9
    rate: float = 0.05
    damping: float = 0.3
    prior_variance: float = 10.0  # of a weight, times the number of its fellows (as the paper's σ_r²)
    prior_steps: int = 200  # in which the prior's pull grows: a deep network must first have gradients to hold against it
    others_rate: float = 3e-3  # of Adam, for parameters without a posterior
    fall: float = 0.3  # of steps, from phase to phase
    phases: int = 4
    patience: int = 500  # steps without a gain that end a phase, or more where they are cheap
    least_gain: float = 3e-4  # of the score, in nats

    def pace(self, n_layers: int, phase: int, step: int, observations: int = 1) -> Pace:
        """`observations` are those of an example."""
        fall = self.fall**phase
        prior_share = min(1.0, (step + 1) / self.prior_steps)
        step_size = self.step_size / n_layers * fall
        kl_bound = self.kl_bound * observations * fall**2
        return Pace(step_size, kl_bound, self.momentum, self.rate, self.damping, prior_share)

    def patience_for(self, multiplications: float) -> int:
        """Steps without a gain that end a phase, of a step's multiplications. A gain may come late, as a network may find a
        law after it has learnt noise, and waiting for it costs little where steps are cheap."""
        return round(min(max(self.patience, _CHEAP / multiplications), _LONGER * self.patience))

    def prior_variance_of(self, layer: Layer) -> float:
        return self.prior_variance / fellows(layer)


def fellows(layer: Layer) -> int:
    """Weights that an output is a sum of; a token has a single one in its row."""
    return 1 if layer.has_tokens else layer.fan_in + 1


def batch_size(n_examples: int, observations: int = 1) -> int:
    """Sixteen batches an epoch at least, as small ones generalise; no more than 512 observations, as what a step gains from
    more is less than they cost; and no fewer than 32 examples, of which those of one example are not independent."""
    return max(32, min(512 // observations, n_examples // 16))


def steps_between_scores(n_examples: int, size: int) -> int:
    """An epoch, but at least 50 steps, as the averages remember about that many, and at most 100."""
    return max(50, min(math.ceil(n_examples / size), 100))
