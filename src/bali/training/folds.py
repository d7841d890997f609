"""Which rows each member of a mixture trains on, and which it is validated on."""

import numpy as np
from numpy.typing import NDArray

#: Copies of rows, on average, up to which each is held out or not by itself.
MOST_COPIES = 20


def merged_rows(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Distinct rows of X and y (n, D) in a fixed order, with the sum of their weights.

    A row given twice is thereby, to the last bit, a row with weight two, and the order of the rows does not matter.
    """
    rows, inverse = np.unique(np.column_stack([X, y]) + 0.0, axis=0, return_inverse=True)
    return rows[:, : X.shape[1]], rows[:, X.shape[1] :], np.bincount(inverse.ravel(), weights=weight).astype(np.float64)


def copies(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """How often each distinct row was given; once, where weights are no whole numbers or too large for that."""
    whole = bool((weight == np.round(weight)).all()) and weight.sum() <= MOST_COPIES * len(weight)
    return weight.astype(np.int64) if whole else np.ones(len(weight), dtype=np.int64)


def held_out_shares(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64], n_groups: int, share: float, seed: int
) -> NDArray[np.float64]:
    """(n_groups, n): the share of each distinct row's weight that a group holds out, about `share` of all in each.

    A row's place depends on the seed and on what stands in the row, not on where it stands, and a row given twice is a row
    with weight two. Of such a row one copy may be held out and the other one not: new rows repeat old ones as often as
    held-out rows do, and a score that leaves repetitions out is of other rows than those to come. Groups are disjoint. Where
    weights are no whole numbers, a row is held out whole.
    """
    times = copies(weight)
    row = np.repeat(np.arange(len(X)), times)
    number = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    columns = [X[row], y[row], number] if times.max() > 1 else [X, y]
    order = _random_rank(np.column_stack(columns), seed)
    n = int(order.max()) + 1
    held_out = min(max(round(share * n), 1), n // 2, n // n_groups)
    found = np.zeros((n_groups, len(X)))
    for group in range(n_groups):
        mine = (order >= group * held_out) & (order < (group + 1) * held_out)
        found[group] = np.bincount(row[mine], minlength=len(X)) / times
    return found


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
