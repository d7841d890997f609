"""One piece of work: what it is, where its pictures go, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Key = tuple[str, str, str, int | None, bool]


@dataclass(frozen=True)
class Job:
    """A method on a data set: all splits at once, or, for methods that are fitted one by one, a single split."""

    experiment: str
    name: str  # of the data set
    method: str
    split: int | None = None
    quick: bool = False
    #: Expected work, about a second of one core each: what the bar of a run advances by.
    cost: int = field(default=1, compare=False)
    #: For pictures; None: none are drawn.
    images: Path | None = field(default=None, compare=False)
    #: Of the paper's number of steps.
    share: float = field(default=1.0, compare=False)
    #: The file that it can be gone on from if it is killed; None: it is begun again.
    unfinished: Path | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return (self.experiment, self.name, self.method, self.split, self.quick)

    @property
    def title(self) -> str:
        """As a file may be called."""
        return "-".join([self.experiment, self.name, self.method, *([] if self.split is None else [str(self.split)])])


def key_of(line: Line) -> Key:
    """The key of the job that wrote the line."""
    return (line["experiment"], line["set"], line["method"], line["job_split"], line["quick"])


def stamped(job: Job, scores: list[Line]) -> list[Line]:
    """One line for each split of the job, with what is needed to find the job again and to see that it is complete."""
    first = 0 if job.split is None else job.split
    common = {
        "experiment": job.experiment,
        "set": job.name,
        "method": job.method,
        "job_split": job.split,
        "quick": job.quick,
        "share": job.share,
        "lines": len(scores),
    }
    return [common | {"split": first + k} | score for k, score in enumerate(scores)]
