"""SqueezeNet 1.1: Iandola et al. 2016."""

from __future__ import annotations

from arrayexec import sym

FIRES = [(16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256)]


def convolution(net: sym.Symbol, filters: float, size: int, name: str, stride: int = 1, pad: int = 0) -> sym.Symbol:
    """Convolution and rectifier."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (pad, pad)}
    net = sym.Convolution(net, num_filter=int(filters), name=name, **options)
    return sym.Activation(net, act_type="relu", name=f"{name}_relu")


def pooling(net: sym.Symbol) -> sym.Symbol:
    """Largest of 3 × 3, every second."""
    return sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pool_type="max", pooling_convention="full")


def get_symbol(num_classes: int = 1000, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w)."""
    net = pooling(convolution(sym.Variable("data"), 64 * width, 3, "conv1", 2))
    for number, fire in enumerate(FIRES, 2):
        if fire is None:
            net = pooling(net)
            continue
        squeeze, expand = (filters * width for filters in fire)
        less = convolution(net, squeeze, 1, f"fire{number}_squeeze")
        ways = [
            convolution(less, expand, 1, f"fire{number}_expand1x1"),
            convolution(less, expand, 3, f"fire{number}_expand3x3", pad=1),
        ]
        net = sym.Concat(*ways, name=f"fire{number}")
    net = convolution(sym.Dropout(net, p=0.5), num_classes, 1, "conv10")
    net = sym.Pooling(net, kernel=(13, 13), global_pool=True, pool_type="avg", name="pool10")
    return sym.SoftmaxOutput(sym.Flatten(net), name="softmax")
