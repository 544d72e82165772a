"""Interleaved timing: contenders take turns within each round, so what disturbs the machine disturbs all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

Step = Callable[[], Any]


def interleaved(
    contenders: Mapping[str, Step],
    seconds: float,
    rounds: int,
    dropped: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds a call of every contender, one number a round; the first ``dropped`` rounds do not count.

    In a round each contender runs for about ``seconds``; the order turns by one from round to round.
    ``clock`` may be ``time.process_time`` where all have one thread: what others do on the machine does not count.
    """
    names = list(contenders)
    counts, found = {}, {name: [] for name in names}
    for name in names:
        contenders[name]()
        start = clock()
        contenders[name]()
        counts[name] = max(1, round(seconds / max(clock() - start, 1e-7)))
    for number in range(rounds + dropped):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            step, count = contenders[name], counts[name]
            start = clock()
            for _ in range(count):
                step()
            if number >= dropped:
                found[name].append((clock() - start) / count)
    return found


def ratio(found: Mapping[str, Sequence[float]], of: str, to: str) -> float:
    """Median over the rounds of time ``of`` / time ``to``: both from the same round."""
    return median(a / b for a, b in zip(found[of], found[to], strict=True))


def contenders_of_the_machine() -> tuple[dict[str, Step], dict[str, float]]:
    """What this machine can do at best through NumPy: a matrix product (flops) a copy (bytes); and their amounts."""
    a, b, c = (np.ones((512, 512), np.float32) for _ in range(3))
    source, target = np.ones(1 << 24, np.float32), np.ones(1 << 24, np.float32)
    steps: dict[str, Step] = {
        "product": lambda: np.matmul(a, b, out=c),
        "copy": lambda: np.copyto(target, source),
    }
    return steps, {"product": 2.0 * 512**3, "copy": 2.0 * source.nbytes}


def conditions() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "numpy": np.__version__,
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "not set"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def report(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool, notes: Sequence[str] = ()) -> None:
    """One table (or one JSON object) of ``rows``, under what they depend on."""
    if as_json:
        print(json.dumps({"title": title, **conditions(), "rows": list(rows)}))
        return
    print(title + "  (" + ", ".join(f"{key}: {value}" for key, value in conditions().items()) + ")")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    texts = [columns] + [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in texts) for i in range(len(columns))]
    for line in texts:
        print("  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                        for i, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip())  # fmt: skip
    for note in notes:
        print(note)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
