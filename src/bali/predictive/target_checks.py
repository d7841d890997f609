"""Observations brought to the shape of the network's outputs, and errors that say which rows cannot be such."""

from __future__ import annotations

from torch import Tensor


def n_columns(y: Tensor) -> int:
    return 1 if y.dim() < 2 else y.shape[-1]


def columns_for(y: Tensor, z: Tensor, n_targets: int) -> Tensor:
    """y with the leading dimensions of z; a missing first dimension is one that all members share."""
    shape = (*z.shape[:-1], n_targets)
    shapes = (shape, shape[1:]) if z.dim() > 2 else (shape,)
    if y.shape not in shapes and n_targets == 1:
        y = y.unsqueeze(-1)
    if y.shape not in shapes:
        raise shape_error(y, z, n_targets)
    return y


def shape_error(y: Tensor, z: Tensor, n_targets: int | None = None) -> ValueError:
    wanted = "" if n_targets is None or n_targets == z.shape[-1] else f", which are for {n_targets} columns of y"
    return ValueError(
        f"y has shape {tuple(y.shape)}, which does not fit the network's output of shape {tuple(z.shape)}{wanted}"
    )


def refuse(bad: Tensor, y: Tensor, rule: str) -> None:
    """An error with the rule and the first rows that break it, if there are any."""
    if not bool(bad.any()):
        return
    rows = bad.reshape(-1, bad.shape[-1]).any(-1).nonzero()[:, 0]
    first = y.reshape(-1, y.shape[-1])[rows[0]]
    shown = ", ".join(str(int(row)) for row in rows[:5]) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
    value = ", ".join(f"{float(v):g}" for v in first)
    raise ValueError(f"{rule}; row{'s' if len(rows) > 1 else ''} {shown} of y (from 0): the first has {value}")
