"""Files that somebody made: another value in the header, or another tensor, with a digest that is right."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from bali import files
from bali_benchmarks.faults.original_files import Original

#: Values that a header may have in place of its own.
_JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 3, 0.5, 1.5, -0.0, 1e308, 1e-308, 10**5, 10**12, 10**30, 10**400, 30_000, math.nan,
    math.inf, -math.inf, "", "x" * 1000, "meta", "__import__", "code", [], [[]], {}, {"a": []}, [None] * 3,
    [1.0] * 10**5, "\0", "0",
]  # fmt: skip
#: Headers that are no headers.
_META = ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000, "9" * 10_000, "[]", "null", "{}", "{", '"a"', "1e999", ""]


def crafted(intact: Original, path: Path, rng: random.Random) -> str:
    """Write one to `path`, and say what is special about it."""
    meta, tensors = intact.content()
    what = rng.choice(["value", "value", "value", "value", "field", "tensor", "tensor", "tensor", "tensors", "meta"])
    match what:
        case "value":
            what = _other_value(meta, rng)
        case "field":
            what = _other_field(meta, rng)
        case "tensor":
            what = _other_tensor(tensors, rng)
        case "tensors":
            what = _other_tensors(tensors, rng)
        case "meta":
            return _no_header(intact, path, rng)
    files.write(path, intact.kind, meta, {name: t.clone() for name, t in tensors.items()})
    return what


def _places(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every container of the header with a key or position in it; the record of a training, which is only shown, is not."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        if key != "record":
            yield value, key, f"{name}.{key}"
            yield from _places(value[key], f"{name}.{key}")


def _other_value(meta: dict[str, Any], rng: random.Random) -> str:
    container, key, name = rng.choice(list(_places(meta)))
    container[key] = rng.choice(_JUNK)
    return f"header{name} = {str(container[key])[:40]}"


def _other_field(meta: dict[str, Any], rng: random.Random) -> str:
    container, key, name = rng.choice([place for place in _places(meta) if isinstance(place[0], dict)])
    if rng.random() < 0.5:
        del container[key]
        return f"header{name} is missing"
    container["hook"] = 1
    return f"header{name} has company"


def _other_tensor(tensors: dict[str, Tensor], rng: random.Random) -> str:
    name = rng.choice(list(tensors))
    tensor = tensors[name]
    what = rng.choice(
        ["NaN", "infinite", "negative", "zero", "int64", "bool", "float16", "first", "half", "flat", "more", "huge"]
    )
    match what:
        case "NaN" | "infinite" if tensor.is_floating_point() and tensor.numel():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            tensor.view(-1)[rng.randrange(tensor.numel())] = math.nan if what == "NaN" else math.inf
        case "negative" if tensor.is_floating_point():
            tensor = -tensor
        case "zero":
            tensor = torch.zeros_like(tensor)
        case "int64":
            tensor = tensor.long()
        case "bool":
            tensor = tensor > 0
        case "float16":
            tensor = tensor.to(torch.float16)
        case "first" if tensor.dim():
            tensor = tensor[:1]
        case "half" if tensor.dim():
            tensor = tensor[..., : tensor.shape[-1] // 2]
        case "flat":
            tensor = tensor.reshape(-1)
        case "more" if tensor.dim():
            tensor = torch.cat([tensor, tensor])
        case "huge" if tensor.is_floating_point():
            tensor = tensor * 1e30
    tensors[name] = tensor
    return f"tensor {name}: {what}"


def _other_tensors(tensors: dict[str, Tensor], rng: random.Random) -> str:
    name, other = rng.choice(list(tensors)), rng.choice(list(tensors))
    match rng.choice(["missing", "more", "exchanged"]):
        case "missing":
            del tensors[name]
            return f"tensor {name} is missing"
        case "more":
            tensors[f"{name}/hook"] = torch.zeros(3)
            return f"tensor {name}/hook is new"
        case _:
            tensors[name], tensors[other] = tensors[other], tensors[name]
            return f"tensors {name} and {other} are exchanged"


def _no_header(intact: Original, path: Path, rng: random.Random) -> str:
    """Without a digest, as in files of early versions."""
    field = rng.choice(["meta", "meta", "by_column", "version", "kind", "format"])
    header = {"format": files.FORMAT, "kind": intact.kind, "version": "1", "by_column": "[]"}
    header |= {"meta": json.dumps(intact.content()[0])} | {field: rng.choice(_META)}
    tensors = {name: t.contiguous() for name, t in intact.content()[1].items()}
    path.write_bytes(safetensors_bytes(tensors, metadata=header))
    return f"{field} is {header[field][:20]}"
