"""What a file may hold: small descriptions of values and tensors, each of which checks one.

Files come from anywhere. What is in one is compared with its description before anything is built of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class SchemaError(ValueError):
    """What is wrong with a value or a tensor, and where in the file it is."""


class Check(Protocol):
    """Raises a `SchemaError` if the value at this place of the header is not what it must be."""

    def __call__(self, value: Any, place: str) -> None: ...


def _refuse(value: Any, place: str, expected: str) -> SchemaError:
    shown = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return SchemaError(f"{place} is {shown[:60]}, expected {expected}")


@dataclass(frozen=True)
class Number:
    low: float
    high: float
    whole: bool = False

    def __call__(self, value: Any, place: str) -> None:
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        is_exact = (
            isinstance(value, float) or self.whole or (is_number and abs(value) <= 2**53)
        )  # tensors take no larger one
        if not is_number or not is_exact or not self.low <= value <= self.high:  # NaN is in no range
            kind = "a whole number" if self.whole else "a number"
            raise _refuse(value, place, f"{kind} from {self.low:g} to {self.high:g}")


@dataclass(frozen=True)
class Truth:
    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, bool):
            raise _refuse(value, place, "true or false")


@dataclass(frozen=True)
class Text:
    pattern: str = r"[\s\S]{0,100000}"  # anything that is not too long

    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise _refuse(value, place, f"text like {self.pattern}")


@dataclass(frozen=True)
class Choice:
    among: Collection[Any]

    def __call__(self, value: Any, place: str) -> None:
        if not any(type(value) is type(choice) and value == choice for choice in self.among):
            raise _refuse(value, place, f"one of {', '.join(map(str, self.among))}")


class Anything:
    """Whatever JSON can say."""

    def __call__(self, value: Any, place: str) -> None:
        pass


class Either:
    """At least one of several."""

    def __init__(self, *checks: Check) -> None:
        self.checks = checks

    def __call__(self, value: Any, place: str) -> None:
        for number, check in enumerate(self.checks, start=1):
            try:
                return check(value, place)
            except SchemaError:
                if number == len(self.checks):
                    raise


class AnyNumber:
    """NaN and infinity too."""

    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _refuse(value, place, "a number")


ANYTHING, ANY_NUMBER = Anything(), AnyNumber()
NOTHING = Choice([None])
POSITIVE = Number(1e-300, 1e300)
COUNT = Number(0, 1e15, whole=True)
RATE = Number(0.0, 1.0)
REAL = Number(-float("inf"), float("inf"))
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def largest(dtype: torch.dtype) -> float:
    """What a number of a network of this type may be: its square is still one."""
    return 1e18 if torch.finfo(dtype).max < 1e100 else 1e150


#: States of a random generator, of a CPU and of a GPU.
GENERATORS = [(5056,), (16,)]


@dataclass(frozen=True)
class ListOf:
    item: Check
    least: int = 0

    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) < self.least:
            raise _refuse(value, place, f"a list of {self.least} or more")
        for number, item in enumerate(value):
            self.item(item, f"{place}[{number}]")


@dataclass(frozen=True)
class MapOf:
    """Names with values that are all of one kind."""

    item: Check

    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _refuse(value, place, "an object")
        for name, item in value.items():
            self.item(item, f"{place}.{name[:40]}")


@dataclass(frozen=True)
class Record:
    """These names and no others."""

    fields: Mapping[str, Check]
    optional: Collection[str] = ()

    def __call__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _refuse(value, place, "an object")
        wrong = sorted(set(value) ^ set(self.fields) - (set(self.optional) - set(value)))
        if wrong:
            raise SchemaError(f"{place} has or lacks {', '.join(wrong)[:200]}")
        for name, item in value.items():
            self.fields[name](item, f"{place}.{name}")


@dataclass(frozen=True)
class TensorCheck:
    """Finite numbers of one type (or one of some), in one of the shapes; those named are positive."""

    dtype: torch.dtype | Collection[torch.dtype]
    shapes: Collection[tuple[int, ...]]
    positive: slice | None = None  # rows
    positive_diagonal: bool = False
    least: float | None = None
    most: float | None = None  # in size
    optional: bool = False
    together: str = ""  # optional ones under one name are all there, or none of them is
    finite: bool = True

    def __call__(self, tensor: Tensor, place: str) -> None:
        shape = tuple(tensor.shape)
        dtypes = (self.dtype,) if isinstance(self.dtype, torch.dtype) else self.dtype
        if tensor.dtype not in dtypes or shape not in self.shapes:
            expected = f"{' or '.join(map(str, dtypes))} {' or '.join(map(str, self.shapes))}"
            raise SchemaError(f"{place} is {tensor.dtype} {shape}, expected {expected}")
        if self.finite and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise SchemaError(f"{place} has numbers that are not finite")
        positive = tensor[self.positive] if self.positive is not None else tensor.new_ones(1)
        diagonal = tensor.diagonal(dim1=-2, dim2=-1) if self.positive_diagonal else positive
        if not bool((positive > 0).all() and (diagonal > 0).all()):
            raise SchemaError(f"{place} has numbers that are not positive where they must be")
        if self.least is not None and bool((tensor < self.least).any()):
            raise SchemaError(f"{place} has numbers below {self.least:g}")
        if self.most is not None and bool((tensor.abs() > self.most).any()):
            raise SchemaError(f"{place} has numbers beyond {self.most:g}")


def check_tensors(tensors: Mapping[str, Tensor], checks: Mapping[str, TensorCheck]) -> None:
    """All that are needed and no others, each as it must be."""
    needed = {name for name, check in checks.items() if not check.optional}
    wrong = sorted((set(tensors) - set(checks)) | (needed - set(tensors)))
    if wrong:
        raise SchemaError(f"tensors {', '.join(wrong)[:200]} are missing or too many")
    for group in {check.together for check in checks.values() if check.together}:
        own = {name for name, check in checks.items() if check.together == group}
        if own & set(tensors) and not own <= set(tensors):
            raise SchemaError(f"tensors {', '.join(sorted(own - set(tensors)))[:200]} are missing beside others of {group}")
    for name, tensor in tensors.items():
        checks[name](tensor, name)
