"""The measured nets written out in plain NumPy for one purpose each: arrays made once, ``out=`` everywhere, no engine.

What an engine on the same NumPy could reach at best. The author of such a step knows the whole net, so these use what
that knowledge gives: channels last, pooling before tanh, one product for all steps' inputs of an LSTM, the softmax of
10,000 words in pieces, one flat array for all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = Any
PIECE = 1 << 14
add, mul, sub, matmul, maximum = np.add, np.multiply, np.subtract, np.matmul, np.maximum


class Parameters:
    """Parameters, gradients and momenta, each in one flat array; ``p`` and ``g`` hold views of it by name.

    ``layouts`` names parameters kept in another order of axes: gradients come back in the order of the symbol.
    """

    def __init__(
        self, values: Mapping[str, Array], layouts: Mapping[str, Callable[[Array], Array]] | None = None
    ) -> None:
        layouts = layouts or {}
        turned = {n: layouts.get(n, lambda a: a)(v) for n, v in values.items()}
        total = sum(v.size for v in turned.values())
        self.flat, self.gradient, self.momentum = (np.zeros(total, "f") for _ in range(3))
        self.scratch = np.empty(PIECE, "f")
        self.p: dict[str, Array] = {}
        self.g: dict[str, Array] = {}
        start = 0
        for name, value in turned.items():
            for views, array in ((self.p, self.flat), (self.g, self.gradient)):
                views[name] = array[start : start + value.size].reshape(value.shape)
            self.p[name][...] = value
            start += value.size

    def update(self, lr: float = 1e-3, momentum: float = 0.9) -> None:
        """One step of SGD with momentum, in pieces that stay in the cache."""
        for start in range(0, self.flat.size, PIECE):
            part = slice(start, start + PIECE)
            m, w = self.momentum[part], self.flat[part]
            t = self.scratch[: len(m)]
            mul(self.gradient[part], lr, t)
            mul(m, momentum, m)
            sub(m, t, m)
            add(w, m, w)


class Loss:
    """Gradient of the mean cross-entropy of softmax(z), into ``d``; labels are places."""

    def __init__(self, rows: int, classes: int, over: int) -> None:
        self.column, self.over = np.empty((rows, 1), "f"), np.float32(1 / over)
        self.starts = np.arange(rows) * classes

    def __call__(self, z: Array, labels: Array, d: Array) -> None:
        column = self.column[: len(z)]
        z.max(1, keepdims=True, out=column)
        sub(z, column, d)
        np.exp(d, d)
        d.sum(1, keepdims=True, out=column)
        np.divide(self.over, column, column)
        mul(d, column, d)
        d.reshape(-1)[self.starts[: len(z)] + labels] -= self.over


class Dense:
    """Layers of products with relu between them."""

    def __init__(self, values: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        self.parameters, self.inputs = Parameters(values), inputs
        batch = len(inputs["data"])
        p = self.parameters.p
        self.layers = len(p) // 2
        widths = [inputs["data"].shape[1]] + [len(p[f"fc{i}_bias"]) for i in range(self.layers)]
        self.a = [np.empty((batch, width), "f") for width in widths]
        self.d = [np.empty((batch, width), "f") for width in widths]
        self.mask = np.empty((batch, max(widths)), bool)
        self.ones = np.ones(batch, "f")
        self.labels = np.empty(batch, "i8")
        self.loss = Loss(batch, widths[-1], batch)

    def gradients(self) -> dict[str, Array]:
        """Gradients by the symbol's names."""
        return self.parameters.g

    def step(self) -> None:
        """Forward and backward."""
        a, d, p, g, last = self.a, self.d, self.parameters.p, self.parameters.g, self.layers - 1
        np.copyto(a[0], self.inputs["data"])
        np.copyto(self.labels, self.inputs["softmax_label"], casting="unsafe")
        for i in range(self.layers):
            out = a[i + 1]
            matmul(a[i], p[f"fc{i}_weight"].T, out)
            add(out, p[f"fc{i}_bias"], out)
            if i < last:
                maximum(out, 0, out)
        self.loss(a[-1], self.labels, d[-1])
        for i in range(last, -1, -1):
            matmul(d[i + 1].T, a[i], g[f"fc{i}_weight"])
            matmul(self.ones, d[i + 1], g[f"fc{i}_bias"])
            if i:
                matmul(d[i + 1], p[f"fc{i}_weight"], d[i])
                mask = self.mask[:, : d[i].shape[1]]
                np.greater(a[i], 0, mask)
                mul(d[i], mask, d[i])


class Conv:
    """A convolution with channels last: windows of a few images at a time become rows of a matrix."""

    def __init__(self, source: Array, weight: Array, gradient: Array, stride: int, pad: int) -> None:
        """``source`` (n, h, w, c) is padded already; weight (k, k, c, f)."""
        self.source, self.stride, self.pad = source, stride, pad
        images, height, width, channels = source.shape
        self.k, filters = weight.shape[0], weight.shape[-1]
        self.oh, self.ow = (height - self.k) // stride + 1, (width - self.k) // stride + 1
        self.weight, self.gradient = weight.reshape(-1, filters), gradient.reshape(-1, filters)
        self.flipped = weight[::-1, ::-1].swapaxes(2, 3)
        depth = len(self.weight)
        self.count = max(1, min(images, (1 << 17) // (self.oh * self.ow * depth)))
        self.columns = np.empty((self.count, self.oh, self.ow, self.k, self.k * channels), "f")
        self.part = np.empty_like(self.gradient)
        a, b, c, d = source.strides
        self.windows = as_strided(source, (images, self.oh, self.ow, self.k, self.k * channels),
                                  (a, b * stride, c * stride, b, d))  # fmt: skip

    def tiles(self) -> Iterator[tuple[slice, Array]]:
        """Rows of some images at a time."""
        for start in range(0, len(self.source), self.count):
            rows = slice(start, min(start + self.count, len(self.source)))
            columns = self.columns[: rows.stop - start]
            np.copyto(columns, self.windows[rows])
            yield rows, columns.reshape(-1, len(self.weight))

    def forward(self, out: Array) -> None:
        """out (n, oh, ow, f)."""
        filters = self.weight.shape[1]
        for rows, columns in self.tiles():
            matmul(columns, self.weight, out[rows].reshape(-1, filters))

    def backward_weight(self, dout: Array) -> None:
        """Gradient of the weight."""
        filters = self.weight.shape[1]
        for number, (rows, columns) in enumerate(self.tiles()):
            matmul(columns.T, dout[rows].reshape(-1, filters), self.part if number else self.gradient)
            if number:
                add(self.gradient, self.part, self.gradient)

    def backward_data(self, dout: Array, dsource: Array) -> None:
        """Gradient of the padded source: columns are added back."""
        filters, s = self.weight.shape[1], self.stride
        for start in range(0, len(dout), self.count):
            rows = slice(start, min(start + self.count, len(dout)))
            columns = self.columns[: rows.stop - start]
            matmul(dout[rows].reshape(-1, filters), self.weight.T, columns.reshape(-1, len(self.weight)))
            target = dsource[rows]
            target.fill(0)
            cells = columns.reshape(*columns.shape[:3], self.k, self.k, -1)
            for i in range(self.k):
                for j in range(self.k):
                    place = target[:, i : i + (self.oh - 1) * s + 1 : s, j : j + (self.ow - 1) * s + 1 : s]
                    add(place, cells[:, :, :, i, j], place)


CHANNELS_LAST = (2, 3, 1, 0)


class LeNet:
    """Convolution, pooling, tanh, twice; two dense layers. tanh rises, so it follows the pooling: a quarter of it."""

    def __init__(self, values: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        last = dict.fromkeys(("conv0_weight", "conv1_weight"), lambda a: a.transpose(CHANNELS_LAST))
        last["fc0_weight"] = lambda a: a.reshape(-1, 50, 4, 4).transpose(0, 2, 3, 1).reshape(-1, 800)
        self.parameters, self.inputs = Parameters(values, last), inputs
        p, g, n = self.parameters.p, self.parameters.g, len(inputs["data"])
        self.x = np.empty((n, 28, 28, 1), "f")
        self.y = [np.empty((n, 24, 24, 20), "f"), np.empty((n, 8, 8, 50), "f")]
        self.top = [np.empty((n, 12, 12, 20), "f"), np.empty((n, 4, 4, 50), "f")]
        self.pooled, self.d, self.t = ([np.empty_like(a) for a in self.top] for _ in range(3))
        self.hit, self.left = ([np.empty(a.shape, bool) for a in self.top] for _ in range(2))
        self.conv = [Conv(source, p[f"conv{i}_weight"], g[f"conv{i}_weight"], 1, 0)
                     for i, source in enumerate((self.x, self.pooled[0]))]  # fmt: skip
        self.h, self.dh, self.th = (np.empty((n, 500), "f") for _ in range(3))
        self.z, self.dz = (np.empty((n, 10), "f") for _ in range(2))
        self.labels, self.loss, self.ones = np.empty(n, "i8"), Loss(n, 10, n), np.ones(n, "f")

    def gradients(self) -> dict[str, Array]:
        """Gradients by the symbol's names."""
        g = dict(self.parameters.g)
        for name in ("conv0_weight", "conv1_weight"):
            g[name] = g[name].transpose(3, 2, 0, 1)
        g["fc0_weight"] = g["fc0_weight"].reshape(-1, 4, 4, 50).transpose(0, 3, 1, 2).reshape(-1, 800)
        return g

    def step(self) -> None:
        """Forward and backward."""
        p, g, n = self.parameters.p, self.parameters.g, len(self.x)
        np.copyto(self.x[..., 0], self.inputs["data"][:, 0])
        np.copyto(self.labels, self.inputs["softmax_label"], casting="unsafe")
        for i in range(2):
            y, top = self.y[i], self.top[i]
            self.conv[i].forward(y)
            maximum(y[:, ::2, ::2], y[:, ::2, 1::2], top)
            maximum(top, y[:, 1::2, ::2], top)
            maximum(top, y[:, 1::2, 1::2], top)
            add(top, p[f"conv{i}_bias"], self.pooled[i])
            np.tanh(self.pooled[i], self.pooled[i])
        flat = self.pooled[1].reshape(n, 800)
        matmul(flat, p["fc0_weight"].T, self.h)
        add(self.h, p["fc0_bias"], self.h)
        np.tanh(self.h, self.h)
        matmul(self.h, p["fc1_weight"].T, self.z)
        add(self.z, p["fc1_bias"], self.z)
        self.loss(self.z, self.labels, self.dz)
        matmul(self.dz.T, self.h, g["fc1_weight"])
        matmul(self.ones, self.dz, g["fc1_bias"])
        matmul(self.dz, p["fc1_weight"], self.dh)
        slope(self.h, self.th)
        mul(self.dh, self.th, self.dh)
        matmul(self.dh.T, flat, g["fc0_weight"])
        matmul(self.ones, self.dh, g["fc0_bias"])
        matmul(self.dh, p["fc0_weight"], self.d[1].reshape(n, 800))
        for i in (1, 0):
            d, y, hit, left = self.d[i], self.y[i], self.hit[i], self.left[i]
            slope(self.pooled[i], self.t[i])
            mul(d, self.t[i], d)
            np.add.reduce(d.reshape(-1, d.shape[-1]), 0, out=g[f"conv{i}_bias"])
            left.fill(True)
            for a in (0, 1):
                for b in (0, 1):
                    place = y[:, a::2, b::2]
                    np.equal(place, self.top[i], hit)
                    np.logical_and(hit, left, hit)
                    np.logical_xor(left, hit, left)
                    mul(d, hit, place)
            self.conv[i].backward_weight(y)
            if i:
                self.conv[i].backward_data(y, self.d[0])


def slope(y: Array, out: Array) -> None:
    """1 - y²."""
    mul(y, y, out)
    sub(1, out, out)


class Norm:
    """Batch norm of (places, channels), several places side by side so that rows are long."""

    def __init__(self, x: Array, gamma: Array, beta: Array, dgamma: Array, dbeta: Array) -> None:
        self.gamma, self.beta, self.dgamma, self.dbeta = gamma, beta, dgamma, dbeta
        channels = x.shape[-1]
        self.count = x.size // channels
        self.side = 512 // channels
        self.shape = (self.count // self.side, self.side * channels)
        self.ones = np.ones(self.shape[0], "f")
        self.normed = np.empty(self.shape, "f")
        self.sums = np.empty(self.shape[1], "f")
        self.moving_mean, self.moving_var = np.zeros(channels, "f"), np.ones(channels, "f")

    def fold(self, lanes: Array) -> Array:
        return lanes.reshape(self.side, -1).sum(0)

    def spread(self, values: Array) -> Array:
        return np.tile(values, self.side)

    def forward(self, x: Array, out: Array) -> None:
        """In training."""
        x, out = x.reshape(self.shape), out.reshape(self.shape)
        mean = self.fold(matmul(self.ones, x, self.sums)) / self.count
        sub(x, self.spread(mean), self.normed)
        var = self.fold(np.einsum("ij,ij->j", self.normed, self.normed, out=self.sums)) / self.count
        self.scale = 1 / np.sqrt(var + np.float32(1e-5))
        mul(self.normed, self.spread(self.scale), self.normed)
        mul(self.normed, self.spread(self.gamma), out)
        add(out, self.spread(self.beta), out)
        for moving, now in ((self.moving_mean, mean), (self.moving_var, var)):
            moving *= 0.9
            moving += 0.1 * now

    def backward(self, dout: Array) -> None:
        """In place."""
        d = dout.reshape(self.shape)
        self.dbeta[:] = self.fold(matmul(self.ones, d, self.sums))
        self.dgamma[:] = self.fold(np.einsum("ij,ij->j", self.normed, d, out=self.sums))
        mul(self.normed, self.spread(self.dgamma / self.count), self.normed)
        sub(d, self.normed, d)
        sub(d, self.spread(self.dbeta / self.count), d)
        mul(d, self.spread(self.gamma * self.scale), d)


class ConvNorm:
    """Convolution and batch norm; its source is a padded array that its producer fills."""

    def __init__(self, owner: ResNet, source: Array, name: str, norm: str, stride: int, kernel: int) -> None:
        p, g = owner.parameters.p, owner.parameters.g
        if kernel == 1:
            source = source[:, 1:-1, 1:-1]
        self.conv = Conv(source, p[f"{name}_weight"], g[f"{name}_weight"], stride, 1)
        n, filters = len(source), p[f"{name}_weight"].shape[-1]
        self.y = np.empty((n, self.conv.oh, self.conv.ow, filters), "f")
        self.norm = Norm(self.y, *(a[f"{norm}_{part}"] for a in (p, g) for part in ("gamma", "beta")))
        self.mirror: Conv | None = None
        if kernel == 3 and stride == 1:  # the gradient of the source is a convolution of dout
            self.padded = np.zeros((n, self.conv.oh + 2, self.conv.ow + 2, filters), "f")
            self.turned = np.empty(self.conv.flipped.shape, "f")
            self.mirror = Conv(self.padded, self.turned, np.empty_like(self.turned), 1, 1)
        self.dsource = np.empty(source.shape, "f")

    def forward(self) -> Array:
        self.conv.forward(self.y)
        self.norm.forward(self.y, self.y)
        return self.y

    def backward(self, dout: Array, wants: bool = True) -> Array:
        """``dout`` is destroyed; the gradient of the source without its border."""
        self.norm.backward(dout)
        self.conv.backward_weight(dout)
        if not wants:
            return None
        if self.mirror is not None:
            np.copyto(self.padded[:, 1:-1, 1:-1], dout)
            np.copyto(self.turned, self.conv.flipped)
            result = self.inner()
            self.mirror.forward(result)
            return result
        self.conv.backward_data(dout, self.dsource)
        return self.dsource[:, 1:-1, 1:-1] if self.conv.k == 3 else self.dsource

    def inner(self) -> Array:
        n, h, w, c = self.dsource.shape
        return self.dsource.reshape(-1)[: n * (h - 2) * (w - 2) * c].reshape(n, h - 2, w - 2, c)


class ResNet:
    """ResNet-20 of the workload."""

    def __init__(self, values: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        turned = {n: (lambda a: a.transpose(CHANNELS_LAST)) for n, v in values.items() if v.ndim == 4}
        self.parameters, self.inputs = Parameters(values, turned), inputs
        n = len(inputs["data"])
        self.x = np.zeros((n, 34, 34, 3), "f")
        self.first = ConvNorm(self, self.x, "conv", "norm", 1, 3)
        self.blocks: list[tuple[ConvNorm, ConvNorm, ConvNorm | None, Array, Array]] = []
        size, source = 32, np.zeros((n, 34, 34, 16), "f")
        self.entry = source
        for stage, filters in enumerate((16, 32, 64)):
            for block in range(3):
                name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
                size //= stride
                between, end = (np.zeros((n, size + 2, size + 2, filters), "f") for _ in range(2))
                a = ConvNorm(self, source, f"{name}_conv0", f"{name}_norm0", stride, 3)
                b = ConvNorm(self, between, f"{name}_conv1", f"{name}_norm1", 1, 3)
                s = ConvNorm(self, source, f"{name}_short", f"{name}_shortnorm", 2, 1) if stride == 2 else None
                self.blocks.append((a, b, s, between, end))
                source = end
        self.mean, self.dmean = np.empty((n, 64), "f"), np.empty((n, 64), "f")
        self.z, self.dz = np.empty((n, 10), "f"), np.empty((n, 10), "f")
        self.labels, self.loss, self.ones = np.empty(n, "i8"), Loss(n, 10, n), np.ones(n, "f")
        self.spare = {a.shape[1:]: (np.empty(a.shape, "f"), np.empty(a.shape, bool))
                      for a in (self.first.y, *(b[1].y for b in self.blocks))}  # fmt: skip

    def gradients(self) -> dict[str, Array]:
        """Gradients by the symbol's names."""
        return {n: a.transpose(3, 2, 0, 1) if a.ndim == 4 else a for n, a in self.parameters.g.items()}

    def relu_backward(self, out: Array, d: Array) -> None:
        mask = self.spare[d.shape[1:]][1]
        np.greater(out[:, 1:-1, 1:-1], 0, mask)
        mul(d, mask, d)

    def step(self) -> None:
        """Forward and backward."""
        p, g = self.parameters.p, self.parameters.g
        np.copyto(self.x[:, 1:-1, 1:-1], self.inputs["data"].transpose(0, 2, 3, 1))
        np.copyto(self.labels, self.inputs["softmax_label"], casting="unsafe")
        maximum(self.first.forward(), 0, self.entry[:, 1:-1, 1:-1])
        source = self.entry
        for a, b, short, between, end in self.blocks:
            maximum(a.forward(), 0, between[:, 1:-1, 1:-1])
            y = b.forward()
            add(y, source[:, 1:-1, 1:-1] if short is None else short.forward(), y)
            maximum(y, 0, end[:, 1:-1, 1:-1])
            source = end
        np.mean(source[:, 1:-1, 1:-1], axis=(1, 2), out=self.mean)
        matmul(self.mean, p["fc_weight"].T, self.z)
        add(self.z, p["fc_bias"], self.z)
        self.loss(self.z, self.labels, self.dz)
        matmul(self.dz.T, self.mean, g["fc_weight"])
        matmul(self.ones, self.dz, g["fc_bias"])
        matmul(self.dz, p["fc_weight"], self.dmean)
        mul(self.dmean, 1 / 64, self.dmean)
        d = self.blocks[-1][1].y
        np.copyto(d, self.dmean[:, None, None])
        for number in range(len(self.blocks) - 1, -1, -1):
            a, b, short, between, end = self.blocks[number]
            self.relu_backward(end, d)
            keep = self.spare[d.shape[1:]][0]
            np.copyto(keep, d)
            inner = b.backward(d)
            self.relu_backward(between, inner)
            back = a.backward(inner)
            d = self.blocks[number - 1][1].y if number else self.first.y
            add(back, keep if short is None else 0, d)
            if short is not None:
                rest = short.backward(keep)
                add(d, rest, d)
        self.relu_backward(self.entry, d)
        self.first.backward(d, wants=False)


class LSTM:
    """Two layers, time first."""

    CHUNK = 320

    def __init__(self, values: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        self.parameters, self.inputs = Parameters(values), inputs
        p = self.parameters.p
        batch, length = inputs["data"].shape
        words, hidden = p["fc_weight"].shape
        self.h_size, self.rows = hidden, batch * length
        self.x, self.dx = (np.empty((length, batch, hidden), "f") for _ in range(2))
        self.gates = [np.empty((length, batch, 4 * hidden), "f") for _ in range(2)]
        self.c, self.h = ([np.zeros((length + 1, batch, hidden), "f") for _ in range(2)] for _ in range(2))
        self.tc = [np.empty((length, batch, hidden), "f") for _ in range(2)]
        self.dh_all = np.empty((length, batch, hidden), "f")
        self.z = np.empty((self.CHUNK, words), "f")
        self.part = np.empty((words, hidden), "f")
        self.zh = np.empty((batch, 4 * hidden), "f")
        self.bias = np.empty(4 * hidden, "f")
        self.dh, self.dc, self.t, self.u = (np.empty((batch, hidden), "f") for _ in range(4))
        self.ids, self.labels = (np.empty((length, batch), "i8") for _ in range(2))
        self.loss, self.ones = Loss(self.CHUNK, words, self.rows), np.ones(self.rows, "f")

    def gradients(self) -> dict[str, Array]:
        """Gradients by the symbol's names."""
        return self.parameters.g

    def step(self) -> None:
        """Forward and backward."""
        p, g, n, size, length = self.parameters.p, self.parameters.g, self.rows, self.h_size, len(self.x)
        np.copyto(self.ids, self.inputs["data"].T, casting="unsafe")
        np.copyto(self.labels, self.inputs["softmax_label"].T, casting="unsafe")
        ids, labels = self.ids.reshape(-1), self.labels.reshape(-1)
        np.take(p["embed_weight"], ids, axis=0, out=self.x.reshape(n, -1), mode="clip")
        below = self.x
        i, f, q, o = (slice(k * size, (k + 1) * size) for k in range(4))
        t, u = self.t, self.u
        for layer in range(2):
            gates, c, h, tc = self.gates[layer], self.c[layer], self.h[layer], self.tc[layer]
            matmul(below.reshape(n, -1), p[f"l{layer}_i2h_weight"].T, gates.reshape(n, -1))
            add(p[f"l{layer}_i2h_bias"], p[f"l{layer}_h2h_bias"], self.bias)
            add(gates, self.bias, gates)
            weight = p[f"l{layer}_h2h_weight"].T
            for step in range(length):
                z = gates[step]
                if step:
                    matmul(h[step], weight, self.zh)
                    add(z, self.zh, z)
                for part in (z[:, : 2 * size], z[:, o]):
                    np.negative(part, part)
                    np.exp(part, part)
                    add(part, 1, part)
                    np.reciprocal(part, part)
                np.tanh(z[:, q], z[:, q])
                mul(z[:, i], z[:, q], c[step + 1])
                if step:
                    mul(z[:, f], c[step], t)
                    add(c[step + 1], t, c[step + 1])
                np.tanh(c[step + 1], tc[step])
                mul(z[:, o], tc[step], h[step + 1])
            below = h[1:]
        top, dtop = self.h[1][1:].reshape(n, -1), self.dh_all.reshape(n, -1)
        weight, bias = p["fc_weight"], p["fc_bias"]
        g["fc_bias"].fill(0)
        for start in range(0, n, self.CHUNK):
            rows = slice(start, min(start + self.CHUNK, n))
            z = self.z[: rows.stop - start]
            matmul(top[rows], weight.T, z)
            add(z, bias, z)
            self.loss(z, labels[rows], z)
            matmul(z, weight, dtop[rows])
            matmul(z.T, top[rows], self.part if start else g["fc_weight"])
            if start:
                add(g["fc_weight"], self.part, g["fc_weight"])
            g["fc_bias"] += matmul(self.ones[: len(z)], z)
        arriving = self.dh_all
        for layer in (1, 0):
            gates, c, h, tc = self.gates[layer], self.c[layer], self.h[layer], self.tc[layer]
            dh, dc, weight = self.dh, self.dc, p[f"l{layer}_h2h_weight"]
            dh.fill(0)
            dc.fill(0)
            for step in range(length - 1, -1, -1):
                z = gates[step]
                zi, zf, zq, zo = z[:, i], z[:, f], z[:, q], z[:, o]
                add(dh, arriving[step], dh)
                slope(tc[step], t)
                mul(t, zo, t)
                mul(t, dh, t)
                add(dc, t, dc)
                mul(dh, tc[step], t)
                sub(1, zo, u)
                mul(u, zo, u)
                mul(t, u, zo)
                slope(zq, t)
                mul(t, zi, t)
                mul(t, dc, t)
                sub(1, zi, u)
                mul(zi, u, zi)
                mul(zi, zq, zi)
                mul(zi, dc, zi)
                np.copyto(zq, t)
                sub(1, zf, u)
                mul(u, zf, u)
                mul(u, dc, u)
                mul(dc, zf, dc)
                mul(u, c[step], zf)
                if step:
                    matmul(z, weight, dh)
            flat = gates.reshape(n, -1)
            below = self.x if layer == 0 else self.h[0][1:]
            matmul(flat.T, below.reshape(n, -1), g[f"l{layer}_i2h_weight"])
            matmul(flat.T, h[:-1].reshape(n, -1), g[f"l{layer}_h2h_weight"])
            matmul(self.ones, flat, g[f"l{layer}_i2h_bias"])
            np.copyto(g[f"l{layer}_h2h_bias"], g[f"l{layer}_i2h_bias"])
            arriving = self.dx if layer == 0 else self.dh_all
            matmul(flat, p[f"l{layer}_i2h_weight"], arriving.reshape(n, -1))
        g["embed_weight"].fill(0)
        np.add.at(g["embed_weight"], ids, self.dx.reshape(n, -1))


class Tiny:
    """Straight lines of Python, one a ufunc call."""

    def __init__(self, values: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
        self.parameters = None
        space: dict[str, Any] = {"mul": mul, "add": add, "tanh": np.tanh, "sub": sub, "copyto": np.copyto}
        space |= {f"h{k}": np.empty(16, "f") for k in range(101)}
        space |= {name: np.empty(16, "f") for name in ("x", "y", "g", "gx", "gy", "t")}
        space |= {"given": inputs, "one": np.ones(16, "f")}
        lines = ["copyto(x, given['x']); copyto(y, given['y'])"]
        for k in range(0, 100, 4):
            h = "x" if k == 0 else f"h{k}"
            a, b, c, d = (f"h{k + i}" for i in range(1, 5))
            lines.append(f"mul({h}, y, {a}); add({a}, x, {b}); tanh({b}, {c}); sub({c}, y, {d})")
        lines.append("g.fill(1)")
        for k in range(96, -1, -4):
            h, first = ("x" if k == 0 else f"h{k}"), k == 96
            lines.append("sub(0, g, gy)" if first else "sub(gy, g, gy)")
            lines.append(f"mul(h{k + 3}, h{k + 3}, t); sub(one, t, t); mul(g, t, g)")
            lines.append("copyto(gx, g)" if first else "add(gx, g, gx)")
            lines.append(f"mul(g, {h}, t); add(gy, t, gy); mul(g, y, g)")
        lines.append("add(gx, g, gx)")
        exec("def step():\n" + "\n".join(f"  {line}" for line in lines), space)
        self.step: Callable[[], None] = space["step"]
        self.found = {"x": space["gx"], "y": space["gy"]}

    def gradients(self) -> dict[str, Array]:
        """Gradients by the symbol's names."""
        return self.found


BY_HAND: dict[str, Any] = {
    "mlp64": Dense, "mlp512": Dense, "chain": Dense, "lenet64": LeNet, "resnet20": ResNet, "tiny": Tiny,
    "lstm_10": LSTM, "lstm_30": LSTM, "lstm_60": LSTM,
}  # fmt: skip
