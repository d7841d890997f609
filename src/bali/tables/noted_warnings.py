"""Warnings that are meant for the user of a model, as sentences instead of lines of Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.exceptions import ConvergenceWarning

from bali.conjugate.linalg import NumericalRepairWarning
from bali.inference.health import HealthWarning

_FOR_USERS = (ConvergenceWarning, HealthWarning, NumericalRepairWarning)


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """A list that holds, afterwards, what the estimators warned of, each once. Other warnings go their usual way."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        for category in _FOR_USERS:
            warnings.simplefilter("always", category)
        yield notes
    for warning in caught:
        if issubclass(warning.category, _FOR_USERS):
            sentence = " ".join(str(warning.message).split())
            if sentence not in notes:
                notes.append(sentence)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
