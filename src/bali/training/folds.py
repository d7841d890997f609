"""Which rows each member of a mixture trains on, and which it is validated on."""

import numpy as np
from numpy.typing import NDArray

# Of each member: more rows tell its score no better, but take longer to predict at every check.
MAX_HELD_OUT = 2000
# Of all together, where they share them.
MAX_SHARED = 5000


def merged_rows(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Distinct rows of X and y (n, D) in a fixed order, with the sum of their weights.

    A row given twice is thereby, to the last bit, a row with weight two, and the order of the rows does not matter.
    """
    rows, inverse = np.unique(np.column_stack([X, y]) + 0.0, axis=0, return_inverse=True)
    return rows[:, : X.shape[1]], rows[:, X.shape[1] :], np.bincount(inverse.ravel(), weights=weight).astype(np.float64)


def validation_masks(
    X: NDArray[np.float64], y: NDArray[np.float64], n_members: int, fraction: float, seed: int, *, shared: bool = False
) -> NDArray[np.bool_]:
    """(n_members, n) masks of validation rows.

    A row's place depends on the seed and on what stands in the row, not on where it stands. Repeated rows therefore
    stay together (a copy of a training row validates nothing), and a row given twice is a row with weight two. Several
    members hold out disjoint parts, so that between them they see every row, or all the same one if it is `shared`. Where
    distinct rows are fewer than members, some members hold out the same ones.
    """
    order = _random_rank(np.column_stack([X, y]), seed)
    n_distinct = int(order.max()) + 1
    n_parts = 1 if shared else min(n_members, n_distinct)
    wanted = min(max(round(fraction * n_distinct), 1), MAX_SHARED if shared else MAX_HELD_OUT)
    held_out = min(wanted, n_distinct // 2, n_distinct // n_parts)
    starts = held_out * (np.arange(n_members) % n_parts)[:, None]
    return (order >= starts) & (order < starts + held_out)


def _random_rank(rows: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """A random order of the distinct rows, by hashing their bits; equal rows have equal rank."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # + 0.0 turns −0 into 0
    hashed = np.full(len(bits), (seed * 0x9E3779B97F4A7C15 + 1) % 2**64, dtype=np.uint64)
    for column in bits.T:
        hashed = _mix(hashed ^ column)
    rank: NDArray[np.intp] = np.unique(hashed, return_inverse=True)[1]
    return rank


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijective scrambling of 64 bits by xor-shifts and odd multipliers."""
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xA0761D6478BD642F)
    return h ^ (h >> np.uint64(32))
