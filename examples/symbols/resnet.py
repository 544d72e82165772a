"""ResNet of any depth, v1 (norm after convolution) and v2 (norm before it): He et al. 2015, 2016.

Names are those of the MXNet example networks, so that their parameter files fit.
"""

from __future__ import annotations

from arrayexec import sym

UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
NORM = {"fix_gamma": False, "eps": 2e-5, "momentum": 0.9}


def convolution(net: sym.Symbol, filters: int, size: int, stride: int, name: str) -> sym.Symbol:
    """A square convolution that keeps the size, up to its stride, and has no bias: a norm follows."""
    options = {"kernel": (size, size), "stride": (stride, stride), "pad": (size // 2, size // 2), "no_bias": True}
    return sym.Convolution(net, num_filter=filters, name=name, **options)


def relu(net: sym.Symbol, name: str) -> sym.Symbol:
    """Rectifier."""
    return sym.Activation(net, act_type="relu", name=name)


def layers(filters: int, stride: int, bottleneck: bool) -> list[tuple[int, int, int]]:
    """(filters, kernel, stride) of the convolutions in one unit."""
    if bottleneck:
        return [(filters // 4, 1, 1), (filters // 4, 3, stride), (filters, 1, 1)]
    return [(filters, 3, stride), (filters, 3, 1)]


def unit_v1(net: sym.Symbol, filters: int, stride: int, match: bool, bottleneck: bool, name: str) -> sym.Symbol:
    """Convolutions each followed by a norm; the sum is rectified."""
    shortcut = net
    if not match:
        shortcut = convolution(net, filters, 1, stride, f"{name}_conv1sc")
        shortcut = sym.BatchNorm(shortcut, name=f"{name}_sc", **NORM)
    parts = layers(filters, stride, bottleneck)
    for number, (width, size, step) in enumerate(parts, 1):
        net = convolution(net, width, size, step, f"{name}_conv{number}")
        net = sym.BatchNorm(net, name=f"{name}_bn{number}", **NORM)
        if number < len(parts):
            net = relu(net, f"{name}_relu{number}")
    return relu(net + shortcut, f"{name}_relu{len(parts)}")


def unit_v2(net: sym.Symbol, filters: int, stride: int, match: bool, bottleneck: bool, name: str) -> sym.Symbol:
    """Each convolution preceded by norm and rectifier; the sum is left as it is."""
    shortcut = net
    for number, (width, size, step) in enumerate(layers(filters, stride, bottleneck), 1):
        net = relu(sym.BatchNorm(net, name=f"{name}_bn{number}", **NORM), f"{name}_relu{number}")
        if number == 1 and not match:
            shortcut = convolution(net, filters, 1, stride, f"{name}_sc")
        net = convolution(net, width, size, step, f"{name}_conv{number}")
    return net + shortcut


def get_symbol(num_classes: int = 1000, depth: int = 50, version: int = 2, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w); ``width`` scales the number of filters."""
    bottleneck = depth >= 50
    filters = [int(f * width) for f in ((64, 256, 512, 1024, 2048) if bottleneck else (64, 64, 128, 256, 512))]
    net = sym.Variable("data")
    if version == 2:
        net = sym.BatchNorm(net, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn_data")
    net = relu(sym.BatchNorm(convolution(net, filters[0], 7, 2, "conv0"), name="bn0", **NORM), "relu0")
    net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="pool0")
    unit = unit_v2 if version == 2 else unit_v1
    for stage, count in enumerate(UNITS[depth], 1):
        for number in range(1, count + 1):
            first = number == 1
            stride, match = 2 if first and stage > 1 else 1, not first or filters[stage] == filters[stage - 1]
            net = unit(net, filters[stage], stride, match, bottleneck, f"stage{stage}_unit{number}")
    if version == 2:
        net = relu(sym.BatchNorm(net, name="bn1", **NORM), "relu1")
    net = sym.Pooling(net, kernel=(7, 7), global_pool=True, pool_type="avg", name="pool1")
    net = sym.FullyConnected(sym.Flatten(net), num_hidden=num_classes, name="fc1")
    return sym.SoftmaxOutput(net, name="softmax")
