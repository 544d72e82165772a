"""A symbol run by PyTorch from its JSON alone, for its outputs and, through autograd, for every gradient.

A loss head outputs what it outputs; what it minimises is added to ``losses``, whose sum autograd goes back from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.networks.graph import Walker, pairs

Tensor = torch.Tensor
TORCH = Walker()
op, walk = TORCH.op, TORCH.walk  # the extra argument: the list of losses


@op("Convolution", "Deconvolution")
def convolution(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    rank, transposed = len(a["kernel"]), "adj" in a or len(x[1]) != a["num_filter"]
    options = {"stride": pairs(a, "stride", rank, 1), "padding": pairs(a, "pad", rank, 0), "groups": a.get("num_group", 1)}
    bias = x[2] if len(x) > 2 else None
    if transposed:
        return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1](x[0], x[1], bias, **options)
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](x[0], x[1], bias, dilation=pairs(a, "dilate", rank, 1), **options)


@op("Pooling")
def pooling(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    if a.get("global_pool"):
        return x[0].mean((2, 3), keepdim=True)
    options = {"stride": pairs(a, "stride", 2, 1), "padding": pairs(a, "pad", 2, 0), "ceil_mode": a.get("pooling_convention") == "full"}
    return (F.max_pool2d if a["pool_type"] == "max" else F.avg_pool2d)(x[0], a["kernel"], **options)


@op("BatchNorm")
def batch_norm(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    data, gamma, beta, mean, variance = x
    return F.batch_norm(data, mean, variance, None if a.get("fix_gamma", True) else gamma, beta, False, 0.0, a.get("eps", 1e-3))


@op("FullyConnected")
def fully_connected(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    return F.linear(x[0].flatten(1) if a.get("flatten", True) else x[0], x[1], x[2] if len(x) > 2 else None)


@op("Activation", "LeakyReLU")
def activation(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    kind = a.get("act_type", "leaky")
    if kind == "prelu":
        return F.prelu(x[0], x[1])
    if kind == "leaky":
        return F.leaky_relu(x[0], a.get("slope", 0.25))
    return {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu}[kind](x[0])


@op("SoftmaxOutput")
def softmax_output(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    data, label = x[0].flatten(2) if x[0].ndim > 2 else x[0], x[1].long()
    ignored = a.get("ignore_label", -1) if a.get("use_ignore") else -100
    loss = F.cross_entropy(data, label, reduction="sum", ignore_index=int(ignored)) * a.get("grad_scale", 1.0)
    norm = a.get("normalization", "null")
    if norm == "null" and a.get("multi_output"):
        loss = loss / data[0, 0].numel()
    counted = {"null": 1, "batch": len(data), "valid": max(int((label != a.get("ignore_label", -1)).sum()), 1)}
    losses.append(loss / counted[norm])
    return x[0].softmax(1)


@op("LogisticRegressionOutput")
def logistic(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    losses.append(F.binary_cross_entropy_with_logits(x[0], x[1].view_as(x[0]), reduction="sum") * len(x[0]) / x[1].numel())
    return x[0].sigmoid()


@op("MakeLoss")
def make_loss(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    losses.append(x[0].sum() * a.get("grad_scale", 1.0))
    return x[0]


@op("softmax")
def softmax(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    return x[0].softmax(a.get("axis", -1))


@op("Reshape")
def reshape(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    data, codes = x[0], list(a["shape"])
    for place in range(16):  # one code after the other, as views of the whole
        if place >= len(codes):
            break
        if codes[place] == -3:
            data, codes[place] = data.flatten(place, place + 1), 0
        elif codes[place] == -4:
            parts = codes[place + 1 : place + 3]
            data, codes[place : place + 3] = data.unflatten(place, parts), [0, 0]
        elif codes[place] > 0 or codes[place] == -1:
            return data.reshape([data.shape[i] if code == 0 else code for i, code in enumerate(codes)])
    return data


@op("_zeros")
def zeros(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    return torch.zeros([dim or 1 for dim in a["shape"]], dtype=torch.float64)


@op("SliceChannel")
def slice_channel(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> tuple[Tensor, ...]:
    axis = a.get("axis", 1)
    parts = x[0].chunk(a["num_outputs"], axis)
    return tuple(part.squeeze(axis) if a.get("squeeze_axis") else part for part in parts)


@op("smooth_l1")
def smooth_l1(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    return F.smooth_l1_loss(x[0], torch.zeros_like(x[0]), reduction="none", beta=1 / a["scalar"] ** 2)


@op("one_hot")
def one_hot(x: Sequence[Tensor], a: Mapping[str, Any], losses: list[Tensor]) -> Tensor:
    return F.one_hot(x[0].long(), a["depth"]).double()


TORCH.short({
    "Flatten": lambda x, a: x[0].flatten(1),
    "Concat": lambda x, a: torch.cat([v.expand(len(x[-1]), *v.shape[1:]) if len(v) == 1 else v for v in x], a.get("dim", 1)),
    "transpose": lambda x, a: x[0].permute(a["axes"]),
    "expand_dims": lambda x, a: x[0].unsqueeze(a["axis"]),
    "LRN": lambda x, a: F.local_response_norm(x[0], a["nsize"], a["alpha"], a["beta"], a["knorm"]),
    "L2Normalization": lambda x, a: F.normalize(x[0], dim=1) if a["mode"] == "channel" else F.normalize(x[0].flatten(1)).view_as(x[0]),
    "LayerNorm": lambda x, a: F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2], a.get("eps", 1e-5)),
    "Embedding": lambda x, a: F.embedding(x[0].long(), x[1]),
    "UpSampling": lambda x, a: F.interpolate(x[0], scale_factor=a["scale"], mode="nearest"),
    "Crop": lambda x, a: x[0][:, :, : x[1].shape[2], : x[1].shape[3]],
    "batch_dot": lambda x, a: (x[0].mT if a.get("transpose_a") else x[0]) @ (x[1].mT if a.get("transpose_b") else x[1]),
    "pick": lambda x, a: x[0].gather(1, x[1].long()[:, None])[:, 0],
    "clip": lambda x, a: x[0].clamp(a["a_min"], a["a_max"]),
    "Dropout": lambda x, a: x[0],
    "BlockGrad": lambda x, a: x[0].detach(),
    "cos": lambda x, a: x[0].cos(),
    "arccos": lambda x, a: x[0].arccos(),
    "_plus_scalar": lambda x, a: x[0] + a["scalar"],
    "_mul_scalar": lambda x, a: x[0] * a["scalar"],
    "_div_scalar": lambda x, a: x[0] / a["scalar"],
    "_rminus_scalar": lambda x, a: a["scalar"] - x[0],
    **dict.fromkeys(("elemwise_add", "_plus", "_Plus", "broadcast_add"), lambda x, a: x[0] + x[1]),
    **dict.fromkeys(("elemwise_sub", "_minus", "_Minus"), lambda x, a: x[0] - x[1]),
    **dict.fromkeys(("elemwise_mul", "_mul", "_Mul", "broadcast_mul"), lambda x, a: x[0] * x[1]),
})
