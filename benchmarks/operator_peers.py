"""What stands against operators where it takes more than an expression: NumPy or PyTorch, as one writes it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, Any]


def layer_norm_backward(np: Any, dout: Any, data: Any, gamma: Any, eps: float) -> tuple[Any, ...]:
    """Gradients of data, gamma and beta, rows normalised."""
    centred = data - data.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    normal, g = centred * scale, dout * gamma
    inner = scale * (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True))
    return inner, (dout * normal).sum(0), dout.sum(0)


def group_norm_backward(np: Any, dout: Any, data: Any, gamma: Any, groups: int, eps: float) -> tuple[Any, ...]:
    """Gradients of data, gamma and beta, groups of channels normalised; gamma has one number a channel or a group."""
    channels, each = data.shape[1], data.shape[1] // len(gamma)
    scale_of = np.repeat(gamma, each).reshape(1, channels, 1, 1)
    rows = data.reshape(len(data), groups, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    normal, g = centred * scale, (dout * scale_of).reshape(rows.shape)
    inner = scale * (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True))
    sums = [value.sum((0, 2, 3)).reshape(-1, each).sum(1) for value in (dout * normal.reshape(data.shape), dout)]
    return inner.reshape(data.shape), *sums


def batch_norm_backward(np: Any, dout: Any, data: Any, gamma: Any, eps: float) -> tuple[Any, ...]:
    """Gradients of data, gamma and beta, channels normalised."""
    axes, count = (0, 2, 3), data.size // data.shape[1]
    scale = 1 / np.sqrt(data.var(axes, keepdims=True) + eps)
    normal = (data - data.mean(axes, keepdims=True)) * scale
    dbeta, dgamma = dout.sum(axes, keepdims=True), (dout * normal).sum(axes, keepdims=True)
    inner = gamma.reshape(1, -1, 1, 1) * scale * (dout - (dbeta + normal * dgamma) / count)
    return inner, dgamma.ravel(), dbeta.ravel()


def joined_moments(np: Any, data: Any) -> Any:
    """Mean, variance and number of what devices have found: means, sums of squared distances, numbers."""
    mean, squares, number = data
    count = np.maximum(number, 1)
    total = mean * number / count
    return np.stack([total, (squares + number * (mean - total) ** 2) / count, number]).astype(np.float32)


def softmax_output_backward(np: Any, out: Any, label: Any) -> Any:
    """Probabilities less one where the label is."""
    result = out.copy()
    result[np.arange(len(label)), label.astype(int)] -= 1
    return result


def rows_added(np: Any, dout: Any, rows: Any, table: Any) -> Any:
    """The gradient of a look-up table."""
    result = np.zeros_like(table)
    np.add.at(result, rows.astype(int), dout)
    return result


def one_added(np: Any, dout: Any, like: Any, places: Any) -> Any:
    """Zeros with ``dout`` at one place of each row."""
    result = np.zeros_like(like)
    result[np.arange(len(places)), places.astype(int)] = dout
    return result


def added_at(np: Any, dout: Any, shape: tuple[int, ...], places: Any) -> Any:
    """Zeros with ``dout`` added at places."""
    result = np.zeros(shape, dout.dtype)
    np.add.at(result, tuple(places.astype(int)), dout)
    return result


def anchors(np: Any, side: int, sizes: tuple[float, ...], ratios: tuple[float, ...]) -> Any:
    """Boxes around the cells of a square grid, corners."""
    centre = (np.arange(side) + 0.5) / side
    wide = [*sizes, *(sizes[0] * r**0.5 for r in ratios[1:])]
    high = [*sizes, *(sizes[0] / r**0.5 for r in ratios[1:])]
    half = np.array([wide, high], np.float32).T / 2
    x, y = np.meshgrid(centre, centre)
    middle = np.stack([x, y], -1)[:, :, None]
    return np.concatenate([middle - half, middle + half], -1).astype(np.float32).reshape(1, -1, 4)


def iou(np: Any, a: Any, b: Any) -> Any:
    """Overlap over union of boxes given by corners, broadcast."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    common = np.maximum(high - low, 0).prod(-1)
    areas = [np.maximum(c[..., 2:] - c[..., :2], 0).prod(-1) for c in (a, b)]
    union = areas[0] + areas[1] - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0)


def targets(np: Any, anchor: Any, label: Any) -> list[Any]:
    """The best truth of each anchor, and the anchors sorted by overlap: the least that finding targets takes."""
    found = []
    for truth in label:
        overlap = iou(np, anchor[0][:, None], truth[:, 1:])
        found.append((overlap.argmax(1), overlap.max(1).argsort(), overlap.argmax(0)))
    return found


def nms(np: Any, image: Any, limit: int, threshold: float = 0.5, most: int | None = None) -> Any:
    """Greedy suppression of one image's boxes (class, score, corners): one look at the rest for each box kept."""
    order = image[:, 1].argsort()[::-1][:limit]
    boxes, classes, alive, kept = image[order, 2:], image[order, 0], np.ones(len(order), bool), []
    for place in range(len(order)):
        if alive[place] and (most is None or len(kept) < most):
            kept.append(order[place])
            alive &= ~((iou(np, boxes[place], boxes) > threshold) & (classes == classes[place]))
    return image[kept]


def detections(np: Any, probability: Any, offsets: Any, anchor: Any) -> list[Any]:
    """Best class, decoded box and suppression for every image."""
    found = []
    for image in range(len(probability)):
        score, kind = probability[image, 1:].max(0), probability[image, 1:].argmax(0)
        scaled = offsets[image].reshape(1, -1, 4) * np.array([0.1, 0.1, 0.2, 0.2], np.float32)
        boxes = decoded(np, scaled, anchor, False)
        rows = np.concatenate([kind[:, None], score[:, None], np.clip(boxes[0], 0, 1)], 1)
        found.append(nms(np, rows[score > 0.01], 400))
    return found


def matching(np: Any, scores: Any) -> list[tuple[int, int]]:
    """Greedy pairs of rows and columns, best first."""
    scores, found = scores.copy(), []
    for _ in range(min(scores.shape)):
        row, column = np.unravel_index(scores.argmax(), scores.shape)
        found.append((row, column))
        scores[row], scores[:, column] = -1, -1
    return found


def _centre(np: Any, boxes: Any) -> tuple[Any, Any]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def encoded(np: Any, matches: Any, boxes: Any, refs: Any) -> Any:
    """Offsets of the matched truths from the anchors."""
    truth = np.take_along_axis(refs, matches.astype(int)[..., None], 1)
    (mine, size), (its, its_size) = _centre(np, boxes), _centre(np, truth)
    return np.concatenate([(its - mine) / size, np.log(np.abs(its_size / size))], -1)


def decoded(np: Any, data: Any, boxes: Any, centre: bool = True) -> Any:
    """Boxes from offsets; anchors by centre and size, or by corners."""
    middle, size = (boxes[..., :2], boxes[..., 2:]) if centre else _centre(np, boxes)
    moved, half = data[..., :2] * size + middle, np.exp(data[..., 2:]) * size / 2
    return np.concatenate([moved - half, moved + half], -1)


def rois(count: int, side: int) -> np.ndarray:
    """Regions of one image: number of the image and corners in pixels."""
    random = np.random.default_rng(3)
    corner, size = random.uniform(0, side / 2, (count, 2)), random.uniform(side / 10, side / 2, (count, 2))
    return np.concatenate([np.zeros((count, 1)), corner, corner + size], 1).astype(np.float32)


def roi_pool(np: Any, data: Any, regions: Any, bins: int, scale: float) -> Any:
    """The largest value in each bin of each region, a loop over regions and bins."""
    result = np.zeros((len(regions), data.shape[1], bins, bins), data.dtype)
    corners = np.floor(regions[:, 1:] * scale + 0.5).astype(int)
    for number, (x0, y0, x1, y1) in enumerate(corners):
        wide, high = max(x1 - x0 + 1, 1) / bins, max(y1 - y0 + 1, 1) / bins
        for i in range(bins):
            for j in range(bins):
                rows = slice(max(y0 + int(i * high), 0), max(y0 + int(np.ceil((i + 1) * high)), 0))
                columns = slice(max(x0 + int(j * wide), 0), max(x0 + int(np.ceil((j + 1) * wide)), 0))
                part = data[int(regions[number, 0]), :, rows, columns]
                if part.size:
                    result[number, :, i, j] = part.max((1, 2))
    return result


def psroi_pool(np: Any, data: Any, regions: Any, kinds: int, bins: int, scale: float) -> Any:
    """The mean of each bin of each region, in channels of its own, a loop over regions and bins."""
    result, size = np.zeros((len(regions), kinds, bins, bins), data.dtype), data.shape[2]
    channels = data[0].reshape(kinds, bins, bins, size, size)
    corners = np.floor(regions[:, 1:] + 0.5)
    for number, (x0, y0, x1, y1) in enumerate(corners * scale + [0, 0, scale, scale]):
        wide, high = max(x1 - x0, 0.1) / bins, max(y1 - y0, 0.1) / bins
        for i in range(bins):
            for j in range(bins):
                y = np.clip([np.floor(y0 + i * high), np.ceil(y0 + (i + 1) * high)], 0, size).astype(int)
                x = np.clip([np.floor(x0 + j * wide), np.ceil(x0 + (j + 1) * wide)], 0, size).astype(int)
                part = channels[:, i, j, y[0] : y[1], x[0] : x[1]]
                if part.size:
                    result[number, :, i, j] = part.mean((1, 2))
    return result


def roi_align(np: Any, data: Any, regions: Any, bins: int, scale: float) -> Any:
    """The mean of four bilinear samples in each bin of each region of one image."""
    corners = regions[:, 1:] * scale
    size = np.maximum(corners[:, 2:] - corners[:, :2], 1)
    steps = (np.arange(2 * bins, dtype=np.float32) + 0.5) / (2 * bins)
    x, y = (corners[:, i, None] + size[:, i, None] * steps for i in (0, 1))
    samples = bilinear(np, data[0], y[:, :, None], x[:, None, :])
    return samples.reshape(data.shape[1], len(regions), bins, 2, bins, 2).mean((3, 5)).swapaxes(0, 1).copy()


def bilinear(np: Any, image: Any, y: Any, x: Any) -> Any:
    """Samples of an image (c, h, w) at places (…), moved to its edge; (c, …)."""
    high, wide = image.shape[1:]
    y, x = np.broadcast_arrays(np.clip(y, 0, high - 1), np.clip(x, 0, wide - 1))
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    y1, x1, b, a = np.minimum(y0 + 1, high - 1), np.minimum(x0 + 1, wide - 1), y - y0, x - x0
    top = image[:, y0, x0] * (1 - a) + image[:, y0, x1] * a
    return top * (1 - b) + (image[:, y1, x0] * (1 - a) + image[:, y1, x1] * a) * b


def deformed(np: Any, data: Any, offset: Any, weight: Any, mask: Any = None) -> Any:
    """A convolution of 3 × 3 whose taps are moved, one image; zero outside of it, with a mask fading over a pixel."""
    side, kernel, rim = data.shape[2], 3, 0 if mask is None else 8
    padded = np.pad(data[0], ((0, 0), (rim, rim), (rim, rim)))
    taps, base = np.arange(9), np.arange(side, dtype=np.float32)
    y = base[:, None] + (taps // kernel - 1)[:, None, None] + offset[0, 0::2]
    x = base + (taps % kernel - 1)[:, None, None] + offset[0, 1::2]
    share = (y >= 0) & (x >= 0) & (y < side) & (x < side) if mask is None else mask
    columns = bilinear(np, padded, y + rim, x + rim) * share
    return (weight.reshape(len(weight), -1) @ columns.reshape(-1, side * side)).reshape(1, -1, side, side)


def correlation(np: Any, left: Any, right: Any) -> Any:
    """Means over channels of products with the right image moved by up to 20 pixels in steps of 2."""
    high, wide = left.shape[2:]
    padded = np.pad(right, ((0, 0), (0, 0), (20, 20), (20, 20)))
    moved = [padded[:, :, y : y + high, x : x + wide] for y in range(0, 41, 2) for x in range(0, 41, 2)]
    return np.stack([(left * one).mean(1) for one in moved], 1)


def proposals(np: Any, scores: Any, offsets: Any) -> list[Any]:
    """The 6,000 best of all anchors decoded, suppressed to 300, for every image."""
    found = []
    for image in range(len(scores)):
        score = scores[image, 12:].transpose(1, 2, 0).ravel()
        moved = offsets[image].transpose(1, 2, 0).reshape(-1, 4)
        boxes = decoded(np, moved, np.full((len(moved), 4), 64.0, np.float32), False)
        rows = np.concatenate([np.zeros((len(score), 1), np.float32), score[:, None], boxes], 1)
        found.append(nms(np, rows, 6000, 0.7, 300))
    return found


def ctc(torch: Any, v: Tensors) -> Any:
    """Losses of all sequences, all frames and labels in use."""
    frames, count, _ = v["data"].shape
    lengths = [torch.full((count,), n) for n in (frames, v["label"].shape[1])]
    logarithm = torch.nn.functional.log_softmax(v["data"], 2)
    return torch.nn.functional.ctc_loss(logarithm, v["label"].long(), *lengths, reduction="none")


def _weights(parameters: Any, layers: int, gates: int, hidden: int, width: int) -> list[Any]:
    """PyTorch's list of weights, from the one vector that holds all matrices, then all biases."""
    found, place = [], 0
    for layer in range(layers):
        for size in (hidden if layer else width, hidden):
            found.append(parameters[place : place + gates * hidden * size].reshape(gates * hidden, size))
            place += gates * hidden * size
    for layer in range(layers):
        both = [parameters[place + i * gates * hidden : place + (i + 1) * gates * hidden] for i in (0, 1)]
        found[4 * layer + 2 : 4 * layer + 2] = both
        place += 2 * gates * hidden
    return found


def lstm(torch: Any, v: Tensors) -> Any:
    """Two layers of 200."""
    weights = _weights(v["parameters"], 2, 4, 200, 200)
    return torch.lstm(v["data"], (v["state"], v["state_cell"]), weights, True, 2, 0.0, True, False, False)[0]


def gru(torch: Any, v: Tensors) -> Any:
    """One layer of 200 (its gates are in another order: the numbers differ, the work does not)."""
    weights = _weights(v["parameters"], 1, 3, 200, 200)
    return torch.gru(v["data"], v["state"], weights, True, 1, 0.0, True, False, False)[0]


def _heads(value: Any, parts: int) -> tuple[Any, ...]:
    """(steps, batch, heads of 64 × parts) to one (batch · heads, steps, 64) a part."""
    steps, batch = value.shape[:2]
    split = value.reshape(steps, batch * 8, parts, 64)
    return tuple(split[:, :, i].transpose(0, 1) for i in range(parts))


def selfatt_qk(torch: Any, v: Tensors) -> Any:
    """Scores of 8 heads of 64."""
    query, key, _ = _heads(v["queries_keys_values"], 3)
    return torch.bmm(query / 8, key.transpose(1, 2))


def selfatt_valatt(torch: Any, v: Tensors) -> Any:
    """Values by attention, heads joined."""
    _, _, value = _heads(v["queries_keys_values"], 3)
    return torch.bmm(v["attention"], value).transpose(0, 1).reshape(128, 8, 512)


def encdec_qk(torch: Any, v: Tensors) -> Any:
    """Scores of 8 heads of 64, keys from elsewhere."""
    (query,), (key, _) = _heads(v["queries"], 1), _heads(v["keys_values"], 2)
    return torch.bmm(query / 8, key.transpose(1, 2))


def encdec_valatt(torch: Any, v: Tensors) -> Any:
    """Values from elsewhere by attention, heads joined."""
    _, value = _heads(v["keys_values"], 2)
    return torch.bmm(v["attention"], value).transpose(0, 1).reshape(128, 8, 512)
