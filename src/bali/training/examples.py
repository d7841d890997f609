"""The data that `bali.fit` is given, whatever they are, as examples that can be taken by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from bali.inference.frozen import FrozenBody
from bali.inference.inputs import Inputs, n_rows, on, rows, tensors

#: Numbers of features that are kept.
_MOST_FEATURES = 2**27


class Examples(Protocol):
    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """x and y of the examples with these numbers."""


@dataclass(frozen=True)
class InMemory:
    x: Inputs
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return rows(self.x, index.to(self.y.device)), self.y[index.to(self.y.device)]


@dataclass(frozen=True)
class FromDataset:
    """Items are read when they are wanted."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    device: torch.device
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        x, y = as_pair(self.collate([self.dataset[i] for i in index.tolist()]))
        return _converted(x, y, self.device, self.dtype)


@dataclass(frozen=True)
class Part:
    """Some of the examples."""

    whole: Examples
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.whole.take(self.index[index])


@dataclass(frozen=True)
class WithFeatures:
    """Examples whose features behind a frozen body are known, and are given to it when they are taken."""

    whole: Examples
    body: FrozenBody
    features: Tensor

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        self.body.given = self.features[index.to(self.features.device)]
        return self.whole.take(index)


def with_features(examples: Examples, body: FrozenBody) -> Examples | None:
    """The features of all examples, each computed once; None where they are too many, or examples are not always the same,
    as with random augmentation."""
    few = torch.arange(min(4, len(examples)))
    first, again = (tensors(examples.take(few)[0]) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return None
    if body.features(examples.take(few)[0])[0].numel() * len(examples) > _MOST_FEATURES:
        return None
    parts = (examples.take(index)[0] for index in torch.split(torch.arange(len(examples)), 256))
    return WithFeatures(examples, body, torch.cat([body.features(part) for part in parts]))


def as_examples(data: Any, device: torch.device, dtype: torch.dtype) -> tuple[Examples, int | None]:
    """The examples of `data`, and the batch size that a DataLoader asks for."""
    if isinstance(data.dataset if isinstance(data, DataLoader) else data, IterableDataset):
        raise TypeError(
            "bali.fit goes through the examples in an order of its own and holds some of them out, which an "
            "IterableDataset does not allow; give a map-style Dataset or tensors (x, y)"
        )
    if isinstance(data, DataLoader):
        return FromDataset(data.dataset, data.collate_fn, device, dtype), data.batch_size
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = tuple(data.tensors)
    if isinstance(data, Dataset):
        return FromDataset(data, default_collate, device, dtype), None
    x, y = _converted(*as_pair(data), device, dtype)
    if n_rows(x) != len(y):
        raise ValueError(f"x has {n_rows(x)} rows and y has {len(y)}")
    return InMemory(x, y), None


def with_held_out(
    examples: Examples, validation: Any, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Examples, Examples]:
    """Training and held-out examples."""
    if not isinstance(validation, (int, float)):
        return examples, as_examples(validation, device, dtype)[0]
    if not 0.0 < validation < 1.0:
        raise ValueError(f"validation must be a share between 0 and 1, or data; got {validation}")
    n = len(examples)
    kept = max(1, round(validation * n))
    if n - kept < 1:
        raise ValueError(f"{n} examples are too few to hold some of them out; give validation data of their own")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return Part(examples, order[kept:]), Part(examples, order[:kept])


def as_pair(item: Any) -> tuple[Any, Any]:
    """(x, y) of a pair, or of a mapping with `labels`, as Hugging Face batches are."""
    if isinstance(item, Mapping) and "labels" in item:
        return {name: part for name, part in item.items() if name != "labels"}, item["labels"]
    if isinstance(item, Sequence) and len(item) == 2:
        return item[0], item[1]
    raise TypeError("data must be a pair (x, y), a Dataset or a DataLoader of pairs, or of mappings with `labels`")


def as_inputs(x: Any, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Tensors of arrays and lists, on the module's device and in its type."""
    if isinstance(x, Mapping):
        found: Inputs = {name: _tensor(part) for name, part in x.items()}
    elif isinstance(x, tuple):
        found = tuple(_tensor(part) for part in x)
    else:
        found = _tensor(x)
    check_finite(found)
    return on(found, device, dtype)


def check_finite(x: Inputs) -> None:
    """An error that says where, if numbers are missing or infinite."""
    for part in tensors(x):
        if not part.is_floating_point() or bool(torch.isfinite(part.sum())):  # a quick look, which may only be too strict
            continue
        if not bool(torch.isfinite(part).all()):
            rows_with = (~torch.isfinite(part)).reshape(len(part), -1).any(1).nonzero()[:3, 0].tolist()
            raise ValueError(f"x has NaN or infinite values, first in rows {rows_with}; remove or fill them")


def _tensor(part: Any) -> Tensor:
    if not isinstance(part, Tensor):
        return torch.as_tensor(np.asarray(part))
    return part.clone() if part.is_inference() else part.detach()  # the first kind has no gradients


def _converted(x: Any, y: Any, device: torch.device, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    inputs, targets = as_inputs(x, device, dtype), _tensor(y).to(device)
    if targets.is_floating_point():
        if bool((torch.isnan(targets) | (torch.isinf(targets) & ~_open_ends(targets))).any()):
            raise ValueError("y has NaN or infinite values; remove those rows")
        targets = targets.to(torch.float64 if dtype == torch.float64 else torch.float32)
    return inputs, targets


def _open_ends(y: Tensor) -> Tensor:
    """Upper bounds of durations that are not over yet: infinite, in the second of two columns."""
    open_ends = torch.zeros_like(y, dtype=torch.bool)
    if y.dim() == 2 and y.shape[1] == 2:
        open_ends[:, 1] = (y[:, 1] == torch.inf) & torch.isfinite(y[:, 0])
    return open_ends
