"""Parameters as users give them: what is no value for one is refused, with what would be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from bali.inference.prediction import MOST_SAMPLES
from bali.layers.modules import ACTIVATIONS


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
