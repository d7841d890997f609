"""How the estimators set their hyperparameters from the size of a table. docs/defaults.md has the measurements."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from bali.inference.health import HealthWarning
from bali.inference.prediction import MOST_SAMPLES
from bali.layers.modules import ACTIVATIONS
from bali.training.stack_course import CourseRules

#: With fewer distinct rows, what is held out is a row or two.
FEW_ROWS = 10
#: From so many columns on, columns are like pixels: one alone says little, and bins of each would be thousands of inputs.
MANY_COLUMNS = 100
#: Rows that a bin should have at least, bins of all columns together at most, and those below which they are not tried.
ROWS_PER_BIN, MOST_BINS, LEAST_BINS = 10, 320, 4
#: With fewer rows of classes near ones were not measured; from the larger number on, looking for them costs more than
#: learning.
LEAST_NEAR, MOST_NEAR = 1000, 50_000
#: Targets, or classes, that near rows' averages are shown of.
MOST_NEAR_TARGETS = 10
#: So few columns are few.
FEW_COLUMNS = 3
#: From so many rows on, there is more to learn than a small network can.
MORE_ROWS = 5000
#: From so many rows on, rows for training are not scarce: all members hold out the same ones.
MANY_ROWS = 10_000
#: Members of each way that is trained again by precision: ways are few by then, and noise by row is learnt from held-out
#: rows, of which more members have more.
MEMBERS_BY_PRECISION = 10
#: Of a course: members that have seen few rows often still differ by how they began.
LEAST_STEPS = 500
#: Of the rows that members share.
MOST_HELD_OUT = 5000


def warn_of_few_rows(n_distinct: int) -> None:
    if n_distinct < FEW_ROWS:
        warnings.warn(
            f"fitted to {n_distinct} distinct row{'' if n_distinct == 1 else 's'}: so few can tell neither how good the "
            "predictions are nor how far off they may be",
            HealthWarning,
            stacklevel=4,
        )


def hidden_layer_sizes(n_rows: int, n_columns: int) -> tuple[int, ...]:
    """Two hidden layers, wider where there is more to learn from."""
    if n_columns >= MANY_COLUMNS:
        return (256, 256)
    return (64, 64) if n_rows < MORE_ROWS else (128, 128)


def bins(n_rows: int, n_columns: int) -> tuple[int, ...]:
    """Encodings to try, by the number of a column's bins. A bin needs rows to tell its slope, and all bins together cost a
    step its time."""
    most = 16 if n_rows < MORE_ROWS else 32
    found = min(most, n_rows // ROWS_PER_BIN, MOST_BINS // n_columns)
    return (0,) if n_columns >= MANY_COLUMNS or found < LEAST_BINS else (0, found)


def tries_near_rows(n_rows: int, n_columns: int, n_outputs: int, *, has_classes: bool) -> bool:
    """Whether what near rows say is a way of seeing the table that is tried; of numbers, the noise goes by it, too."""
    least = LEAST_NEAR if has_classes else FEW_ROWS + 1
    return least <= n_rows <= MOST_NEAR and n_columns < MANY_COLUMNS and n_outputs <= MOST_NEAR_TARGETS


def prior_factors(n_columns: int) -> tuple[float, ...]:
    """Times which the prior variance is tried: functions of few variables can be rough and still be learnt."""
    return (1.0, 100.0) if n_columns <= FEW_COLUMNS else (1.0,)


def groups(n_rows: int) -> int:
    """Of held-out rows. Few rows are better used by some of the members than by none."""
    return 1 if n_rows >= MANY_ROWS else members(n_rows) // 2


def held_out_share(n_rows: int) -> float:
    """Of the rows, in each group."""
    return min(0.1, MOST_HELD_OUT / n_rows)


def members(n_rows: int) -> int:
    """Of each candidate. Small tables gain most from a mixture, and it costs them least."""
    if n_rows >= MANY_ROWS:
        return 4
    return 10 if n_rows < MORE_ROWS else 6


def course(n_rows: int) -> CourseRules:
    """More rows tell more, which takes longer to learn, but ever less."""
    n_steps = max(LEAST_STEPS, round(1000 * (n_rows / 1000) ** (1 / 3)))
    return CourseRules(n_steps=n_steps, batch_size=128 if n_rows < MORE_ROWS else 256)


# --- parameters as users give them: what is no value for one is refused, with what would be ---------------------------


def check_parameters(given: Mapping[str, Any]) -> None:
    """Those of an estimator by their names."""
    if given["activation"] not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {given['activation']!r}")
    for name in ("n_members", "n_samples", "max_iter", "batch_size"):
        value = given[name]
        if value is not None and not (value >= 1 and float(value).is_integer()):
            raise ValueError(f"{name} must be at least 1 and whole, got {value}")
    n_jobs, n_samples = given["n_jobs"], given["n_samples"]
    if n_jobs is not None and not (n_jobs == -1 or (n_jobs >= 1 and float(n_jobs).is_integer())):
        raise ValueError(f"n_jobs must be at least 1 and whole, or -1 for all cores; got {n_jobs}")
    if n_samples > MOST_SAMPLES:
        raise ValueError(f"n_samples must be at most {MOST_SAMPLES:,}, got {n_samples}: more change no prediction")
    for name in ("step_size", "prior_variance"):
        value = given[name]
        if callable(value) or not value > 0:
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    try:
        torch.zeros(1, device="cpu" if given["device"] == "auto" else given["device"])
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's own messages list every kind of device
        raise ValueError(f"device must be 'auto', 'cpu' or another that torch has here, got {given['device']!r}") from error
    if given["near_rows"] not in (None, True, False):
        raise ValueError(f"near_rows must be True, False or None, got {given['near_rows']!r}")
    if given["n_bins"] is not None and given["n_bins"] < 0:
        raise ValueError(f"n_bins must be 0 or more, got {given['n_bins']}")
    fraction = given["validation_fraction"]
    if fraction is not None and not 0.0 <= fraction < 1.0:
        raise ValueError(f"validation_fraction must lie between 0 and 1, got {fraction}")


def n_threads(n_jobs: int | None) -> int:
    """scikit-learn's convention, where −1 is one for each core; None is as many as torch uses."""
    if n_jobs is None:
        return torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if n_jobs == -1 else max(1, int(n_jobs))
