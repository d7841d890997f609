"""A text to learn letters from: sentences of a small grammar, with things to remember from one word to another.

Who is asked for is also answered for, who finds a thing keeps that thing, and sums are right; the rest is chance.
"""

from __future__ import annotations

import random

_NAMES = ("anna", "boris", "clara", "david", "emil", "frida", "georg", "hanna")
_PLACES = ("garden", "kitchen", "harbour", "library", "station", "market")
_THINGS = ("a lamp", "an apple", "three books", "a blue coat", "two keys", "a map")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def sentences(length: int, seed: int = 0) -> str:
    """The first `length` characters of an endless text, in lower case, of 28 different characters at most."""
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    rng = random.Random(seed)
    parts: list[str] = []
    total = 0
    while total < length:
        parts.append(_sentence(rng) + " ")
        total += len(parts[-1])
    return "".join(parts)[:length]


def _sentence(rng: random.Random) -> str:
    kind = rng.randrange(4)
    who, other = rng.sample(_NAMES, 2)
    where, thing = rng.choice(_PLACES), rng.choice(_THINGS)
    if kind == 0:
        return f"{who} walks to the {where} with {thing}."
    if kind == 1:
        one, two = rng.randrange(6), rng.randrange(6)
        return f"{_NUMBERS[one]} and {_NUMBERS[two]} make {_NUMBERS[one + two]}."
    if kind == 2:
        return f"{who} finds {thing} in the {where} and {who} keeps {thing}."
    return f"where is {who}? {who} is in the {where}, says {other}."
