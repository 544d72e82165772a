"""Inception-v3: Szegedy et al. 2015, for images of 299 × 299 (75 × 75 at least)."""

from __future__ import annotations

from arrayexec import sym

Size = int | tuple[int, int]


class Builder:
    """Layers of one network whose filters are scaled by ``width``."""

    def __init__(self, width: float) -> None:
        self.width = width

    def conv(self, net: sym.Symbol, filters: int, size: Size, name: str, stride: int = 1, pad: Size = 0) -> sym.Symbol:
        """Convolution, norm, rectifier."""
        kernel, pads = (value if isinstance(value, tuple) else (value, value) for value in (size, pad))
        options = {"kernel": kernel, "stride": (stride, stride), "pad": pads, "no_bias": True}
        net = sym.Convolution(net, num_filter=int(filters * self.width), name=f"{name}_conv2d", **options)
        net = sym.BatchNorm(net, fix_gamma=True, name=f"{name}_batchnorm")
        return sym.Activation(net, act_type="relu", name=f"{name}_relu")

    def pool(self, net: sym.Symbol, kind: str, name: str, stride: int = 1, pad: int = 0) -> sym.Symbol:
        """Pooling over 3 × 3."""
        return sym.Pooling(net, kernel=(3, 3), stride=(stride, stride), pad=(pad, pad), pool_type=kind, name=name)

    def chain(self, net: sym.Symbol, name: str, *layers: tuple[int, Size, Size]) -> sym.Symbol:
        """Convolutions (filters, kernel, padding) after each other."""
        for number, (filters, size, pad) in enumerate(layers):
            net = self.conv(net, filters, size, f"{name}_{number}", pad=pad)
        return net

    def block_a(self, net: sym.Symbol, pooled: int, name: str) -> sym.Symbol:
        """35 × 35: 1×1, 5×5, two 3×3, pooling."""
        return sym.Concat(
            self.chain(net, f"{name}_one", (64, 1, 0)),
            self.chain(net, f"{name}_five", (48, 1, 0), (64, 5, 2)),
            self.chain(net, f"{name}_double", (64, 1, 0), (96, 3, 1), (96, 3, 1)),
            self.chain(self.pool(net, "avg", f"{name}_pool", pad=1), f"{name}_pooled", (pooled, 1, 0)),
            name=name,
        )

    def reduce_a(self, net: sym.Symbol, name: str) -> sym.Symbol:
        """35 × 35 to 17 × 17."""
        double = self.chain(net, f"{name}_double", (64, 1, 0), (96, 3, 1))
        return sym.Concat(
            self.conv(net, 384, 3, f"{name}_three", 2),
            self.conv(double, 96, 3, f"{name}_double_last", 2),
            self.pool(net, "max", f"{name}_pool", 2),
            name=name,
        )

    def block_b(self, net: sym.Symbol, inner: int, name: str) -> sym.Symbol:
        """17 × 17: 1×1, 7×7 and two 7×7 as rows and columns, pooling."""
        row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
        ways = [(inner, *column), (inner, *row), (inner, *column), (192, *row)]
        return sym.Concat(
            self.chain(net, f"{name}_one", (192, 1, 0)),
            self.chain(net, f"{name}_seven", (inner, 1, 0), (inner, *row), (192, *column)),
            self.chain(net, f"{name}_double", (inner, 1, 0), *ways),
            self.chain(self.pool(net, "avg", f"{name}_pool", pad=1), f"{name}_pooled", (192, 1, 0)),
            name=name,
        )

    def reduce_b(self, net: sym.Symbol, name: str) -> sym.Symbol:
        """17 × 17 to 8 × 8."""
        three = self.chain(net, f"{name}_three", (192, 1, 0))
        seven = self.chain(net, f"{name}_seven", (192, 1, 0), (192, (1, 7), (0, 3)), (192, (7, 1), (3, 0)))
        return sym.Concat(
            self.conv(three, 320, 3, f"{name}_three_last", 2),
            self.conv(seven, 192, 3, f"{name}_seven_last", 2),
            self.pool(net, "max", f"{name}_pool", 2),
            name=name,
        )

    def block_c(self, net: sym.Symbol, kind: str, name: str) -> sym.Symbol:
        """8 × 8: 1×1, 3×3 and two 3×3 split into rows and columns, pooling."""
        three = self.chain(net, f"{name}_three", (384, 1, 0))
        double = self.chain(net, f"{name}_double", (448, 1, 0), (384, 3, 1))
        split = [
            self.conv(way, 384, size, f"{title}_{place}", pad=pad)
            for way, title in ((three, f"{name}_three"), (double, f"{name}_double"))
            for place, size, pad in (("row", (1, 3), (0, 1)), ("column", (3, 1), (1, 0)))
        ]
        one = self.chain(net, f"{name}_one", (320, 1, 0))
        pooled = self.chain(self.pool(net, kind, f"{name}_pool", pad=1), f"{name}_pooled", (192, 1, 0))
        return sym.Concat(one, *split, pooled, name=name)


def get_symbol(num_classes: int = 1000, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w)."""
    b = Builder(width)
    net = b.conv(sym.Variable("data"), 32, 3, "conv", 2)
    net = b.conv(b.conv(net, 32, 3, "conv_1"), 64, 3, "conv_2", pad=1)
    net = b.pool(net, "max", "pool", 2)
    net = b.conv(b.conv(net, 80, 1, "conv_3"), 192, 3, "conv_4")
    net = b.pool(net, "max", "pool1", 2)
    for number, pooled in enumerate((32, 64, 64)):
        net = b.block_a(net, pooled, f"mixed_{number}")
    net = b.reduce_a(net, "mixed_3")
    for number, inner in enumerate((128, 160, 160, 192), 4):
        net = b.block_b(net, inner, f"mixed_{number}")
    net = b.reduce_b(net, "mixed_8")
    for number, kind in enumerate(("avg", "max"), 9):
        net = b.block_c(net, kind, f"mixed_{number}")
    net = sym.Pooling(net, kernel=(8, 8), global_pool=True, pool_type="avg", name="global_pool")
    net = sym.FullyConnected(sym.Flatten(net, name="flatten"), num_hidden=num_classes, name="fc1")
    return sym.SoftmaxOutput(net, name="softmax")
