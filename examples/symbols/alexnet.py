"""AlexNet: Krizhevsky et al. 2012, on one device."""

from __future__ import annotations

from arrayexec import sym


def convolution(net: sym.Symbol, filters: int, size: int, name: str, **options: object) -> sym.Symbol:
    """Convolution and rectifier."""
    net = sym.Convolution(net, kernel=(size, size), num_filter=filters, name=name, **options)
    return sym.Activation(net, act_type="relu", name=name.replace("conv", "relu"))


def get_symbol(num_classes: int = 1000, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w), 224 × 224 in the paper."""
    wide = [int(filters * width) for filters in (96, 256, 384, 384, 256)]
    net = sym.Variable("data")
    for stage, (size, options) in enumerate([(11, {"stride": (4, 4)}), (5, {"pad": (2, 2)})], 1):
        net = convolution(net, wide[stage - 1], size, f"conv{stage}", **options)
        net = sym.LRN(net, alpha=0.0001, beta=0.75, knorm=2, nsize=5, name=f"norm{stage}")
        net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pool_type="max", name=f"pool{stage}")
    for stage in (3, 4, 5):
        net = convolution(net, wide[stage - 1], 3, f"conv{stage}", pad=(1, 1))
    net = sym.Flatten(sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pool_type="max", name="pool5"))
    for number in (1, 2):
        net = sym.FullyConnected(net, num_hidden=int(4096 * width), name=f"fc{number}")
        net = sym.Activation(net, act_type="relu", name=f"fc{number}_relu")
        net = sym.Dropout(net, p=0.5, name=f"drop{number}")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=num_classes, name="fc3"), name="softmax")
