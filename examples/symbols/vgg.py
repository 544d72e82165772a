"""VGG with batch norm, 11 to 19 layers: Simonyan and Zisserman 2014."""

from __future__ import annotations

from arrayexec import sym

LAYERS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
FILTERS = (64, 128, 256, 512, 512)


def get_symbol(num_classes: int = 1000, depth: int = 16, batch_norm: bool = True, width: float = 1.0) -> sym.Symbol:
    """Softmax over ``num_classes`` of images (n, 3, h, w), 224 × 224 in the paper."""
    net = sym.Variable("data")
    for stage, (count, filters) in enumerate(zip(LAYERS[depth], FILTERS, strict=True), 1):
        for number in range(1, count + 1):
            name = f"{stage}_{number}"
            net = sym.Convolution(
                net, kernel=(3, 3), pad=(1, 1), num_filter=int(filters * width), name=f"conv{name}"
            )
            if batch_norm:
                net = sym.BatchNorm(net, name=f"bn{name}")
            net = sym.Activation(net, act_type="relu", name=f"relu{name}")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{stage}")
    net = sym.Flatten(net)
    for number in (6, 7):
        net = sym.FullyConnected(net, num_hidden=int(4096 * width), name=f"fc{number}")
        net = sym.Activation(net, act_type="relu", name=f"relu{number}")
        net = sym.Dropout(net, p=0.5, name=f"drop{number}")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=num_classes, name="fc8"), name="softmax")
