"""How many threads to give torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

# Below this width, threads wait for each other longer than they compute; on a busy machine many times longer.
_WIDE = 128


@contextmanager
def threads_for(layer_sizes: Sequence[int]) -> Iterator[None]:
    """One thread for networks of small layers, torch's own setting for others; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if max(layer_sizes) < _WIDE else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
