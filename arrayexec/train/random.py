"""One seed for everything that is drawn at random.

A stream is addressed by a path of names, not by the order of calls: the initial value of a parameter and the
order of an epoch depend on the seed and on their own path alone, whatever else is drawn and on which rank.
"""

from __future__ import annotations

import operator
import zlib

import numpy

from ..errors import AttributeValueError

_WORD = 0xFFFFFFFFFFFFFFFF
_seed = 0


def seed(number: int) -> None:
    """Set the one seed; every stream taken afterwards depends on it.

    Raises AttributeValueError for anything that is not an integer.
    """
    global _seed
    try:
        _seed = operator.index(number)
    except TypeError:
        raise AttributeValueError(f"seed: the seed must be an integer, but it is {number!r}") from None


def current_seed() -> int:
    """The seed in force (0 until `seed` is called)."""
    return _seed


def generator(*path: str | int) -> numpy.random.Generator:
    """The stream of a path such as ``('parameter', 'fc1_weight')``, always from its beginning."""
    kind, name = str(path[0]) if path else "", "/".join(map(str, path[1:]))
    stream = zlib.crc32(kind.encode()) << 32 | zlib.crc32(name.encode())
    return numpy.random.Generator(numpy.random.Philox(key=[_seed & _WORD, stream]))
