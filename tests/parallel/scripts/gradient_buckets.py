"""Gradients in one flat segment, alone and small, written last layer first; rank 0 prints one JSON line."""

import hashlib
import json
import time

import numpy

from arrayexec import comm
from arrayexec.comm import GradientBuckets

ranks = comm.init()
rank, size = ranks.rank, ranks.size

# As a small convolutional net has them, in the order in which backward finishes them
shapes = {
    "fc_bias": (10,),
    "fc_weight": (10, 3136),
    "bn_beta": (64,),
    "bn_gamma": (64,),
    "conv2_weight": (64, 32, 3, 3),
    "conv1_bias": (32,),
    "conv1_weight": (32, 1, 3, 3),
}


def value(name: str, step: int, of: int) -> numpy.ndarray:
    seed = [step, of, *name.encode()]
    return numpy.random.default_rng(seed).standard_normal(shapes[name]).astype("f4")


def segment_views(segment: numpy.ndarray) -> dict[str, numpy.ndarray]:
    views, offset = {}, 0
    for name, shape in shapes.items():
        count = int(numpy.prod(shape))
        views[name] = segment[offset : offset + count].reshape(shape)
        offset += -(-count // 16) * 16
    return views


length = sum(-(-int(numpy.prod(shape)) // 16) * 16 for shape in shapes.values())
shared = ranks.shared_segment(length * 4)
assert shared.ctypes.data % 64 == 0
assert not shared.any()
kinds = {
    "own segment": numpy.zeros(length, "f4"),
    "shared segment": shared.view("f4"),
    "scattered": None,
}
digests, counts = {}, {}
for kind, segment in kinds.items():
    if segment is None:
        gradients, segments = {name: numpy.zeros(shape, "f4") for name, shape in shapes.items()}, ()
    else:
        gradients, segments = segment_views(segment), (segment,)
    whole = sum(array.nbytes for array in gradients.values())
    buckets = GradientBuckets(ranks, gradients, segments, max_in_flight=2, max_bytes=whole // 4)
    counts[kind] = len(buckets.buckets)
    assert all(bucket.nbytes <= whole / 4 for bucket in buckets.buckets)
    assert sum(bucket.nbytes for bucket in buckets.buckets) == whole
    bits = hashlib.sha256()
    for step in range(3):
        unused = "conv1_bias" if step == 2 else None  # nobody writes it: it must come out as zeros
        written = 0.0
        for name, array in gradients.items():
            array[...] = numpy.nan if name == unused else value(name, step, rank)
            written = time.perf_counter()
            if name != unused:
                buckets.ready(name)
        buckets.finish()
        for name, array in gradients.items():
            exact = sum(value(name, step, r).astype("f8") for r in range(size)) * (name != unused)
            assert numpy.abs(array - exact).max() < 1e-5, (kind, step, name)
            bits.update(array.tobytes())
        starts = [(at, i) for at, what, i in buckets.events if what == "start"]
        dones = [i for _, what, i in buckets.events if what == "done"]
        assert [i for _, i in starts] == list(range(len(buckets.buckets)))
        assert sorted(dones) == list(range(len(buckets.buckets)))
        assert starts[0][0] < written, "nothing was sent before the last gradient was written"
        flying = 0
        for _, what, _ in buckets.events:
            flying += 1 if what == "start" else -1
            assert 0 <= flying <= 2
    digests[kind] = bits.hexdigest()[:16]

# finish(used): written but not marked counts, what is neither is zero
name = "bn_beta"
gradients[name][...] = rank + 1
gradients["fc_bias"][...] = 7
used = [name] if rank == size - 1 else [name, "conv1_bias"]
gradients["conv1_bias"][...] = 2
assert buckets.finish(used) == ([name, "conv1_bias"] if size > 1 else [name])
assert (gradients["conv1_bias"] == 2 * (size - 1)).all()
assert (gradients[name] == size * (size + 1) / 2).all()
assert not any(array.any() for other, array in gradients.items() if other not in (name, "conv1_bias"))

everywhere = ranks.allgather_object(digests)
assert all(other == digests for other in everywhere), everywhere
if rank == 0:
    print(json.dumps({"digests": digests, "buckets": counts}))
