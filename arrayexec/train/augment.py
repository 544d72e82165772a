"""Images cut, resized, mirrored and coloured: functions, and augmenters that draw what they do at random.

Images are arrays (height, width, channels), red first; augmenters take one and give one. Random numbers
come from a stream of the program's one seed, or, inside `drawing_from`, from the stream that is given: an
iterator gives every image of every epoch its own, so that threads and ranks change nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from ..errors import AttributeValueError, ShapeError
from . import random
from .image_codec import Image, decode, resize

Aug = Callable[[Image], Image]
Size = tuple[int, int]

_STREAM: contextvars.ContextVar[numpy.random.Generator | None] = contextvars.ContextVar("stream", default=None)


@functools.lru_cache(maxsize=1)
def _stream_of(seed: int) -> numpy.random.Generator:
    return random.generator("image", seed=seed)


def stream() -> numpy.random.Generator:
    """The stream that augmenters draw from."""
    return _STREAM.get() or _stream_of(random.current_seed())


@contextlib.contextmanager
def drawing_from(generator: numpy.random.Generator) -> Iterator[None]:
    """Inside, augmenters draw from this stream."""
    token = _STREAM.set(generator)
    try:
        yield
    finally:
        _STREAM.reset(token)


def imdecode(buf: bytes, flag: int = 1, to_rgb: bool = True) -> Image:
    """The image (h, w, 3), or with ``flag=0`` grey (h, w, 1), of encoded bytes; ``to_rgb=False``: blue first."""
    image = decode(bytes(buf), flag != 0, "imdecode")
    return image if to_rgb or flag == 0 else numpy.ascontiguousarray(image[:, :, ::-1])


def imread(filename: str, flag: int = 1, to_rgb: bool = True) -> Image:
    """The image in a file; see `imdecode`."""
    with open(filename, "rb") as file:
        image = decode(file.read(), flag != 0, repr(filename))
    return image if to_rgb or flag == 0 else numpy.ascontiguousarray(image[:, :, ::-1])


def imresize(src: Image, w: int, h: int, interp: int = 1) -> Image:
    """The image in another size. ``interp`` 10 chooses a method at random; the others: `image_codec.resize`."""
    return resize(src, w, h, int(stream().integers(5)) if interp == 10 else interp)


def scale_down(src_size: Size, size: Size) -> Size:
    """The largest (w, h) of the proportions of ``size``, but not above it, that fits into ``src_size``."""
    (width, height), (w, h) = src_size, size
    if height < h:
        w, h = float(w * height) / h, height  # type: ignore[assignment]
    if width < w:
        w, h = width, float(h * width) / w  # type: ignore[assignment]
    return int(w), int(h)


def resize_short(src: Image, size: int, interp: int = 2) -> Image:
    """The image with its shorter edge of a length, in its proportions."""
    height, width = src.shape[:2]
    w, h = (size, size * height // width) if height > width else (size * width // height, size)
    return imresize(src, w, h, interp)


def fixed_crop(src: Image, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> Image:
    """The part of ``w`` x ``h`` pixels from (x0, y0), resized to ``size``. ShapeError where it does not lie inside."""
    height, width = src.shape[:2]
    if min(x0, y0) < 0 or min(w, h) < 1 or x0 + w > width or y0 + h > height:
        raise ShapeError(f"fixed_crop: {w} x {h} from ({x0}, {y0}) must lie inside the image of {width} x {height}")
    part = src[y0 : y0 + h, x0 : x0 + w]
    return part if size is None or tuple(size) == (w, h) else imresize(part, *size, interp)


def random_crop(src: Image, size: Size, interp: int = 2) -> tuple[Image, tuple[int, int, int, int]]:
    """A part of (w, h) at random and its (x0, y0, w, h); from a smaller image, the largest that fits, resized."""
    height, width = src.shape[:2]
    w, h = scale_down((width, height), size)
    x0, y0 = (int(stream().integers(room + 1)) for room in (width - w, height - h))
    return fixed_crop(src, x0, y0, w, h, size, interp), (x0, y0, w, h)


def center_crop(src: Image, size: Size, interp: int = 2) -> tuple[Image, tuple[int, int, int, int]]:
    """The part of (w, h) in the middle and its (x0, y0, w, h); from a smaller image, the largest that fits, resized."""
    height, width = src.shape[:2]
    w, h = scale_down((width, height), size)
    x0, y0 = (width - w) // 2, (height - h) // 2
    return fixed_crop(src, x0, y0, w, h, size, interp), (x0, y0, w, h)


def random_size_crop(
    src: Image, size: Size, area: float | tuple[float, float], ratio: tuple[float, float], interp: int = 2
) -> tuple[Image, tuple[int, int, int, int]]:
    """A part of random area (a share of the image) and random width / height, resized to ``size``; and its place."""
    height, width = src.shape[:2]
    least, most = (area, 1.0) if isinstance(area, (int, float)) else area
    draw = stream()
    for _ in range(10):
        pixels = draw.uniform(least, most) * height * width
        form = numpy.exp(draw.uniform(*numpy.log(ratio)))
        w, h = round(float(numpy.sqrt(pixels * form))), round(float(numpy.sqrt(pixels / form)))
        if 1 <= w <= width and 1 <= h <= height:
            x0, y0 = int(draw.integers(width - w + 1)), int(draw.integers(height - h + 1))
            return fixed_crop(src, x0, y0, w, h, size, interp), (x0, y0, w, h)
    return center_crop(src, size, interp)


def color_normalize(src: Image, mean: Any, std: Any = None) -> Image:
    """``(src - mean) / std`` as float32."""
    out = src.astype(numpy.float32)
    if mean is not None:
        out -= numpy.asarray(mean, numpy.float32)
    if std is not None:
        out /= numpy.asarray(std, numpy.float32)
    return out


class Augmenter:
    """An image becomes an image; a subclass gives ``__call__`` and hands its options on."""

    def __init__(self, **options: Any) -> None:
        self._options = {key: v.tolist() if hasattr(v, "tolist") else v for key, v in options.items()}

    def dumps(self) -> str:
        """Name and options as JSON."""
        return json.dumps([type(self).__name__.lower(), self._options])

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        raise AttributeValueError(f"{type(self).__name__}: an augmenter must define __call__(), but it does not")


class _List(Augmenter):
    def __init__(self, ts: Sequence[Aug]) -> None:
        super().__init__()
        self.ts = list(ts)

    def dumps(self) -> str:
        """Name, and what the members say."""
        members = [one.dumps() if isinstance(one, Augmenter) else repr(one) for one in self.ts]
        return json.dumps([type(self).__name__.lower(), members])


class SequentialAug(_List):
    """Augmenters one after the other."""

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        for one in self.ts:
            src = one(src)
        return src


class RandomOrderAug(_List):
    """Augmenters one after the other, in an order that is drawn."""

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        for number in stream().permutation(len(self.ts)).tolist():
            src = self.ts[number](src)
        return src


class ResizeAug(Augmenter):
    """The shorter edge gets a length."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """The image gets a size (w, h), whatever its proportions."""

    def __init__(self, size: Size, interp: int = 2) -> None:
        super().__init__(size=list(size), interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return imresize(src, *self.size, self.interp)


class RandomCropAug(ForceResizeAug):
    """A part of a size (w, h) at random."""

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return random_crop(src, self.size, self.interp)[0]


class CenterCropAug(ForceResizeAug):
    """The part of a size (w, h) in the middle."""

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return center_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """A part of random area and proportions, resized."""

    def __init__(self, size: Size, area: Any, ratio: tuple[float, float], interp: int = 2) -> None:
        super().__init__(size=list(size), area=area, ratio=list(ratio), interp=interp)
        self.size, self.area, self.ratio, self.interp = size, area, ratio, interp

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Left becomes right with a probability."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return src[:, ::-1] if stream().random() < self.p else src


class CastAug(Augmenter):
    """Another type."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return src.astype(self.typ)


class ColorNormalizeAug(Augmenter):
    """``(image - mean) / std``."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean, self.std = mean, std

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return color_normalize(src, self.mean, self.std)


_GREY = numpy.array([0.299, 0.587, 0.114], numpy.float32)


class _Jitter(Augmenter):
    """Mixes the image with another one that a subclass makes of it, in a share drawn from 1 ± amount."""

    option = ""

    def __init__(self, amount: float) -> None:
        super().__init__(**{self.option: amount})
        self.amount = amount

    def other(self, src: Image) -> Any:
        """What the image is mixed with."""
        return 0.0

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        share = numpy.float32(1 + stream().uniform(-self.amount, self.amount))
        return src * share + numpy.float32(1 - share) * numpy.float32(self.other(src))


class BrightnessJitterAug(_Jitter):
    """Brighter or darker by up to a share."""

    option = "brightness"


class ContrastJitterAug(_Jitter):
    """More or less contrast around the mean grey."""

    option = "contrast"

    def other(self, src: Image) -> Any:
        """The mean grey."""
        return (src @ _GREY).mean() if src.shape[2] == 3 else src.mean()


class SaturationJitterAug(_Jitter):
    """More or less colour."""

    option = "saturation"

    def other(self, src: Image) -> Any:
        """The grey image."""
        return (src @ _GREY)[:, :, None] if src.shape[2] == 3 else src


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation in an order that is drawn."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = ((BrightnessJitterAug, brightness), (ContrastJitterAug, contrast), (SaturationJitterAug, saturation))
        super().__init__([kind(amount) for kind, amount in kinds if amount > 0])


_TO_YIQ = numpy.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = numpy.linalg.inv(_TO_YIQ)


class HueJitterAug(Augmenter):
    """Colours turned by up to a share of half a circle."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        angle = numpy.pi * stream().uniform(-self.hue, self.hue)
        cos, sin = numpy.cos(angle), numpy.sin(angle)
        turn = _FROM_YIQ @ numpy.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ _TO_YIQ
        turned: Image = src @ turn.T.astype(numpy.float32)
        return turned


class LightingAug(Augmenter):
    """A colour added that is drawn along the principal components of colours."""

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd, self.eigval, self.eigvec = alphastd, eigval, eigvec

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        share = stream().normal(0, self.alphastd, 3)
        added: Image = numpy.asarray(self.eigvec) * share @ numpy.asarray(self.eigval)
        return src + added.astype(numpy.float32)


class RandomGrayAug(Augmenter):
    """Grey with a probability."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: Image) -> Image:
        """The changed image."""
        return numpy.repeat((src @ _GREY)[:, :, None], 3, axis=2) if stream().random() < self.p else src


PCA_VALUES = numpy.array([55.46, 4.794, 1.148])
PCA_VECTORS = numpy.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
IMAGENET_MEAN = numpy.array([123.68, 116.28, 103.53])
IMAGENET_STD = numpy.array([58.395, 57.12, 57.375])


def CreateAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """The usual augmenters for images of ``data_shape`` (channels, h, w); ``mean=True``, ``std=True``: ImageNet's.

    Raises AttributeValueError for ``rand_resize`` without ``rand_crop``.
    """
    size = (data_shape[2], data_shape[1])
    made: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize and not rand_crop:
        raise AttributeValueError("CreateAugmenter: rand_resize must come with rand_crop=True, but that is False")
    if rand_resize:
        made.append(RandomSizedCropAug(size, 0.08, (3 / 4, 4 / 3), inter_method))
    else:
        made.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    made += [HorizontalFlipAug(0.5)] if rand_mirror else []
    made.append(CastAug())
    if brightness or contrast or saturation:
        made.append(ColorJitterAug(brightness, contrast, saturation))
    made += [HueJitterAug(hue)] if hue else []
    made += [LightingAug(pca_noise, PCA_VALUES, PCA_VECTORS)] if pca_noise > 0 else []
    made += [RandomGrayAug(rand_gray)] if rand_gray > 0 else []
    mean = IMAGENET_MEAN if mean is True else mean
    std = IMAGENET_STD if std is True else std
    if mean is not None or std is not None:
        made.append(ColorNormalizeAug(mean, std))
    return made
