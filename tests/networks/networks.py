"""The networks of ``examples/symbols``, small and at full size, with arrays that keep numbers in range."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SYMBOLS = Path(__file__).resolve().parents[2] / "examples" / "symbols"


class Network(NamedTuple):
    """How one network is built: file, function, options and input shapes, small and at full size."""

    file: str
    options: Mapping[str, Any]
    full: Mapping[str, Any]
    small_shapes: Mapping[str, tuple[int, ...]]
    full_shapes: Mapping[str, tuple[int, ...]]
    function: str = "get_symbol"

    def build(self, full: bool = False) -> Any:
        """The symbol."""
        spec = importlib.util.spec_from_file_location(f"symbols_{self.file}", SYMBOLS / f"{self.file}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, self.function)(**(self.full if full else self.options))

    def shapes(self, full: bool = False) -> Mapping[str, tuple[int, ...]]:
        """Shapes of data and labels."""
        return self.full_shapes if full else self.small_shapes


def image(
    file: str, small: int = 64, size: int = 224, function: str = "get_symbol", batch: int = 2, **options: Any
) -> Network:
    """A classifier of images."""
    few = {} if function == "discriminator" else {"num_classes": 10}
    return Network(
        file, {**options, **few, "width": 0.25}, options, {"data": (batch, 3, small, small)}, {"data": (batch, 3, size, size)}, function
    )


ANCHORS = {stride: 2 * (64 // stride) ** 2 for stride in (32, 16, 8)}
FACES = {
    f"face_rpn_{what}_stride{stride}": (2, *values, count)
    for stride, count in ANCHORS.items()
    for what, values in (("label", ()),)
} | {
    f"face_rpn_{what}_{part}_stride{stride}": (2, 2 * values, count // 2)
    for stride, count in ANCHORS.items()
    for what, values in (("bbox", 4), ("landmark", 10))
    for part in ("target", "weight")
}

NETWORKS = {
    "resnet50_v1": image("resnet", version=1),
    "resnet50_v2": image("resnet", version=2),
    "inception_bn": image("inception_bn"),
    "inception_v3": image("inception_v3", 80, 299),
    "vgg16_bn": image("vgg"),
    "alexnet": image("alexnet", 96),
    "googlenet": image("googlenet"),
    "mobilenet_v1": image("mobilenet", version=1),
    "mobilenet_v2": image("mobilenet", version=2),
    "densenet121": image("densenet"),
    "squeezenet": image("squeezenet"),
    "dcgan_generator": Network(
        "dcgan", {"width": 0.25}, {}, {"rand": (2, 25, 1, 1)}, {"rand": (4, 100, 1, 1)}, "generator"
    ),
    "dcgan_discriminator": image("dcgan", 64, 64, "discriminator"),
    "seq2seq": Network(
        "seq2seq",
        {"words": 50, "embedding": 16, "units": 16},
        {},
        {"data": (2, 32), "target_data": (2, 32), "softmax_label": (2, 32)},
        {"data": (4, 32), "target_data": (4, 32), "softmax_label": (4, 32)},
    ),
    "text_cnn": Network("text_cnn", {"words": 100, "length": 32, "embedding": 32, "filters": 25}, {}, {"data": (3, 32)}, {"data": (8, 56)}),
    "transformer": Network(
        "transformer",
        {"units": 32, "count": 4, "hidden": 64},
        {},
        {"data": (2, 32, 32), "mask": (2, 32)},
        {"data": (4, 64, 512), "mask": (4, 64)},
    ),
    "arcface": Network("arcface", {"classes": 20, "size": 16, "width": 0.25, "dtype": "float64"}, {"dtype": "float64"}, {"data": (3, 3, 64, 64)}, {"data": (4, 3, 112, 112)}),
    "ssd": Network("ssd", {"classes": 3, "width": 0.25}, {}, {"data": (1, 3, 300, 300)}, {"data": (1, 3, 300, 300)}),
    "retinaface": Network("retinaface", {"width": 0.25}, {}, {"data": (2, 3, 64, 64), **FACES}, {"data": (2, 3, 64, 64), **FACES}),
}  # fmt: skip

LABELS = {"text_cnn": (0, 2), "dcgan_discriminator": (0, 2), "retinaface": (-1, 2)}  # from, before; -1 is ignored


def arrays(name: str, symbol: Any, shapes: Mapping[str, tuple[int, ...]], full: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and auxiliary states in float64: weights scaled by what they sum over, whole numbers for words and labels."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    arg_shapes, _, aux_shapes = symbol.infer_shape(**shapes)
    words = name in ("seq2seq", "text_cnn")
    args: dict[str, Any] = {}
    for key, shape in zip(symbol.list_arguments(), arg_shapes, strict=True):
        if key.endswith("label") or "_label_" in key or (words and key in ("data", "target_data")):
            args[key] = random.integers(*LABELS.get(name, (0, 10)), shape).astype(np.float64)
        elif key == "mask":
            args[key] = (np.arange(shape[1]) < random.integers(2, shape[1], (shape[0], 1))).astype(np.float64)
        elif key.endswith("gamma"):
            args[key] = random.uniform(0.5, 1.5, shape) if not key.startswith("relu") else random.uniform(0.1, 0.4, shape)
        elif key.endswith(("bias", "beta")):
            args[key] = random.normal(0, 0.1, shape)
        elif key.endswith("_scale"):
            args[key] = np.full(shape, 20.0)
        elif len(shape) > 1 and key.endswith("weight") and "face_rpn_bbox_weight" not in key and "landmark_weight" not in key:
            args[key] = random.normal(0, np.sqrt(1.5 / np.prod(shape[1:])), shape)
        else:
            args[key] = random.normal(0, 1, shape)
    aux = {
        key: random.uniform(0.5, 1.5, shape) if key.endswith("var") else random.normal(0, 0.1, shape)
        for key, shape in zip(symbol.list_auxiliary_states(), aux_shapes, strict=True)
    }
    return args, aux
