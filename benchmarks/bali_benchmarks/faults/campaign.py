"""Many tries with faults that a seed decides, and what came of them.

A subject is one function: from a seed and an empty folder to a word for the outcome, such as "refused". What it raises is a
failure, and the seed says how to see it again.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    """What came of a try, and what it took, such as seconds."""

    word: str
    took: Mapping[str, float] = {}


Subject = Callable[[int, Path], str | Outcome]


class FaultError(AssertionError):
    """Something went wrong that should not have; the message says what."""


@dataclass
class Campaign:
    subject: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)  # by seed
    seconds: float = 0.0
    most: dict[str, float] = field(default_factory=dict)  # of what the tries took

    @property
    def n_tries(self) -> int:
        return self.outcomes.total() + len(self.failures)

    def __str__(self) -> str:
        found = ", ".join(f"{n:,} {outcome}" for outcome, n in self.outcomes.most_common())
        lines = [f"{self.subject}: {self.n_tries:,} tries in {self.seconds:.0f} s: {found}; {len(self.failures):,} failed"]
        lines += [f"  at most {amount:.3g} {what}" for what, amount in self.most.items()]
        lines += [f"  seed {seed}: {what}" for seed, what in self.failures.items()]
        return "\n".join(lines)


def run(name: str, subject: Subject, n_tries: int, seconds: float, first_seed: int = 0) -> Campaign:
    """At most so many tries, none of them begun after so many seconds."""
    campaign, started = Campaign(name), time.perf_counter()
    for seed in range(first_seed, first_seed + n_tries):
        if time.perf_counter() - started > seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = subject(seed, Path(folder))
                outcome = told if isinstance(told, Outcome) else Outcome(told)
                campaign.outcomes[outcome.word] += 1
                for what, amount in outcome.took.items():
                    campaign.most[what] = max(amount, campaign.most.get(what, amount))
            except Exception as error:
                campaign.failures[seed] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    campaign.seconds = time.perf_counter() - started
    return campaign
