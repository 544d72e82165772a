"""Sums in shared memory, inside a host and between pretended ones, bit by bit; rank 0 prints one JSON line."""

import hashlib
import itertools
import json
import os

import numpy

from arrayexec import comm
from arrayexec.comm import GradientBuckets
from arrayexec.comm.mpi import PRETEND
from arrayexec.comm.stages import narrow, widen

ranks = comm.init()
rank, size = ranks.rank, ranks.size
per_host = int(os.environ.get(PRETEND) or size)
hosts = -(-size // per_host)
assert ranks.local_size == min(per_host, size - rank // per_host * per_host)

shapes = {"a": (7,), "b": (130, 257), "c": (3,), "d": (90_001,), "e": (64,)}


def value(name: str, step: int, of: int) -> numpy.ndarray:
    return numpy.random.default_rng([step, of, *name.encode()]).standard_normal(shapes[name]).astype("f4")


def in_order(values: list[numpy.ndarray]) -> numpy.ndarray:
    total = values[0].copy()
    for other in values[1:]:
        total += other
    return total


def expected(name: str, step: int, transport: str | None, rounds: int) -> tuple[numpy.ndarray, bool]:
    """The sum as its definition has it, and whether it must come out to the bit."""
    every = [in_order([value(name, step + i, r) for i in range(rounds)]) for r in range(size)]
    parts = [in_order(every[host * per_host : (host + 1) * per_host]) for host in range(hosts)]
    if hosts == 1:
        return parts[0], True
    if transport is None:
        return in_order(parts), hosts == 2  # of more than two, MPI chooses the order
    rounded = in_order([widen(narrow(part.reshape(-1), transport), transport) for part in parts])
    return widen(narrow(rounded, transport), transport).reshape(shapes[name]), True


def segment() -> tuple[numpy.ndarray, dict[str, numpy.ndarray]]:
    views, offset = {}, 0
    block = ranks.shared_segment(sum(-(-int(numpy.prod(s)) // 16) * 64 for s in shapes.values())).view("f4")
    for name, shape in shapes.items():
        count = int(numpy.prod(shape))
        views[name] = block[offset : offset + count].reshape(shape)
        offset += -(-count // 16) * 16
    return block, views


bits = hashlib.sha256()
for transport in (None, "bfloat16", "float16"):
    block, gradients = segment()
    buckets = GradientBuckets(ranks, gradients, [block], max_in_flight=2, max_bytes=130_000, transport=transport)
    assert len(buckets.buckets) > 3
    for step in (0, 10, 20):
        rounds = 1 + (step == 20)  # two backwards that add up in the last one
        if rounds == 2:
            with buckets.no_sync():
                for name, array in gradients.items():
                    array[...] = value(name, step, rank)
                    buckets.ready(name)
            assert not [event for event in buckets.events[-1:] if event[1] == "start"]
        for name, array in gradients.items():
            if rounds == 2 and name == "c":  # what only the first one has must not be lost
                array += value(name, step + 1, rank)
                continue
            array[...] = value(name, step, rank) if rounds == 1 else array + value(name, step + 1, rank)
            buckets.ready(name)
        assert buckets.finish() == list(gradients)
        for name, array in gradients.items():
            want, exact = expected(name, step, transport, rounds)
            if exact:
                assert array.tobytes() == want.tobytes(), (transport, step, name, numpy.abs(array - want).max())
            assert numpy.abs(array - want).max() < 1e-5
            bits.update(array.tobytes())

# each rank has the sums of its own parts alone
block, gradients = segment()
buckets = GradientBuckets(ranks, gradients, [block], max_bytes=130_000, sharded=True)
for name, array in gradients.items():
    array[...] = value(name, 0, rank)
    buckets.ready(name)
buckets.finish()
owned = [(piece.name, piece.start, piece.stop) for piece in buckets.owned()]
for name, start, stop in owned:
    want = expected(name, 0, None, 1)[0].reshape(-1)[start:stop]
    assert numpy.abs(gradients[name].reshape(-1)[start:stop] - want).max() < 1e-5
first = rank // per_host * per_host
everyones = [tuple(piece) for other in ranks.allgather_object(owned)[first : first + per_host] for piece in other]
for name, shape in shapes.items():
    spans = sorted((start, stop) for other, start, stop in everyones if other == name)
    assert spans[0][0] == 0
    assert spans[-1][1] == numpy.prod(shape)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))

everywhere = ranks.allgather_object(bits.hexdigest()[:16])
assert len(set(everywhere)) == 1, "ranks hold different bits"
if rank == 0:
    print(json.dumps(everywhere[0]))
