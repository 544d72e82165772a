"""Random numbers of the training kit, from the one seed of the program.

A stream is addressed by a path of names, not by the order of calls: the initial value of a parameter and
the order of an epoch depend on the seed and on their own path alone, whatever else is drawn and on which
rank.
"""

from __future__ import annotations

import zlib

import numpy

from ..streams import current_seed, seed

__all__ = ["seed", "current_seed", "generator"]


def generator(kind: str, *path: str | int, seed: int | None = None) -> numpy.random.Generator:
    """The stream of a path such as ``('parameter', 'fc1_weight')``, always from its beginning.

    ``seed=None`` means the one seed of the program.
    """
    name = "/".join(map(str, path))
    stream = zlib.crc32(kind.encode()) << 32 | zlib.crc32(name.encode())
    number = current_seed() if seed is None else seed % 2**63
    return numpy.random.Generator(numpy.random.Philox(key=[number, stream]))
