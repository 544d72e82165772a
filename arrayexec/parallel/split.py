"""How a batch is cut over devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import DeviceError


def _refuse(text: str, batch_size: int, loads: Sequence[float]) -> DeviceError:
    return DeviceError(f"split of {batch_size} rows over {len(loads)} devices with loads {list(loads)}: {text}")


def split_sizes(batch_size: int, work_load_list: Sequence[float], short: bool = False) -> list[int]:
    """Rows of every device; see :func:`split_input_slice`."""
    loads = [float(load) for load in work_load_list]
    if not loads:
        raise _refuse("there must be at least one device", batch_size, loads)
    if any(not math.isfinite(load) or load < 0 for load in loads) or not 0 < sum(loads) < math.inf:
        raise _refuse("loads must be finite, not negative and not all zero", batch_size, loads)
    busy = sum(load > 0 for load in loads)
    if batch_size < busy and not short:
        raise _refuse(f"every device needs a row, so the batch must have at least {busy} rows", batch_size, loads)
    if batch_size < busy:
        first = [i for i, load in enumerate(loads) if load > 0][:batch_size]
        return [int(i in first) for i in range(len(loads))]
    exact = [batch_size * load / sum(loads) for load in loads]
    rounded = [round(share) for share in exact]  # MXNet's answer: round, and the last device takes the rest
    rounded[-1] += batch_size - sum(rounded)
    fair = all(math.floor(share) <= size <= math.ceil(share) for size, share in zip(rounded, exact, strict=True))
    if fair and all(size > 0 for size, load in zip(rounded, loads, strict=True) if load > 0):
        return rounded
    sizes = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(loads)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: batch_size - sum(sizes)]:
        sizes[i] += 1
    for i, load in enumerate(loads):
        if load > 0 and sizes[i] == 0:
            sizes[max(range(len(sizes)), key=lambda j: (sizes[j], -j))] -= 1
            sizes[i] = 1
    return sizes


def split_input_slice(batch_size: int, work_load_list: Sequence[float], short: bool = False) -> list[slice]:
    """One slice of the rows 0 … batch_size − 1 for every device, in proportion to its load.

    MXNet's own answer where that is fair, else the largest remainder; every device with a positive load gets a row.
    Raises DeviceError (a ValueError) for fewer rows than devices unless ``short``, where the first devices get them.
    """
    slices, start = [], 0
    for size in split_sizes(batch_size, work_load_list, short):
        slices.append(slice(start, start + size))
        start += size
    return slices
