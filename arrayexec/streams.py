"""Random numbers that do not depend on how the work is cut: one counter-based stream a node.

Key: seed and the node's name. Counter: step, and position in the *global* batch, one row starting on a block of four
64-bit words. So a mask is the same on one device, on N devices or ranks, and in a repeated forward.
Generator: Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) as NumPy has it.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any, cast

import numpy as np

from .context import copyto
from .errors import ArgumentError

BLOCK = 8  # float32 values (twice the float64 ones) of one counter value of Philox: rows are padded to whole blocks

_seed = 0


def seed(number: int) -> None:
    """Set the one seed of the program; executors read it when they run. ArgumentError for what is no whole number."""
    global _seed
    if not isinstance(number, int | np.integer):
        raise ArgumentError(f"seed must be a whole number, but it is {number!r}")
    _seed = int(number) % 2**63


def current_seed() -> int:
    """The seed that :func:`seed` set last (0 at the start)."""
    return _seed


def width(count: int) -> int:
    """Values a scratch row needs so that ``count`` random values a row fill whole blocks."""
    return -(-count // BLOCK) * BLOCK


@dataclasses.dataclass
class RunPosition:
    """Where a run stands: training step, and the place of its first row in the global batch."""

    step: int = 0
    first_row: int = 0


class Stream:
    """The random numbers of one node; bodies get it as ``rng``."""

    def __init__(self, name: str, position: RunPosition, kind: int = 0) -> None:
        self.name = name
        self._key = zlib.crc32(name.encode()) | kind << 32
        self._position, self._philox = position, np.random.Philox(key=0)
        self._generator, self._state = np.random.Generator(self._philox), cast(Any, self._philox.state)

    def uniform(self, out: Any, shared: bool = False, start: int = 0) -> None:
        """Fill ``out`` (rows, width(n)), float32 or float64 and C-contiguous, with values in [0, 1).

        Row i is that of row ``first_row + start + i`` of the global batch; with ``shared`` it is row ``start + i``
        for everybody. So a large batch can be drawn piece by piece.
        """
        rows, columns = out.shape
        first = start if shared else self._position.first_row + start
        counter = [first * (columns * out.dtype.itemsize // 32), 0, self._position.step, 0]
        generator = self._at(counter)
        if isinstance(out, np.ndarray):
            generator.random(dtype=out.dtype, out=out)
        else:
            copyto(out, generator.random((rows, columns), dtype=out.dtype))

    def row(self, number: int) -> np.random.Generator:
        """A generator of this row's own, valid until the stream is used again: for draws that reject numbers.

        The second word of the counter says the row, so that all it draws is apart from ``uniform`` and other rows.
        """
        return self._at([0, self._position.first_row + number + 1, self._position.step, 0])

    def _at(self, counter: list[int]) -> np.random.Generator:
        """The one generator, moved to ``counter``: a tenth of the cost of a new one."""
        self._state["state"]["counter"][:] = counter
        self._state["state"]["key"][:] = current_seed(), self._key
        self._philox.state = self._state
        return self._generator
