"""Predictions of rows by members that did not train on them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bali.predictive.mixtures import Predictive


class Part(NamedTuple):
    """Some held-out rows, predicted by the mixture of the members that hold them out."""

    predictive: Predictive
    y: Tensor
    weight: Tensor  # (n,)
