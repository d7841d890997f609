"""The one error of this package."""

from __future__ import annotations


class DataError(OSError):
    """A data set cannot be had; the message is one line and says what to do about it."""
