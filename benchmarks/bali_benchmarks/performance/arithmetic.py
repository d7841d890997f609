"""How many floating-point operations a step of BALI needs: the time of a step cannot be below theirs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def step_flops(sizes: Sequence[int], rows: int) -> dict[str, float]:
    """Operations of one step of one network with layer sizes (inputs, hidden ..., outputs), a multiply-add as two.

    With D inputs (the bias's column of ones included) and E outputs of a layer; a symmetric product needs one half of its
    entries only, and a triangular matrix has one half of zeros.
    """
    layers = [(n_in + 1, n_out) for n_in, n_out in itertools.pairwise(sizes)]
    n = rows
    return {
        "forward": sum(2 * n * d * e for d, e in layers),
        "backward": sum(2 * n * (d - 1) * e for d, e in layers[1:]),  # nothing needs the gradient of the data
        "moments": sum(n * d * (d + 1) + 2 * n * d * e + n * e * (e + 1) for d, e in layers),  # XᵀX, XᵀG, GᵀG
        "factors": sum((d**3 + e**3) / 3 for d, e in layers),  # of R⁻¹ and U
        "solves": sum(
            2 * d * d * e  # M: with the factor and its transpose
            + d * e * (e + 1)  # U
            + d * d * e  # the weight sample: its rows
            + d * e * e  # and its columns
            for d, e in layers
        ),
    }
