"""A symbol's outputs from its JSON alone: loops and einsum, nothing of the engine. Slow and plain on purpose.

``walk(text, arrays)`` gives the outputs; ``arrays`` holds arguments and auxiliary states by name. Loss heads give what
they output, dropout passes its input on, as in inference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.networks.graph import Walker, pairs

Array = np.ndarray


PLAIN = Walker()
op = PLAIN.op


def walk(text: str, arrays: Mapping[str, Array], is_train: bool = False) -> list[Array]:
    return PLAIN.walk(text, arrays, is_train)


def windows(data: Array, kernel: Sequence[int], stride: Sequence[int], dilate: Sequence[int], sizes: Sequence[int]) -> Any:
    """For every tap of the kernel: the tap, and ``data`` seen through it at every output place."""
    for tap in itertools.product(*map(range, kernel)):
        yield tap, data[(..., *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, d, s, n in zip(tap, dilate, stride, sizes, strict=True)))]


@op("Convolution")
def convolution(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    (data, weight), kernel = x[:2], a["kernel"]
    rank, groups = len(kernel), a.get("num_group", 1)
    stride, dilate, pad = (pairs(a, key, rank, default) for key, default in (("stride", 1), ("dilate", 1), ("pad", 0)))
    data = np.pad(data, [(0, 0), (0, 0), *((p, p) for p in pad)])
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(data.shape[2:], dilate, kernel, stride, strict=True)]
    data = data.reshape(len(data), groups, -1, *data.shape[2:])
    weight = weight.reshape(groups, -1, *weight.shape[1:])
    out = sum(np.einsum("ngc...,gfc->ngf...", seen, weight[(..., *tap)]) for tap, seen in windows(data, kernel, stride, dilate, sizes))
    out = out.reshape(len(out), -1, *sizes)
    return out if a.get("no_bias") else out + x[2].reshape(-1, *[1] * rank)


@op("Deconvolution")
def deconvolution(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    (data, weight), kernel = x[:2], a["kernel"]
    rank, groups = len(kernel), a.get("num_group", 1)
    stride, dilate, pad, adj = (pairs(a, key, rank, int(key in ("stride", "dilate"))) for key in ("stride", "dilate", "pad", "adj"))
    full = [s * (n - 1) + d * (k - 1) + 1 + e for s, n, d, k, e in zip(stride, data.shape[2:], dilate, kernel, adj, strict=True)]
    out = np.zeros((len(data), groups, a["num_filter"] // groups, *full), data.dtype)
    cut = data.reshape(len(data), groups, -1, *data.shape[2:])
    weight = weight.reshape(groups, -1, *weight.shape[1:])
    for tap, seen in windows(out, kernel, stride, dilate, data.shape[2:]):
        seen += np.einsum("ngc...,gcf->ngf...", cut, weight[(..., *tap)])
    out = out.reshape(len(data), -1, *full)[(..., *(slice(p, n - p) for p, n in zip(pad, full, strict=True)))]
    return out if a.get("no_bias", True) else out + x[2].reshape(-1, *[1] * rank)


@op("Pooling")
def pooling(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    (data,), kind, rank = x, a.get("pool_type", "max"), x[0].ndim - 2
    if a.get("global_pool"):
        return (data.max if kind == "max" else data.mean)(axis=tuple(range(2, data.ndim)), keepdims=True)
    kernel, stride, pad = a["kernel"], pairs(a, "stride", rank, 1), pairs(a, "pad", rank, 0)
    up = a.get("pooling_convention", "valid") == "full"
    spans = [(n + 2 * p - k) / s for n, p, k, s in zip(data.shape[2:], pad, kernel, stride, strict=True)]
    sizes = [(math.ceil if up else math.floor)(span) + 1 for span in spans]
    ends = [s * (m - 1) + k - n - p for s, m, k, n, p in zip(stride, sizes, kernel, data.shape[2:], pad, strict=True)]
    fill = [(0, 0), (0, 0), *((p, max(e, p)) for p, e in zip(pad, ends, strict=True))]
    wide = np.pad(data, fill, constant_values=-np.inf if kind == "max" else 0)
    seen = [part for _, part in windows(wide, kernel, stride, [1] * rank, sizes)]
    if kind == "max":
        return np.maximum.reduce(seen)
    # a window is counted as far as it lies on the image and its padding
    inside = np.pad(np.ones([n + 2 * p for n, p in zip(data.shape[2:], pad, strict=True)]), [(0, max(e - p, 0)) for p, e in zip(pad, ends, strict=True)])
    return sum(seen) / sum(part for _, part in windows(inside, kernel, stride, [1] * rank, sizes))


@op("BatchNorm")
def batch_norm(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    data, gamma, beta, mean, variance = x
    if is_train and not a.get("use_global_stats"):
        axes = (0, *range(2, data.ndim))
        mean, variance = data.mean(axes), data.var(axes)
    gamma = np.ones_like(gamma) if a.get("fix_gamma", True) else gamma
    mean, variance, gamma, beta = (v.reshape(-1, *[1] * (data.ndim - 2)) for v in (mean, variance, gamma, beta))
    return (data - mean) / np.sqrt(variance + a.get("eps", 1e-3)) * gamma + beta


@op("LayerNorm")
def layer_norm(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    data, gamma, beta = x
    centred = data - data.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + a.get("eps", 1e-5)) * gamma + beta


@op("LRN")
def lrn(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    (data,), half = x, a["nsize"] // 2
    wide = np.pad(data**2, [(0, 0), (half, half), (0, 0), (0, 0)])
    total = sum(wide[:, i : i + data.shape[1]] for i in range(a["nsize"]))
    return data / (a.get("knorm", 2) + a.get("alpha", 1e-4) / a["nsize"] * total) ** a.get("beta", 0.75)


@op("L2Normalization")
def l2_normalization(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    axes = {"instance": tuple(range(1, x[0].ndim)), "channel": (1,)}[a.get("mode", "instance")]
    return x[0] / np.sqrt((x[0] ** 2).sum(axes, keepdims=True) + a.get("eps", 1e-10))


@op("FullyConnected")
def fully_connected(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    data = x[0].reshape(len(x[0]), -1) if a.get("flatten", True) else x[0]
    out = np.einsum("...k,hk->...h", data, x[1])
    return out if a.get("no_bias") else out + x[2]


@op("Activation", "LeakyReLU")
def activation(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    data, kind = x[0], a.get("act_type", "leaky")
    if kind == "gelu":
        return data * 0.5 * (1 + np.vectorize(math.erf)(data / math.sqrt(2)))
    if kind in ("leaky", "prelu"):
        slope = x[1].reshape(-1, *[1] * (data.ndim - 2)) if kind == "prelu" else a.get("slope", 0.25)
        return np.where(data > 0, data, slope * data)
    return {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}[kind](data)


def softmax(data: Array, axis: int) -> Array:
    raised = np.exp(data - data.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


@op("softmax", "SoftmaxActivation", "SoftmaxOutput")
def softmax_of(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    return softmax(x[0], 1 if a.get("multi_output") or a.get("mode") == "channel" else a.get("axis", -1))


@op("Reshape")
def reshape(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    old, codes, new = list(x[0].shape), list(a["shape"]), list[int]()
    while codes:
        code = codes.pop(0)
        if code in (-2, -3, -4):
            if code == -2:
                new, old = new + old, []
            elif code == -3:
                new.append(old.pop(0) * old.pop(0))
            else:
                whole, parts = old.pop(0), [codes.pop(0), codes.pop(0)]
                new += [whole // -math.prod(parts) if part == -1 else part for part in parts]
            continue
        here = old.pop(0) if old else None
        new.append(here if code == 0 else code)
    return x[0].reshape(new)


@op("_contrib_MultiBoxPrior")
def multibox_prior(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    (height, width), found = x[0].shape[2:], []
    (step_y, step_x), (off_y, off_x) = a.get("steps", (-1, -1)), a.get("offsets", (0.5, 0.5))
    step_y, step_x = step_y if step_y > 0 else 1 / height, step_x if step_x > 0 else 1 / width
    sizes, ratios = a.get("sizes", (1,)), a.get("ratios", (1,))
    shapes = [(s, 1.0) for s in sizes] + [(sizes[0], r) for r in ratios[1:]]
    for row, column, (size, ratio) in itertools.product(range(height), range(width), shapes):
        y, w, h = (row + off_y) * step_y, size * height / width * math.sqrt(ratio) / 2, size / math.sqrt(ratio) / 2
        if ratio == 1.0:
            w, h = size * height / width / 2, size / 2
        centre = (column + off_x) * step_x
        found.append((centre - w, y - h, centre + w, y + h))
    return np.array(found)[np.newaxis]


def overlap(a: Array, b: Array) -> float:
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(w, 0) * max(h, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return 0.0 if union <= 0 else both / union


@op("_contrib_MultiBoxDetection")
def multibox_detection(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    shares, offsets, anchors = x[0], x[1].reshape(len(x[1]), -1, 4), x[2][0]
    out = np.full((len(shares), len(anchors), 6), -1.0)
    vx, vy, vw, vh = a.get("variances", (0.1, 0.1, 0.2, 0.2))
    for image, (share, offset) in enumerate(zip(shares, offsets, strict=True)):
        rows = []
        for place, (x1, y1, x2, y2) in enumerate(anchors):
            kind, best = int(share[1:, place].argmax()), share[1:, place].max()
            if best < a.get("threshold", 0.01):
                continue
            dx, dy, dw, dh = offset[place]
            cx, cy = dx * vx * (x2 - x1) + (x1 + x2) / 2, dy * vy * (y2 - y1) + (y1 + y2) / 2
            w, h = math.exp(dw * vw) * (x2 - x1) / 2, math.exp(dh * vh) * (y2 - y1) / 2
            rows.append([kind, best, *np.clip([cx - w, cy - h, cx + w, cy + h], 0, 1)])
        most = a.get("nms_topk", -1) if a.get("nms_topk", -1) > 0 else len(rows)
        # the best ones by score; what stands in the other places stays there, crossed out
        rows = sorted(rows, key=lambda row: -row[1])[:most] + [[-1, *row[1:]] for row in rows[most:]]
        for i, row in enumerate(rows):
            for other in rows[i + 1 :] if row[0] >= 0 else ():
                if other[0] == row[0] and overlap(row[2:], other[2:]) >= a.get("nms_threshold", 0.5):
                    other[0] = -1
        out[image, : len(rows)] = rows or 0
    return out


@op("UpSampling")
def upsampling(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    return x[0].repeat(a["scale"], 2).repeat(a["scale"], 3)


@op("smooth_l1")
def smooth_l1(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    square, size = a.get("scalar", 1.0) ** 2, np.abs(x[0])
    return np.where(size < 1 / square, 0.5 * square * size**2, size - 0.5 / square)


@op("batch_dot")
def batch_dot(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    lhs, rhs = (v.swapaxes(1, 2) if a.get(f"transpose_{side}") else v for v, side in zip(x, "ab", strict=True))
    return np.einsum("bij,bjk->bik", lhs, rhs)


@op("SliceChannel", "split")
def slice_channel(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> tuple[Array, ...]:
    parts = np.split(x[0], a["num_outputs"], a.get("axis", 1))
    return tuple(part.squeeze(a.get("axis", 1)) if a.get("squeeze_axis") else part for part in parts)


@op("one_hot")
def one_hot(x: Sequence[Array], a: Mapping[str, Any], is_train: bool) -> Array:
    return np.where(x[0][..., None] == np.arange(a["depth"]), a.get("on_value", 1.0), a.get("off_value", 0.0))


PLAIN.short({
    "Flatten": lambda x, a: x[0].reshape(len(x[0]), -1),
    "Concat": lambda x, a: np.concatenate(x, a.get("dim", 1)),
    "transpose": lambda x, a: x[0].transpose(a["axes"]),
    "expand_dims": lambda x, a: np.expand_dims(x[0], a["axis"]),
    "SwapAxis": lambda x, a: x[0].swapaxes(a.get("dim1", 0), a.get("dim2", 0)),
    "SequenceReverse": lambda x, a: x[0][::-1],
    "reverse": lambda x, a: np.flip(x[0], a["axis"]),
    "Embedding": lambda x, a: x[1][np.clip(x[0].astype(int), 0, len(x[1]) - 1)],
    "Crop": lambda x, a: x[0][:, :, : x[1].shape[2], : x[1].shape[3]],
    "pick": lambda x, a: np.array([row[int(i)] for row, i in zip(x[0], x[1], strict=True)]),
    "clip": lambda x, a: np.minimum(np.maximum(x[0], a["a_min"]), a["a_max"]),
    "_zeros": lambda x, a: np.zeros([dim or 1 for dim in a["shape"]]),  # 0: the batch, to which one row is spread
    "zeros_like": lambda x, a: 0 * x[0],
    "Dropout": lambda x, a: x[0],
    "BlockGrad": lambda x, a: x[0],
    "MakeLoss": lambda x, a: x[0],
    "LogisticRegressionOutput": lambda x, a: 1 / (1 + np.exp(-x[0])),
    "cos": lambda x, a: np.cos(x[0]),
    "arccos": lambda x, a: np.arccos(x[0]),
    "_plus_scalar": lambda x, a: x[0] + a["scalar"],
    "_mul_scalar": lambda x, a: x[0] * a["scalar"],
    "_div_scalar": lambda x, a: x[0] / a["scalar"],
    "_rminus_scalar": lambda x, a: a["scalar"] - x[0],
    **dict.fromkeys(("elemwise_add", "_plus", "_Plus", "broadcast_add"), lambda x, a: x[0] + x[1]),
    **dict.fromkeys(("elemwise_sub", "_minus", "_Minus"), lambda x, a: x[0] - x[1]),
    **dict.fromkeys(("elemwise_mul", "_mul", "_Mul", "broadcast_mul"), lambda x, a: x[0] * x[1]),
})
