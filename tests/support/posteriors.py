"""One way to compare posteriors: by mean, precision, scale and degrees of freedom of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from support.tolerances import BITS


class HasPosteriors(Protocol):
    """An inference, its state, or what predicts."""

    @property
    def posteriors(self) -> Mapping[str, MNIW]: ...


def parts(posterior: MNIW) -> dict[str, Tensor]:
    """The numbers of a posterior, by name."""
    return {
        "mean": posterior.mean,
        "precision": posterior.precision.dense(),
        "scale": posterior.scale,
        "dof": torch.as_tensor(posterior.dof, dtype=torch.float64),
    }


def assert_same_posterior(first: MNIW, second: MNIW, tolerance: float = BITS, *, of: str = "") -> None:
    """All parts agree in shape, type and value; with a tolerance of zero, bit for bit."""
    other = parts(second)
    for name, one in parts(first).items():
        assert one.shape == other[name].shape, f"{name}{of}: shapes {tuple(one.shape)} and {tuple(other[name].shape)}"
        message = f"{name}{of}: largest difference {float((one - other[name]).abs().max()):g}"
        torch.testing.assert_close(one, other[name], rtol=tolerance, atol=tolerance, msg=message)


def assert_same_posteriors(first: HasPosteriors, second: HasPosteriors, *, tolerance: float = BITS) -> None:
    """`assert_same_posterior` for every layer."""
    assert list(first.posteriors) == list(second.posteriors)
    for name, one in first.posteriors.items():
        assert type(one.precision) is type(second.posteriors[name].precision)
        assert_same_posterior(one, second.posteriors[name], tolerance, of=f" of layer {name}")


def assert_same_members(stacked: HasPosteriors, alone: Mapping[int, HasPosteriors], tolerance: float) -> None:
    """The members of a stack with these numbers, each as an inference of its own."""
    for k, one in alone.items():
        assert list(stacked.posteriors) == list(one.posteriors)
        for name, posterior in one.posteriors.items():
            assert_same_posterior(
                member(stacked.posteriors[name], k), posterior, tolerance, of=f" of layer {name}, member {k}"
            )


def member(posterior: MNIW, k: int) -> MNIW:
    """One of a batch of posteriors, which may share their precision."""
    precision = posterior.precision.dense()
    own = precision[k] if precision.dim() > 2 else precision
    dof = posterior.dof[k] if isinstance(posterior.dof, Tensor) and posterior.dof.dim() else posterior.dof
    return MNIW(posterior.mean[k], own, posterior.scale[k], dof)
