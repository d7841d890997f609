"""Damaged and crafted model files: refused with a `ModelFileError`, or the same predictions; quickly, and in little memory.

Files are loaded in a fork of this process, so that a crash of the interpreter, an endless load or one that asks for any
memory is a failure of that try.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bali_benchmarks.faults.campaign import FaultError, Outcome
from bali_benchmarks.faults.crafted_headers import crafted
from bali_benchmarks.faults.forks import Helper
from bali_benchmarks.faults.original_files import ORIGINALS, Original, loaded, original

LONGEST_MESSAGE = 1500
MOST_SECONDS = 1.0  # of this process: others may be busy
#: What measurements of memory may be off by: pages that a fork copies, the allocator's own.
_NOISE = 8e6


def mutated_file(seed: int, folder: Path) -> Outcome:
    """One file of one kind, damaged in one to three places, or with another header or tensor and a digest that is right."""
    rng = random.Random(seed)
    kind = list(ORIGINALS)[seed % len(ORIGINALS)]
    intact = {name: original(name) for name in ORIGINALS}[kind]  # all of them before there is a fork
    _warmed(kind)
    path = folder / intact.path.name
    is_crafted = rng.random() < 0.3
    what = crafted(intact, path, rng) if is_crafted else _damaged(intact.path.read_bytes(), path, rng)
    try:
        told = _in_fork([intact.name, str(path)])
        word = f"{'crafted' if is_crafted else 'damaged'}: {_outcome(told, intact, is_crafted=is_crafted)}"
        more = told["bytes"] - intact.bytes_to_load
        return Outcome(word, {"seconds to load": told["seconds"], "MB more than the intact file's load": more / 1e6})
    except FaultError as error:
        raise FaultError(f"{kind}, {what}: {error}") from error


def _damaged(content: bytes, path: Path, rng: random.Random) -> str:
    """Bits flipped in length, header and body, digits changed, bytes cut out, doubled, put in, and files cut short."""
    header = 8 + int.from_bytes(content[:8], "little")
    data, done = bytearray(content), []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        low, high = rng.choice([(0, 8), (8, header), (8, header), (header, len(content)), (header, len(content))])
        at, length = min(rng.randrange(low, high), len(data)), rng.randint(1, 200)
        what = rng.choice(["flip", "flip", "flip", "flip", "digit", "cut", "repeat", "put in", "end"])
        done.append(f"{what} at {at}")
        match what:
            case "flip" if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case "digit":
                digits = [i for i in range(8, min(header, len(data))) if chr(data[i]).isdigit()]
                for digit in rng.sample(digits, min(len(digits), 1)):
                    data[digit] = ord(rng.choice("0123456789"))
            case "cut":
                del data[at : at + length]
            case "repeat":
                data[at:at] = data[at : at + length]
            case "put in":
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case "end":
                del data[at:]
    path.write_bytes(bytes(data))
    return ", ".join(done)


@cache
def _warmed(kind: str) -> None:
    """What libraries take at the first load is not the file's."""
    _in_fork([kind, str(original(kind).path)])


def _outcome(told: dict[str, Any], intact: Original, *, is_crafted: bool) -> str:
    if told["seconds"] > MOST_SECONDS:
        raise FaultError(f"{told['seconds']:.1f} s")
    if told["bytes"] > 2 * intact.bytes_to_load + _NOISE:
        raise FaultError(f"{told['bytes'] / 1e6:.0f} MB to load; the intact file takes {intact.bytes_to_load / 1e6:.0f}")
    if "error" in told:
        kind, message = told["error"]
        does_not_fit = is_crafted and kind == "ValueError" and message.startswith(("the saved state has", "the checkpoint"))
        if kind != "ModelFileError" and not does_not_fit:
            raise FaultError(f"{kind}: {message[:200]}")
        if len(message) > LONGEST_MESSAGE or "\n" in message:
            raise FaultError(f"a message of {len(message):,} characters")
        return "of another inference" if does_not_fit else "refused"
    if is_crafted and "out_of_reach" in told:  # its columns were scaled otherwise, and it says so
        return "another model"
    found = told["predictions"]
    if np.array_equal(found, intact.predictions):
        return "the same predictions"
    if not is_crafted:
        raise FaultError("loads, and predicts something else")
    if np.shape(found) != np.shape(intact.predictions) or not np.isfinite(found).all():
        raise FaultError("loads, and its predictions are not finite")
    return "another model"


_in_fork = Helper(lambda task: loaded(task[0], Path(task[1])))
